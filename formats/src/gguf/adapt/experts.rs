//! The keys of mixtures of experts.

use serde_json::{Value, json};

use super::super::model::Model;
use super::dense::{granite, hunyuan, phi3};
use super::keys::{
    Config, QWEN_EXPERTS, SIGMOID, SOFTMAX, biases, copy, copy_counts, insist_on_gating, window_layers,
};
use crate::error::Error;
use crate::fault::FileFault;

/// Adds the experts of a file for `llama` that has them, which is a Mixtral.
pub(in super::super) fn mixtral(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    if !model.has_experts()? {
        return Ok(());
    }
    config.insert("model_type".into(), "mixtral".into());
    config.insert("architectures".into(), json!(["MixtralForCausalLM"]));
    copy_counts(
        model,
        config,
        &[("expert_count", "num_local_experts"), ("expert_used_count", "num_experts_per_tok")],
    )
}

pub(in super::super) fn qwen2_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    copy_counts(model, config, &QWEN_EXPERTS)?;
    let shared = [("expert_shared_feed_forward_length", "shared_expert_intermediate_size")];
    copy_counts(model, config, &shared)?;
    config.insert("norm_topk_prob".into(), false.into());
    config.insert("qkv_bias".into(), model.has_bias("attn_q").into());
    Ok(())
}

pub(in super::super) fn qwen3_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    copy_counts(model, config, &QWEN_EXPERTS)?;
    config.insert("norm_topk_prob".into(), true.into());
    config.insert("attention_bias".into(), model.has_bias("attn_q").into());
    Ok(())
}

pub(in super::super) fn gpt_oss(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let keys = [
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "intermediate_size"),
    ];
    copy_counts(model, config, &keys)?;
    biases(model, config, &[("attn_q", "attention_bias")]);
    // The model was trained with the limits of YaRN as they are, and the file does not say so.
    if let Some(scaling) = config.get_mut("rope_scaling").and_then(Value::as_object_mut) {
        scaling.insert("truncate".into(), false.into());
    }
    Ok(())
}

pub(in super::super) fn glm4_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    copy_counts(model, config, &[("leading_dense_block_count", "first_k_dense_replace")])?;
    config.insert("use_qk_norm".into(), model.is_in_a_layer("attn_q_norm.weight").into());
    biases(model, config, &[("attn_q", "attention_bias")]);
    sigmoid_experts(model, config)
}

pub(in super::super) fn dots1(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    copy_counts(model, config, &[("leading_dense_block_count", "first_k_dense_replace")])?;
    biases(model, config, &[("attn_q", "attention_bias")]);
    config.insert("sliding_window".into(), Value::Null);
    sigmoid_experts(model, config)
}

pub(in super::super) fn olmoe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_gating(model, SOFTMAX)?;
    let keys = [("expert_count", "num_experts"), ("expert_used_count", "num_experts_per_tok")];
    copy_counts(model, config, &keys)?;
    config.insert("norm_topk_prob".into(), false.into());
    biases(model, config, &[("attn_q", "attention_bias")]);
    Ok(())
}

/// Experts of the larger Llama 4, whose heads are not normalized.
const LLAMA4_MAVERICK_EXPERTS: u64 = 128;

/// Adds the experts of Llama 4. The file lacks the chunks, the rotated layers and the factors on
/// queries, so they are taken from the published models.
pub(in super::super) fn llama4(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const WINDOW: &str = "attention.sliding_window";
    insist_on_gating(model, SIGMOID)?;
    if model.header.count(&model.key(WINDOW))? == Some(0) {
        let reason = "says that no layer has chunks, which is read from config.json only; take the model in Hugging Face \
                      layout instead";
        return Err(model.fault(WINDOW, reason.to_owned()));
    }
    let width = config.remove("intermediate_size");
    config.insert("intermediate_size_mlp".into(), width.into());
    let keys = [
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "intermediate_size"),
        ("interleave_moe_layer_step", "interleave_moe_layer_step"),
    ];
    copy_counts(model, config, &keys)?;
    let is_normed = model.count("expert_count")? != LLAMA4_MAVERICK_EXPERTS;
    config.insert("use_qk_norm".into(), is_normed.into());
    biases(model, config, &[("attn_q", "attention_bias")]);
    Ok(())
}

pub(in super::super) fn hunyuan_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const SHARED: &str = "expert_shared_feed_forward_length";
    hunyuan(model, config)?;
    insist_on_gating(model, SOFTMAX)?;
    let keys = [
        ("expert_count", "num_experts"),
        ("expert_used_count", "moe_topk"),
        ("expert_feed_forward_length", "intermediate_size"),
    ];
    copy_counts(model, config, &keys)?;
    let (shared, width) = (model.count(SHARED)?, model.count("expert_feed_forward_length")?);
    match shared == width {
        true => Ok(()),
        false => Err(model.fault(SHARED, format!("is {shared}, and the experts have {width} features"))),
    }
}

pub(in super::super) fn ernie4_5_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_gating(model, SOFTMAX)?;
    let keys = [
        ("expert_count", "moe_num_experts"),
        ("expert_used_count", "moe_k"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_count", "moe_num_shared_experts"),
        ("leading_dense_block_count", "moe_layer_start_index"),
        ("interleave_moe_layer_step", "moe_layer_interval"),
    ];
    copy_counts(model, config, &keys)
}

/// Adds experts that are chosen by sigmoids and a bias, as DeepSeek-V3 has them.
pub(in super::super) fn sigmoid_experts(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_gating(model, SIGMOID)?;
    routed_experts(model, config)
}

/// Adds experts, shared ones and the groups that limit the choice.
pub(super) fn routed_experts(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let keys = [
        ("expert_count", "n_routed_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_count", "n_shared_experts"),
    ];
    copy_counts(model, config, &keys)?;
    copy(model, config, &[("expert_weights_scale", "routed_scaling_factor")])?;
    for (from, to) in [("expert_group_count", "n_group"), ("expert_group_used_count", "topk_group")] {
        config.insert(to.into(), model.header.count(&model.key(from))?.unwrap_or(1).into());
    }
    let normed = model.header.truth(&model.key("expert_weights_norm"))?.unwrap_or(false);
    config.insert("norm_topk_prob".into(), normed.into());
    Ok(())
}

pub(in super::super) fn minimax_m2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_gating(model, SIGMOID)?;
    let keys = [("expert_count", "num_local_experts"), ("expert_used_count", "num_experts_per_tok")];
    copy_counts(model, config, &keys)?;
    if let Some(width) = model.header.count(&model.key("expert_feed_forward_length"))? {
        config.insert("intermediate_size".into(), width.into());
    }
    Ok(())
}

pub(in super::super) fn granite_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    if model.has("blk.0.ffn_gate_shexp.weight") {
        let reason = "belongs to a shared expert, which is read from config.json only; take the model in Hugging Face \
                      layout instead";
        let tensor = "blk.0.ffn_gate_shexp.weight".to_owned();
        return Err(model.header.fault(FileFault::SpecialTensor { tensor, reason: reason.to_owned() }));
    }
    granite(model, config)?;
    let keys = [("expert_count", "num_local_experts"), ("expert_used_count", "num_experts_per_tok")];
    copy_counts(model, config, &keys)
}

/// Adds the experts of Phi-3.5 MoE. The file does not have the noise of the router, which is the
/// one of the published model.
pub(in super::super) fn phimoe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    phi3(model, config)?;
    let keys = [("expert_count", "num_local_experts"), ("expert_used_count", "num_experts_per_tok")];
    copy_counts(model, config, &keys)?;
    config.insert("lm_head_bias".into(), model.has("output.bias").into());
    biases(model, config, &[("attn_q", "attention_bias")]);
    Ok(())
}

pub(in super::super) fn exaone_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    window_layers(model, config)?;
    sigmoid_experts(model, config)?;
    for (from, to) in [("n_routed_experts", "num_experts"), ("n_shared_experts", "num_shared_experts")] {
        let count = config.remove(from);
        config.insert(to.into(), count.into());
    }
    let keys = [("leading_dense_block_count", "first_k_dense_replace")];
    copy_counts(model, config, &keys)
}
