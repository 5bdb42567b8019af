//! Serves models with recurrent layers: neither the other requests of a batch, nor a previous user
//! of a slot, nor the checkpoint that a prompt begins with changes an answer.

use std::fs;
use std::path::{Path, PathBuf};

use millrace_integration_tests::{Server, post, stream};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A golden checkpoint beside the tokenizer of the demo model, whose first tokens are single
/// characters.
pub(crate) struct Golden {
    folder: TempDir,
    name: &'static str,
}

impl Golden {
    pub(crate) fn new(name: &'static str) -> Golden {
        let (root, folder) = (Path::new(env!("CARGO_MANIFEST_DIR")), tempfile::tempdir().unwrap());
        let golden = root.join("golden").join(name);
        for file in ["config.json", "model.safetensors"] {
            fs::copy(golden.join(file), folder.path().join(file)).unwrap();
        }
        Golden { folder, name }.with_tokenizer()
    }

    fn with_tokenizer(self) -> Golden {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let tokenizer = root.join("../models/demo/tokenizer.json");
        fs::copy(tokenizer, self.folder.path().join("tokenizer.json")).unwrap();
        self
    }

    /// A model with as many positions as longer prompts need.
    pub(crate) fn with_positions(self, positions: usize) -> Golden {
        let path = self.folder.path().join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config["max_position_embeddings"] = json!(positions);
        fs::write(path, config.to_string()).unwrap();
        self
    }

    pub(crate) fn serve(&self, flags: &[&str]) -> Server {
        self.serve_on("cpu", flags)
    }

    pub(crate) fn serve_on(&self, device: &str, flags: &[&str]) -> Server {
        let model = self.folder.path().to_str().unwrap();
        Server::start(&[&["--model-id", model, "--dtype", "float32", "--device", device][..], flags].concat())
    }

    /// Returns the prompts of the golden file, and what transformers generates after them.
    fn continuations(&self) -> Vec<(Vec<u32>, Vec<u32>)> {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden");
        let bytes = fs::read(root.join(self.name).join("golden.safetensors")).unwrap();
        let (length, rest) = bytes.split_at(8);
        let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
        let (header, data) = rest.split_at(length);
        let header: Value = serde_json::from_slice(header).unwrap();
        let ids = |name: String| -> Option<Vec<u32>> {
            let tensor = header.get(name)?;
            assert_eq!(tensor["dtype"], "I32");
            let end = |end: usize| tensor["data_offsets"][end].as_u64().unwrap() as usize;
            let numbers = data[end(0)..end(1)].chunks_exact(4);
            Some(numbers.map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())).collect())
        };
        let pairs = (0..)
            .map_while(|i| Some((ids(format!("prompt_ids.{i}"))?, ids(format!("continuation_ids.{i}"))?)));
        pairs.collect()
    }
}

/// Prompts of different lengths. Two are equal, and one begins with another one.
fn prompts() -> Vec<Vec<u32>> {
    let of = |seed: u32, length: u32| (0..length).map(|i| 3 + (i * i * 7 + i * seed + seed) % 50).collect();
    let mut all: Vec<Vec<u32>> = (1..9).map(|seed| of(seed, 3 + seed * 37 % 34)).collect();
    all.push(all[4].clone());
    let longer = [&all[5][..], &[7, 9, 11]].concat();
    all.push(longer);
    all
}

/// Returns the tokens that a greedy request generates, and the tokens of its prompt that were found
/// in the prefix cache.
fn generate(server: &Server, prompt: &[u32], count: usize) -> (Vec<u32>, usize) {
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
fn generate_together(server: &Server, prompts: &[Vec<u32>], count: usize) -> Vec<Vec<u32>> {
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            prompts.iter().map(|prompt| scope.spawn(|| generate(server, prompt, count).0)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Returns the logprobs of the tokens of a prompt.
fn scores(server: &Server, prompt: &[u32]) -> Vec<f64> {
    let body = json!({"prompt": prompt, "echo": true, "logprobs": 1, "max_tokens": 0});
    let answer = post(&server.url("/v1/completions"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let logprobs = &answer.body["choices"][0]["logprobs"]["token_logprobs"];
    logprobs.as_array().unwrap().iter().filter_map(Value::as_f64).collect()
}

/// The families differ in the rule of their recurrence, and in what is beside it.
const NAMES: [&str; 6] =
    ["granitemoehybrid", "qwen3_next", "lfm2", "falcon_h1", "nemotron_h_experts", "kimi_linear"];

#[test]
fn a_batch_changes_no_answer() {
    for name in NAMES {
        let golden = Golden::new(name);
        let server = golden.serve(&[]);
        server.wait_for_log("prompts with the same prefix are shared at up to 32 checkpoints");
        for (prompt, continuation) in golden.continuations() {
            let (found, _) = generate(&server, &prompt, continuation.len());
            assert_eq!(found, continuation, "{name}: the greedy path of transformers");
        }
        let prompts = prompts();
        let alone: Vec<Vec<u32>> = prompts
            .iter()
            .map(|prompt| {
                let (ids, cached) = generate(&server, prompt, 20);
                assert_eq!(cached, 0, "{name}: it is too short for a checkpoint");
                ids
            })
            .collect();
        assert_ne!(alone[0], alone[1], "{name}: prompts matter");
        assert_eq!(generate_together(&server, &prompts, 20), alone, "{name}");
        // Each slot serves several sequences, and prompts are computed in pieces between the tokens
        // of other sequences.
        let small = golden.serve(&["--max-batch-size", "3", "--max-batch-prefill-tokens", "4"]);
        assert_eq!(generate_together(&small, &prompts, 20), alone, "{name} in pieces");
        for server in [server, small] {
            assert_eq!(server.metric("millrace_prefix_cache_hit_tokens_total"), 0.0, "{name}");
            assert_eq!(server.metric("millrace_state_checkpoints"), 0.0, "{name}");
        }
    }
}

/// Prompts with a common prefix of 150 tokens, one of which continues another one.
fn long_prompts() -> Vec<Vec<u32>> {
    let of = |seed: u32, length: u32| (0..length).map(move |i| 3 + (i * i * 7 + i * seed + seed) % 50);
    let prompt = |own: u32, length: u32| of(1, 150).chain(of(own, length)).collect::<Vec<u32>>();
    vec![prompt(2, 100), prompt(3, 90), prompt(4, 77), prompt(2, 180), prompt(2, 100)]
}

#[test]
fn a_prompt_that_begins_at_a_checkpoint_gets_the_same_answer() {
    for name in NAMES {
        let golden = Golden::new(name).with_positions(512);
        let prompts = long_prompts();
        let off = golden.serve(&["--state-checkpoints", "off"]);
        off.wait_for_log("prompts are not shared");
        let answers: Vec<Vec<u32>> = prompts.iter().map(|prompt| generate(&off, prompt, 20).0).collect();
        assert_eq!(generate(&off, &prompts[0], 20), (answers[0].clone(), 0), "{name}");
        for flags in [&[][..], &["--num-shard", "2"], &["--max-batch-prefill-tokens", "40"]] {
            let server = golden.serve(&[&["--state-checkpoints", "4"], flags].concat());
            let mut cached = Vec::new();
            for (prompt, answer) in prompts.iter().zip(&answers) {
                let (found, hit) = generate(&server, prompt, 20);
                assert_eq!(found, *answer, "{name} {flags:?}, {hit} cached tokens");
                cached.push(hit);
            }
            // The second prompt finds where it leaves the first one, and saves its states there.
            assert_eq!(cached, [0, 0, 144, 240, 240], "{name} {flags:?}");
            assert_eq!(generate_together(&server, &prompts, 20), answers, "{name} {flags:?}");
            assert_eq!(server.metric("millrace_state_checkpoints"), 4.0, "{name}");
        }
    }
}

/// The only slot has the state of a sequence whose client left in the middle of its prompt or of
/// its answer.
#[test]
fn the_slot_of_a_cancelled_request_leaks_no_state() {
    let golden = Golden::new("granitemoehybrid");
    let prompts = prompts();
    let fresh = generate(&golden.serve(&[]), &prompts[2], 20).0;
    let server = golden.serve(&["--max-batch-size", "1", "--max-batch-prefill-tokens", "1"]);
    for (prompt, tokens) in [(&prompts[0], 1), (&prompts[7], 0), (&prompts[1], 12)] {
        let body = json!({
            "prompt": prompt, "max_tokens": 64 - prompt.len(), "temperature": 0, "ignore_eos": true,
            "stream": true,
        });
        let mut events = stream(&server.url("/v1/completions"), &body);
        assert_eq!(events.status, 200);
        assert_eq!(events.by_ref().take(tokens).count(), tokens);
        drop(events);
        assert_eq!(generate(&server, &prompts[2], 20).0, fresh, "after {tokens} tokens");
    }
}

/// Ranks share the heads of recurrent layers.
#[test]
fn two_ranks_give_the_greedy_path_of_transformers() {
    for name in NAMES {
        let golden = Golden::new(name);
        let split = golden.serve(&["--num-shard", "2"]);
        for (prompt, continuation) in golden.continuations() {
            let (found, _) = generate(&split, &prompt, continuation.len());
            assert_eq!(found, continuation, "{name}");
        }
    }
}

/// Weights of 8 bits change the logprobs of a prompt slightly, and those of 4 bits more. The bounds
/// are about twice the distances. The weights are random and larger than trained ones, so that
/// rounding changes more than in real models, above all where a key of a gated delta net is short.
#[test]
fn quantized_models_score_close_to_exact_ones() {
    for (name, bound) in [
        ("granitemoehybrid_dense", 0.1),
        ("qwen3_5_text", 0.5),
        ("lfm2", 0.12),
        ("falcon_h1", 0.05),
        ("nemotron_h_experts", 0.015),
    ] {
        let golden = Golden::new(name);
        let text: Vec<u32> = golden.continuations().remove(0).0;
        let want = scores(&golden.serve(&[]), &text);
        assert!(want.len() + 1 == text.len() && want.iter().any(|logprob| *logprob < -1.0), "{want:?}");
        let distance = |format: &str| {
            let server = golden.serve(&["--quantize", format, "--activations", "exact"]);
            server.wait_for_log(&format!("matrices of layers as {format} on"));
            let found = scores(&server, &text);
            let sum: f64 = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).sum();
            sum / want.len() as f64
        };
        let [int8, q8_0, int4] = ["int8", "q8_0", "int4"].map(distance);
        println!("{name}: int8 {int8:.4}, q8_0 {q8_0:.4}, int4 {int4:.4} apart");
        assert!(int8 > 0.0 && int8 < bound && q8_0 < bound, "{name}: {int8} {q8_0}");
        assert!(int4 > 2.0 * int8, "{name}: {int4} {int8}");
    }
}
