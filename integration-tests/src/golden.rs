//! Servers of golden checkpoints: small models with random weights. Transformers has computed the
//! texts that they generate.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::limits::{is_running, wait_until};
use crate::{Server, post};

/// The file with the prompts, and with what transformers made of them.
const GOLDEN: &str = "golden.safetensors";

/// Returns the folder of the golden checkpoints.
pub fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden")
}

/// A copy of a golden checkpoint beside the tokenizer of the demo model, whose first tokens are
/// single characters.
pub struct Golden {
    folder: TempDir,
    /// The checkpoint: the folder, or a file in it.
    path: PathBuf,
    /// The folder of the golden files.
    source: PathBuf,
}

impl Golden {
    /// Copies the checkpoint with this name.
    pub fn new(name: &str) -> Golden {
        Golden::copy(goldens().join(name))
    }

    /// Copies the checkpoint with this name that has a head which predicts further tokens.
    pub fn with_head(name: &str) -> Golden {
        Golden::copy(goldens().join("../golden-mtp").join(name))
    }

    /// Copies the GGUF file of the checkpoint with this name that has a head which predicts further
    /// tokens.
    pub fn file_with_head(name: &str) -> Golden {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        fs::copy(goldens().join("../golden-gguf/mtp").join(format!("{name}.gguf")), &path).unwrap();
        Golden { folder, path, source: goldens().join("../golden-mtp").join(name) }.with_tokenizer()
    }

    fn copy(source: PathBuf) -> Golden {
        let folder = tempfile::tempdir().unwrap();
        for file in fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().path()) {
            let file_name = file.file_name().unwrap();
            if file_name != GOLDEN {
                fs::copy(&file, folder.path().join(file_name)).unwrap();
            }
        }
        let path = folder.path().to_owned();
        Golden { folder, path, source }.with_tokenizer()
    }

    fn with_tokenizer(self) -> Golden {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tokenizer = root.join("../models/demo/tokenizer.json");
        fs::copy(tokenizer, self.folder.path().join("tokenizer.json")).unwrap();
        self
    }

    /// A model with as many positions as longer prompts need.
    pub fn with_positions(self, positions: usize) -> Golden {
        let path = self.folder.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["max_position_embeddings"] = json!(positions);
        fs::write(path, config.to_string()).unwrap();
        self
    }

    /// Gives the texts of most tokens other ids.
    pub fn shift_tokens(&self) {
        let path = self.folder.path().join("tokenizer.json");
        let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let vocab = tokenizer["model"]["vocab"].as_object_mut().unwrap();
        let (first, count) = (10, vocab.len() as u64);
        for id in vocab.values_mut().filter(|id| id.as_u64() >= Some(first)) {
            *id = json!(first + (id.as_u64().unwrap() + 1 - first) % (count - first));
        }
        fs::write(path, tokenizer.to_string()).unwrap();
    }

    /// Returns the path of the copy.
    pub fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Starts a server of it on the CPU in float32.
    pub fn serve(&self, flags: &[&str]) -> Server {
        self.serve_on("cpu", flags)
    }

    /// Starts a server of it on `device` in float32.
    pub fn serve_on(&self, device: &str, flags: &[&str]) -> Server {
        Server::start(&self.flags(device, flags))
    }

    /// Starts a server of it on the CPU, or returns the log of one that has ended instead.
    ///
    /// # Errors
    /// The log.
    pub fn try_serve(&self, flags: &[&str]) -> Result<Server, String> {
        let server = Server::start_loading(&self.flags("cpu", flags));
        let mut is_ready = false;
        let has_started = || {
            is_ready = server.get("/ready").0 == 200;
            is_ready || !is_running(server.pid())
        };
        wait_until("it is ready or has ended", has_started, || server.log());
        if is_ready { Ok(server) } else { Err(server.whole_log()) }
    }

    fn flags<'a>(&'a self, device: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
        [&["--model-id", self.path(), "--dtype", "float32", "--device", device][..], flags].concat()
    }

    /// Returns the prompts of the golden file, and what transformers generates after them.
    pub fn continuations(&self) -> Vec<(Vec<u32>, Vec<u32>)> {
        let ids = |name, i| self.ids(&format!("{name}.{i}"));
        (0..).map_while(|i| Some((ids("prompt_ids", i)?, ids("continuation_ids", i)?))).collect()
    }

    /// Returns the token ids in the golden file with this name, if there are some.
    pub fn ids(&self, name: &str) -> Option<Vec<u32>> {
        let bytes = fs::read(self.source.join(GOLDEN)).unwrap();
        let (length, rest) = bytes.split_at(8);
        let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
        let (header, data) = rest.split_at(length);
        let header: Value = serde_json::from_slice(header).unwrap();
        let tensor = header.get(name)?;
        assert_eq!(tensor["dtype"], "I32");
        let end = |end: usize| tensor["data_offsets"][end].as_u64().unwrap() as usize;
        let numbers = data[end(0)..end(1)].chunks_exact(4);
        Some(numbers.map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect())
    }
}

/// Returns the tokens that a greedy request generates, and the tokens of its prompt that were found
/// in the prefix cache.
pub fn generate(server: &Server, prompt: &[u32], count: usize) -> (Vec<u32>, usize) {
    let body = json!({
        "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true,
    });
    let answer = post(&server.url("/v1/completions"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let ids = answer.body["choices"][0]["token_ids"].as_array().unwrap();
    let ids = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
    (ids, answer.header("x-cached-tokens").unwrap().parse().unwrap())
}

/// Sends all prompts at the same time. Returns what is generated after each.
pub fn generate_together(server: &Server, prompts: &[Vec<u32>], count: usize) -> Vec<Vec<u32>> {
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            prompts.iter().map(|prompt| scope.spawn(|| generate(server, prompt, count).0)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}
