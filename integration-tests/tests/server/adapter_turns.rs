//! Tests more LoRA adapters than places through the real binary: adapters take turns, and each
//! request gets the answer that it gets where every adapter has a place.

use std::thread;

use millrace_integration_tests::{AdapterFolder, Server, post, post_with, stream};
use serde_json::{Value, json};

/// The names of the adapters.
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

const KEY: (&str, &str) = ("authorization", "Bearer admin");

/// The folders of the adapters, and the values of `--lora-modules` that name them.
struct Adapters {
    _folders: Vec<AdapterFolder>,
    modules: Vec<String>,
}

impl Adapters {
    fn new(test: &str) -> Adapters {
        let folders: Vec<AdapterFolder> = (1..)
            .zip(NAMES)
            .map(|(seed, name)| AdapterFolder::new(&format!("{test}-{name}"), seed))
            .collect();
        let modules = folders.iter().zip(NAMES).map(|(folder, name)| folder.named(name)).collect();
        Adapters { _folders: folders, modules }
    }

    fn start(&self, flags: &[&str]) -> Server {
        let modules = self.modules.iter().map(String::as_str);
        let modules: Vec<&str> = ["--lora-modules"].into_iter().chain(modules).collect();
        Server::start(&[&modules[..], flags].concat())
    }
}

/// A request of a client: the model and the first adapters take turns.
fn request(client: usize, max_tokens: usize) -> Value {
    let model = NAMES.get(client % 6).unwrap_or(&"demo");
    json!({
        "model": model, "prompt": format!("Once upon a time there were {client} foxes"), "temperature": 0,
        "max_tokens": max_tokens, "ignore_eos": true,
    })
}

fn text(server: &Server, request: &Value) -> String {
    let answer = post(&server.url("/v1/completions"), request);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// Returns the answers to requests that come at the same time.
fn together(server: &Server, requests: &[Value]) -> Vec<String> {
    thread::scope(|scope| {
        let clients: Vec<_> = requests.iter().map(|request| scope.spawn(|| text(server, request))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// Streams the pieces of the text of a request's answer.
fn pieces(server: &Server, request: &Value) -> impl Iterator<Item = String> {
    let mut request = request.clone();
    request["stream"] = json!(true);
    let piece = |event: Value| event["choices"][0]["text"].as_str().unwrap().to_owned();
    stream(&server.url("/v1/completions"), &request).map(piece)
}

#[test]
fn many_clients_get_the_answers_of_servers_with_a_place_for_each_adapter() {
    let adapters = Adapters::new("turns");
    let requests: Vec<Value> = (0..16).map(|client| request(client, 20 + client)).collect();
    let roomy = adapters.start(&[]);
    let expected: Vec<String> = requests.iter().map(|request| text(&roomy, request)).collect();
    assert!((1..6).all(|client| expected[client] != expected[0]));
    drop(roomy);
    for flags in [&["--max-loras", "2"][..], &["--max-loras", "1", "--replicas", "2"]] {
        let server = adapters.start(&[flags, &["--max-cpu-loras", "5"]].concat());
        for _ in 0..2 {
            assert_eq!(together(&server, &requests), expected, "{flags:?}");
        }
    }
}

#[test]
fn two_shards_copy_the_same_adapters() {
    let adapters = Adapters::new("ranks");
    let flags = ["--dtype", "float32", "--num-shard", "2"];
    let requests: Vec<Value> = (0..8).map(|client| request(client, 24)).collect();
    let expected = together(&adapters.start(&flags), &requests);
    let server = adapters.start(&[&flags[..], &["--max-loras", "1", "--max-cpu-loras", "5"]].concat());
    assert_eq!(together(&server, &requests), expected);
}

#[test]
fn a_killed_shard_loses_no_adapter_that_runs_or_waits() {
    let adapters = Adapters::new("killed");
    let flags = ["--max-loras", "1", "--max-cpu-loras", "5"];
    let server = adapters.start(&flags);
    let requests: Vec<Value> = (0..3).map(|client| request(client, 900)).collect();
    let expected: Vec<String> = requests.iter().map(|request| text(&server, request)).collect();
    thread::scope(|scope| {
        let mut running = pieces(&server, &requests[0]);
        let begun: String = running.by_ref().take(5).collect();
        server.signal_shards("STOP");
        let waiting: Vec<_> =
            requests[1..].iter().map(|request| scope.spawn(|| text(&server, request))).collect();
        server.signal_shards("KILL");
        assert_eq!(begun + &running.collect::<String>(), expected[0]);
        for (client, expected) in waiting.into_iter().zip(&expected[1..]) {
            assert_eq!(client.join().unwrap(), *expected);
        }
    });
    server.wait_for_restarts(1);
}

#[test]
fn adapters_are_unloaded_while_requests_with_them_run_and_wait() {
    let adapters = Adapters::new("unloaded");
    let admin = ["--enable-lora", "--admin-key", "admin"];
    let server = adapters.start(&[&admin[..], &["--max-loras", "1", "--max-cpu-loras", "5"]].concat());
    let extra = AdapterFolder::new("turns-extra", 9);
    let load = |name: &str| {
        let body = json!({"lora_name": name, "lora_path": extra.path().to_str().unwrap()});
        post_with(&server.url("/v1/load_lora_adapter"), &[KEY], &body)
    };
    let unload = |name: &str| {
        let body = json!({"lora_name": name});
        assert_eq!(post_with(&server.url("/v1/unload_lora_adapter"), &[KEY], &body).status, 200);
    };
    let full = load("f");
    assert_eq!(full.status, 400);
    assert!(full.body.to_string().contains("5 adapters are loaded, which is the limit"), "{}", full.body);

    let requests: Vec<Value> = (0..3).map(|client| request(client, 600)).collect();
    let expected: Vec<String> = requests.iter().map(|request| text(&server, request)).collect();
    // `e` was never in a place.
    unload("e");
    assert_eq!(load("f").status, 200);
    thread::scope(|scope| {
        let mut running = pieces(&server, &requests[0]);
        let begun: String = running.by_ref().take(5).collect();
        let waiting = scope.spawn(|| text(&server, &requests[1]));
        while server.metric("vllm:num_requests_waiting") < 1.0 {
            thread::yield_now();
        }
        // `a` is in the place, and `b` waits for it.
        unload("a");
        unload("b");
        assert_eq!(load("g").status, 400, "the requests still hold their adapters");
        assert_eq!(begun + &running.collect::<String>(), expected[0]);
        assert_eq!(waiting.join().unwrap(), expected[1]);
    });
    assert_eq!(text(&server, &requests[2]), expected[2]);
    let mut other = requests[0].clone();
    other["model"] = json!("f");
    assert_ne!(text(&server, &other), expected[0]);
    assert_eq!(load("g").status, 200);
}
