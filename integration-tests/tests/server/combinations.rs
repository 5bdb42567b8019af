//! Pairs of features that no other test has: together they change no answer.

use millrace_integration_tests::golden::{Golden, generate_together};
use millrace_integration_tests::{SMALL_SERVER_FLAGS, Server, post, require_simulated_gpus};
use serde_json::{Value, json};

const DRAFTS: [&str; 3] = ["--speculate", "6", "--speculate-always"];

/// Requests of one kind each: an answer that repeats one token, several answers with
/// log-probabilities, and a grammar with log-probabilities.
fn requests() -> [Value; 3] {
    let facts = "the fox had a lantern and the owl had a map, ".repeat(4);
    let regex = json!({"regex": "( fox| owl){6}"});
    [
        json!({"prompt": facts, "max_tokens": 40, "temperature": 0, "logit_bias": {"99": 50}}),
        json!({"prompt": facts, "max_tokens": 24, "temperature": 0.8, "seed": 5, "n": 3, "logprobs": 2}),
        json!({"prompt": facts, "max_tokens": 40, "temperature": 0, "structured_outputs": regex, "logprobs": 2}),
    ]
}

/// Sends all requests together. Returns the choices, and the tokens of prompts that were cached.
fn answers(server: &Server) -> (Vec<Value>, u64) {
    let ask = |body: Value| {
        let answer = post(&server.url("/v1/completions"), &body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.body);
        let cached = answer.body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
        (answer.body["choices"].clone(), cached.unwrap_or_default())
    };
    std::thread::scope(|scope| {
        let clients = requests().map(|body| scope.spawn(move || ask(body)));
        let (choices, cached): (Vec<Value>, Vec<u64>) =
            clients.into_iter().map(|client| client.join().unwrap()).unzip();
        (choices, cached.iter().sum())
    })
}

/// Checks that servers with each of these flags answer as one with `base` alone does, the first
/// time and again.
fn change_no_answer(base: &[&str], flags: &[&[&str]]) {
    let alone = Server::start(&[base, &["--prefix-caching", "false", "--max-batch-size", "1"]].concat());
    let (wanted, cached) = answers(&alone);
    assert_eq!(cached, 0);
    assert_eq!(wanted[1].as_array().unwrap().len(), 3);
    let text = wanted[2][0]["text"].as_str().unwrap();
    assert!(text.len() == 24 && wanted[2][0]["logprobs"].is_object(), "{}", wanted[2]);
    for flags in flags {
        let server = Server::start(&[base, flags].concat());
        assert_eq!(answers(&server).0, wanted, "{flags:?}");
        let (again, cached) = answers(&server);
        assert_eq!(again, wanted, "{flags:?} again");
        assert!(cached > 0, "{flags:?}");
        let right = server.metric_of_all("vllm:spec_decode_num_accepted_tokens_total")
            + server.metric("vllm:spec_decode_num_accepted_tokens_total");
        assert_eq!(right > 0.0, flags.starts_with(&DRAFTS), "{flags:?}: {right} drafts were right");
    }
}

#[test]
fn quantized_weights_answer_alike_with_drafts_replicas_and_tiers() {
    let folder = tempfile::tempdir().unwrap();
    let disk = format!("--kv-disk={},50M", folder.path().display());
    let with_replicas = [&DRAFTS[..], &["--replicas", "2"]].concat();
    let flags = [&[][..], &DRAFTS, &["--replicas", "2"], &with_replicas, &[&disk]];
    change_no_answer(&["--device", "cpu", "--quantize", "q8_0"], &flags);
}

#[test]
fn groups_of_two_shards_answer_as_one_group_does() {
    change_no_answer(&["--device", "cpu", "--num-shard", "2"], &[&["--replicas", "2"]]);
}

/// Prompts that begin differently.
fn prompts() -> Vec<Vec<u32>> {
    (1..7).map(|seed| (0..30).map(|i| 3 + (i * i * 7 + i * seed + seed) % 50).collect()).collect()
}

#[test]
fn groups_with_recurrent_layers_answer_as_one_group_does() {
    let golden = Golden::new("lfm2").with_positions(512);
    let alone = generate_together(&golden.serve(&[]), &prompts(), 16);
    assert_eq!(generate_together(&golden.serve(&["--replicas", "2"]), &prompts(), 16), alone);
}

#[test]
fn groups_of_gpus_and_several_answers_on_a_gpu_are_those_of_one() {
    require_simulated_gpus();
    let golden = Golden::new("llama_gqa").with_positions(512);
    let prompts = &prompts()[..3];
    let alone = generate_together(&golden.serve_on("cuda-sim", &SMALL_SERVER_FLAGS), prompts, 4);
    let groups = golden.serve_on("cuda-sim", &[&SMALL_SERVER_FLAGS[..], &["--replicas", "2"]].concat());
    assert_eq!(generate_together(&groups, prompts, 4), alone);
    for (prompt, wanted) in prompts.iter().zip(&alone) {
        let body = json!({
            "prompt": prompt, "max_tokens": 4, "temperature": 0, "n": 2, "ignore_eos": true, "return_token_ids": true,
        });
        let answer = post(&groups.url("/v1/completions"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let ids = |choice: &Value| choice["token_ids"].clone();
        let found: Vec<Value> = answer.body["choices"].as_array().unwrap().iter().map(ids).collect();
        assert_eq!(found, [json!(wanted), json!(wanted)]);
    }
}
