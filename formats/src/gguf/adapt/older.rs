//! The keys of the families before Llama, whose configurations have other names for the sizes.

use serde_json::json;

use super::super::model::Model;
use super::keys::{Config, biases};
use crate::error::Error;
use crate::fault::FileFault;

/// Gives keys of the configuration other names.
fn rename(config: &mut Config, keys: &[(&str, &str)]) {
    for (from, to) in keys {
        if let Some(value) = config.remove(*from) {
            config.insert((*to).to_owned(), value);
        }
    }
}

/// The names that GPT-2 has for the usual keys.
const GPT2_KEYS: [(&str, &str); 5] = [
    ("hidden_size", "n_embd"),
    ("num_hidden_layers", "n_layer"),
    ("num_attention_heads", "n_head"),
    ("intermediate_size", "n_inner"),
    ("max_position_embeddings", "n_positions"),
];

pub(in super::super) fn gpt2(_: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    rename(config, &GPT2_KEYS);
    Ok(())
}

/// Renames the keys of the first Qwen. The width in the file is the one of gate and up together, as
/// in its configuration.
pub(in super::super) fn qwen(_: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let keys = [
        ("head_dim", "kv_channels"),
        ("max_position_embeddings", "seq_length"),
        ("rope_theta", "rotary_emb_base"),
        ("partial_rotary_factor", "rotary_pct"),
    ];
    rename(config, &keys);
    Ok(())
}

/// Adds the only key and value head of StarCoder. With more heads, the order of the rows of query,
/// key and value would be in doubt.
pub(in super::super) fn starcoder(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const KV_HEADS: &str = "attention.head_count_kv";
    let heads = model.count(KV_HEADS)?;
    if heads != 1 {
        return Err(model.fault(KV_HEADS, format!("is {heads}, and the family has 1")));
    }
    config.insert("multi_query".into(), true.into());
    gpt2(model, config)
}

pub(in super::super) fn gpt_neox(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let is_parallel = model.header.truth(&model.key("use_parallel_residual"))?.unwrap_or(true);
    config.insert("use_parallel_residual".into(), is_parallel.into());
    biases(model, config, &[("attn_q", "attention_bias")]);
    Ok(())
}

pub(in super::super) fn bloom(_: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let keys = [
        ("num_attention_heads", "n_head"),
        ("num_hidden_layers", "n_layer"),
        ("intermediate_size", "n_inner"),
        ("max_position_embeddings", "seq_length"),
    ];
    rename(config, &keys);
    Ok(())
}

/// Adds the generation of a Falcon: one key and value head, or several of the newer ones. Those
/// with two norms before the branches are refused.
pub(in super::super) fn falcon(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const SECOND_NORM: &str = "attn_norm_2.weight";
    if model.is_in_a_layer(SECOND_NORM) {
        let reason = "belongs to a model with two norms before its branches, which is read from config.json only; take \
                      the model in Hugging Face layout instead";
        let tensor = format!("blk.0.{SECOND_NORM}");
        return Err(model.header.fault(FileFault::SpecialTensor { tensor, reason: reason.to_owned() }));
    }
    let is_new = model.count("attention.head_count_kv")? > 1;
    config.insert("new_decoder_architecture".into(), is_new.into());
    config.insert("multi_query".into(), true.into());
    config.insert("num_ln_in_parallel_attn".into(), 1.into());
    biases(model, config, &[("attn_q", "bias")]);
    let keys = [("num_key_value_heads", "num_kv_heads"), ("intermediate_size", "ffn_hidden_size")];
    rename(config, &keys);
    Ok(())
}

pub(in super::super) fn mpt(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const BIAS: &str = "attention.max_alibi_bias";
    let Some(max) = model.number(BIAS)?.filter(|max| *max > 0.0) else {
        return Err(model.fault(BIAS, "is 0, and learned positions are not supported".to_owned()));
    };
    let clip = model.number("attention.clamp_kqv")?.filter(|clip| *clip != 0.0);
    config.insert("attn_config".into(), json!({"alibi": true, "alibi_bias_max": max, "clip_qkv": clip}));
    let keys = [
        ("hidden_size", "d_model"),
        ("num_hidden_layers", "n_layers"),
        ("num_attention_heads", "n_heads"),
        ("max_position_embeddings", "max_seq_len"),
    ];
    rename(config, &keys);
    Ok(())
}
