//! Tests what the operator gives and gets: flags of other servers, sizes, files that change or are
//! no files, and the lines of the log.

use std::process::Command;

use millrace_integration_tests::{SecretFile, Server, post};
use serde_json::{Value, json};

use crate::command_line::{error_text, millrace};

#[test]
fn the_log_has_the_times_and_tokens_of_each_answer() {
    let server = Server::start(&["--json-output"]);
    // Returns the line of the next request.
    let line = |id: &str, path: &str, body: &Value| {
        let agent = ureq::Agent::new_with_defaults();
        let sent = agent.post(server.url(path)).header("x-request-id", id).send_json(body);
        assert_eq!(sent.unwrap().status().as_u16(), 200);
        server.wait_until("the request is logged", |server| server.log().contains(id));
        let log = server.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["fields"]["request_id"] == id).unwrap()["fields"].clone()
    };
    let body = json!({"model": "m", "prompt": ["Once upon", "There was a cat"], "n": 2, "max_tokens": 3,
                      "ignore_eos": true});
    let fields = line("a-completion", "/v1/completions", &body);
    let tokens = |text: &str| {
        let answer = post(&server.url("/tokenize"), &json!({"inputs": text}));
        answer.body.as_array().unwrap().len() as u64
    };
    let prompt_tokens = tokens("Once upon") + tokens("There was a cat");
    assert_eq!(fields["prompt_tokens"], prompt_tokens, "{fields}");
    assert_eq!(fields["generated_tokens"], 12, "{fields}");
    let seconds = |name: &str| fields[name].as_f64().unwrap();
    assert!(seconds("queue_seconds") <= seconds("first_token_seconds"), "{fields}");
    assert!(seconds("first_token_seconds") <= seconds("seconds"), "{fields}");
    let fields = line("a-text", "/tokenize", &json!({"inputs": "Once"}));
    assert!(fields.get("prompt_tokens").is_none(), "nothing was computed: {fields}");
}

#[test]
fn flags_of_other_servers_are_understood() {
    // As for llama.cpp and vLLM.
    let flags = [
        "-np",
        "2",
        "-fa",
        "on",
        "-ngl",
        "99",
        "--jinja",
        "--enforce-eager",
        "--dtype",
        "auto",
        "--kv-cache-dtype",
        "auto",
        "--enable-auto-tool-choice",
        "-t",
        "1",
    ];
    let server = Server::start(&flags);
    for said in [
        "warning: -np is --parallel here",
        "warning: -t is --threads here",
        "warning: -fa has no effect: ",
        "warning: -ngl has no effect: a GPU computes all layers that fit; --gpu-memory limits their memory",
        "warning: --jinja has no effect: ",
        "warning: --enforce-eager has no effect: ",
        "warning: --enable-auto-tool-choice has no effect: ",
    ] {
        server.wait_for_log(said);
    }
    let version: Value = serde_json::from_str(&server.get("/version").1).unwrap();
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    let refused = error_text(&["serve", "-hf", "a/b:Q4_K_M"], &[]);
    assert!(refused.contains("-hf a/b:Q4_K_M: the hub is asked for safetensors only"), "{refused}");
    let half = error_text(&["serve", "--dtype", "half", "--max-total-tokens", "0", "--port", "0"], &[]);
    assert!(half.contains("--max-total-tokens"), "{half}");
}

#[test]
fn sizes_that_are_changed_are_announced() {
    let server = Server::start(&["--max-total-tokens", "99999", "--max-batch-total-tokens", "2040"]);
    server.wait_for_log(
        "--max-total-tokens 99999: sequences have up to 1024 tokens, because the model has no more",
    );
    server.wait_for_log("--rope-scaling and --rope-factor extend them");
    server.wait_for_log(
        "--max-batch-total-tokens 2040: the KV cache has 2048 tokens, because it consists of blocks",
    );
    // As in TGI, each of the two flags works alone.
    let longer = Server::start(&["--rope-factor", "2", "--max-total-tokens", "2048"]);
    let info: Value = serde_json::from_str(&longer.get("/info").1).unwrap();
    assert_eq!(info["max_total_tokens"], 2048, "{}", longer.log());
    drop(Server::start(&["--rope-scaling", "dynamic"]));
}

#[test]
fn limits_of_nothing_are_refused() {
    for flag in [
        "--cpus-per-shard",
        "--max-batch-size",
        "--max-batch-prefill-tokens",
        "--max-batch-total-tokens",
        "--max-total-tokens",
        "--max-input-tokens",
    ] {
        let said = error_text(&["serve", "--port", "0", flag, "0"], &[]);
        assert!(said.contains(&format!("invalid value '0' for '{flag} ")), "{said}");
    }
}

#[test]
fn a_host_that_is_not_of_this_machine_is_no_matter_of_ports() {
    // An address for documentation, which no machine has.
    let said = error_text(&["serve", "--hostname", "192.0.2.1", "--port", "0"], &[]);
    assert!(
        said.contains("this machine does not have the address") && !said.contains("try another"),
        "{said}"
    );
    let taken = Server::start(&[]);
    let port = taken.url("").rsplit(':').next().unwrap().to_owned();
    let said = error_text(&["serve", "--port", &port], &[]);
    assert!(said.contains("another program listens there: try another --port"), "{said}");
}

#[test]
fn commands_take_the_model_as_serve_does() {
    let inspected = millrace(&["inspect", "demo"], &[]);
    assert!(inspected.status.success() && !inspected.stdout.is_empty());
    let missing = error_text(&["bench", "/no/such/model"], &[]);
    assert!(missing.contains("/no/such/model"), "{missing}");
    let missing = error_text(&["generate", "/no/such/model", "Once"], &[]);
    assert!(missing.contains("/no/such/model"), "{missing}");
    let generated = millrace(&["generate", "demo", "Once upon", "-n", "2"], &[]);
    assert!(generated.stdout.starts_with(b"Once upon"), "{generated:?}");
    let folder = std::env::temp_dir();
    let said = error_text(&["generate", folder.to_str().unwrap()], &[]);
    assert!(said.contains("is a path: give a prompt behind it"), "{said}");
}

#[test]
fn files_that_are_no_regular_files_are_refused_at_once() {
    let folder = std::env::temp_dir().join(format!("millrace-fifos-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let fifo = folder.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let fifo = fifo.to_str().unwrap();
    for flags in [
        &["--config", fifo][..],
        &["--config", "/dev/zero"],
        &["--api-key-file", fifo],
        &["--tokenizer-config-path", fifo],
        &["--tls-cert", fifo, "--tls-key", fifo],
        &[
            "--nnodes",
            "2",
            "--num-shard",
            "2",
            "--leader-address",
            "127.0.0.1",
            "--node-rank",
            "0",
            "--group-secret-file",
            fifo,
        ],
    ] {
        let said = error_text(&[&["serve", "--port", "0"][..], flags].concat(), &[]);
        assert!(said.contains("not a regular file"), "{flags:?}: {said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_doctor_names_each_library_once() {
    let output = millrace(&["doctor"], &[("MILLRACE_NCCL_LIBRARY", "/no/such/libnccl.so.2")]);
    let text = String::from_utf8(output.stdout).unwrap();
    for name in ["driver", "cuBLASLt", "NCCL", "NVRTC", "kernels"] {
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(&format!(" {name}: "))).collect();
        assert_eq!(lines.len(), 1, "{name}: {text}");
        assert_eq!(lines[0].matches(&format!("{name} was not found")).count(), 0, "{text}");
    }
    assert!(text.matches("/no/such/libnccl.so.2").count() <= 1, "{text}");
}

#[test]
fn keys_and_certificates_are_read_again_at_sighup() {
    let keys = SecretFile::new("rotated-keys", "old\nkept\n");
    let server = Server::start(&["--api-key-file", keys.path()]);
    let status = |key: &str| {
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        let request = ureq::Agent::new_with_config(config).post(server.url("/tokenize"));
        let sent = request.header("x-api-key", key).send_json(json!({"inputs": "Once"}));
        sent.unwrap().status().as_u16()
    };
    assert_eq!(["old", "kept", "new"].map(status), [200, 200, 401]);
    std::fs::write(keys.path(), "kept\nnew\n").unwrap();
    server.signal("HUP");
    server.wait_for_log("SIGHUP: 2 API keys are read again");
    assert_eq!(["old", "kept", "new"].map(status), [401, 200, 200]);
    // A file without a key would open the server to everybody.
    std::fs::write(keys.path(), "# nothing\n").unwrap();
    server.signal("HUP");
    server.wait_for_log("SIGHUP: the API keys stay as they are: ");
    assert_eq!(["old", "kept", "new"].map(status), [401, 200, 200]);

    let folder = tempfile::tempdir().unwrap();
    let (certificate, private) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let write = || {
        let pair = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(&certificate, pair.cert.pem()).unwrap();
        std::fs::write(&private, pair.signing_key.serialize_pem()).unwrap();
    };
    write();
    let paths = [certificate.to_str().unwrap(), private.to_str().unwrap()];
    let server = Server::start_loading(&["--tls-cert", paths[0], "--tls-key", paths[1]]);
    write();
    server.signal("HUP");
    server.wait_for_log("SIGHUP: the TLS certificate is read again");
    std::fs::write(&certificate, "no certificate").unwrap();
    server.signal("HUP");
    server.wait_for_log("SIGHUP: the TLS certificate stays as it is: ");
}
