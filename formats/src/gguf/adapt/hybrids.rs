//! Adds the keys of models with recurrent layers to a configuration.

use super::super::model::{KvHeads, Model};
use super::super::value::Value as FileValue;
use super::dense;
use super::experts::sigmoid_experts;
use super::keys::{self, Config};
use crate::error::Error;

/// The name of layers with attention in `layer_types`.
const ATTENTION: &str = "full_attention";

pub(in super::super) fn lfm2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    config.insert("layer_types".into(), attention_layers(model, "conv")?.into());
    config.insert("conv_L_cache".into(), model.count("shortconv.l_cache")?.into());
    // The width of the file is the adjusted one.
    config.insert("block_auto_adjust_ff_dim".into(), false.into());
    config.insert("conv_bias".into(), model.has_bias("shortconv.conv").into());
    Ok(())
}

/// Adds the experts of LFM2. Their weights are normalized and not scaled, which the file does not
/// say.
pub(in super::super) fn lfm2_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    lfm2(model, config)?;
    keys::insist_on_gating(model, keys::SIGMOID)?;
    keys::copy_counts(model, config, &keys::QWEN_EXPERTS)?;
    keys::copy_counts(model, config, &[("leading_dense_block_count", "num_dense_layers")])?;
    config.insert("use_expert_bias".into(), model.is_in_a_layer("exp_probs_b.bias").into());
    Ok(())
}

/// Returns the kinds of the layers. Those without key/value heads are of the kind `other`.
fn attention_layers(model: &Model<'_>, other: &'static str) -> Result<Vec<&'static str>, Error> {
    const KV_HEADS: &str = "attention.head_count_kv";
    let counts = model.header.array(&model.key(KV_HEADS), |array, key| array.counts(key))?;
    let counts = counts.ok_or_else(|| model.missing(KV_HEADS))?;
    keys::check_count(model, KV_HEADS, counts.len())?;
    Ok(counts.into_iter().map(|heads| if heads == 0 { other } else { ATTENTION }).collect())
}

/// Adds the gated delta nets of Qwen3-Next and Qwen3.5, and their experts.
pub(in super::super) fn delta_net(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let keys = [
        ("ssm.conv_kernel", "linear_conv_kernel_dim"),
        ("ssm.state_size", "linear_key_head_dim"),
        ("ssm.group_count", "linear_num_key_heads"),
        ("ssm.time_step_rank", "linear_num_value_heads"),
    ];
    keys::copy_counts(model, config, &keys)?;
    let heads = model.count("ssm.time_step_rank")?;
    config.insert("linear_value_head_dim".into(), share_of_width(model, heads)?.into());
    config.insert("layer_types".into(), delta_layers(model)?.into());
    if model.has_experts()? {
        keys::insist_on_gating(model, keys::SOFTMAX)?;
        keys::copy_counts(model, config, &keys::QWEN_EXPERTS)?;
        let shared = [("expert_shared_feed_forward_length", "shared_expert_intermediate_size")];
        keys::copy_counts(model, config, &shared)?;
        config.insert("norm_topk_prob".into(), true.into());
    }
    Ok(())
}

/// Returns the kinds of the layers: the file names the recurrent ones, or every how many layers
/// one has attention.
fn delta_layers(model: &Model<'_>) -> Result<Vec<&'static str>, Error> {
    const RECURRENT: &str = "attention.recurrent_layers";
    const INTERVAL: &str = "full_attention_interval";
    let name = |is_recurrent: bool| if is_recurrent { "linear_attention" } else { ATTENTION };
    let layers = model.layers()?;
    let key = model.key(RECURRENT);
    if let Some(FileValue::Array(_)) = model.header.value(&key) {
        let kinds = model.header.array(&key, |array, key| array.truths(key))?.unwrap_or_default();
        keys::check_count(model, RECURRENT, kinds.len())?;
        return Ok((0..layers).zip(kinds).map(|(_, is_recurrent)| name(is_recurrent)).collect());
    }
    let every = model.header.count(&model.key(INTERVAL))?.unwrap_or(4);
    if every == 0 {
        return Err(model.fault(INTERVAL, "is 0".to_owned()));
    }
    Ok((1..=layers).map(|layer| name(!layer.is_multiple_of(every))).collect())
}

/// Divides the features of all values of a recurrent layer evenly.
fn share_of_width(model: &Model<'_>, count: u64) -> Result<u64, Error> {
    const WIDTH: &str = "ssm.inner_size";
    let width = model.count(WIDTH)?;
    match width.checked_div(count) {
        Some(share) if share * count == width => Ok(share),
        _ => Err(model.fault(WIDTH, format!("is {width}, which is no multiple of {count}"))),
    }
}

/// Adds the sizes of Mamba-2 layers.
fn mamba(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let keys = [
        ("ssm.conv_kernel", "mamba_d_conv"),
        ("ssm.state_size", "mamba_d_state"),
        ("ssm.group_count", "mamba_n_groups"),
        ("ssm.time_step_rank", "mamba_n_heads"),
    ];
    keys::copy_counts(model, config, &keys)?;
    config.insert("mamba_conv_bias".into(), model.has_bias("ssm_conv1d").into());
    Ok(())
}

pub(in super::super) fn granite(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    dense::granite(model, config)?;
    mamba(model, config)?;
    let hidden = model.count("embedding_length")?;
    config.insert("mamba_expand".into(), share_of_width(model, hidden)?.into());
    config.insert("layer_types".into(), attention_layers(model, "mamba")?.into());
    // The key says that there are positions, whatever its name says.
    let rotates = model.header.truth(&model.key("rope.scaling.finetuned"))?.unwrap_or(false);
    config.insert("position_embedding_type".into(), if rotates { "rope" } else { "nope" }.into());
    if model.has_experts()? {
        let keys = [
            ("expert_count", "num_local_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_shared_feed_forward_length", "shared_intermediate_size"),
        ];
        keys::copy_counts(model, config, &keys)
    } else {
        config.insert("num_local_experts".into(), 0.into());
        let width = model.mlp_width(KvHeads::SomeLayers)?;
        config.insert("shared_intermediate_size".into(), width.into());
        Ok(())
    }
}

/// Adds the Mamba-2 layers of Falcon-H1. The converter multiplies the matrices by all factors.
pub(in super::super) fn falcon_h1(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    mamba(model, config)?;
    let heads = model.count("ssm.time_step_rank")?;
    config.insert("mamba_d_head".into(), share_of_width(model, heads)?.into());
    config.insert("mamba_d_ssm".into(), model.count("ssm.inner_size")?.into());
    config.insert("mamba_rms_norm".into(), model.is_in_a_layer("ssm_norm.weight").into());
    // The file does not say so, and llama.cpp computes no other order.
    config.insert("mamba_norm_before_gate".into(), false.into());
    let keys = [("attn_q", "attention_bias"), ("ffn_up", "mlp_bias"), ("ssm_out", "projectors_bias")];
    keys::biases(model, config, &keys);
    Ok(())
}

/// Adds the sizes of a Mamba-2. It has no attention, and the file has zeros for its sizes.
pub(in super::super) fn mamba2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    for key in ["num_attention_heads", "num_key_value_heads", "intermediate_size", "rope_theta"] {
        config.remove(key);
    }
    let keys = [
        ("ssm.conv_kernel", "conv_kernel"),
        ("ssm.state_size", "state_size"),
        ("ssm.group_count", "n_groups"),
        ("ssm.time_step_rank", "num_heads"),
    ];
    keys::copy_counts(model, config, &keys)?;
    let heads = model.count("ssm.time_step_rank")?;
    config.insert("head_dim".into(), share_of_width(model, heads)?.into());
    let hidden = model.count("embedding_length")?;
    config.insert("expand".into(), share_of_width(model, hidden)?.into());
    keys::biases(model, config, &[("ssm_conv1d", "use_conv_bias"), ("ssm_in", "use_bias")]);
    Ok(())
}

pub(in super::super) fn nemotron_h(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const LATENT: &str = "moe_latent_size";
    let keys = [
        ("ssm.conv_kernel", "conv_kernel"),
        ("ssm.state_size", "ssm_state_size"),
        ("ssm.group_count", "n_groups"),
        ("ssm.time_step_rank", "mamba_num_heads"),
    ];
    keys::copy_counts(model, config, &keys)?;
    let heads = model.count("ssm.time_step_rank")?;
    config.insert("mamba_head_dim".into(), share_of_width(model, heads)?.into());
    keys::biases(model, config, &[("ssm_conv1d", "use_conv_bias"), ("ffn_up", "mlp_bias")]);
    let branch = |layer: u64| {
        let has = |name: &str| model.has(&format!("blk.{layer}.{name}.weight"));
        match () {
            () if has("ssm_in") => "mamba",
            () if has("attn_q") || has("attn_qkv") => "attention",
            () if has("ffn_gate_inp") => "moe",
            () => "mlp",
        }
    };
    config.insert("layers_block_type".into(), (0..model.layers()?).map(branch).collect());
    if !model.has_experts()? {
        return Ok(());
    }
    if model.header.count(&model.key(LATENT))?.is_some_and(|size| size > 0) {
        let reason = "says that experts do not read the residual stream, which is not supported";
        return Err(model.fault(LATENT, reason.to_owned()));
    }
    let shared = [("expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size")];
    keys::copy_counts(model, config, &shared)?;
    sigmoid_experts(model, config)
}
