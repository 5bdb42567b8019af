//! LoRA adapters of the demo model, with random numbers.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

/// The rank of the products.
const RANK: usize = 4;

/// Number of layers of the demo model.
const LAYERS: usize = 5;

/// The modules of a layer that the adapters change, with their inputs and outputs.
const MODULES: [(&str, usize, usize); 5] = [
    ("self_attn.q_proj", 128, 128),
    ("self_attn.v_proj", 128, 64),
    ("self_attn.o_proj", 128, 128),
    ("mlp.up_proj", 128, 384),
    ("mlp.down_proj", 384, 128),
];

/// The folder of an adapter in PEFT's layout. It is removed when this is dropped.
pub struct AdapterFolder(PathBuf);

impl AdapterFolder {
    /// Writes an adapter of the demo model. `name` must be unique within this process, and another
    /// `seed` gives other numbers.
    pub fn new(name: &str, seed: u64) -> AdapterFolder {
        let folder = std::env::temp_dir().join(format!("millrace-adapter-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for (file, bytes) in adapter_files(seed) {
            fs::write(folder.join(file), bytes).unwrap();
        }
        AdapterFolder(folder)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the value of `--lora-modules` that gives the adapter this name.
    pub fn named(&self, name: &str) -> String {
        format!("{name}={}", self.0.display())
    }
}

impl Drop for AdapterFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the files of an adapter of the demo model.
pub fn adapter_files(seed: u64) -> Vec<(String, Vec<u8>)> {
    let targets: Vec<&str> = MODULES.iter().filter_map(|(name, ..)| name.split('.').next_back()).collect();
    let config = json!({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "org/demo",
        "r": RANK, "lora_alpha": 4 * RANK, "lora_dropout": 0.0, "bias": "none", "inference_mode": true,
        "target_modules": targets,
    });
    vec![
        ("adapter_config.json".to_owned(), config.to_string().into_bytes()),
        ("adapter_model.safetensors".to_owned(), weights(seed)),
    ]
}

/// Returns a file in the format of safetensors: the length of the header, the header, and the
/// numbers.
fn weights(seed: u64) -> Vec<u8> {
    let (mut header, mut numbers) = (Map::new(), Vec::<u8>::new());
    let mut state = seed;
    for layer in 0..LAYERS {
        for (module, inputs, outputs) in MODULES {
            for (matrix, shape) in [("lora_A", [RANK, inputs]), ("lora_B", [outputs, RANK])] {
                let start = numbers.len();
                for _ in 0..shape[0] * shape[1] {
                    numbers.extend(random(&mut state).to_le_bytes());
                }
                let name = format!("base_model.model.model.layers.{layer}.{module}.{matrix}.weight");
                let about = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, numbers.len()]});
                header.insert(name, about);
            }
        }
    }
    let header = Value::Object(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &numbers].concat()
}

/// Returns a number between -0.1 and 0.1, by a linear congruential generator.
fn random(state: &mut u64) -> f32 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*state >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * 0.1
}
