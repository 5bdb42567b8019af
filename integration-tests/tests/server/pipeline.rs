//! Tests servers whose shards have some of the layers each (`--pipeline-parallel`).

use std::process::Command;

use millrace_integration_tests::{
    Server, binary, post, require_simulated_gpus, shards_of, signal, start_small_server, stream,
};
use serde_json::{Value, json};

fn start(flags: &[&str]) -> Server {
    Server::start(&[&["--model-id", "demo", "--device", "cpu", "--cpus-per-shard", "1"], flags].concat())
}

/// Returns texts, scores and a vector, computed at the same time.
fn results(server: &Server) -> Vec<Value> {
    let long = "The fox had a lantern and said that it was late. ".repeat(20);
    let requests = [
        ("/generate", json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 20}})),
        (
            "/generate",
            json!({"inputs": long, "parameters": {"max_new_tokens": 9, "do_sample": true, "seed": 5}}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "Once upon a time", "echo": true, "logprobs": 2, "max_tokens": 0}),
        ),
        ("/v1/embeddings", json!({"input": "A fox"})),
    ];
    std::thread::scope(|scope| {
        let clients: Vec<_> = requests
            .iter()
            .map(|(path, body)| {
                scope.spawn(move || {
                    let answer = post(&server.url(path), body);
                    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
                    let part = |name: &str| answer.body[name].clone();
                    json!([part("generated_text"), part("choices"), part("data")])
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

#[test]
fn two_ranks_with_some_layers_each_give_the_results_of_one() {
    let want = results(&start(&[]));
    let server = start(&["--pipeline-parallel", "2"]);
    assert_eq!(shards_of(server.pid()).len(), 2);
    assert_eq!(results(&server), want);

    // The loss of a rank in the middle of a stream is the loss of the group, as with any shards.
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 60}});
    let whole = post(&server.url("/generate"), &body).body["generated_text"].clone();
    let mut events = stream(&server.url("/generate_stream"), &body);
    events.next().unwrap();
    signal(shards_of(server.pid())[1], "KILL");
    let last = events.last().unwrap();
    assert_eq!(last["generated_text"], whole, "{last}");
    server.wait_for_restarts(1);
}

/// The states of GPUs travel through the memory of the host, in float32.
#[test]
fn three_gpus_with_some_layers_each_give_the_texts_of_the_cpu() {
    require_simulated_gpus();
    let texts = |device: &str, flags: &[&str]| {
        let server = start_small_server("demo", device, &[&["--dtype", "float32"], flags].concat());
        ["Once upon a time", "The fox had a lantern"].map(|prompt| {
            let body = json!({"inputs": prompt, "parameters": {"max_new_tokens": 8}});
            post(&server.url("/generate"), &body).body["generated_text"].as_str().unwrap().to_owned()
        })
    };
    assert_eq!(texts("cuda-sim", &["--pipeline-parallel", "3"]), texts("cpu", &[]));
}

#[test]
fn pipelines_that_cannot_be_are_refused() {
    for (flags, why) in [
        (&["--pipeline-parallel", "2", "--num-shard", "2"][..], "--num-shard cannot be combined"),
        (&["--pipeline-parallel", "9"], "--pipeline-parallel 9: this model has 5 layers"),
    ] {
        let command = ["generate", "--device", "cpu", "--max-new-tokens", "1", "Hello"];
        let done = Command::new(binary()).args(command).args(flags).output().unwrap();
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(!done.status.success() && error.contains(why), "{flags:?}: {error}");
    }
}
