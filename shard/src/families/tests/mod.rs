//! Tests of all families together.

mod configs;
mod golden;
mod weights;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;

/// What is loaded when an operator says nothing.
fn load(source: &Source) -> Result<Model, Error> {
    super::load(source, &Overrides::default())
}

fn load_dummy(source: &Source) -> Result<Model, Error> {
    super::load_dummy(source, &Overrides::default())
}

/// The folder of a golden checkpoint.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../integration-tests/golden").join(name)
}

/// A small Llama.
fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 61, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    })
}

/// `config` with the keys of `changes`; those that are there with the string `absent` are removed.
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

fn spec(config: &Value) -> Result<DecoderSpec, Error> {
    read(&config_only(config), &Overrides::default()).map(|(_, _, spec)| spec)
}
