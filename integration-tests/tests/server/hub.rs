//! Tests `millrace download` and `millrace serve` against a server that plays the Hugging Face hub.

use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use millrace_integration_tests::hub::{COMMIT, FakeHub, Fault, HubRequest, snapshot};
use millrace_integration_tests::{
    SecretFile, Server, WorkerNode, free_port, post, seconds, signal, wait_until,
};
use millrace_test_patience::patience;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The size of the demo model's weights is above this.
const WEIGHTS: &str = "model.safetensors";

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// Returns what a program has written to standard error.
fn log(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks that the download succeeded and that the snapshot has the files of the demo model.
fn assert_complete(output: &Output, folder: &Path) {
    assert!(output.status.success(), "{}", log(output));
    let place = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert_eq!(Path::new(&place), snapshot(folder));
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
    for name in ["config.json", "generation_config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"]
    {
        let (found, expected) =
            (fs::read(snapshot(folder).join(name)).unwrap(), fs::read(demo.join(name)).unwrap());
        assert!(found == expected, "{name} differs");
    }
    let blobs = fs::read_dir(folder.join("hub/models--org--tiny/blobs")).unwrap().flatten();
    let left: Vec<_> = blobs.filter(|blob| blob.path().extension().is_some()).collect();
    assert!(left.is_empty(), "incomplete files are left: {left:?}");
}

/// Checks that the download failed with this text.
fn assert_refused(output: &Output, text: &str) {
    assert!(!output.status.success(), "it succeeded");
    assert!(output.stdout.is_empty(), "a folder was printed");
    assert!(log(output).contains(text), "`{text}` is not in:\n{}", log(output));
}

fn is_weights(request: &HubRequest) -> bool {
    request.is_cdn && request.path.ends_with(WEIGHTS)
}

/// Returns a function that applies a fault to the first `times` requests for the weights.
fn for_weights(times: usize, fault: Fault) -> impl FnMut(&HubRequest) -> Option<Fault> + Send {
    let mut left = times;
    move |request| {
        if !is_weights(request) || left == 0 {
            return None;
        }
        left -= 1;
        Some(fault.clone())
    }
}

#[test]
fn a_model_is_downloaded_once_and_without_files_that_nobody_reads() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    let output = hub.download(folder.path(), &[], &[]);
    assert_complete(&output, folder.path());
    for name in ["README.md", "consolidated.safetensors", "original/model.safetensors", "model.gguf"] {
        assert!(hub.downloads_of(name).is_empty(), "{name} was downloaded");
    }
    assert_eq!(fs::read_to_string(folder.path().join("hub/models--org--tiny/refs/main")).unwrap(), COMMIT);
    // A cache that is given by a relative path has an absolute one.
    let mut relative =
        hub.millrace(folder.path(), &["download", "org/tiny", "--huggingface-hub-cache", "hub"]);
    assert_complete(&relative.current_dir(folder.path()).output().unwrap(), folder.path());
    // The second time asks for the list only, and a commit asks for nothing.
    let before = hub.requests().len();
    assert_complete(&hub.download(folder.path(), &[], &[]), folder.path());
    assert_eq!(hub.requests().len(), before + 1);
    assert_complete(&hub.download(folder.path(), &[], &["--revision", COMMIT]), folder.path());
    assert_complete(&hub.download(folder.path(), &[("HF_HUB_OFFLINE", "1")], &[]), folder.path());
    assert_eq!(hub.requests().len(), before + 1);
}

#[test]
fn a_model_is_planned_before_its_weights_are_downloaded() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    // The second time, the small files are in the cache.
    for _ in 0..2 {
        let output = hub.millrace(folder.path(), &["inspect", "org/tiny"]).output().unwrap();
        assert!(output.status.success(), "{}", log(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains("no weights here") && text.contains("Memory for weights"), "{text}");
    }
    assert!(hub.downloads_of(WEIGHTS).is_empty(), "the weights were downloaded");
    let output = hub.millrace(folder.path(), &["inspect", "org/none"]).output().unwrap();
    assert!(!output.status.success() && log(&output).contains("org/none"), "{}", log(&output));
}

#[test]
fn the_token_is_for_the_hub_alone_and_is_never_printed() {
    let token = "hf_a-secret-for-this-test";
    for variable in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        let (hub, folder) = (FakeHub::with_demo_model(), folder());
        let output = hub.download(folder.path(), &[(variable, token), ("LOG_LEVEL", "trace")], &[]);
        assert_complete(&output, folder.path());
        let expected = format!("Bearer {token}");
        for request in hub.requests() {
            let sent = request.authorization.as_deref();
            assert_eq!(sent, (!request.is_cdn).then_some(expected.as_str()), "{request:?}");
        }
        assert!(hub.requests().iter().any(is_weights), "no file was redirected");
        assert!(!log(&output).contains(token), "the token is in the log");
    }
    // The file of `hf auth login`.
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    fs::write(folder.path().join("token"), format!("{token}\n")).unwrap();
    assert_complete(&hub.download(folder.path(), &[], &[]), folder.path());
    assert!(hub.requests().iter().all(|request| request.is_cdn != request.authorization.is_some()));
}

#[test]
fn broken_connections_are_continued() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.set_faults(for_weights(3, Fault::BreakAfter(500_000)));
    assert_complete(&hub.download(folder.path(), &[], &[]), folder.path());
    let starts: Vec<_> = hub.requests().into_iter().filter(is_weights).map(|request| request.start).collect();
    assert_eq!(starts, [None, Some(500_000), Some(1_000_000), Some(1_500_000)]);
}

#[test]
fn a_server_without_ranges_sends_the_file_again() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    let mut count = 0;
    hub.set_faults(move |request| {
        count += usize::from(is_weights(request));
        let fault = if count == 1 { Fault::BreakAfter(500_000) } else { Fault::IgnoreRange };
        is_weights(request).then_some(fault)
    });
    assert_complete(&hub.download(folder.path(), &[], &[]), folder.path());
    assert_eq!(hub.requests().into_iter().filter(is_weights).count(), 2);
}

#[test]
fn a_link_that_stalls_is_given_up_and_continued() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.set_faults(for_weights(1, Fault::StallAfter(700_000)));
    // A busy machine may not use up the timeout before the link stalls.
    let timeout = seconds(patience(Duration::from_secs(2)));
    let output = hub.download(folder.path(), &[("HF_HUB_DOWNLOAD_TIMEOUT", &timeout)], &[]);
    assert_complete(&output, folder.path());
    let starts: Vec<_> = hub.requests().into_iter().filter(is_weights).map(|request| request.start).collect();
    assert_eq!(starts, [None, Some(700_000)]);
    // A link that trickles would take weeks.
    let trickle = self::folder();
    hub.set_faults(for_weights(1, Fault::TrickleAfter(700_000)));
    let output = hub.download(trickle.path(), &[("HF_HUB_DOWNLOAD_TIMEOUT", &timeout)], &[]);
    assert_complete(&output, trickle.path());
    assert!(log(&output).contains("model.safetensors: only "), "{}", log(&output));
    // A slow link is no stalled one.
    let slow = self::folder();
    hub.set_faults(for_weights(1, Fault::Slow(100_000)));
    let output = hub.download(slow.path(), &[("HF_HUB_DOWNLOAD_TIMEOUT", &timeout)], &[]);
    assert_complete(&output, slow.path());
}

#[test]
fn wrong_bytes_are_downloaded_again_and_never_used() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.set_faults(for_weights(1, Fault::WrongBytes));
    let output = hub.download(folder.path(), &[], &[]);
    assert_complete(&output, folder.path());
    assert!(log(&output).contains("the checksum is wrong; downloading the file again"), "{}", log(&output));
    // The hashes of small files are git's.
    for name in [WEIGHTS, "tokenizer.json"] {
        let folder = self::folder();
        hub.set_faults(move |request| {
            let is_content = request.is_cdn || name != WEIGHTS;
            (is_content && request.path.ends_with(name)).then_some(Fault::WrongBytes)
        });
        let output = hub.download(folder.path(), &[], &[]);
        assert_refused(&output, &format!("{name}: the checksum is wrong after a second download"));
        assert!(!snapshot(folder.path()).join(name).exists(), "{name} is in the snapshot");
    }
}

#[test]
fn a_response_with_more_bytes_than_listed_is_refused() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.set_faults(for_weights(usize::MAX, Fault::WrongLength(5)));
    assert_refused(&hub.download(folder.path(), &[], &[]), "but its response has more");
}

#[test]
fn an_interrupted_download_continues_with_the_next_start() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.set_faults(for_weights(1, Fault::StallAfter(900_000)));
    let mut command = hub.millrace(folder.path(), &["download", "org/tiny"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let process = command.spawn().unwrap();
    let partial = || {
        let blobs = fs::read_dir(folder.path().join("hub/models--org--tiny/blobs")).into_iter().flatten();
        let partial =
            blobs.flatten().find(|blob| blob.path().extension().is_some_and(|end| end == "incomplete"));
        partial.and_then(|blob| Some(blob.metadata().ok()?.len()))
    };
    wait_until("bytes arrive", || partial() == Some(900_000), || format!("{:?}", partial()));
    signal(process.id(), "TERM");
    let output = process.wait_with_output().unwrap();
    assert_refused(&output, "interrupted; the next start continues the download");
    assert_complete(&hub.download(folder.path(), &[], &[]), folder.path());
    assert_eq!(hub.requests().into_iter().rfind(is_weights).unwrap().start, Some(900_000));
}

#[test]
fn two_processes_share_a_download() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.set_faults(for_weights(usize::MAX, Fault::Slow(200_000)));
    let outputs: Vec<Output> = std::thread::scope(|scope| {
        let run = || hub.download(folder.path(), &[], &[]);
        let runs: Vec<_> = (0..2).map(|_| scope.spawn(run)).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for output in &outputs {
        assert_complete(output, folder.path());
    }
    assert_eq!(hub.requests().into_iter().filter(is_weights).count(), 1, "the weights were downloaded twice");
}

#[test]
fn refusals_of_the_hub_say_what_to_do() {
    let gated =
        vec![("x-error-code", "GatedRepo"), ("x-error-message", "Access to model org/tiny is restricted.")];
    type Headers = Vec<(&'static str, &'static str)>;
    let cases: &[(u16, Headers, &str)] = &[
        (401, vec![("x-error-code", "RepoNotFound")], "set HF_TOKEN to a token that may read it"),
        (401, gated.clone(), "accept its licence at"),
        (403, gated, "and set HF_TOKEN to a token of that account"),
        (404, vec![("x-error-code", "RepoNotFound")], "the hub has no repository org/tiny"),
        (
            404,
            vec![("x-error-code", "RevisionNotFound")],
            "org/tiny has no revision `main`; check --revision",
        ),
        (
            429,
            vec![("retry-after", "3600")],
            "limits the rate of requests (status 429) and asks for a pause of 3600 s",
        ),
        (500, vec![], "answered with status 500"),
    ];
    for (status, headers, text) in cases {
        let (hub, folder) = (FakeHub::with_demo_model(), folder());
        let fault = Fault::Status(*status, headers.clone());
        hub.set_faults(move |_| Some(fault.clone()));
        assert_refused(&hub.download(folder.path(), &[], &[]), text);
        let requests = hub.requests().len();
        assert_eq!(requests, if *status == 500 { 6 } else { 1 }, "requests with status {status}");
    }
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.set_faults(|_| Some(Fault::Status(401, vec![("x-error-message", "Invalid credentials")])));
    let output = hub.download(folder.path(), &[("HF_TOKEN", "hf_wrong")], &[]);
    assert_refused(&output, "the hub does not accept the token");
    hub.set_faults(|request| is_weights(request).then(|| Fault::Status(404, vec![])));
    assert_refused(
        &hub.download(folder.path(), &[], &[]),
        "the hub lists model.safetensors, but does not have it",
    );
}

#[test]
fn a_busy_hub_is_asked_again_after_the_pause_that_it_asks_for() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    let mut count = 0;
    hub.set_faults(move |request| {
        count += usize::from(is_weights(request));
        match count {
            1 if is_weights(request) => Some(Fault::Status(429, vec![("retry-after", "1")])),
            2 if is_weights(request) => Some(Fault::Status(503, vec![])),
            _ => None,
        }
    });
    let since = Instant::now();
    assert_complete(&hub.download(folder.path(), &[], &[]), folder.path());
    assert!(since.elapsed().as_secs() >= 1, "the pause was not kept");
    assert_eq!(hub.requests().into_iter().filter(is_weights).count(), 3);
}

#[test]
fn hostile_lists_are_refused_before_anything_is_downloaded() {
    type Edit = fn(&mut Value);
    let cases: &[(Edit, &str)] = &[
        (|list| list["siblings"][0]["rfilename"] = json!("../../../evil"), "leads out of the folder"),
        (|list| list["siblings"][0]["rfilename"] = json!("/etc/evil"), "leads out of the folder"),
        (|list| list["sha"] = json!("../../x"), "does not name a commit"),
        (|list| list["siblings"][0]["size"] = json!(1_u64 << 40), "more than the"),
    ];
    for (edit, text) in cases {
        let (hub, folder) = (FakeHub::with_demo_model(), folder());
        hub.edit_listing(edit);
        assert_refused(&hub.download(folder.path(), &[], &[]), text);
        assert_eq!(hub.requests().len(), 1, "{text}");
    }
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.edit_listing(|list| {
        let siblings = list["siblings"].as_array_mut().unwrap();
        let weights = siblings.iter_mut().find(|file| file["rfilename"] == WEIGHTS).unwrap();
        weights["lfs"]["size"] = json!(u64::MAX / 2);
    });
    assert_refused(&hub.download(folder.path(), &[], &[]), "free, but the download needs");
    assert!(hub.downloads_of(WEIGHTS).is_empty());
}

#[test]
fn a_model_that_cannot_be_run_is_refused_before_its_weights_are_downloaded() {
    let folder = folder();
    let config = json!({"model_type": "nobody-knows-this", "architectures": ["NobodyKnowsThis"]}).to_string();
    let weights = vec![0; 2 << 20];
    let hub = FakeHub::start(vec![
        ("config.json".into(), config.into_bytes()),
        (WEIGHTS.into(), weights.clone()),
        ("tokenizer.json".into(), b"{}".to_vec()),
    ]);
    assert_refused(&hub.download(folder.path(), &[], &[]), "nobody-knows-this");
    assert!(hub.downloads_of(WEIGHTS).is_empty() && hub.downloads_of("tokenizer.json").is_empty());
    let pickle =
        FakeHub::start(vec![("config.json".into(), b"{}".to_vec()), ("pytorch_model.bin".into(), weights)]);
    let output = pickle.download(self::folder().path(), &[], &[]);
    assert_refused(&output, "only as pickle files");
    assert_eq!(pickle.requests().len(), 1);
}

#[test]
fn a_hub_that_lists_no_checksums_is_asked_for_each_file() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.edit_listing(|list| {
        for file in list["siblings"].as_array_mut().unwrap() {
            *file = json!({"rfilename": file["rfilename"]});
        }
    });
    assert_complete(&hub.download(folder.path(), &[], &[]), folder.path());
    assert!(hub.requests().iter().any(|request| request.method == "HEAD" && request.path.ends_with(WEIGHTS)));
    assert!(hub.requests().iter().all(|request| request.method != "HEAD" || !request.is_cdn));
}

#[test]
fn paths_and_the_demo_model_never_reach_the_hub() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    for name in ["./models/x", "/models/x", "models/x/", "name", "a/b/c", "demo"] {
        let output = hub.millrace(folder.path(), &["download", name]).output().unwrap();
        assert!(!output.status.success(), "{name}");
        if name != "demo" {
            let arguments = ["generate", "x", "--device", "cpu", "--model-id", name];
            let output = hub.millrace(folder.path(), &arguments).output().unwrap();
            assert_refused(&output, "there is no such folder");
        }
    }
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
    for model in ["demo", demo.to_str().unwrap()] {
        let arguments = ["generate", "x", "--device", "cpu", "--max-new-tokens", "2", "--model-id", model];
        assert!(hub.millrace(folder.path(), &arguments).output().unwrap().status.success());
    }
    assert!(hub.requests().is_empty(), "{:?}", hub.requests());
}

#[test]
fn without_the_hub_the_cache_is_used() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    let offline = [("HF_HUB_OFFLINE", "1")];
    assert_refused(&hub.download(folder.path(), &offline, &[]), "HF_HUB_OFFLINE forbids downloads");
    assert!(hub.requests().is_empty());
    assert_complete(&hub.download(folder.path(), &[], &[]), folder.path());
    hub.set_faults(|_| Some(Fault::Status(503, vec![])));
    let output = hub.download(folder.path(), &[], &[]);
    assert_complete(&output, folder.path());
    assert!(log(&output).contains("using the copy in the cache, which may be old"), "{}", log(&output));
    // Nothing listens on this port.
    let closed = format!("http://127.0.0.1:{}", free_port());
    let output = hub.download(folder.path(), &[("HF_ENDPOINT", &closed)], &[]);
    assert_complete(&output, folder.path());
    fs::remove_file(snapshot(folder.path()).join(WEIGHTS)).unwrap();
    let output = hub.download(folder.path(), &[("HF_ENDPOINT", &closed)], &[]);
    assert_refused(&output, "cannot be reached");
    assert_refused(&hub.download(folder.path(), &offline, &[]), "has only a part of revision `main`");
}

#[test]
fn proxies_are_used_except_for_the_hosts_of_no_proxy() {
    // The hub plays a proxy: it gets requests for a host that does not exist.
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.edit_listing(|list| list["siblings"][0]["rfilename"] = json!("../x"));
    let proxied = [("HF_ENDPOINT", "http://hub.invalid"), ("HTTP_PROXY", &hub.url), ("http_proxy", &hub.url)];
    assert_refused(&hub.download(folder.path(), &proxied, &[]), "leads out of the folder");
    assert_eq!(hub.requests()[0].path, "http://hub.invalid/api/models/org/tiny/revision/main");
    // Nothing listens at this proxy, and NO_PROXY names the hub.
    let (hub, folder) = (FakeHub::with_demo_model(), self::folder());
    let closed = format!("http://127.0.0.1:{}", free_port());
    assert_complete(
        &hub.download(folder.path(), &[("HTTP_PROXY", &closed), ("http_proxy", &closed)], &[]),
        folder.path(),
    );
}

#[test]
fn a_revision_may_be_a_reference() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    let reference = ["--revision", "refs/pr/1"];
    assert_complete(&hub.download(folder.path(), &[], &reference), folder.path());
    assert_eq!(hub.requests()[0].path, "/api/models/org/tiny/revision/refs%2Fpr%2F1");
    let recorded = folder.path().join("hub/models--org--tiny/refs/refs/pr/1");
    assert_eq!(fs::read_to_string(recorded).unwrap(), COMMIT);
    assert_complete(&hub.download(folder.path(), &[("HF_HUB_OFFLINE", "1")], &reference), folder.path());
    let before = hub.requests().len();
    assert_refused(&hub.download(folder.path(), &[], &["--revision", "../../x"]), "--revision ../../x");
    assert_eq!(hub.requests().len(), before);
}

#[test]
fn one_of_two_machines_with_a_shared_cache_downloads() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.set_faults(for_weights(usize::MAX, Fault::Slow(200_000)));
    let (port, secret) = (free_port(), SecretFile::new("hub-nodes", "a secret of sixteen bytes or more"));
    let flags = ["--model-id", "org/tiny", "--device", "cpu", "--num-shard", "2", "--nnodes", "2"];
    let group =
        ["--leader-address", "127.0.0.1", "--leader-port", &port, "--group-secret-file", secret.path()];
    let flags = [&flags[..], &group].concat();
    let arguments = [&["serve", "--node-rank", "1"], &flags[..]].concat();
    let worker = WorkerNode::start(&mut hub.millrace(folder.path(), &arguments));
    let server = start_serving(&hub, folder.path(), &flags);
    server.wait_until_ready();
    let body = json!({"inputs": "x", "parameters": {"max_new_tokens": 2}});
    assert_eq!(post(&server.url("/generate"), &body).status, 200);
    assert_eq!(hub.requests().into_iter().filter(is_weights).count(), 1, "the weights were downloaded twice");
    drop((server, worker));
}

/// The flags of a server with the model of the hub.
const SERVE: [&str; 4] = ["--model-id", "org/tiny", "--device", "cpu"];

/// Starts a server that uses the hub. It may still be loading.
fn start_serving(hub: &FakeHub, folder: &Path, flags: &[&str]) -> Server {
    let environment = hub.environment(folder);
    let variables: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    Server::start_loading_with_env(&variables, flags)
}

#[test]
fn a_server_downloads_its_model_and_answers() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    let server = start_serving(&hub, folder.path(), &SERVE);
    server.wait_until_ready();
    let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": 8}});
    let response = post(&server.url("/generate"), &body);
    assert_eq!(response.status, 200, "{}", response.body);
    let (_, info) = server.get("/info");
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((info["model_id"].as_str(), info["model_sha"].as_str()), (Some("org/tiny"), Some(COMMIT)));
}

#[test]
fn while_the_weights_arrive_the_server_is_alive_and_not_ready() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.set_faults(for_weights(1, Fault::StallAfter(1_000_000)));
    let server = start_serving(&hub, folder.path(), &SERVE);
    let state =
        |server: &Server| -> Value { serde_json::from_str(&server.get("/ready").1).unwrap_or_default() };
    server.wait_until("a part has arrived", |server| state(server)["done_bytes"] == 1_000_000);
    let found = state(&server);
    assert_eq!(
        (found["status"].as_str(), found["phase"].as_str()),
        (Some("loading"), Some("Downloading weights"))
    );
    assert!(found["total_bytes"].as_u64().unwrap() > 2_000_000, "{found}");
    assert_eq!((server.get("/ready").0, server.get("/health").0), (503, 200));
    let body = json!({"inputs": "x", "parameters": {"max_new_tokens": 2}});
    assert_eq!(post(&server.url("/generate"), &body).status, 503);
    // The link breaks, and the download continues.
    hub.end_stalls();
    server.wait_until_ready();
    assert_eq!(post(&server.url("/generate"), &body).status, 200);
}

#[test]
fn a_server_that_downloads_ends_at_a_signal() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    // This download takes longer than the test waits.
    hub.set_faults(for_weights(usize::MAX, Fault::Slow(50)));
    let server = start_serving(&hub, folder.path(), &SERVE);
    server.wait_until("bytes arrive", |server| server.get("/ready").1.contains("Downloading weights"));
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_server_whose_download_fails_ends_with_the_reason() {
    let (hub, folder) = (FakeHub::with_demo_model(), folder());
    hub.set_faults(for_weights(usize::MAX, Fault::Status(403, vec![("x-error-code", "GatedRepo")])));
    let output = hub
        .millrace(folder.path(), &["serve", "org/tiny", "--device", "cpu", "--port", "0"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(log(&output).contains("access to org/tiny is restricted"), "{}", log(&output));
}
