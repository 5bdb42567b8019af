//! Tests the CUDA backend on simulated GPUs over HTTP. One GPU and two GPUs generate the text of
//! the CPU backend.

use std::process::Command;

use millrace_integration_tests::{
    SMALL_SERVER_FLAGS, Server, binary, post, require_simulated_gpus, shards_of, start_small_server, stream,
    test_data,
};
use serde_json::{Value, json};

const EXACT: [&str; 2] = ["--dtype", "float32"];

fn text(server: &Server, prompt: &str, tokens: usize, seed: Option<u64>) -> String {
    let mut parameters = json!({"max_new_tokens": tokens});
    if let Some(seed) = seed {
        parameters["do_sample"] = json!(true);
        parameters["seed"] = json!(seed);
    }
    let body: Value = json!({"inputs": prompt, "parameters": parameters});
    let answer = post(&server.url("/generate"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["generated_text"].as_str().unwrap().to_owned()
}

/// Returns one request for each sampling mode: path and body.
fn all_sampling_modes() -> Vec<(&'static str, Value)> {
    let generate = |prompt: &str, parameters: Value| {
        let mut body = json!({"inputs": prompt, "parameters": {"max_new_tokens": 6, "details": true}});
        body["parameters"].as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
        ("/generate", body)
    };
    let complete = |prompt: &str, parameters: Value| {
        let mut body = json!({"model": "demo", "prompt": prompt, "max_tokens": 6, "logprobs": 2});
        body.as_object_mut().unwrap().extend(parameters.as_object().unwrap().clone());
        ("/v1/completions", body)
    };
    vec![
        generate("Once upon", json!({"top_n_tokens": 3})),
        generate(
            "The fox",
            json!({"do_sample": true, "seed": 7, "temperature": 0.9, "top_k": 20, "top_p": 0.9}),
        ),
        generate(
            "A lantern",
            json!({"do_sample": true, "seed": 8, "typical_p": 0.7, "repetition_penalty": 1.5, "top_n_tokens": 2}),
        ),
        generate("Rain", json!({"watermark": true, "do_sample": true, "seed": 11})),
        generate("Count:", json!({"grammar": {"type": "regex", "value": "[0-9]{5}"}})),
        complete(
            "The bear",
            json!({"seed": 9, "presence_penalty": 1.5, "frequency_penalty": 0.7, "logit_bias": {"300": 6}}),
        ),
        // The model's next token is the end token, which `min_tokens` postpones.
        complete("It was", json!({"temperature": 0, "min_tokens": 3, "logit_bias": {"2": 100}})),
        complete("And", json!({"seed": 10, "temperature": 1.5, "min_p": 0.1})),
    ]
}

/// Returns the parts of a response that do not depend on its time and its client.
fn response(server: &Server, (path, body): &(&str, Value)) -> Value {
    let answer = post(&server.url(path), body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    match *path {
        "/generate" => {
            let details = &answer.body["details"];
            json!([
                answer.body["generated_text"],
                details["tokens"],
                details["top_tokens"],
                details["finish_reason"]
            ])
        }
        _ => answer.body["choices"].clone(),
    }
}

/// Returns the responses to concurrent requests.
fn concurrent_responses(server: &Server, requests: &[(&str, Value)]) -> Vec<Value> {
    std::thread::scope(|scope| {
        let clients: Vec<_> =
            requests.iter().map(|request| scope.spawn(|| response(server, request))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Checks that two values are equal except for the last digits of logprobs.
fn assert_nearly_equal(got: &Value, want: &Value, what: &str) {
    match (got, want) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() < 1e-3 * b.abs().max(1.0), "{what}: {a} instead of {b}");
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{what}: {got} instead of {want}");
            a.iter().zip(b).for_each(|(a, b)| assert_nearly_equal(a, b, what));
        }
        (Value::Object(a), Value::Object(b)) => {
            assert!(a.keys().eq(b.keys()), "{what}: {got} instead of {want}");
            a.iter().for_each(|(key, a)| assert_nearly_equal(a, &b[key], &format!("{what}.{key}")));
        }
        _ => assert_eq!(got, want, "{what}"),
    }
}

/// Returns a server's results for given texts: scores and embeddings.
fn scores_and_embeddings(server: &Server) -> Value {
    let scored = json!({"prompt": "Once upon a time", "echo": true, "logprobs": 2, "max_tokens": 0});
    let scored = post(&server.url("/v1/completions"), &scored);
    let vectors = post(&server.url("/v1/embeddings"), &json!({"input": ["Once upon a time", "A fox"]}));
    assert_eq!((scored.status, vectors.status), (200, 200), "{} {}", scored.body, vectors.body);
    json!([scored.body["choices"], vectors.body["data"]])
}

fn gpus_say_what_the_cpu_says(model: &str) {
    require_simulated_gpus();
    let prompts = ["Once upon a time", "The fox had a lantern and said that it was"];
    let cpu_server = start_small_server(model, "cpu", &EXACT);
    let made = scores_and_embeddings(&cpu_server);
    for (shards, all_reduce) in [("1", "auto"), ("2", "nccl"), ("2", "peer")] {
        let flags = ["--dtype", "float32", "--num-shard", shards, "--all-reduce", all_reduce];
        let gpu_server = start_small_server(model, "cuda-sim", &flags);
        assert_eq!(shards_of(gpu_server.pid()).len().to_string(), shards);
        // After this point any further allocation is refused.
        assert!(!gpu_server.log().contains("of device memory more than planned"), "{}", gpu_server.log());
        for (prompt, seed) in prompts.into_iter().zip([None, Some(7)]) {
            let want = text(&cpu_server, prompt, 10, seed);
            assert_eq!(text(&gpu_server, prompt, 10, seed), want, "{model} on {shards} GPUs by {all_reduce}");
        }
        assert_nearly_equal(
            &scores_and_embeddings(&gpu_server),
            &made,
            &format!("{model} on {shards} GPUs by {all_reduce}"),
        );
    }
}

#[test]
fn one_and_two_gpus_match_the_cpu() {
    gpus_say_what_the_cpu_says("demo");
}

#[test]
#[ignore = "needs the published checkpoints of MILLRACE_TEST_DATA"]
fn published_weights_give_the_same_text_on_gpus() {
    gpus_say_what_the_cpu_says(test_data("stories260k").to_str().unwrap());
}

/// Concurrent requests with different sampling modes, one of which is cancelled: each gets the
/// result that the CPU backend gives it alone.
#[test]
fn every_sampling_mode_matches_the_cpu() {
    require_simulated_gpus();
    let cpu_server = start_small_server("demo", "cpu", &EXACT);
    let requests = all_sampling_modes();
    let want: Vec<Value> = requests.iter().map(|request| response(&cpu_server, request)).collect();
    let gpu_server = start_small_server("demo", "cuda-sim", &EXACT);
    let mut left = stream(
        &gpu_server.url("/generate_stream"),
        &json!({"inputs": "So", "parameters": {"max_new_tokens": 200}}),
    );
    assert!(left.next().is_some());
    let got = std::thread::scope(|scope| {
        let got = scope.spawn(|| concurrent_responses(&gpu_server, &requests));
        drop(left);
        got.join().unwrap()
    });
    for ((got, want), (path, body)) in got.iter().zip(&want).zip(&requests) {
        assert_nearly_equal(got, want, &format!("{path} {body}"));
    }
}

/// Returns the logprobs of the tokens of a text.
fn scores(server: &Server, text: &str) -> Vec<f64> {
    let body = json!({"prompt": text, "echo": true, "logprobs": 1, "max_tokens": 0});
    let answer = post(&server.url("/v1/completions"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let logprobs = answer.body["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    logprobs.iter().filter_map(Value::as_f64).collect()
}

/// FP8 weights change the logprobs only slightly with every kernel: the one for up to 16 rows, the
/// library with FP8 activations, and the one for many rows. The same holds for two GPUs, where each
/// rank computes the scales of its part.
#[test]
fn fp8_weights_score_close_to_the_cpu() {
    require_simulated_gpus();
    let cpu_server = start_small_server("demo", "cpu", &EXACT);
    // The text was generated by the model. In other texts, single tokens have arbitrary
    // probabilities.
    let own =
        |tokens: usize| format!("Once upon a time{}", text(&cpu_server, "Once upon a time", tokens, Some(7)));
    let texts = [own(12), own(60)];
    for flags in [&[][..], &["--num-shard", "2"], &["--batch-invariant"]] {
        let flags = [&["--dtype", "bfloat16", "--quantize", "fp8"], flags].concat();
        let gpu_server = start_small_server("demo", "cuda-sim", &flags);
        gpu_server.wait_for_log("as bfloat16, matrices of layers as fp8 on");
        assert!(!gpu_server.log().contains("of device memory more than planned"), "{}", gpu_server.log());
        for text in &texts {
            let (got, want) = (scores(&gpu_server, text), scores(&cpu_server, text));
            let apart: Vec<f64> = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).collect();
            let mean = apart.iter().sum::<f64>() / apart.len() as f64;
            let most = apart.iter().fold(0.0, |most: f64, apart| most.max(*apart));
            println!("{flags:?}, {} tokens: {mean:.4} apart on average, {most:.4} at most", apart.len());
            assert!(got.len() == want.len() && mean < 0.06 && most < 1.2, "{flags:?}: {mean} {most} {got:?}");
        }
        // These steps decode with captured and padded batch sizes.
        let both = concurrent_responses(&gpu_server, &all_sampling_modes()[..2]);
        assert!(
            both.iter().all(|response| response[0].as_str().is_some_and(|text| !text.is_empty())),
            "{both:?}"
        );
    }
}

/// Integers in groups are the same numbers on GPUs and on the CPU with as many shards, for few rows
/// and for many, and with one method for all rows. Each shard chooses the groups of its own share.
#[test]
fn integer_weights_score_close_to_the_cpu() {
    require_simulated_gpus();
    for (format, shards, flags) in [
        ("int4", "1", &[][..]),
        ("int4", "1", &["--batch-invariant"]),
        ("int4", "2", &[]),
        ("int8", "1", &[]),
        ("int8", "2", &[]),
        ("q8_0", "1", &[]),
    ] {
        let same = ["--quantize", format, "--num-shard", shards];
        let cpu_server =
            start_small_server("demo", "cpu", &[&EXACT[..], &["--activations", "exact"], &same].concat());
        let flags = [&["--dtype", "bfloat16"], &same[..], flags].concat();
        let gpu_server = start_small_server("demo", "cuda-sim", &flags);
        gpu_server.wait_for_log(&format!("as bfloat16, matrices of layers as {format} on"));
        assert!(!gpu_server.log().contains("of device memory more than planned"), "{}", gpu_server.log());
        for tokens in [12, 60] {
            assert_close_scores(&gpu_server, &cpu_server, tokens, &format!("{flags:?}"));
        }
    }
}

/// Checks that a GPU scores a text that the CPU has written as the CPU does.
fn assert_close_scores(gpu_server: &Server, cpu_server: &Server, tokens: usize, what: &str) {
    let own = text(cpu_server, "Once upon a time", tokens, Some(7));
    let own = format!("Once upon a time{own}");
    let (got, want) = (scores(gpu_server, &own), scores(cpu_server, &own));
    let apart: Vec<f64> = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).collect();
    let mean = apart.iter().sum::<f64>() / apart.len() as f64;
    println!("{what}, {} tokens: {mean:.4} apart on average", apart.len());
    assert!(got.len() == want.len() && mean < 0.01, "{what}: {mean} {got:?}");
}

/// A GPU keeps the matrices of a GGUF file as they are stored, all but the embedding, which is also
/// the head.
#[test]
fn blocks_of_gguf_score_close_to_the_cpu() {
    require_simulated_gpus();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("q8.gguf");
    let file = file.to_str().unwrap();
    let output = Command::new(binary()).args(["convert", "demo", file, "--dtype", "q8_0"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let cpu_server =
        start_small_server(file, "cpu", &[&EXACT[..], &["--activations", "exact", "--dense-head"]].concat());
    let gpu_server = start_small_server(file, "cuda-sim", &["--dtype", "bfloat16"]);
    gpu_server.wait_for_log("1 of 21 quantized matrices (blocks of GGML) are converted to bfloat16");
    assert!(!gpu_server.log().contains("of device memory more than planned"), "{}", gpu_server.log());
    assert_close_scores(&gpu_server, &cpu_server, 40, "q8_0 of GGUF");
}

/// A data type with its own attention kernel for decoding gives the same results alone and under
/// load, with and without CUDA graphs.
#[test]
fn concurrency_and_cuda_graphs_do_not_change_texts() {
    require_simulated_gpus();
    let requests: Vec<_> = all_sampling_modes().into_iter().take(3).collect();
    let want: Vec<Value> = {
        let plain = start_small_server("demo", "cuda-sim", &["--dtype", "bfloat16", "--cuda-graphs", "0"]);
        requests.iter().map(|request| response(&plain, request)).collect()
    };
    let recorded = start_small_server("demo", "cuda-sim", &["--dtype", "bfloat16", "--cuda-graphs", "1,4"]);
    assert_eq!(concurrent_responses(&recorded, &requests), want);
    assert_eq!(response(&recorded, &requests[1]), want[1]);
}

/// After a fault that needs a new context, the stream continues on a new shard.
#[test]
fn a_gpu_fault_is_recovered_from() {
    require_simulated_gpus();
    let fault = std::env::temp_dir().join(format!("millrace-fault-{}", std::process::id()));
    let environment = [("MILLRACE_SIM_FAULT", fault.to_str().unwrap())];
    let flags = [&["--device", "cuda-sim", "--dtype", "float32"][..], &SMALL_SERVER_FLAGS].concat();
    let server = Server::start_with_env(&environment, &flags);
    let before = text(&server, "Once upon a time", 12, None);
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 12}});
    let mut events = stream(&server.url("/generate_stream"), &body);
    events.next().unwrap();
    std::fs::write(&fault, "").unwrap();
    let last = events.last().unwrap();
    assert_eq!(last["generated_text"], before.as_str(), "{last}");
    assert!(!fault.exists(), "the GPU fault was injected");
    assert!(server.metric("millrace_shard_restarts_total") >= 1.0);
    server.wait_for_log("CUDA_ERROR_ILLEGAL_ADDRESS");
}

/// Without a driver, a request for GPUs is refused with one sentence.
#[test]
fn missing_gpus_are_reported() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        eprintln!("skipped: this machine has GPUs");
        return;
    }
    let done = Command::new(binary()).args(["generate", "--device", "cuda", "Hello"]).output().unwrap();
    assert!(!done.status.success());
    let response = String::from_utf8_lossy(&done.stderr);
    assert!(response.contains("no NVIDIA driver"), "{response}");
}

/// With or without GPUs, the doctor reports what is missing.
#[test]
fn the_doctor_answers() {
    let done = Command::new(binary()).arg("doctor").output().unwrap();
    assert!(done.status.success());
    let response = String::from_utf8_lossy(&done.stdout);
    for what in ["driver:", "cuBLASLt:", "NCCL:", "NVRTC:", "--device cuda can"] {
        assert!(response.contains(what), "{response}");
    }
}
