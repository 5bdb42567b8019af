//! Adds the keys to a configuration that other architectures do not have.

use serde_json::{Map, Value, json};

use super::model::Model;
use super::names::ROPE_DIVISORS;
use super::value::Value as FileValue;
use crate::error::Error;
use crate::fault::FileFault;

pub(super) type Config = Map<String, Value>;

pub(super) fn nothing(_: &Model<'_>, _: &mut Config) -> Result<(), Error> {
    Ok(())
}

/// Copies numbers that must be there from keys of the file to keys of the configuration.
fn copy(model: &Model<'_>, config: &mut Config, keys: &[(&str, &str)]) -> Result<(), Error> {
    for (from, to) in keys {
        let number = model.number(from)?.ok_or_else(|| model.missing(from))?;
        config.insert((*to).to_owned(), number.into());
    }
    Ok(())
}

pub(super) fn copy_counts(
    model: &Model<'_>,
    config: &mut Config,
    keys: &[(&str, &str)],
) -> Result<(), Error> {
    for (from, to) in keys {
        config.insert((*to).to_owned(), model.count(from)?.into());
    }
    Ok(())
}

/// Adds the experts of a file for `llama` that has them, which is a Mixtral.
pub(super) fn mixtral(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

pub(super) const QWEN_EXPERTS: [(&str, &str); 3] = [
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
];

pub(super) fn qwen2_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    copy_counts(model, config, &QWEN_EXPERTS)?;
    let shared = [("expert_shared_feed_forward_length", "shared_expert_intermediate_size")];
    copy_counts(model, config, &shared)?;
    config.insert("norm_topk_prob".into(), false.into());
    config.insert("qkv_bias".into(), model.has_bias("attn_q").into());
    Ok(())
}

pub(super) fn qwen3_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    copy_counts(model, config, &QWEN_EXPERTS)?;
    config.insert("norm_topk_prob".into(), true.into());
    config.insert("attention_bias".into(), model.has_bias("attn_q").into());
    Ok(())
}

/// Adds the scale of scores. Only newer files have it. Otherwise it follows from the features of a
/// head, or, in the largest model, which has `largest` layers, from the hidden features per head.
fn score_scale(model: &Model<'_>, config: &mut Config, largest: u64) -> Result<(), Error> {
    let scalar = match model.number("attention.scale")? {
        Some(scale) if scale > 0.0 => scale.powi(-2),
        _ if model.count("block_count")? == largest => {
            model.count("embedding_length")? as f64 / model.count("attention.head_count")?.max(1) as f64
        }
        _ => config.get("head_dim").and_then(Value::as_f64).unwrap_or_default(),
    };
    config.insert("query_pre_attn_scalar".into(), scalar.into());
    Ok(())
}

pub(super) fn gemma2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    for (from, to) in [
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ] {
        if let Some(cap) = model.number(from)? {
            config.insert(to.into(), cap.into());
        }
    }
    score_scale(model, config, 46)
}

pub(super) fn gemma3(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    if let Some(pattern) = model.number("attention.sliding_window_pattern")? {
        config.insert("sliding_window_pattern".into(), (pattern as u64).into());
    }
    let base = model.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
    config.insert("rope_local_base_freq".into(), base.into());
    score_scale(model, config, 62)
}

/// Adds the heads and rotations of Gemma 4, which differ between layers with and without a window,
/// the embeddings of its layers, and the layers that read the caches of others.
pub(super) fn gemma4(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let width = model.header.count(&model.key("embedding_length_per_layer_input"))?.unwrap_or(0);
    config.insert("hidden_size_per_layer_input".into(), width.into());
    if let Some([rows, _]) = model.tensor("per_layer_token_embd.weight").map(|table| &table.shape[..]) {
        config.insert("vocab_size_per_layer_input".into(), (*rows).into());
    }
    gemma4_readers(model, config)?;
    if let Some(cap) = model.number("final_logit_softcapping")? {
        config.insert("final_logit_softcapping".into(), cap.into());
    }
    biases(model, config, &[("attn_q", "attention_bias")]);
    window_layers(model, config)?;
    gemma4_heads(model, config)?;
    gemma4_rotations(model, config)?;
    if model.has_experts()? {
        config.insert("enable_moe_block".into(), true.into());
        let keys = [
            ("expert_count", "num_experts"),
            ("expert_used_count", "top_k_experts"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
        ];
        copy_counts(model, config, &keys)?;
    }
    Ok(())
}

/// Adds the features of a head and the number of key/value heads. Layers with a window have the
/// usual sizes, and each layer that differs from them is listed.
fn gemma4_heads(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const KV_HEADS: &str = "attention.head_count_kv";
    const KINDS: &str = "attention.sliding_window_pattern";
    let layers = model.count("block_count")?;
    let kinds = model.header.array(&model.key(KINDS), |array, key| array.truths(key))?;
    let kinds = kinds.ok_or_else(|| model.missing(KINDS))?;
    check_count(model, KINDS, kinds.len())?;
    let key = model.key(KV_HEADS);
    let kv_heads = match model.header.value(&key) {
        Some(FileValue::Array(_)) => {
            model.header.array(&key, |array, key| array.counts(key))?.unwrap_or_default()
        }
        _ => (0..layers).map(|_| model.count(KV_HEADS)).collect::<Result<_, _>>()?,
    };
    check_count(model, KV_HEADS, kv_heads.len())?;
    let full = model.count("attention.key_length")?;
    let windowed = model.header.count(&model.key("attention.key_length_swa"))?.unwrap_or(full);
    let heads: Vec<(u64, u64)> =
        kinds.iter().map(|has_window| if *has_window { windowed } else { full }).zip(kv_heads).collect();
    let usual = kinds.iter().position(|has_window| *has_window).unwrap_or(0);
    let Some(&(head_dim, kv_heads)) = heads.get(usual) else { return Err(model.missing("block_count")) };
    config.insert("head_dim".into(), head_dim.into());
    config.insert("num_key_value_heads".into(), kv_heads.into());
    let others = heads.iter().enumerate().filter(|(_, other)| **other != (head_dim, kv_heads));
    let others: Config = others
        .map(|(layer, (head_dim, kv_heads))| {
            (layer.to_string(), json!({"head_dim": head_dim, "num_key_value_heads": kv_heads}))
        })
        .collect();
    config.insert("per_layer_config".into(), others.into());
    // Values that are not stored are the keys, in layers with a cache.
    let readers = model.header.count(&model.key(READERS))?.unwrap_or(0);
    let lacks_values = |layer: u64| {
        !model.has(&format!("blk.{layer}.attn_v.weight"))
            && !model.has(&format!("blk.{layer}.attn_qkv.weight"))
    };
    config.insert("attention_k_eq_v".into(), (0..layers.saturating_sub(readers)).any(lacks_values).into());
    Ok(())
}

/// The key with the number of last layers that read the caches of earlier ones.
const READERS: &str = "attention.shared_kv_layers";

/// Adds the number of layers that read the caches of earlier ones, and whether their MLPs are twice
/// as wide as others.
fn gemma4_readers(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const WIDTH: &str = "feed_forward_length";
    let readers = model.header.count(&model.key(READERS))?.unwrap_or(0);
    config.insert("num_kv_shared_layers".into(), readers.into());
    let widths = model.layer_counts(WIDTH)?;
    let [narrow, _, ..] = widths[..] else { return Ok(()) };
    check_count(model, WIDTH, widths.len())?;
    let (owners, readers) = widths.split_at(widths.len().saturating_sub(readers as usize));
    let wide = readers.first().copied().filter(|&width| width == narrow.saturating_mul(2));
    let others_are_narrow = owners.iter().all(|&width| width == narrow);
    if !others_are_narrow || readers.iter().any(|&width| width != wide.unwrap_or(narrow)) {
        let reason = "differs between layers, and not because all layers that read the caches of others have \
                      twice the features";
        return Err(model.fault(WIDTH, reason.to_owned()));
    }
    config.insert("use_double_wide_mlp".into(), wide.is_some().into());
    Ok(())
}

/// Adds the rotations of layers without and with a window. In those without, only the first pairs
/// of features are rotated: the frequencies of the others are divided by a huge number.
fn gemma4_rotations(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const HUGE: f32 = 1e29;
    let divisors = model.divisors.as_deref().unwrap_or_default();
    let rotated = divisors.iter().take_while(|divisor| **divisor == 1.0).count();
    if divisors[rotated..].iter().any(|divisor| *divisor < HUGE) {
        return Err(model.header.fault(FileFault::SpecialTensor {
            tensor: ROPE_DIVISORS.to_owned(),
            reason: "divides frequencies by other numbers than 1 and 1e30".to_owned(),
        }));
    }
    if rotated > 0 {
        config.remove("rope_scaling");
    }
    config.remove("partial_rotary_factor");
    let theta = config.remove("rope_theta");
    let full = match rotated {
        0 => json!({"rope_type": "default", "rope_theta": theta}),
        _ => {
            let share = rotated as f64 / divisors.len() as f64;
            json!({"rope_type": "proportional", "partial_rotary_factor": share, "rope_theta": theta})
        }
    };
    let theta = model.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
    let windowed = json!({"rope_type": "default", "rope_theta": theta});
    config.insert("rope_parameters".into(), json!({"full_attention": full, "sliding_attention": windowed}));
    Ok(())
}

/// Adds the factors on queries that grow with the position. A model without them is a Mistral.
pub(super) fn mistral3(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

pub(super) fn phi3(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const FACTORS: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];
    match FACTORS.into_iter().find(|name| model.has(name)) {
        Some(tensor) => {
            let reason = "is a scaling of the rotation that is read from config.json only; take the model in Hugging \
                          Face layout instead";
            Err(model.header.fault(FileFault::SpecialTensor { tensor: tensor.into(), reason: reason.into() }))
        }
        None => {
            config.insert("original_max_position_embeddings".into(), model.count("context_length")?.into());
            Ok(())
        }
    }
}

pub(super) fn granite(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

pub(super) fn cohere(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    config.insert("use_qk_norm".into(), model.has("blk.0.attn_q_norm.weight").into());
    config.insert("attention_bias".into(), model.has_bias("attn_q").into());
    copy(model, config, &[("logit_scale", "logit_scale")])
}

pub(super) fn starcoder2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    config.insert("use_bias".into(), model.has_bias("attn_q").into());
    Ok(())
}

pub(super) fn stablelm(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let is_parallel = model.header.truth(&model.key("use_parallel_residual"))?.unwrap_or(false);
    config.insert("use_parallel_residual".into(), is_parallel.into());
    config.insert("use_qkv_bias".into(), model.has_bias("attn_q").into());
    Ok(())
}

/// Adds whether query, key and value, and the other projections, have biases.
pub(super) fn biases(model: &Model<'_>, config: &mut Config, keys: &[(&str, &str)]) {
    for (tensor, key) in keys {
        config.insert((*key).to_owned(), model.has_bias(tensor).into());
    }
}

/// The functions by which the scores of experts are made, as `expert_gating_func` numbers them.
pub(super) const SOFTMAX: u64 = 1;
pub(super) const SIGMOID: u64 = 2;

/// Refuses a router whose scores are made by another function.
pub(super) fn insist_on_gating(model: &Model<'_>, function: u64) -> Result<(), Error> {
    const KEY: &str = "expert_gating_func";
    let name = if function == SIGMOID { "sigmoids" } else { "softmax" };
    match model.header.count(&model.key(KEY))? {
        // 0 stands for a file that does not say it.
        None | Some(0) => Ok(()),
        Some(found) if found == function => Ok(()),
        Some(other) => {
            Err(model.fault(KEY, format!("is {other}, and the family has only {name} ({function})")))
        }
    }
}

/// Refuses an array whose length is not the number of layers.
pub(super) fn check_count(model: &Model<'_>, name: &str, found: usize) -> Result<(), Error> {
    let layers = model.count("block_count")?;
    match found as u64 == layers {
        true => Ok(()),
        false => Err(model.fault(name, format!("has {found} entries for {layers} layers"))),
    }
}

/// Adds which layers have a window, if the file says so for each layer.
fn window_layers(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const KEY: &str = "attention.sliding_window_pattern";
    let key = model.key(KEY);
    match model.header.value(&key) {
        Some(FileValue::Array(_)) => {
            let layers = model.header.array(&key, |array, key| array.truths(key))?.unwrap_or_default();
            check_count(model, KEY, layers.len())?;
            let name = |has_window: bool| if has_window { "sliding_attention" } else { "full_attention" };
            config.insert("layer_types".into(), layers.into_iter().map(name).collect());
        }
        Some(_) => {
            let every = model.header.count(&key)?.unwrap_or_default();
            config.insert("sliding_window_pattern".into(), every.into());
        }
        None => {}
    }
    Ok(())
}

/// An OLMo 2 with windows is an OLMo 3.
pub(super) fn olmo2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    if config.contains_key("sliding_window") {
        config.insert("model_type".into(), "olmo3".into());
        config.insert("architectures".into(), json!(["Olmo3ForCausalLM"]));
        window_layers(model, config)?;
    }
    Ok(())
}

pub(super) fn gpt_oss(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

pub(super) fn glm4(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const SECTIONS: &str = "rope.dimension_sections";
    if model.header.value(&model.key(SECTIONS)).is_some() {
        let reason = "says that positions have several dimensions, and the converter has reordered the features of heads \
                      for them; take the model in Hugging Face layout instead";
        return Err(model.fault(SECTIONS, reason.to_owned()));
    }
    biases(model, config, &[("attn_q", "attention_bias")]);
    Ok(())
}

pub(super) fn glm4_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    copy_counts(model, config, &[("leading_dense_block_count", "first_k_dense_replace")])?;
    config.insert("use_qk_norm".into(), model.is_in_a_layer("attn_q_norm.weight").into());
    biases(model, config, &[("attn_q", "attention_bias")]);
    sigmoid_experts(model, config)
}

pub(super) fn dots1(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    copy_counts(model, config, &[("leading_dense_block_count", "first_k_dense_replace")])?;
    biases(model, config, &[("attn_q", "attention_bias")]);
    config.insert("sliding_window".into(), Value::Null);
    sigmoid_experts(model, config)
}

pub(super) fn olmoe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_gating(model, SOFTMAX)?;
    let keys = [("expert_count", "num_experts"), ("expert_used_count", "num_experts_per_tok")];
    copy_counts(model, config, &keys)?;
    config.insert("norm_topk_prob".into(), false.into());
    biases(model, config, &[("attn_q", "attention_bias")]);
    Ok(())
}

/// Experts of the larger Llama 4, whose heads are not normalized.
const LLAMA4_MAVERICK_EXPERTS: u64 = 128;

/// Adds the experts of Llama 4. Chunks, rotated layers and factors on queries are those of the
/// published models, and the file does not have them.
pub(super) fn llama4(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

/// The base of the rotation contains the factor of Hunyuan.
pub(super) fn hunyuan(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    biases(model, config, &[("attn_q", "attention_bias")]);
    Ok(())
}

pub(super) fn hunyuan_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

pub(super) fn arcee(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    biases(model, config, &[("attn_q", "attention_bias"), ("ffn_up", "mlp_bias")]);
    Ok(())
}

pub(super) fn ernie4_5(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    biases(model, config, &[("attn_q", "use_bias")]);
    Ok(())
}

pub(super) fn ernie4_5_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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
pub(super) fn sigmoid_experts(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_gating(model, SIGMOID)?;
    routed_experts(model, config)
}

/// Adds experts, shared ones and the groups that limit the choice.
fn routed_experts(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

/// Adds latent attention. A router with a softmax is one of DeepSeek-V2, and one with sigmoids one
/// of DeepSeek-V3, which GLM-4.7-Flash has too.
pub(super) fn deepseek2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    latent_attention(model, config)?;
    copy_counts(model, config, &[("leading_dense_block_count", "first_k_dense_replace")])?;
    // Old files of DeepSeek-V2 do not name the function.
    if model.header.count(&model.key("expert_gating_func"))? == Some(SIGMOID) {
        return sigmoid_experts(model, config);
    }
    config.insert("model_type".into(), "deepseek_v2".into());
    config.insert("architectures".into(), json!(["DeepseekV2ForCausalLM"]));
    insist_on_gating(model, SOFTMAX)?;
    routed_experts(model, config)?;
    let is_limited = config.get("n_group").and_then(Value::as_u64).is_some_and(|groups| groups > 1);
    let method = if is_limited { "group_limited_greedy" } else { "greedy" };
    config.insert("topk_method".into(), method.into());
    Ok(())
}

/// Adds the sizes of latent attention. In newer files, the lengths of keys and values are the
/// sizes of a cached row, and the sizes of heads have keys of their own.
fn latent_attention(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let either = |name: &str, older: &str| match model.header.count(&model.key(name))? {
        Some(length) => Ok(length),
        None => model.count(older),
    };
    let rotated = model.count("rope.dimension_count")?;
    let query = either("attention.key_length_mla", "attention.key_length")?;
    let Some(plain) = query.checked_sub(rotated) else {
        let reason = format!("is {rotated}, more than the {query} features of a head");
        return Err(model.fault("rope.dimension_count", reason));
    };
    let value = either("attention.value_length_mla", "attention.value_length")?;
    // Queries without a rank come from the residual stream.
    let query_rank = model.header.count(&model.key("attention.q_lora_rank"))?.filter(|rank| *rank > 0);
    for key in ["head_dim", "partial_rotary_factor"] {
        config.remove(key);
    }
    config.extend([
        ("qk_rope_head_dim".into(), rotated.into()),
        ("qk_nope_head_dim".into(), plain.into()),
        ("v_head_dim".into(), value.into()),
        ("q_lora_rank".into(), query_rank.into()),
        ("kv_lora_rank".into(), model.count("attention.kv_lora_rank")?.into()),
    ]);
    // The file has a tenth of the number in the configuration, which is the one for both factors.
    if let Some(scale) = model.number("rope.scaling.yarn_log_multiplier")?
        && let Some(scaling) = config.get_mut("rope_scaling").and_then(Value::as_object_mut)
    {
        scaling.remove("attention_factor");
        for key in ["mscale", "mscale_all_dim"] {
            scaling.insert(key.into(), (10.0 * scale).into());
        }
    }
    Ok(())
}

pub(super) fn minimax_m2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    insist_on_gating(model, SIGMOID)?;
    let keys = [("expert_count", "num_local_experts"), ("expert_used_count", "num_experts_per_tok")];
    copy_counts(model, config, &keys)?;
    if let Some(width) = model.header.count(&model.key("expert_feed_forward_length"))? {
        config.insert("intermediate_size".into(), width.into());
    }
    Ok(())
}

pub(super) fn granite_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

pub(super) fn cohere2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    window_layers(model, config)?;
    biases(model, config, &[("attn_q", "attention_bias")]);
    copy(model, config, &[("logit_scale", "logit_scale")])
}

/// The layers without positions are a property of the family in GGUF.
pub(super) fn smollm3(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    config.insert("no_rope_layer_interval".into(), 4.into());
    biases(model, config, &[("attn_q", "attention_bias"), ("ffn_up", "mlp_bias")]);
    Ok(())
}

/// Layers of the model with 32 billion parameters.
const EXAONE4_32B_LAYERS: u64 = 64;

pub(super) fn exaone4(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    window_layers(model, config)?;
    if !config.contains_key("sliding_window") {
        // Older files do not have the window of the largest model.
        let is_large = model.count("block_count")? == EXAONE4_32B_LAYERS;
        config.insert("sliding_window".into(), if is_large { 4096.into() } else { Value::Null });
    }
    Ok(())
}

pub(super) fn seed_oss(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let keys = [("attn_q", "attention_bias"), ("attn_output", "attention_out_bias"), ("ffn_up", "mlp_bias")];
    biases(model, config, &keys);
    Ok(())
}
