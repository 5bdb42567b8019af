//! Tests one model on several shards: the text of one shard, also after the loss of any shard.

use std::time::Duration;

use millrace_integration_tests::{
    Server, binary, cpu_seconds, long_generation, named_shared_memory, post, shards_of, signal, test_data,
    wait_for_end_of,
};
use serde_json::{Value, json};

fn request(client: usize, tokens: usize) -> Value {
    let mut parameters = json!({"max_new_tokens": tokens, "stop": ["\u{1}"], "details": true});
    if client % 3 == 2 {
        parameters["do_sample"] = json!(true);
        parameters["temperature"] = json!(0.8);
        parameters["seed"] = json!(client);
    }
    let prompt = "Once upon a time there was a fox with a lantern. ".repeat(1 + client % 7);
    json!({"inputs": format!("{prompt}{client}"), "parameters": parameters})
}

fn text(server: &Server, request: &Value) -> String {
    let answer = post(&server.url("/generate"), request);
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["generated_text"].as_str().unwrap().to_owned()
}

fn shards_say_what_one_says(model: &str) {
    // float32, because sums over shards are rounded differently, which would be visible in half
    // precision.
    let start =
        |shards: &str| Server::start(&["--model-id", model, "--dtype", "float32", "--num-shard", shards]);
    let requests: Vec<Value> = (0..32).map(|client| request(client, 40)).collect();
    let one = start("1");
    let expected: Vec<String> = requests.iter().map(|request| text(&one, request)).collect();
    for (shards, clients) in [("2", 32), ("4", 6)] {
        let server = start(shards);
        let (requests, expected) = (&requests[..clients], &expected[..clients]);
        assert_eq!(shards_of(server.pid()).len().to_string(), shards);
        let got: Vec<String> = std::thread::scope(|scope| {
            let running: Vec<_> =
                requests.iter().map(|request| scope.spawn(|| text(&server, request))).collect();
            running.into_iter().map(|client| client.join().unwrap()).collect()
        });
        assert_eq!(got, expected, "{model} on {shards} shards");
    }
}

#[test]
fn two_and_four_shards_match_one_also_under_load() {
    shards_say_what_one_says("demo");
}

#[test]
#[ignore = "needs the published checkpoints of MILLRACE_TEST_DATA"]
fn published_weights_give_the_same_text_on_several_shards() {
    shards_say_what_one_says(test_data("stories260k").to_str().unwrap());
}

#[test]
fn streams_survive_the_loss_of_any_rank() {
    let server = Server::start(&["--num-shard", "2", "--dtype", "float32"]);
    let expected = long_generation(&server, || {});
    for (restarts, (rank, name)) in (0..).zip([(1, "KILL"), (0, "KILL"), (1, "STOP")]) {
        let shards = shards_of(server.pid());
        let got = long_generation(&server, || signal(shards[rank], name));
        assert_eq!(got, expected, "{name} of rank {rank}");
        server.wait_for_restarts(restarts + 1);
        server.wait_until("the old shards are gone", |server| {
            let now = shards_of(server.pid());
            now.len() == 2 && now.iter().all(|shard| !shards.contains(shard))
        });
    }
}

#[test]
fn nothing_is_left_in_shared_memory() {
    let server = Server::start(&["--num-shard", "2"]);
    let shards = shards_of(server.pid());
    assert_eq!(named_shared_memory(), [""; 0], "the shared memory has no name");
    server.signal("KILL");
    let _ = server.wait();
    wait_for_end_of(&shards);
    assert_eq!(named_shared_memory(), [""; 0]);
}

#[test]
fn a_model_that_cannot_be_split_is_refused_with_the_possible_world_sizes() {
    for shards in ["3", "5"] {
        let refused = std::process::Command::new(binary())
            .args(["generate", "x", "--num-shard", shards])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success());
        assert!(error.contains(&format!("--num-shard {shards} does not fit")), "{error}");
        assert!(error.contains("Sizes that work: 1, 2, 4, 8"), "{error}");
    }
}

/// Threads that wait for work must sleep. The bound is 20 times what was measured, and far below
/// one spinning thread, which takes 2 s.
#[test]
#[cfg(target_os = "linux")]
fn an_idle_server_uses_no_cpu() {
    let server = Server::start(&["--num-shard", "2"]);
    text(&server, &request(0, 4));
    let pids: Vec<u32> = shards_of(server.pid()).into_iter().chain([server.pid()]).collect();
    let spent = || pids.iter().map(|pid| cpu_seconds(*pid)).sum::<f64>();
    // The kernel counts in ticks, and a fast machine answers within one.
    server.wait_until("requests take CPU time", |server| {
        text(server, &request(0, 4));
        spent() > 0.0
    });
    // On a busy machine, what follows the answer may take a while.
    server.wait_until("two seconds take at most 0.2 s of CPU time", |_| {
        let before = spent();
        std::thread::sleep(Duration::from_secs(2));
        let idle = spent() - before;
        println!("{idle:.2} s of CPU time in 2 s");
        idle <= 0.2
    });
}

#[test]
#[cfg(target_os = "linux")]
fn each_shard_has_cores_of_its_own() {
    let cores = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        line.trim().to_owned()
    };
    if std::thread::available_parallelism().unwrap().get() < 2 {
        eprintln!("skipped: there is only one core");
        return;
    }
    let server = Server::start(&["--num-shard", "2", "--cpus-per-shard", "1"]);
    let shards: Vec<String> = shards_of(server.pid()).into_iter().map(cores).collect();
    assert!(shards[0] != shards[1] && shards.iter().all(|cores| cores.parse::<u32>().is_ok()), "{shards:?}");
    let few = Server::start(&["--threads", "1"]);
    few.wait_for_log(", 1 thread)");
    let shard = shards_of(few.pid())[0];
    assert_eq!(
        cores(shard),
        cores(std::process::id()),
        "a shard with fewer threads than cores runs anywhere"
    );
}
