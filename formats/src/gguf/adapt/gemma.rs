//! The keys of Gemma 2 to 4.

use serde_json::{Value, json};

use super::super::model::Model;
use super::super::naming::ROPE_DIVISORS;
use super::super::value::Value as FileValue;
use super::keys::{Config, biases, check_count, copy_counts, window_layers};
use crate::error::Error;
use crate::fault::FileFault;

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

pub(in super::super) fn gemma2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

pub(in super::super) fn gemma3(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    if let Some(pattern) = model.number("attention.sliding_window_pattern")? {
        config.insert("sliding_window_pattern".into(), (pattern as u64).into());
    }
    let base = model.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
    config.insert("rope_local_base_freq".into(), base.into());
    score_scale(model, config, 62)
}

/// Adds the heads and rotations of Gemma 4, which differ between layers with and without a window,
/// the embeddings of its layers, and the layers that read the caches of others.
pub(in super::super) fn gemma4(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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
