//! Tests of all families together.

mod chatglm_6b;
mod configs;
mod contradictions;
mod dummy_quantized;
mod gemma4;
mod golden;
mod key_choice;
mod kimi_linear;
mod latents;
mod llama4;
mod minimax_m2;
mod models_page;
mod readme;
mod recurrent;
mod text_parts;
mod weights;

use std::path::{Path, PathBuf};

use millrace_formats::Source;
use serde_json::{Value, json};

use super::{LoadError, Overrides};
use crate::description::{DecoderSpec, Model};

/// Loads a model as if the operator had given no options.
fn load(source: &Source) -> Result<Model, LoadError> {
    super::load(source, &Overrides::default())
}

fn load_dummy(source: &Source) -> Result<Model, LoadError> {
    super::load_dummy(source, &Overrides::default())
}

/// The folder of a golden checkpoint.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/golden").join(name)
}

/// A small Llama.
fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    })
}

/// Returns `config` with the keys of `changes`. Keys with the string `absent` are removed.
fn changed(mut config: Value, changes: &Value) -> Value {
    let keys = config.as_object_mut().unwrap();
    for (key, value) in changes.as_object().unwrap() {
        if value == "absent" {
            keys.remove(key);
        } else {
            keys.insert(key.clone(), value.clone());
        }
    }
    config
}

/// A folder in memory with this `config.json` only.
fn config_only(config: &Value) -> Source {
    let bytes: &'static [u8] = config.to_string().into_bytes().leak();
    Source::Memory(vec![("config.json", bytes)].leak())
}

fn spec(config: &Value) -> Result<DecoderSpec, LoadError> {
    super::spec(&config_only(config))
}

/// A small model with experts.
pub(super) fn experts(model_type: &str, architecture: &str, changes: &Value) -> Value {
    let config = json!({
        "model_type": model_type, "architectures": [architecture], "num_hidden_layers": 4, "num_experts": 8,
        "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_routed_experts": 8, "num_local_experts": 8,
    });
    changed(changed(llama(), &config), changes)
}
