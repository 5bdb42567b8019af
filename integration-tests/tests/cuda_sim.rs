//! The CUDA backend on simulated cards, over HTTP: the text of the CPU backend, on one card and on two.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::process::Command;

use millrace_integration_tests::{
    SMALL, Server, binary, has_simulated_cards, post, shards_of, start_small, stream, test_data,
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

/// One request for each way of choosing tokens: path and body.
fn all_kinds() -> Vec<(&'static str, Value)> {
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
        // The end token is what it would say, had it not to wait.
        complete("It was", json!({"temperature": 0, "min_tokens": 3, "logit_bias": {"2": 100}})),
        complete("And", json!({"seed": 10, "temperature": 1.5, "min_p": 0.1})),
    ]
}

/// What of an answer does not depend on when and by whom it was given.
fn said(server: &Server, (path, body): &(&str, Value)) -> Value {
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

/// The answers to requests that come at the same time.
fn said_together(server: &Server, requests: &[(&str, Value)]) -> Vec<Value> {
    std::thread::scope(|scope| {
        let clients: Vec<_> = requests.iter().map(|request| scope.spawn(|| said(server, request))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Equal but for the last digits of log-probabilities.
fn assert_alike(got: &Value, want: &Value, what: &str) {
    match (got, want) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            let (a, b) = (a.as_f64().unwrap(), b.as_f64().unwrap());
            assert!((a - b).abs() < 1e-3 * b.abs().max(1.0), "{what}: {a} instead of {b}");
        }
        (Value::Array(a), Value::Array(b)) => {
            assert_eq!(a.len(), b.len(), "{what}: {got} instead of {want}");
            a.iter().zip(b).for_each(|(a, b)| assert_alike(a, b, what));
        }
        (Value::Object(a), Value::Object(b)) => {
            assert!(a.keys().eq(b.keys()), "{what}: {got} instead of {want}");
            a.iter().for_each(|(key, a)| assert_alike(a, &b[key], &format!("{what}.{key}")));
        }
        _ => assert_eq!(got, want, "{what}"),
    }
}

/// What a server makes of given texts: scores, and vectors.
fn made_of_texts(server: &Server) -> Value {
    let scored = json!({"prompt": "Once upon a time", "echo": true, "logprobs": 2, "max_tokens": 0});
    let scored = post(&server.url("/v1/completions"), &scored);
    let vectors = post(&server.url("/v1/embeddings"), &json!({"input": ["Once upon a time", "A fox"]}));
    assert_eq!((scored.status, vectors.status), (200, 200), "{} {}", scored.body, vectors.body);
    json!([scored.body["choices"], vectors.body["data"]])
}

fn gpus_say_what_the_cpu_says(model: &str) {
    if !has_simulated_cards() {
        return;
    }
    let prompts = ["Once upon a time", "The fox had a lantern and said that it was"];
    let processor = start_small(model, "cpu", &EXACT);
    let made = made_of_texts(&processor);
    for (shards, all_reduce) in [("1", "auto"), ("2", "nccl"), ("2", "peer")] {
        let flags = ["--dtype", "float32", "--num-shard", shards, "--all-reduce", all_reduce];
        let cards = start_small(model, "cuda-sim", &flags);
        assert_eq!(shards_of(cards.pid()).len().to_string(), shards);
        // From then on an allocation would be refused.
        assert!(!cards.log().contains("beyond the memory plan"), "{}", cards.log());
        for (prompt, seed) in prompts.into_iter().zip([None, Some(7)]) {
            let want = text(&processor, prompt, 10, seed);
            assert_eq!(text(&cards, prompt, 10, seed), want, "{model} on {shards} cards by {all_reduce}");
        }
        assert_alike(&made_of_texts(&cards), &made, &format!("{model} on {shards} cards by {all_reduce}"));
    }
}

#[test]
fn one_gpu_and_two_say_what_the_cpu_says() {
    gpus_say_what_the_cpu_says("demo");
}

#[test]
#[ignore = "needs the published checkpoints of MILLRACE_TEST_DATA"]
fn published_weights_say_the_same_on_gpus() {
    gpus_say_what_the_cpu_says(test_data("stories260k").to_str().unwrap());
}

/// Whatever is asked for at the same time, with a stream that is left in the middle: everybody gets what the processor gives them alone.
#[test]
fn every_way_of_choosing_tokens_is_that_of_the_processor() {
    if !has_simulated_cards() {
        return;
    }
    let processor = start_small("demo", "cpu", &EXACT);
    let requests = all_kinds();
    let want: Vec<Value> = requests.iter().map(|request| said(&processor, request)).collect();
    let card = start_small("demo", "cuda-sim", &EXACT);
    let mut left = stream(
        &card.url("/generate_stream"),
        &json!({"inputs": "So", "parameters": {"max_new_tokens": 200}}),
    );
    assert!(left.next().is_some());
    let got = std::thread::scope(|scope| {
        let got = scope.spawn(|| said_together(&card, &requests));
        drop(left);
        got.join().unwrap()
    });
    for ((got, want), (path, body)) in got.iter().zip(&want).zip(&requests) {
        assert_alike(got, want, &format!("{path} {body}"));
    }
}

/// What the tokens of a text are worth, one by one.
fn scores(server: &Server, text: &str) -> Vec<f64> {
    let body = json!({"prompt": text, "echo": true, "logprobs": 1, "max_tokens": 0});
    let answer = post(&server.url("/v1/completions"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let logprobs = answer.body["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    logprobs.iter().filter_map(Value::as_f64).collect()
}

/// Matrices as FP8 cost little of what the model knows, whichever kernels multiply by them: those for up to 16 rows, the library with activations as FP8,
/// and the one for many rows; and split over two cards, where each rank finds factors for its share.
#[test]
fn matrices_as_fp8_say_nearly_what_the_processor_says() {
    if !has_simulated_cards() {
        return;
    }
    let processor = start_small("demo", "cpu", &EXACT);
    // Its own words: in a text that it would never say, single tokens have any probability.
    let own =
        |tokens: usize| format!("Once upon a time{}", text(&processor, "Once upon a time", tokens, Some(7)));
    let texts = [own(12), own(60)];
    for flags in [&[][..], &["--num-shard", "2"], &["--batch-invariant"]] {
        let flags = [&["--dtype", "bfloat16", "--quantize", "fp8"], flags].concat();
        let cards = start_small("demo", "cuda-sim", &flags);
        cards.says("as bfloat16, matrices of layers as fp8 on");
        assert!(!cards.log().contains("beyond the memory plan"), "{}", cards.log());
        for text in &texts {
            let (got, want) = (scores(&cards, text), scores(&processor, text));
            let apart: Vec<f64> = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).collect();
            let mean = apart.iter().sum::<f64>() / apart.len() as f64;
            let most = apart.iter().fold(0.0, |most: f64, apart| most.max(*apart));
            println!("{flags:?}, {} tokens: {mean:.4} apart on average, {most:.4} at most", apart.len());
            assert!(got.len() == want.len() && mean < 0.06 && most < 1.2, "{flags:?}: {mean} {most} {got:?}");
        }
        // Steps that decode, recorded and padded.
        let both = said_together(&cards, &all_kinds()[..2]);
        assert!(both.iter().all(|said| said[0].as_str().is_some_and(|text| !text.is_empty())), "{both:?}");
    }
}

/// In a type that has an attention of its own for decoding: the same alone and in company, by recorded steps and without any.
#[test]
fn company_and_recorded_steps_change_nothing() {
    if !has_simulated_cards() {
        return;
    }
    let requests: Vec<_> = all_kinds().into_iter().take(3).collect();
    let want: Vec<Value> = {
        let plain = start_small("demo", "cuda-sim", &["--dtype", "bfloat16", "--cuda-graphs", "0"]);
        requests.iter().map(|request| said(&plain, request)).collect()
    };
    let recorded = start_small("demo", "cuda-sim", &["--dtype", "bfloat16", "--cuda-graphs", "1,4"]);
    assert_eq!(said_together(&recorded, &requests), want);
    assert_eq!(said(&recorded, &requests[1]), want[1]);
}

/// A fault that only a new context mends: the stream goes on where it was, on a new shard.
#[test]
fn a_fault_of_a_card_is_recovered_from() {
    if !has_simulated_cards() {
        return;
    }
    let fault = std::env::temp_dir().join(format!("millrace-fault-{}", std::process::id()));
    let environment = [("MILLRACE_SIM_FAULT", fault.to_str().unwrap())];
    let flags = [&["--device", "cuda-sim", "--dtype", "float32"][..], &SMALL].concat();
    let server = Server::start_in(&environment, &flags);
    let before = text(&server, "Once upon a time", 12, None);
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 12}});
    let mut events = stream(&server.url("/generate_stream"), &body);
    events.next().unwrap();
    std::fs::write(&fault, "").unwrap();
    let last = events.last().unwrap();
    assert_eq!(last["generated_text"], before.as_str(), "{last}");
    assert!(!fault.exists(), "the card has met its fault");
    assert!(server.metric("millrace_shard_restarts_total") >= 1.0);
    server.says("CUDA_ERROR_ILLEGAL_ADDRESS");
}

/// Without a driver, the demand for cards is refused in one sentence.
#[test]
fn cards_that_are_not_there_are_said_to_be_missing() {
    if std::path::Path::new("/dev/nvidiactl").exists() {
        eprintln!("skipped: this machine has cards");
        return;
    }
    let done = Command::new(binary()).args(["generate", "--device", "cuda", "Hello"]).output().unwrap();
    assert!(!done.status.success());
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("there is no NVIDIA driver"), "{said}");
}

/// Whether there are cards or not, the doctor answers and says what is missing.
#[test]
fn the_doctor_answers() {
    let done = Command::new(binary()).arg("doctor").output().unwrap();
    assert!(done.status.success());
    let said = String::from_utf8_lossy(&done.stdout);
    for what in ["driver:", "cuBLASLt:", "NCCL:", "NVRTC:", "--device cuda can"] {
        assert!(said.contains(what), "{said}");
    }
}
