//! Tests that masks which follow their steps change no text: alone and under load, on one and two
//! shards, on the CPU and on simulated GPUs, and after the loss of a shard.

use millrace_integration_tests::{
    Server, post, require_simulated_gpus, shards_of, signal, start_small_server, stream,
};
use serde_json::{Value, json};

/// Completions of `tokens` tokens at most: two of three have a grammar, and some of these are
/// sampled.
fn requests(tokens: usize) -> Vec<Value> {
    let grammars = [
        json!({"type": "regex", "value": "([1-9][0-9]{2} ){80}end"}),
        json!({"type": "json_object"}),
        Value::Null,
    ];
    let request = |client: usize| {
        let mut body = json!({
            "prompt": "Once upon a time there was a fox. ".repeat(1 + client % 4), "max_tokens": tokens,
            "temperature": if client.is_multiple_of(2) { 0.0 } else { 0.9 }, "seed": client,
        });
        match &grammars[client % grammars.len()] {
            Value::Null => body["ignore_eos"] = json!(true),
            grammar => body["response_format"] = grammar.clone(),
        }
        body
    };
    (0..6).map(request).collect()
}

fn text(server: &Server, request: &Value) -> String {
    let answer = post(&server.url("/v1/completions"), request);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn together(server: &Server, requests: &[Value]) -> Vec<String> {
    std::thread::scope(|scope| {
        let running: Vec<_> = requests.iter().map(|request| scope.spawn(|| text(server, request))).collect();
        running.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

fn start(flags: &[&str]) -> Server {
    Server::start(&[&["--dtype", "float32"], flags].concat())
}

#[test]
fn texts_are_the_same_alone_and_together_on_one_and_two_shards() {
    let requests = requests(60);
    let one = start(&[]);
    let alone: Vec<String> = requests.iter().map(|request| text(&one, request)).collect();
    assert!(alone[0].chars().all(|c| c.is_ascii_digit() || c == ' ') && alone[0].len() > 30, "{}", alone[0]);
    assert_eq!(together(&one, &requests), alone);
    let two = start(&["--num-shard", "2"]);
    assert_eq!(together(&two, &requests), alone);
    assert_eq!(text(&two, &requests[0]), alone[0]);
}

#[test]
fn texts_on_simulated_gpus_are_those_of_the_cpu() {
    require_simulated_gpus();
    let requests = &requests(6)[..3];
    let cpu = start_small_server("demo", "cpu", &["--dtype", "float32"]);
    let expected: Vec<String> = requests.iter().map(|request| text(&cpu, request)).collect();
    for flags in [
        &["--cuda-graphs", "1,4"][..],
        &["--cuda-graphs", "0"],
        &["--num-shard", "2", "--all-reduce", "peer"],
        &["--num-shard", "2", "--all-reduce", "nccl"],
    ] {
        let gpus = start_small_server("demo", "cuda-sim", &[&["--dtype", "float32"], flags].concat());
        assert_eq!(together(&gpus, requests), expected, "{flags:?}");
    }
}

#[test]
fn a_grammar_beside_a_free_text_continues_after_the_loss_of_any_rank() {
    let server = start(&["--num-shard", "2"]);
    let mut body = requests(300).swap_remove(0);
    body["stream"] = json!(true);
    let free = requests(300).swap_remove(2);
    let ask = |happens: &dyn Fn()| {
        let mut text = String::new();
        for (at, event) in stream(&server.url("/v1/completions"), &body).enumerate() {
            text += event["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{event}"));
            if at == 20 {
                happens();
            }
        }
        text
    };
    let expected = (ask(&|| {}), text(&server, &free));
    for rank in [0, 1] {
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| text(&server, &free));
            assert_eq!(ask(&|| signal(shards_of(server.pid())[rank], "KILL")), expected.0);
            assert_eq!(beside.join().unwrap(), expected.1);
        });
    }
    server.wait_for_restarts(2);
}
