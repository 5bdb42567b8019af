//! Tests unchanged third-party clients against the real server. `cargo xtask clients` installs
//! them.

use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_integration_tests::hub::{FakeHub, snapshot};
use millrace_integration_tests::{Server, free_port, wait_limit};
use serde_json::{Value, json};

/// The demo model's own template with support for tools.
const TEMPLATE: &str = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}\
{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}\
{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const KEY: &str = "a-key-for-tests";

/// Returns the folder with the installed clients.
fn installed() -> PathBuf {
    std::env::var_os("MILLRACE_CLIENTS")
        .map(PathBuf::from)
        .expect("MILLRACE_CLIENTS names the folder of the clients")
}

/// Creates the demo model with a template that supports tools.
fn model() -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
    let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join("demo-with-tools");
    std::fs::create_dir_all(&to).unwrap();
    for file in ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"] {
        std::fs::copy(from.join(file), to.join(file)).unwrap();
    }
    let config = std::fs::read_to_string(from.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["chat_template"] = json!(TEMPLATE);
    std::fs::write(to.join("tokenizer_config.json"), config.to_string()).unwrap();
    to
}

/// Runs a program that finds the server in its environment.
fn run(program: &Path, arguments: &[&str], server: &Server, environment: &[(&str, &str)]) {
    let mut command = Command::new(program);
    // Files that the clients write into the working directory go to a temporary folder.
    command.args(arguments).envs(environment.iter().copied()).current_dir(env!("CARGO_TARGET_TMPDIR"));
    command.envs([
        ("MILLRACE_URL", server.url("").as_str()),
        ("MILLRACE_KEY", KEY),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    ]);
    let status = command.status().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    assert!(status.success(), "{} {}: {status}\n{}", program.display(), arguments.join(" "), server.log());
    assert_eq!(server.get("/health").0, 200);
}

/// Sends random requests generated from the API description. No response may be a server error or
/// differ from the description. A request that fits the description may still be refused, because
/// limits depend on the model and some fields depend on others.
#[test]
#[ignore = "needs the clients, which `cargo xtask clients` installs and runs"]
fn the_api_matches_its_description() {
    let installed = installed();
    let server = Server::start(&["--device", "null", "--api-key", KEY]);
    let seed = std::env::var("MILLRACE_CONTRACT_SEED").unwrap_or("1".into());
    let (docs, key) = (server.url("/api-doc/openapi.json"), format!("Authorization: Bearer {KEY}"));
    eprintln!("MILLRACE_CONTRACT_SEED={seed}");
    let limit = wait_limit().as_secs().to_string();
    let run_with = ["run", &docs, "--header", &key, "--seed", &seed, "--max-examples", "15"];
    let arguments = [
        &run_with[..],
        &["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--phases", "coverage,fuzzing"],
        &["--continue-on-failure", "--no-shrink", "--request-timeout", &limit, "--warnings", "off"],
        &["--suppress-health-check", "all"],
    ];
    run(&installed.join("python/bin/schemathesis"), &arguments.concat(), &server, &[]);
}

#[test]
#[ignore = "needs the clients, which `cargo xtask clients` installs and runs"]
fn unchanged_clients_are_served() {
    let installed = installed();
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/clients");
    let model = model();
    let server = Server::start(&["--model-id", model.to_str().unwrap(), "--api-key", KEY]);
    let pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", tests];
    run(&installed.join("python/bin/python"), &pytest, &server, &[]);
    let modules = installed.join("node/node_modules");
    let modules = [("NODE_PATH", modules.to_str().unwrap())];
    run(Path::new("node"), &["--test", &format!("{tests}/openai.test.cjs")], &server, &modules);
}

#[test]
#[ignore = "needs the clients, which `cargo xtask clients` installs and runs"]
fn zeromq_subscribers_follow_the_prefix_cache() {
    let installed = installed();
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/kv_events");
    let [events, replay] = [(); 2].map(|()| format!("tcp://127.0.0.1:{}", free_port()));
    let config = json!({
        "enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@pod@demo",
        "endpoint": events, "replay_endpoint": replay,
    });
    let small = ["--max-batch-total-tokens", "1024", "--max-total-tokens", "512"];
    let server = Server::start(&[&["--kv-events-config", &config.to_string()], &small[..]].concat());
    let pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", tests];
    let sockets = [("MILLRACE_EVENTS", events.as_str()), ("MILLRACE_REPLAY", &replay)];
    run(&installed.join("python/bin/python"), &pytest, &server, &sockets);
}

/// Downloads `org/tiny` with huggingface_hub, without files that Millrace does not read, and prints
/// the folder of the snapshot.
const SNAPSHOT_DOWNLOAD: &str = "import sys, huggingface_hub
print(huggingface_hub.snapshot_download('org/tiny', allow_patterns=['*.json', 'model.safetensors']))";

/// Runs `SNAPSHOT_DOWNLOAD` with the cache in `folder`, and returns the last line of its output.
fn snapshot_download(hub: &FakeHub, folder: &Path, offline: &str) -> PathBuf {
    let mut python = Command::new(installed().join("python/bin/python"));
    python.args(["-c", SNAPSHOT_DOWNLOAD]).envs(hub.environment(folder)).env("HF_HUB_OFFLINE", offline);
    let output = python.env_remove("HF_TOKEN").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

#[test]
#[ignore = "needs the clients, which `cargo xtask clients` installs and runs"]
fn the_cache_is_shared_with_huggingface_hub() {
    let weights = "model.safetensors";
    // What Python has downloaded is found.
    let (hub, folder) = (FakeHub::with_demo_model(), tempfile::tempdir().unwrap());
    assert_eq!(snapshot_download(&hub, folder.path(), "0"), snapshot(folder.path()));
    let before = hub.downloads_of(weights).len();
    assert_ne!(before, 0);
    for offline in ["1", "0"] {
        let output = hub.download(folder.path(), &[("HF_HUB_OFFLINE", offline)], &[]);
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{log}");
        assert_eq!(Path::new(String::from_utf8_lossy(&output.stdout).trim()), snapshot(folder.path()));
    }
    assert_eq!(hub.downloads_of(weights).len(), before, "the weights were downloaded again");
    // Python finds what Millrace has downloaded.
    let (hub, folder) = (FakeHub::with_demo_model(), tempfile::tempdir().unwrap());
    assert!(hub.download(folder.path(), &[], &[]).status.success());
    let before = hub.downloads_of(weights).len();
    for offline in ["1", "0"] {
        assert_eq!(snapshot_download(&hub, folder.path(), offline), snapshot(folder.path()));
    }
    assert_eq!(hub.downloads_of(weights).len(), before, "the weights were downloaded again");
    // Without links, Python uses the blobs, whose names must be those that it expects.
    std::fs::remove_dir_all(snapshot(folder.path())).unwrap();
    assert_eq!(snapshot_download(&hub, folder.path(), "0"), snapshot(folder.path()));
    assert_eq!(hub.downloads_of(weights).len(), before, "the blob has another name");
    assert_eq!(hub.downloads_of("tokenizer.json").len(), 1, "the blob has another name");
}
