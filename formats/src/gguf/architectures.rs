//! The architectures whose files can be read: a row for each, with its names and keys.

use serde_json::{Map, Value, json};

use super::model::Model;
use super::names::{self, Naming};
use crate::error::Error;
use crate::fault::FileFault;

/// A value of `general.architecture` whose models can be served.
pub(super) struct Architecture {
    /// The value.
    pub(super) name: &'static str,
    /// The values of `model_type` and `architectures` of the same model in Hugging Face layout.
    pub(super) model_type: &'static str,
    pub(super) class: &'static str,
    /// Whether features `2 * i` and `2 * i + 1` are rotated together where the original model
    /// rotates others together, because the converter has reordered the rows of query and key.
    pub(super) interleaved: bool,
    pub(super) naming: Naming,
    /// The key of the epsilon of norms in the file, and in the configuration.
    pub(super) epsilon: (&'static str, &'static str),
    /// Whether the converter has added 1 to the scales of norms.
    pub(super) norms_plus_one: bool,
    pub(super) window: Window,
    /// Whether tensors with all experts are known.
    pub(super) has_experts: bool,
    /// Adds the keys that other architectures do not have.
    pub(super) adapt: fn(&Model<'_>, &mut Map<String, Value>) -> Result<(), Error>,
}

/// The meaning of a sliding window in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    /// A window is an error.
    Unknown,
    /// A model with a window is a Mistral.
    Mistral,
    /// All layers have it, or those that the family says.
    ByFamily,
}

const RMS: (&str, &str) = ("attention.layer_norm_rms_epsilon", "rms_norm_eps");

/// Llama, which the others differ from.
const LLAMA: Architecture = Architecture {
    name: "llama",
    model_type: "llama",
    class: "LlamaForCausalLM",
    interleaved: true,
    naming: names::LLAMA,
    epsilon: RMS,
    norms_plus_one: false,
    window: Window::Mistral,
    has_experts: true,
    adapt: mixtral,
};

/// A model in the layout of Llama without its peculiarities.
const PLAIN: Architecture =
    Architecture { interleaved: false, window: Window::Unknown, has_experts: false, adapt: nothing, ..LLAMA };

pub(super) const ARCHITECTURES: [Architecture; 16] = [
    LLAMA,
    // With query, key and value in tensors of their own, Baichuan 7B is a Llama.
    Architecture { name: "baichuan", interleaved: true, ..PLAIN },
    Architecture { name: "qwen2", model_type: "qwen2", class: "Qwen2ForCausalLM", ..PLAIN },
    Architecture { name: "qwen3", model_type: "qwen3", class: "Qwen3ForCausalLM", ..PLAIN },
    Architecture {
        name: "qwen2moe",
        model_type: "qwen2_moe",
        class: "Qwen2MoeForCausalLM",
        has_experts: true,
        naming: names::QWEN_MOE,
        adapt: qwen2_moe,
        ..PLAIN
    },
    Architecture {
        name: "qwen3moe",
        model_type: "qwen3_moe",
        class: "Qwen3MoeForCausalLM",
        has_experts: true,
        naming: names::QWEN_MOE,
        adapt: qwen3_moe,
        ..PLAIN
    },
    Architecture {
        name: "chatglm",
        model_type: "chatglm",
        class: "ChatGLMForConditionalGeneration",
        naming: names::CHATGLM,
        ..PLAIN
    },
    Architecture {
        name: "gemma",
        model_type: "gemma",
        class: "GemmaForCausalLM",
        norms_plus_one: true,
        ..PLAIN
    },
    Architecture {
        name: "gemma2",
        model_type: "gemma2",
        class: "Gemma2ForCausalLM",
        norms_plus_one: true,
        naming: names::SANDWICH,
        window: Window::ByFamily,
        adapt: gemma2,
        ..PLAIN
    },
    Architecture {
        name: "gemma3",
        model_type: "gemma3_text",
        class: "Gemma3ForCausalLM",
        norms_plus_one: true,
        naming: names::SANDWICH,
        window: Window::ByFamily,
        adapt: gemma3,
        ..PLAIN
    },
    Architecture {
        name: "phi3",
        model_type: "phi3",
        class: "Phi3ForCausalLM",
        naming: names::PHI3,
        window: Window::ByFamily,
        adapt: phi3,
        ..PLAIN
    },
    Architecture {
        name: "granite",
        model_type: "granite",
        class: "GraniteForCausalLM",
        interleaved: true,
        adapt: granite,
        ..PLAIN
    },
    // The original model rotates neighbors too.
    Architecture {
        name: "command-r",
        model_type: "cohere",
        class: "CohereForCausalLM",
        epsilon: ("attention.layer_norm_epsilon", "layer_norm_eps"),
        adapt: cohere,
        ..PLAIN
    },
    Architecture {
        name: "starcoder2",
        model_type: "starcoder2",
        class: "Starcoder2ForCausalLM",
        epsilon: ("attention.layer_norm_epsilon", "norm_epsilon"),
        naming: names::STARCODER2,
        window: Window::ByFamily,
        adapt: starcoder2,
        ..PLAIN
    },
    Architecture {
        name: "stablelm",
        model_type: "stablelm",
        class: "StableLmForCausalLM",
        epsilon: ("attention.layer_norm_epsilon", "layer_norm_eps"),
        adapt: stablelm,
        ..PLAIN
    },
    Architecture {
        name: "olmo2",
        model_type: "olmo2",
        class: "Olmo2ForCausalLM",
        naming: names::OLMO2,
        ..PLAIN
    },
];

type Config = Map<String, Value>;

fn nothing(_: &Model<'_>, _: &mut Config) -> Result<(), Error> {
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

fn copy_counts(model: &Model<'_>, config: &mut Config, keys: &[(&str, &str)]) -> Result<(), Error> {
    for (from, to) in keys {
        config.insert((*to).to_owned(), model.count(from)?.into());
    }
    Ok(())
}

/// Adds the experts of a file for `llama` that has them, which is a Mixtral.
fn mixtral(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

const QWEN_EXPERTS: [(&str, &str); 3] = [
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
];

fn qwen2_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    copy_counts(model, config, &QWEN_EXPERTS)?;
    let shared = [("expert_shared_feed_forward_length", "shared_expert_intermediate_size")];
    copy_counts(model, config, &shared)?;
    config.insert("norm_topk_prob".into(), false.into());
    config.insert("qkv_bias".into(), model.has("blk.0.attn_q.bias").into());
    Ok(())
}

fn qwen3_moe(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    copy_counts(model, config, &QWEN_EXPERTS)?;
    config.insert("norm_topk_prob".into(), true.into());
    config.insert("attention_bias".into(), model.has("blk.0.attn_q.bias").into());
    Ok(())
}

/// Adds the scale of scores. Files do not have it, unless a later program has written it: it is
/// that of the features of a head, except in the largest model, which has this many layers.
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

fn gemma2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

fn gemma3(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    if let Some(pattern) = model.number("attention.sliding_window_pattern")? {
        config.insert("sliding_window_pattern".into(), (pattern as u64).into());
    }
    let base = model.number("rope.freq_base_swa")?.unwrap_or(10_000.0);
    config.insert("rope_local_base_freq".into(), base.into());
    score_scale(model, config, 62)
}

fn phi3(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
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

fn granite(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let keys = [
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("attention.scale", "attention_multiplier"),
        ("logit_scale", "logits_scaling"),
    ];
    copy(model, config, &keys)?;
    config.insert("attention_bias".into(), model.has("blk.0.attn_q.bias").into());
    config.insert("mlp_bias".into(), model.has("blk.0.ffn_up.bias").into());
    Ok(())
}

fn cohere(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    config.insert("use_qk_norm".into(), model.has("blk.0.attn_q_norm.weight").into());
    config.insert("attention_bias".into(), model.has("blk.0.attn_q.bias").into());
    copy(model, config, &[("logit_scale", "logit_scale")])
}

fn starcoder2(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    config.insert("use_bias".into(), model.has("blk.0.attn_q.bias").into());
    Ok(())
}

fn stablelm(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    let is_parallel = model.header.truth(&model.key("use_parallel_residual"))?.unwrap_or(false);
    config.insert("use_parallel_residual".into(), is_parallel.into());
    config.insert("use_qkv_bias".into(), model.has("blk.0.attn_q.bias").into());
    Ok(())
}
