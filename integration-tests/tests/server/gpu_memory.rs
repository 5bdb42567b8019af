//! Tests servers whose layers are split between a simulated GPU and the CPU (`--gpu-memory`).

use std::process::Command;

use millrace_integration_tests::{
    Server, binary, post, require_simulated_gpus, shards_of, signal, start_small_server, stream,
};
use serde_json::{Value, json};

/// Float32, in which both backends give the same texts.
const EXACT: [&str; 2] = ["--dtype", "float32"];

/// Returns the output of a command of the binary that is expected to succeed or to fail.
fn run(arguments: &[&str], succeeds: bool) -> String {
    let done = Command::new(binary()).args(arguments).output().unwrap();
    let text = String::from_utf8(if succeeds { done.stdout } else { done.stderr }).unwrap();
    assert_eq!(done.status.success(), succeeds, "{arguments:?}: {text}");
    text
}

fn generate(server: &Server, prompt: &str, parameters: &Value) -> Value {
    let answer = post(&server.url("/generate"), &json!({"inputs": prompt, "parameters": parameters}));
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["generated_text"].clone()
}

/// Returns what a server answers to requests that run at the same time: prompts of one and of
/// several steps, sampling, and a grammar.
fn answers(server: &Server) -> Vec<Value> {
    let long = "The fox had a lantern and said that it was late. ".repeat(6);
    let requests = [
        ("Once upon a time", json!({"max_new_tokens": 8})),
        (long.as_str(), json!({"max_new_tokens": 6})),
        ("Rain", json!({"max_new_tokens": 6, "do_sample": true, "seed": 7, "top_k": 20})),
        ("Count:", json!({"max_new_tokens": 6, "grammar": {"type": "regex", "value": "[0-9]{5}"}})),
    ];
    std::thread::scope(|scope| {
        let clients: Vec<_> = requests
            .iter()
            .map(|(prompt, parameters)| scope.spawn(|| generate(server, prompt, parameters)))
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Steps whose prompts come in several chunks, so that a layer takes 1.75 MiB.
const CHUNKS: [&str; 2] = ["--max-batch-prefill-tokens", "40"];

/// Starts a server of the demo model, of which so many bytes are on the GPU.
fn start(gpu_memory: &str) -> Server {
    start_small_server("demo", "cuda-sim", &[&EXACT[..], &CHUNKS, &["--gpu-memory", gpu_memory]].concat())
}

#[test]
fn a_model_that_does_not_fit_the_gpu_gives_the_texts_of_the_cpu() {
    require_simulated_gpus();
    let want = answers(&start_small_server("demo", "cpu", &[&EXACT[..], &CHUNKS].concat()));
    for (gpu_memory, layers) in [("100M", 5), ("8M", 3), ("5500K", 2)] {
        let server = start(gpu_memory);
        server.wait_for_log("start-up");
        let log = server.log();
        let is_split = layers < 5;
        assert_eq!(
            log.contains(&format!("with {layers} of 5 layers, and cpu")),
            is_split,
            "{gpu_memory}: {log}"
        );
        assert_eq!(log.contains("KV cache on the CPU"), is_split, "{gpu_memory}: {log}");
        assert_eq!(answers(&server), want, "{gpu_memory}");
        let log = server.log();
        assert!(!log.contains("more than planned") && !log.contains("after the device was sealed"), "{log}");
    }
}

#[test]
fn streams_continue_when_the_shard_is_lost() {
    require_simulated_gpus();
    let server = start("8M");
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 10}});
    let whole = generate(&server, "Once upon a time", &body["parameters"]);
    let mut events = stream(&server.url("/generate_stream"), &body);
    events.next().unwrap();
    shards_of(server.pid()).into_iter().for_each(|shard| signal(shard, "KILL"));
    let last = events.last().unwrap();
    assert_eq!(last["generated_text"], whole, "{last}");
    server.wait_for_restarts(1);
}

#[test]
fn bounds_that_cannot_be_kept_are_refused() {
    require_simulated_gpus();
    let refused =
        |flags: &[&str]| run(&[&["generate", "--max-new-tokens", "1", "Hello"], flags].concat(), false);
    let gpu = ["--device", "cuda-sim"];
    for (flags, why) in [
        (&[&gpu[..], &["--gpu-memory", "1M"]].concat()[..], "--gpu-memory is too small for one layer"),
        (&[&gpu[..], &["--gpu-memory", "0.5"]].concat(), "give a number of bytes"),
        (
            &[&gpu[..], &["--gpu-memory", "8M", "--num-shard", "2"]].concat(),
            "--num-shard 2 cannot be combined",
        ),
        (&["--device", "cpu", "--gpu-memory", "8M"], "--gpu-memory needs a GPU"),
        (&[&gpu[..], &["--gpu-memory", "lots"]].concat(), "neither a number of bytes"),
    ] {
        let error = refused(flags);
        assert!(error.contains(why), "{flags:?}: {error}");
    }
}

#[test]
fn inspect_shows_the_split_without_a_device() {
    let flags =
        ["inspect", "--model-id", "demo", "--dtype", "float32", "--batch", "8", "--gpu-memory", "20M"];
    let text = run(&flags, true);
    assert!(text.contains("Split between a GPU, of which 19.07 MiB may be taken, and the CPU"), "{text}");
    let start = text.find("Split between").unwrap();
    let layers = text[start..].lines().find(|line| line.trim_start().starts_with("layers")).unwrap();
    let counts: Vec<u32> = layers.split_whitespace().skip(1).map(|count| count.parse().unwrap()).collect();
    assert!(counts.len() == 2 && counts.iter().sum::<u32>() == 5 && counts.iter().all(|&n| n > 0), "{text}");
}
