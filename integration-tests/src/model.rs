//! Modified copies of the demo model.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The id of `~` in the demo model's vocabulary. The model never generates this token.
pub const TILDE: u32 = 96;

/// A copy of the demo model's folder. It is removed when this is dropped.
pub struct ModelCopy(PathBuf);

impl ModelCopy {
    /// Copies the folder. `name` must be unique within this process.
    pub fn new(name: &str) -> ModelCopy {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
        let to = std::env::temp_dir().join(format!("millrace-{name}-{}", std::process::id()));
        fs::create_dir_all(&to).unwrap();
        for file in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
            fs::copy(from.join(file), to.join(file)).unwrap();
        }
        fs::copy(from.join("tokenizer_config.json"), to.join("tokenizer_config.json")).unwrap();
        ModelCopy(to)
    }

    /// Returns the path of the copy.
    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// Edits a JSON file.
    pub fn edit(&self, file: &str, change: impl FnOnce(&mut Value)) {
        let path = self.0.join(file);
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut json);
        fs::write(path, json.to_string()).unwrap();
    }

    /// Sets every element of the token's embedding to `value`. The output projection becomes a
    /// separate matrix with the original embeddings.
    pub fn overwrite_embedding(&self, token: u32, value: f32) {
        self.edit("config.json", |config| config["tie_word_embeddings"] = json!(false));
        let path = self.0.join("model.safetensors");
        let bytes = fs::read(&path).unwrap();
        let (length, rest) = bytes.split_at(8);
        let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
        let mut header: Value = serde_json::from_slice(&rest[..length]).unwrap();
        let mut data = rest[length..].to_vec();
        let embedding = header["model.embed_tokens.weight"].clone();
        let range = |of: &Value, end: usize| of["data_offsets"][end].as_u64().unwrap() as usize;
        let (start, end) = (range(&embedding, 0), range(&embedding, 1));
        assert_eq!(embedding["dtype"], "BF16");
        let mut head = embedding.clone();
        head["data_offsets"] = json!([data.len(), data.len() + end - start]);
        header["lm_head.weight"] = head;
        data.extend_from_within(start..end);
        let features = embedding["shape"][1].as_u64().unwrap() as usize;
        // A bfloat16 is the upper half of a float32.
        let value = (value.to_bits() >> 16) as u16;
        let row = start + token as usize * features * 2..start + (token as usize + 1) * features * 2;
        data[row].chunks_exact_mut(2).for_each(|place| place.copy_from_slice(&value.to_le_bytes()));
        let header = header.to_string();
        let all = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
        fs::write(path, all).unwrap();
    }
}

impl Drop for ModelCopy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
