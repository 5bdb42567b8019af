//! The keys of decoders with attention and dense MLPs.

use serde_json::{Value, json};

use super::super::model::Model;
use super::keys::{Config, biases, copy, window_layers};
use crate::error::Error;

/// Adds the factors on queries that grow with the position. A model without them is a Mistral.
pub(in super::super) fn mistral3(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const BETA: &str = "attention.temperature_scale";
    let Some(beta) = model.number(BETA)?.filter(|beta| *beta != 0.0) else {
        config.insert("model_type".into(), "mistral".into());
        config.insert("architectures".into(), json!(["MistralForCausalLM"]));
        return Ok(());
    };
    let Some(scaling) = config.get_mut("rope_scaling").and_then(Value::as_object_mut) else {
        return Err(model.missing("rope.scaling.type"));
    };
    scaling.insert("llama_4_scaling_beta".into(), beta.into());
    if let Some(scale) = model.number("rope.scaling.yarn_log_multiplier")? {
        scaling.insert("mscale".into(), 1.0.into());
        scaling.insert("mscale_all_dim".into(), scale.into());
    }
    Ok(())
}

/// Adds the length of the pre-training, beyond which LongRoPE has other divisors.
pub(in super::super) fn phi3(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const ORIGINAL: &str = "rope.scaling.original_context_length";
    let original = match model.header.count(&model.key(ORIGINAL))? {
        Some(original) if model.long_rope[0].is_some() => original,
        _ => model.count("context_length")?,
    };
    config.insert("original_max_position_embeddings".into(), original.into());
    Ok(())
}

pub(in super::super) fn granite(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let keys = [
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("attention.scale", "attention_multiplier"),
        ("logit_scale", "logits_scaling"),
    ];
    copy(model, config, &keys)?;
    config.insert("attention_bias".into(), model.has_bias("attn_q").into());
    config.insert("mlp_bias".into(), model.has_bias("ffn_up").into());
    Ok(())
}

pub(in super::super) fn cohere(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    config.insert("use_qk_norm".into(), model.has("blk.0.attn_q_norm.weight").into());
    config.insert("attention_bias".into(), model.has_bias("attn_q").into());
    copy(model, config, &[("logit_scale", "logit_scale")])
}

pub(in super::super) fn starcoder2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    config.insert("use_bias".into(), model.has_bias("attn_q").into());
    Ok(())
}

pub(in super::super) fn stablelm(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let is_parallel = model.header.truth(&model.key("use_parallel_residual"))?.unwrap_or(false);
    config.insert("use_parallel_residual".into(), is_parallel.into());
    config.insert("use_qkv_bias".into(), model.has_bias("attn_q").into());
    config.insert("qk_layernorm".into(), model.is_in_a_layer("attn_q_norm.weight").into());
    Ok(())
}

/// An OLMo 2 with windows is an OLMo 3.
pub(in super::super) fn olmo2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    if config.contains_key("sliding_window") {
        config.insert("model_type".into(), "olmo3".into());
        config.insert("architectures".into(), json!(["Olmo3ForCausalLM"]));
        window_layers(model, config)?;
    }
    Ok(())
}

pub(in super::super) fn glm4(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const SECTIONS: &str = "rope.dimension_sections";
    if model.header.value(&model.key(SECTIONS)).is_some() {
        // The converter has reordered query and key, so that halves are rotated as llama.cpp
        // rotates positions of several dimensions. A text has equal positions in all of them.
        config.insert("millrace".into(), json!({"rope_interleaved": false}));
    }
    biases(model, config, &[("attn_q", "attention_bias")]);
    Ok(())
}

pub(in super::super) fn internlm2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    biases(model, config, &[("attn_q", "bias")]);
    Ok(())
}

/// The base of the rotation contains the factor of Hunyuan.
pub(in super::super) fn hunyuan(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    biases(model, config, &[("attn_q", "attention_bias")]);
    Ok(())
}

pub(in super::super) fn arcee(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    biases(model, config, &[("attn_q", "attention_bias"), ("ffn_up", "mlp_bias")]);
    Ok(())
}

pub(in super::super) fn ernie4_5(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    biases(model, config, &[("attn_q", "use_bias")]);
    Ok(())
}

pub(in super::super) fn cohere2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    window_layers(model, config)?;
    biases(model, config, &[("attn_q", "attention_bias")]);
    copy(model, config, &[("logit_scale", "logit_scale")])
}

/// The layers without positions are a property of the family in GGUF.
pub(in super::super) fn smollm3(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    config.insert("no_rope_layer_interval".into(), 4.into());
    biases(model, config, &[("attn_q", "attention_bias"), ("ffn_up", "mlp_bias")]);
    Ok(())
}

/// Layers of the model with 32 billion parameters.
const EXAONE4_32B_LAYERS: u64 = 64;

pub(in super::super) fn exaone4(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    window_layers(model, config)?;
    if !config.contains_key("sliding_window") {
        // Older files do not have the window of the largest model.
        let is_large = model.count("block_count")? == EXAONE4_32B_LAYERS;
        config.insert("sliding_window".into(), if is_large { 4096.into() } else { Value::Null });
    }
    Ok(())
}

pub(in super::super) fn seed_oss(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let keys = [("attn_q", "attention_bias"), ("attn_output", "attention_out_bias"), ("ffn_up", "mlp_bias")];
    biases(model, config, &keys);
    Ok(())
}

/// Adds what the file of an Apertus leaves out: the name of the activation function, whose numbers
/// are in arrays.
pub(in super::super) fn apertus(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    config.insert("hidden_act".into(), "xielu".into());
    config.entry("rope_scaling").or_insert_with(|| json!({"rope_type": "default"}));
    biases(model, config, &[("attn_q", "attention_bias")]);
    Ok(())
}
