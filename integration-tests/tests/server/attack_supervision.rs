//! Tests failures of the machine, the disk and the operator: stopped processes, model files that
//! change or are not regular files, and a system without resources.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use millrace_integration_tests::{
    SecretFile, Server, WorkerNode, binary, free_port, long_generation, post, seconds, shards_of, signal,
    stream, wait_limit,
};
use millrace_test_patience::patience;
use serde_json::{Value, json};

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/demo");
const DEMO_FILES: [&str; 5] =
    ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"];

/// A temporary folder. It is removed when this is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("millrace-attack-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    /// Returns a copy of the demo model.
    fn demo(name: &str) -> Folder {
        let folder = Folder::new(name);
        for file in DEMO_FILES {
            fs::copy(Path::new(DEMO).join(file), folder.join(file)).unwrap();
        }
        folder
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn as_str(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns the exit code and the log of a server that should refuse to start. It is killed if it
/// does not end.
fn refusal(model: &Folder) -> (Option<i32>, String) {
    let mut server = Command::new(binary())
        .args(["serve", "--port", "0", "--model-id", model.as_str()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let since = Instant::now();
    while server.try_wait().unwrap().is_none() && since.elapsed() < wait_limit() {
        sleep(Duration::from_millis(10));
    }
    let _ = server.kill();
    let output = server.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Truncates a file to this length.
fn truncate(path: &Path, bytes: u64) {
    File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// The timeouts of the tests that pause processes. A busy machine may not use them up, and a pause
/// of 5/4 of them must be shorter than the 10 s after which a node that is not paused replaces its
/// rank.
fn short_timeout() -> Duration {
    patience(Duration::from_secs(2)).min(Duration::from_secs(6))
}

/// Returns flags that set the timeouts with these names to [`short_timeout`].
fn short_timeouts(names: &[&str]) -> Vec<String> {
    names.iter().flat_map(|name| [(*name).to_owned(), seconds(short_timeout())]).collect()
}

/// Returns the flags as the server takes them.
fn flags<'a>(of_test: &[&'a str], timeouts: &'a [String]) -> Vec<&'a str> {
    of_test.iter().copied().chain(timeouts.iter().map(String::as_str)).collect()
}

/// Stops the processes in this order for longer than the timeouts, and continues them in the
/// opposite order.
fn pause(processes: &[u32]) {
    let send = |name: &str, processes: &mut dyn Iterator<Item = &u32>| {
        // One program sends all signals. Starting one for each would take long on a busy machine,
        // and the processes that still run would use up their timeouts.
        let status = Command::new("kill").arg(name).args(processes.map(u32::to_string)).status();
        assert!(status.unwrap().success(), "cannot signal the processes");
    };
    send("-STOP", &mut processes.iter());
    sleep(short_timeout() * 5 / 4);
    send("-CONT", &mut processes.iter().rev());
}

#[test]
fn a_pause_of_the_whole_process_tree_is_no_loss() {
    let timeouts = short_timeouts(&["--step-timeout", "--heartbeat-timeout"]);
    let pace = ["--device", "null", "--null-step-micros", "20000"];
    let server = Server::start(&flags(&pace, &timeouts));
    let (router, shard) = (server.pid(), shards_of(server.pid())[0]);
    let request = json!({"inputs": "Once", "parameters": {"max_new_tokens": 300, "stop": ["\u{1}"]}});
    let mut events = stream(&server.url("/generate_stream"), &request);
    let mut count = 0;
    for order in [[router, shard], [shard, router]] {
        for _ in 0..20 {
            assert!(events.next().unwrap()["token"].is_object());
            count += 1;
        }
        pause(&order);
    }
    count += events.inspect(|event| assert!(event["token"].is_object(), "{event}\n{}", server.log())).count();
    // Made-up tokens may include the one that ends a text.
    assert!(count > 40, "{count} tokens");
    // Long enough to miss the heartbeats after the pause.
    sleep(short_timeout() * 3 / 2);
    assert_eq!(server.metric("millrace_shard_restarts_total"), 0.0, "{}", server.log());
}

/// The timeouts of a server with several ranks.
const RANK_TIMEOUTS: [&str; 3] = ["--step-timeout", "--heartbeat-timeout", "--collective-timeout"];

#[test]
fn a_pause_in_the_middle_of_an_exchange_between_ranks_is_no_loss() {
    let timeouts = short_timeouts(&RANK_TIMEOUTS);
    let server = Server::start(&flags(&["--num-shard", "2"], &timeouts));
    let expected = long_generation(&server, || {});
    let ranks = shards_of(server.pid());
    assert_eq!(ranks.len(), 2);
    let generated = long_generation(&server, || {
        // The rank that is stopped last waits for the other one meanwhile.
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
            let all = [ranks[0], ranks[1], server.pid()];
            pause(&order.map(|index| all[index]));
            sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(generated, expected);
    assert_eq!(server.metric("millrace_shard_restarts_total"), 0.0, "{}", server.log());
}

#[test]
fn a_pause_of_two_machines_is_no_loss() {
    let (port, secret) = (free_port(), SecretFile::new("attack-pause", "a secret of this test alone\n"));
    let timeouts = short_timeouts(&RANK_TIMEOUTS);
    let nodes = ["--num-shard", "2", "--nnodes", "2", "--leader-address", "127.0.0.1"];
    let group = ["--leader-port", &port, "--group-secret-file", secret.path()];
    let flags = flags(&[&nodes[..], &group].concat(), &timeouts);
    let worker_node =
        WorkerNode::start(Command::new(binary()).args(["serve", "--node-rank", "1"]).args(&flags));
    let server = Server::start(&flags);
    let expected = long_generation(&server, || {});
    let ranks = [shards_of(server.pid())[0], worker_node.shards()[0]];
    let generated = long_generation(&server, || {
        for order in [[0, 1, 2], [2, 1, 0]] {
            let all = [ranks[0], ranks[1], server.pid()];
            pause(&order.map(|index| all[index]));
            sleep(Duration::from_millis(50));
        }
    });
    assert_eq!(generated, expected);
    assert_eq!(server.metric("millrace_shard_restarts_total"), 0.0, "{}", server.log());
    assert_eq!([shards_of(server.pid())[0], worker_node.shards()[0]], ranks);
    drop(server);
    worker_node.stop();
}

#[test]
fn a_model_that_is_gone_for_some_seconds_is_waited_for() {
    let model = Folder::demo("gone");
    let (weights, away) = (model.join("model.safetensors"), model.join("away"));
    // Without the longer window, a test that does not go on for a minute would end the server.
    let server = Server::start(&["--model-id", model.as_str(), "--shard-failure-window", "86400"]);
    let expected = long_generation(&server, || {});
    let generated = long_generation(&server, || {
        fs::rename(&weights, &away).unwrap();
        server.signal_shards("KILL");
        server.wait_until("the shards are lost three times in a row", |server| {
            server.log().matches("started again in").count() >= 3
        });
        assert_eq!((server.get("/ready").0, server.get("/health").0), (503, 200), "{}", server.log());
        fs::rename(&away, &weights).unwrap();
    });
    assert_eq!(generated, expected);
}

#[test]
fn a_system_without_open_files_for_shards_is_waited_for() {
    let server = Server::start(&[]);
    let limit = |files: &str| {
        let pid = server.pid().to_string();
        let limited = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={files}")]).status();
        assert!(limited.unwrap().success(), "prlimit (util-linux) does not work here");
    };
    let generated = long_generation(&server, || {
        // The new limit is less than the number of open files. The hard limit stays, so that the
        // test can raise the soft limit again.
        limit("12:");
        server.signal_shards("KILL");
        // The server cannot accept new connections either, so the log is checked.
        server.wait_until("the shortage is logged", |server| server.log().contains("Too many open files"));
        sleep(Duration::from_secs(3));
        limit("512:");
    });
    assert!(generated.len() > 900);
    server.wait_for_restarts(1);
}

/// Checks that a change of the model's files ends the server at once with one clear error.
fn ends_because_of_a_change(name: &str, change: impl FnOnce(&Path)) {
    let model = Folder::demo(name);
    let server = Server::start(&["--model-id", model.as_str()]);
    change(&model.join("model.safetensors"));
    server.signal_shards("KILL");
    let expected = "model.safetensors has been changed since this server read it first";
    server.wait_until("the error is logged", |server| server.log().contains(expected));
    let log = server.log();
    assert_eq!(log.matches("started again in").count(), 1, "{log}");
    assert_eq!(server.wait().code(), Some(1));
}

#[test]
fn a_checkpoint_that_is_truncated_while_the_server_runs_is_one_clear_error() {
    ends_because_of_a_change("truncated", |weights| truncate(weights, 100_000));
}

#[test]
fn a_checkpoint_that_is_replaced_while_the_server_runs_is_not_mixed_with_the_old_one() {
    ends_because_of_a_change("replaced", |weights| {
        // Downloads replace files in this way: they write another file and rename it.
        let other = weights.with_extension("new");
        fs::write(&other, fs::read(weights).unwrap()).unwrap();
        fs::rename(&other, weights).unwrap();
    });
}

/// Creates the demo model with a head of its own and with the embedding at the end of the file.
fn untied_model(name: &str) -> Folder {
    let folder = Folder::demo(name);
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["tie_word_embeddings"] = json!(false);
    fs::write(&path, config.to_string()).unwrap();

    let path = folder.join("model.safetensors");
    let old = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(old[..8].try_into().unwrap()) as usize;
    let (header, old) = (&old[8..8 + length], &old[8 + length..]);
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    let mut tensors: Vec<(&str, &Value)> =
        header.iter().map(|(name, value)| (name.as_str(), value)).collect();
    tensors.retain(|(name, _)| *name != "__metadata__");
    tensors.push(("lm_head.weight", &header["model.embed_tokens.weight"]));
    tensors.sort_by_key(|(name, _)| *name == "model.embed_tokens.weight");
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, value) in tensors {
        let offset = |index: usize| value["data_offsets"][index].as_u64().unwrap() as usize;
        let begin = data.len();
        data.extend_from_slice(&old[offset(0)..offset(1)]);
        let offsets = [begin, data.len()];
        header.insert(
            name.to_owned(),
            json!({"dtype": value["dtype"], "shape": value["shape"], "data_offsets": offsets}),
        );
    }
    let header = Value::from(header).to_string();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(&path, [&length, header.as_bytes(), &data].concat()).unwrap();
    folder
}

/// Rows of an embedding that is not also the head are read from the file when they are needed.
#[test]
fn an_embedding_that_is_truncated_while_the_server_runs_is_never_used() {
    let model = untied_model("truncated-embedding");
    let server = Server::start(&["--model-id", model.as_str()]);
    let answer = |text: &str| {
        let request = json!({"inputs": text, "parameters": {"max_new_tokens": 8}});
        post(&server.url("/generate"), &request)
    };
    assert_eq!(answer("Once upon a time").status, 200);
    let weights = model.join("model.safetensors");
    truncate(&weights, 4096);
    let refused = answer("Once upon a time");
    assert_ne!(refused.status, 200, "{}", refused.body);
    let expected = "model.safetensors has been changed since this server read it first";
    server.wait_until("the error is logged", |server| server.log().contains(expected));
    assert_eq!(server.wait().code(), Some(1));
}

/// Creates a model with an embedding of 256 MiB, which is a hole in the file.
fn large_model(name: &str) -> (Folder, u64) {
    const VOCABULARY: usize = 1 << 19;
    let folder = Folder::demo(name);
    let mut config: Value = serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    config["vocab_size"] = json!(VOCABULARY);
    config["num_hidden_layers"] = json!(1);
    config["torch_dtype"] = json!("float32");
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let tensors = [
        ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, 128]),
        (layer("input_layernorm"), vec![128]),
        (layer("self_attn.q_proj"), vec![128, 128]),
        (layer("self_attn.k_proj"), vec![64, 128]),
        (layer("self_attn.v_proj"), vec![64, 128]),
        (layer("self_attn.o_proj"), vec![128, 128]),
        (layer("post_attention_layernorm"), vec![128]),
        (layer("mlp.gate_proj"), vec![384, 128]),
        (layer("mlp.up_proj"), vec![384, 128]),
        (layer("mlp.down_proj"), vec![128, 384]),
        ("model.norm.weight".to_owned(), vec![128]),
    ];
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let begin = end;
        end += 4 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}));
    }
    let header = Value::from(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    fs::write(folder.join("model.safetensors"), &bytes).unwrap();
    truncate(&folder.join("model.safetensors"), (bytes.len() + end) as u64);
    (folder, bytes.len() as u64)
}

/// Returns whether a process has mapped the weights. A process that has ended has not.
fn maps_weights(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("model.safetensors"))
}

/// Starts a server of `model` and truncates the weights while the shard reads them. Returns the
/// server unless the shard had read all of them before.
fn truncate_while_loading(model: &Folder, header: u64) -> Option<Server> {
    let server = Server::start_loading(&["--model-id", model.as_str(), "--max-batch-total-tokens", "1024"]);
    server.wait_until("the shard is started", |server| !shards_of(server.pid()).is_empty());
    let shard = shards_of(server.pid())[0];
    // Stops the shard as soon as the file is mapped, before most of it is read.
    let since = Instant::now();
    while !maps_weights(shard) {
        assert!(since.elapsed() < wait_limit(), "the weights are not mapped:\n{}", server.log());
        if server.log().contains("ready after") {
            return None;
        }
    }
    signal(shard, "STOP");
    let is_mapped = maps_weights(shard);
    truncate(&model.join("model.safetensors"), header + 1000);
    signal(shard, "CONT");
    is_mapped.then_some(server)
}

#[test]
#[cfg(target_os = "linux")]
fn a_checkpoint_that_is_truncated_while_it_is_loaded_is_one_clear_error() {
    const EXPECTED: &str = "model.safetensors could not be read to its end: it was truncated";
    // A test that is not run for a moment finds the weights loaded, and tries again.
    for _ in 0..20 {
        let (model, header) = large_model("loading");
        let Some(server) = truncate_while_loading(&model, header) else { continue };
        server.wait_until("it has noticed, or is ready", |server| {
            server.log().contains(EXPECTED) || server.log().contains("ready after")
        });
        if server.log().contains(EXPECTED) {
            assert_eq!(server.wait().code(), Some(1));
            return;
        }
    }
    panic!("twenty times, the weights were loaded before they could be truncated");
}

#[test]
fn special_files_are_not_read() {
    for name in ["config.json", "tokenizer.json", "model.safetensors"] {
        let model = Folder::demo("fifo");
        fs::remove_file(model.join(name)).unwrap();
        assert!(Command::new("mkfifo").arg(model.join(name)).status().unwrap().success());
        let (code, log) = refusal(&model);
        assert_eq!(code, Some(1), "{name}: {log}");
        assert!(log.contains(&format!("{name}: it is not a regular file")), "{log}");
    }
}

#[test]
fn token_ids_that_need_tables_of_gigabytes_are_refused() {
    let model = Folder::demo("ids");
    let path = model.join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["model"]["vocab"]["far"] = json!(u32::MAX);
    fs::write(&path, tokenizer.to_string()).unwrap();
    let (code, log) = refusal(&model);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("a token with the id 4294967295, but ids must be below"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

#[test]
fn end_tokens_that_the_model_does_not_have_harm_no_request() {
    let model = Folder::demo("ends");
    fs::write(model.join("generation_config.json"), r#"{"eos_token_id": [2, 4294967295]}"#).unwrap();
    let server = Server::start(&["--model-id", model.as_str()]);
    let request = json!({"model": "tgi", "prompt": "Once", "max_tokens": 8, "min_tokens": 4});
    let answer = post(&server.url("/v1/completions"), &request);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(server.metric("millrace_shard_restarts_total"), 0.0);
}

fn names_in(folder: &Folder) -> Vec<String> {
    let entries = fs::read_dir(&folder.0).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn temporary_folders_of_a_killed_server_are_removed_by_the_next_one() {
    let folder = Folder::new("leftovers");
    fs::create_dir(folder.join("millrace-shards-of-another-program")).unwrap();
    fs::write(folder.join("millrace-shards-of-another-program/thesis.txt"), "").unwrap();
    // The folder exists from the start of the shards until they have connected. A folder without a
    // lock would be kept for an hour, because its server may be about to lock it.
    let is_ours = |name: &String| {
        let is_named = name.starts_with("millrace-shards-") && !name.ends_with("else");
        is_named && folder.join(name).join("lock").exists()
    };
    // The port is open before the shards start. The folder may have been created and removed
    // between two checks, and then the next server is tried.
    let left = (0..20).find_map(|_| {
        let server = Server::start_loading_with_env(&[("TMPDIR", folder.as_str())], &[]);
        server.wait_until("its folder is there, or it is ready", |server| {
            names_in(&folder).iter().any(is_ours) || server.log().contains("ready after")
        });
        // This kills the server.
        drop(server);
        names_in(&folder).into_iter().find(is_ours)
    });
    let left = left.expect("no server was killed while its folder was there");
    let server = Server::start_with_env(&[("TMPDIR", folder.as_str())], &[]);
    server.wait_until("the leftover folder is gone", |_| !folder.join(&left).exists());
    assert!(folder.join("millrace-shards-of-another-program/thesis.txt").exists());
}
