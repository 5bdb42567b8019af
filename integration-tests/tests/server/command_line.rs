//! Tests flags, files and environment variables, and the commands that do not serve.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use millrace_integration_tests::{SecretFile, Server, binary, post, wait_until};
use serde_json::{Value, json};

/// Runs a command to its end.
pub(crate) fn millrace(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    Command::new(binary())
        .args(arguments)
        .envs(variables.iter().copied())
        .env_remove("MODEL_ID")
        .output()
        .unwrap()
}

/// Returns the error text of a command that fails.
pub(crate) fn error_text(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let output = millrace(arguments, variables);
    assert!(!output.status.success(), "{arguments:?} {variables:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_reader_that_leaves_ends_the_output_quietly() {
    for arguments in [&["print-schema"][..], &["completions", "bash"], &["inspect", "--model-id", "demo"]] {
        let mut process = Command::new(binary())
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Nobody reads the output, as after `| head`.
        drop(process.stdout.take());
        let output = process.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{arguments:?}");
    }
}

/// Kubernetes makes such variables for the Services of a namespace, and deployment files leave
/// variables empty.
#[test]
fn variables_that_are_no_settings_are_ignored() {
    let address = "tcp://10.96.0.7:9090";
    let ports = ["PORT", "HEALTH_PORT", "PROMETHEUS_PORT", "MASTER_PORT", "LEADER_PORT"];
    let empty = [
        "LORA_ADAPTERS",
        "API_KEY",
        "MAX_BATCH_SIZE",
        "QUANTIZE",
        "TLS_CERT",
        "MODEL_ID",
        "DTYPE",
        "SHARDED",
    ];
    let variables: Vec<(&str, &str)> =
        ports.map(|name| (name, address)).into_iter().chain(empty.map(|name| (name, ""))).collect();
    let server = Server::start_with_env(&variables, &[]);
    for name in ports {
        server.wait_for_log(&format!("warning: {name}={address} is ignored: "));
    }
    let answer =
        post(&server.url("/generate"), &json!({"inputs": "Once", "parameters": {"max_new_tokens": 2}}));
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn tgis_flags_are_understood_or_refused_with_the_reason() {
    for (flags, variables, text) in [
        (
            &["serve", "--quantize", "exl2"][..],
            &[][..],
            "'exl2' for '--quantize <FORMAT>': not supported; fp8, int8, eetq, q8_0, int4, q4_0, q4_k, q5_k and q6_k, and on the CPU nf4",
        ),
        (&["serve"], &[("QUANTIZE", "marlin")], "'marlin' for '--quantize <FORMAT>'"),
        (&["serve", "--device", "cuda-sim", "--quantize", "nf4"], &[], "--quantize nf4 needs the CPU"),
        (
            &["serve", "--device", "cuda-sim", "--kv-cache-dtype", "int8"],
            &[],
            "--kv-cache-dtype int8 needs the CPU",
        ),
        (&["serve", "--lora-adapters", "a"], &[], "--lora-adapters: adapter \"a\": there is no folder a"),
        (
            &["serve"],
            &[("ROPE_SCALING", "dynamic"), ("ROPE_FACTOR", "0.5")],
            "must be a number of at least 1",
        ),
        (&["serve", "--watermark-gamma", "1"], &[], "must be a number more than 0 and less than 1"),
        (&["serve", "--pooling", "attention"], &[], "the pooling `attention` is not supported"),
        (&["serve", "--sharded", "true"], &[], "--num-shard"),
        (&["serve", "--sharded", "false", "--num-shard", "2"], &[], "contradict each other"),
        (&["serve", "--cuda-memory-fraction", "1.5"], &[], "must be above 0 and at most 1"),
        (&["serve", "--port", "0", "--cuda-memory-fraction", "0.000000001"], &[], "not enough memory"),
        (&["serve", "--validation-workers", "0"], &[], "--validation-workers"),
        (
            &["serve", "--max-input-tokens", "9", "--max-total-tokens", "9"],
            &[],
            "must be less than --max-total-tokens",
        ),
        (&["serve", "--max-concurent-requests", "3"], &[], "--max-concurrent-requests"),
        (&["serve", "--api-key", ""], &[], "a key must not be empty"),
        (&["serve", "--api-key", "two words"], &[], "visible ASCII"),
        (&["serve", "--api-key", "key priority=low"], &[], "only `priority=high`, `requests=N`"),
        (&["serve", "--max-best-of", "0"], &[], "--max-best-of"),
        (&["serve", "--max-connections", "4611686018427387904"], &[], "is not in 1..=1099511627776"),
        (&["serve", "--max-connections", "0"], &[], "--max-connections"),
        (&["serve", "--max-concurrent-requests", "0"], &[], "--max-concurrent-requests"),
        (&["serve", "--max-body-bytes-in-flight", "9223372036854775808"], &[], "--max-body-bytes-in-flight"),
        (&["serve", "--graceful-termination-timeout", "18446744073709551615"], &[], "is not in 0..=31536000"),
        (&["serve", "--idle-timeout", "1e-300"], &[], "must be at least 0.001"),
        (&["serve", "--idle-timeout", "0"], &[], "must be at least 0.001"),
        (&["serve", "--api-key-file", "/nowhere/keys"], &[], "--api-key-file /nowhere/keys"),
        (&["serve", "--tls-cert", "/nowhere/cert.pem"], &[], "--tls-key"),
        (&["serve", "--tls-cert", "/nowhere/c.pem", "--tls-key", "/nowhere/k.pem"], &[], "/nowhere/c.pem"),
        (
            &["serve", "--port", "0"],
            &[("AIP_PREDICT_ROUTE", "/generate")],
            "the path /generate cannot be a route",
        ),
        (
            &["serve", "--tokenizer-config-path", "/nowhere/t.json"],
            &[],
            "--tokenizer-config-path: /nowhere/t.json",
        ),
        (&["serve", "--tool-call-parser", "xml"], &[], "formats are hermes, qwen3_coder, llama3_json"),
        (&["serve"], &[("AIP_HTTP_PORT", "many")], "AIP_HTTP_PORT=many"),
        (&["serve", "--config", "/nowhere/millrace.toml"], &[], "--config /nowhere/millrace.toml"),
    ] {
        let said = error_text(flags, variables);
        assert!(said.contains(text), "{flags:?} {variables:?}: {said}");
    }
    let idle = [
        "--waiting-served-ratio",
        "0.3",
        "--max-waiting-tokens",
        "20",
        "--prometheus-port",
        "9000",
        "--trust-remote-code",
        "--sharded=false",
        "--ngrok",
        "--env",
    ];
    let variables = [("ATTENTION", "flashinfer"), ("NGROK_EDGE", "e")];
    let server = Server::start_with_env(&variables, &idle);
    for flag in [
        "--waiting-served-ratio",
        "--max-waiting-tokens",
        "--prometheus-port",
        "--attention",
        "--ngrok",
        "--ngrok-edge",
    ] {
        server.wait_for_log(&format!("{flag} has no effect: "));
    }
    server.wait_for_log("using the CPU: ");
}

#[test]
fn flags_of_other_servers_and_a_positional_model_are_accepted() {
    for flags in [
        &["/nowhere/model"][..],
        &["-m", "/nowhere/model", "-c", "64", "--host", "localhost"],
        &["--model", "/nowhere/model", "--max-model-len", "64", "--tensor-parallel-size", "1"],
        &[
            "--model-id",
            "demo",
            "/nowhere/model",
            "--max-num-seqs",
            "4",
            "--ctx-size",
            "64",
            "--threads",
            "2",
        ],
    ] {
        let said = error_text(&[&["serve", "--port", "0"], flags].concat(), &[("MODEL_ID", "demo")]);
        assert!(said.contains("/nowhere/model") && !said.contains("unexpected"), "{flags:?}: {said}");
    }
    let said = error_text(&["serve", "--port", "0", "--hostname", "no.such.name.invalid"], &[]);
    assert!(said.contains("or a name of this machine"), "{said}");
}

#[test]
fn a_load_test_without_the_key_says_so() {
    let server = Server::start(&["--api-key", "key"]);
    let said = error_text(&["bench-http", "--url", &server.url("")], &[]);
    assert!(said.contains("status 401") && said.contains("--api-key"), "{said}");
}

/// TGI's flags with their default values or values that they accept.
const TGI: &str = "--revision main --validation-workers 2 --sharded false --num-shard 1 --speculate 0 --dtype bfloat16 \
    --kv-cache-dtype bfloat16 --max-concurrent-requests 128 --max-best-of 2 --max-stop-sequences 4 --max-top-n-tokens 5 \
    --max-input-length 1023 --max-total-tokens 1024 --waiting-served-ratio 0.3 --max-batch-prefill-tokens 4096 \
    --max-batch-total-tokens 16384 --max-waiting-tokens 20 --max-batch-size 4 --cuda-graphs 1,2,4,8,16,32 --hostname 0.0.0.0 \
    -p 3000 --prometheus-port 9000 --shard-uds-path /tmp/tgi --master-addr localhost --master-port 29500 \
    --huggingface-hub-cache /data --weights-cache-override /data --rope-scaling dynamic --rope-factor 1.0 --cuda-memory-fraction 1.0 --json-output \
    --otlp-endpoint http://127.0.0.1:4317 --otlp-service-name text-generation-inference.router --cors-allow-origin https://a.example \
    --cors-allow-origin https://b.example --api-key key --watermark-gamma 0.5 --watermark-delta 2.0 --disable-grammar-support \
    --max-client-batch-size 4 --payload-limit 2000000 --enable-prefill-logprobs -g 90 --max-image-fetch-size 1073741824 \
    --trust-remote-code --disable-custom-kernels --usage-stats off -e";

#[test]
fn every_flag_of_tgi_is_known() {
    let flags: Vec<&str> = TGI.split_whitespace().collect();
    let said = error_text(&[&["serve", "--model-id", "/nowhere/model"], flags.as_slice()].concat(), &[]);
    assert!(said.contains("/nowhere/model") && !said.contains("unexpected argument"), "{said}");
}

#[test]
fn keys_come_from_flags_and_files_and_lines_of_the_log_name_requests() {
    let file = SecretFile::new("keys", "# for the web site\nfrom-file\n\nanother\n");
    let server =
        Server::start(&["--api-key", "one,two", "--api-key", "three", "--api-key-file", file.path()]);
    let body = json!({"inputs": "A secret prompt", "parameters": {"max_new_tokens": 4}});
    assert_eq!(post(&server.url("/generate"), &body).status, 401);
    let send = |key: &str| {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let request = agent.post(server.url("/generate")).header("authorization", format!("Bearer {key}"));
        request.header("x-request-id", format!("id-of-{key}")).send_json(&body).unwrap()
    };
    for key in ["one", "two", "three", "from-file", "another"] {
        let response = send(key);
        assert_eq!(
            (response.status().as_u16(), response.headers()["x-request-id"].to_str().unwrap()),
            (200, &*format!("id-of-{key}"))
        );
        server.wait_until("the request is logged", |server| server.log().contains(&format!("id-of-{key}")));
    }
    for key in ["# for the web site", "four", ""] {
        assert_eq!(send(key).status().as_u16(), 401, "{key}");
    }
    assert!(!server.log().contains("secret prompt"), "{}", server.log());
    assert!(!server.log().contains("from-file\"") || !server.log().contains("Bearer"), "keys are not logged");

    let server = Server::start(&["--log-requests", "--json-output"]);
    assert_eq!(post(&server.url("/generate"), &body).status, 200);
    server.wait_until("prompt and answer are logged", |server| {
        let log = server.log();
        let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let has = |message: &str| lines.iter().find(|line| line["fields"]["message"] == message);
        let named = |line: &Value| line["fields"]["request_id"].as_str().is_some_and(|id| id.len() == 32);
        has("prompt").is_some_and(|line| {
            line["fields"]["prompt"].as_str().unwrap().contains("A secret prompt") && named(line)
        }) && has("answer").is_some_and(named)
            && has("request").is_some_and(|line| line["fields"]["path"] == "/generate" && named(line))
    });
}

#[test]
fn the_environment_overrides_the_configuration_file() {
    let path = std::env::temp_dir().join(format!("millrace-{}.toml", std::process::id()));
    std::fs::write(&path, "max-best-of = 3\nmax_stop_sequences = 7\nmax-client-batch-size = 9\n").unwrap();
    let path = path.to_str().unwrap();
    let server = Server::start(&["--config", path, "--max-client-batch-size", "2"]);
    let info: Value = serde_json::from_str(&server.get("/info").1).unwrap();
    assert_eq!((&info["max_best_of"], &info["max_stop_sequences"]), (&json!(3), &json!(7)));
    assert_eq!(info["max_client_batch_size"], 2);
    std::fs::write(path, "max-best-off = 3\n").unwrap();
    let said = error_text(&["serve", "--config", path], &[]);
    assert!(said.contains("there is no flag `max-best-off`; did you mean `max-best-of`?"), "{said}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn another_chat_template_is_used_and_the_api_is_described() {
    let file = SecretFile::new(
        "tokenizer-config",
        r#"{"chat_template": "{% for m in messages %}<{{ m.content }}>{% endfor %}"}"#,
    );
    let server = Server::start(&["--tokenizer-config-path", file.path()]);
    let body = json!({"messages": [{"role": "user", "content": "a"}]});
    assert_eq!(post(&server.url("/chat_tokenize"), &body).body["templated_text"], "<a>");
    let schema = millrace(&["print-schema"], &[]).stdout;
    let (schema, served) = (String::from_utf8(schema).unwrap(), server.get("/api-doc/openapi.json").1);
    assert_eq!(schema.trim_end(), served);
}

#[test]
fn vertex_ai_chooses_port_and_paths() {
    let port = millrace_integration_tests::free_port();
    let mut process = Command::new(binary())
        .arg("serve")
        .env("AIP_HTTP_PORT", &port)
        .env("AIP_PREDICT_ROUTE", "/v1/endpoints/7:predict")
        .env("AIP_HEALTH_ROUTE", "/alive")
        .env_remove("PORT")
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let url = format!("http://127.0.0.1:{port}");
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let alive = || agent.get(format!("{url}/alive")).call().is_ok_and(|response| response.status() == 200);
    wait_until("it is alive", alive, String::new);
    let body = json!({"instances": [{"inputs": "Once", "parameters": {"max_new_tokens": 3}}]});
    let answer = post(&format!("{url}/v1/endpoints/7:predict"), &body);
    process.kill().unwrap();
    process.wait().unwrap();
    assert_eq!((answer.status, answer.body["predictions"].as_array().map(Vec::len)), (200, Some(1)));
}

#[test]
fn env_says_what_a_bug_report_needs_and_no_secret() {
    let output = millrace(&["env"], &[("API_KEY", "hidden"), ("MAX_BEST_OF", "7")]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["millrace ", "cpu ", "memory", "open files", "$MAX_BEST_OF", "$API_KEY"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(output.status.success() && !text.contains("hidden"), "{text}");
}

#[test]
fn a_load_test_counts_the_answers() {
    let server = Server::start(&["--api-key", "key"]);
    let file = std::env::temp_dir().join(format!("millrace-bench-{}.json", std::process::id()));
    let bench = |more: &[&str]| {
        let url = server.url("/v1");
        let common =
            ["bench-http", "--url", &url, "--api-key", "key", "--max-tokens", "12", "--prompt-words", "20"];
        millrace(&[&common, more].concat(), &[])
    };
    for route in ["completions", "chat"] {
        let output =
            bench(&["--route", route, "--concurrency", "1,4", "-n", "6", "--json", file.to_str().unwrap()]);
        let table = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for part in
            ["demo at http", "1 at a time: 6 of 6 requests", "4 at a time: 6 of 6", "first token", "p99"]
        {
            assert!(table.contains(part), "{part}: {table}");
        }
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let runs = report["runs"].as_array().unwrap();
        assert_eq!((runs.len(), &runs[1]["load"]["concurrency"]), (2, &json!(4)));
        for run in runs {
            assert_eq!(
                (&run["requests"], &run["succeeded"], &run["errors"]),
                (&json!(6), &json!(6), &json!({}))
            );
            let tokens = run["output_tokens"].as_u64().unwrap();
            assert!((6..=72).contains(&tokens) && run["prompt_tokens"].as_u64().unwrap() > 6 * 20, "{run}");
            let ms = |name: &str, what: &str| run[name][what].as_f64().unwrap();
            assert!(ms("ttft_ms", "p50") > 0.0 && ms("ttft_ms", "p50") <= ms("ttft_ms", "p99"));
            assert!(ms("e2e_ms", "max") >= ms("ttft_ms", "max") && ms("itl_ms", "mean") > 0.0);
        }
    }
    std::fs::remove_file(&file).unwrap();
    let output = bench(&["--rate", "40", "-n", "8", "--json", "-"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["runs"][0]["succeeded"], 8);
    let output = bench(&["--concurrency", "2", "--duration", "0.5", "--json", "-"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let count = |name: &str| report["runs"][0][name].as_u64().unwrap();
    assert!(count("cut") <= 2 && count("requests") > 0, "those that run at the end are cut: {report}");
    assert_eq!(count("requests"), count("succeeded") + count("cut"), "{report}");
    let prompts = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/server/command_line.rs"));
    let output = millrace(
        &[
            "bench-http",
            "--url",
            &server.url(""),
            "--api-key",
            "wrong",
            "--model",
            "demo",
            "--prompts",
            prompts.to_str().unwrap(),
        ],
        &[],
    );
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("status 401"), "{said}");
}

#[test]
fn the_model_may_be_given_names() {
    let ids = |server: &Server| {
        let list: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
        let ids =
            list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    let ask = |server: &Server, model: &str| {
        let body = json!({"model": model, "prompt": "Once", "max_tokens": 1});
        let answer = post(&server.url("/v1/completions"), &body);
        (answer.status, answer.body["model"].as_str().unwrap_or_default().to_owned())
    };
    let server = Server::start(&["--served-model-name", "large", "gpt-4o"]);
    assert_eq!(ids(&server), ["large", "gpt-4o"]);
    assert_eq!(ask(&server, "gpt-4o"), (200, "large".into()));
    assert_eq!(ask(&server, "small").0, 404);
    let server = Server::start(&[]);
    assert_eq!(ids(&server), ["demo"]);
    assert_eq!(ask(&server, "https://api.example/"), (200, "demo".into()));

    let help = String::from_utf8(millrace(&["serve", "--help"], &[]).stdout).unwrap();
    assert!(help.contains("--served-model-name"), "{help}");
    let said = error_text(&["serve", "--max-model-length", "5"], &[]);
    assert!(said.contains("'--max-model-len'"), "{said}");
    let said = error_text(&["serve", "--gpu-memory-utilization", "0.9"], &[]);
    assert!(said.contains("'--cuda-memory-fraction'"), "{said}");
}

#[test]
fn completions_and_manual_pages_know_commands_and_flags() {
    for (shell, texts) in [
        ("bash", &["complete -F _millrace", "--max-total-tokens", "bench-http"][..]),
        ("zsh", &["#compdef millrace", "--max-total-tokens", "bench-http"]),
        ("fish", &["complete -c millrace", "max-total-tokens", "bench-http"]),
    ] {
        let output = millrace(&["completions", shell], &[]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{shell}");
        for part in texts {
            assert!(text.contains(part), "{shell}: no {part} in {text}");
        }
    }
    assert!(error_text(&["completions", "sh"], &[]).contains("invalid value 'sh'"));

    // bash itself reads its completions, and completes the name of a flag.
    let script = "source <(\"$1\" completions bash); COMP_WORDS=(millrace serve --max-total); COMP_CWORD=2; \
                  _millrace millrace --max-total serve; echo \"${COMPREPLY[*]}\"";
    let completed =
        Command::new("bash").args(["-c", script, "bash"]).arg(binary()).output().expect("bash is needed");
    assert_eq!(String::from_utf8(completed.stdout).unwrap().trim(), "--max-total-tokens");

    let folder = std::env::temp_dir().join(format!("millrace-man-{}", std::process::id()));
    let written = millrace(&["man", folder.to_str().unwrap()], &[]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(page("millrace.1").contains(".TH MILLRACE 1") && page("millrace.1").contains("completions"));
    let serve = page("millrace-serve.1");
    assert!(
        serve.contains(".TH MILLRACE-SERVE 1")
            && serve.contains(" \"millrace ")
            && serve.contains("\\-\\-max\\-total\\-tokens"),
        "{serve}"
    );
    assert!(!folder.join("millrace-shard.1").exists(), "commands that help hides have no page");
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(error_text(&["man", "/proc/none"], &[]).contains("cannot make /proc/none"));
}
