//! Tests LoRA adapters that are loaded and unloaded while the server runs: running answers stay
//! what they are, and a replaced shard has the adapters of this time.

use millrace_integration_tests::{AdapterFolder, JsonResponse, Server, post, post_with, stream};
use serde_json::{Value, json};

/// Flags of a server with room for adapters.
const FLAGS: [&str; 5] = ["--enable-lora", "--max-loras", "3", "--admin-key", "admin"];

const KEY: (&str, &str) = ("authorization", "Bearer admin");

fn load(server: &Server, name: &str, folder: &str, in_place: bool) -> JsonResponse {
    let body = json!({"lora_name": name, "lora_path": folder, "load_inplace": in_place});
    post_with(&server.url("/v1/load_lora_adapter"), &[KEY], &body)
}

fn unload(server: &Server, name: &str) -> u16 {
    post_with(&server.url("/v1/unload_lora_adapter"), &[KEY], &json!({"lora_name": name})).status
}

fn path(folder: &AdapterFolder) -> &str {
    folder.path().to_str().unwrap()
}

/// A request for a text that takes a while.
fn request(model: &str) -> Value {
    json!({
        "model": model, "prompt": "Once upon a time there was a fox", "max_tokens": 900, "ignore_eos": true,
        "temperature": 0, "stream": true,
    })
}

fn text(events: &mut dyn Iterator<Item = Value>) -> String {
    events.map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned()).collect()
}

fn answer(server: &Server, model: &str) -> String {
    text(&mut stream(&server.url("/v1/completions"), &request(model)))
}

/// The names that the server lists after the model.
fn listed(server: &Server) -> Vec<String> {
    let list: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    let models = list["data"].as_array().unwrap().iter().skip(1);
    models.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

/// Returns the answers of two adapters that a server was started with.
fn expected(folders: &[AdapterFolder; 2]) -> [String; 2] {
    let [first, second] = [folders[0].named("first"), folders[1].named("second")];
    let server = Server::start(&["--lora-modules", &first, &second]);
    let answers = ["first", "second"].map(|name| answer(&server, name));
    assert_ne!(answers[0], answers[1]);
    answers
}

fn folders(name: &str) -> [AdapterFolder; 2] {
    [1, 2].map(|seed| AdapterFolder::new(&format!("{name}-{seed}"), seed))
}

#[test]
fn adapters_change_while_streams_run() {
    let folders = folders("changes");
    let expected = expected(&folders);
    let server = Server::start(&FLAGS);
    let url = server.url("/v1/completions");
    let of_model = answer(&server, "demo");
    assert!(listed(&server).is_empty());
    let mut running = stream(&url, &request("demo"));
    let mut begun = text(&mut running.by_ref().take(3));
    let added = load(&server, "a", path(&folders[0]), false);
    assert_eq!(added.status, 200, "{}", added.body);
    assert_eq!(listed(&server), ["a"]);
    assert_eq!(answer(&server, "a"), expected[0]);
    begun += &text(&mut running);
    assert_eq!(begun, of_model, "a load changes no stream of the model");

    // The name gets another adapter while a stream runs with the first one.
    let mut running = stream(&url, &request("a"));
    let mut begun = text(&mut running.by_ref().take(3));
    let taken = load(&server, "a", path(&folders[1]), false);
    assert!(taken.status == 400 && taken.body.to_string().contains("has already been loaded"));
    assert_eq!(load(&server, "a", path(&folders[1]), true).status, 200);
    assert_eq!(answer(&server, "a"), expected[1]);
    begun += &text(&mut running);
    assert_eq!(begun, expected[0], "a reload changes no running stream");
    // The prefix of the prompt was computed with both adapters, and is shared with neither.
    assert_eq!(answer(&server, "a"), expected[1]);

    // An adapter that is unloaded serves the streams that have begun.
    let mut running = stream(&url, &request("a"));
    let mut begun = text(&mut running.by_ref().take(3));
    assert_eq!((unload(&server, "a"), unload(&server, "a")), (200, 404));
    assert!(listed(&server).is_empty());
    begun += &text(&mut running);
    assert_eq!(begun, expected[1]);
    assert_eq!(answer(&server, "demo"), of_model);
    // The places of adapters without streams are used again.
    for round in 0..4 {
        assert_eq!(load(&server, "b", path(&folders[round % 2]), round > 0).status, 200, "{round}");
        assert_eq!(answer(&server, "b"), expected[round % 2], "{round}");
    }
}

#[test]
fn a_replaced_shard_has_the_adapters_of_this_time() {
    let folders = folders("replaced");
    let expected = expected(&folders);
    // The adapter of the start is gone when the shard is replaced, with its files.
    let gone = AdapterFolder::new("replaced-gone", 3);
    let server = Server::start(&[&FLAGS[..], &["--lora-modules", &gone.named("gone")]].concat());
    assert_eq!(listed(&server), ["gone"]);
    assert_eq!(unload(&server, "gone"), 200);
    drop(gone);
    let names = ["first", "second"];
    for (name, folder) in names.into_iter().zip(&folders) {
        assert_eq!(load(&server, name, path(folder), false).status, 200);
    }
    let url = server.url("/v1/completions");
    let mut streams = names.map(|name| stream(&url, &request(name)));
    let begun = streams.each_mut().map(|events| text(&mut events.take(5)));
    // A stopped shard ends no stream before it is killed.
    server.signal_shards("STOP");
    assert_eq!(server.metric("vllm:num_requests_running"), 2.0);
    server.signal_shards("KILL");
    for ((begun, mut events), expected) in begun.into_iter().zip(streams).zip(&expected) {
        assert!(begun.len() < expected.len());
        assert_eq!(begun + &text(&mut events), *expected);
    }
    server.wait_for_restarts(1);
    assert_eq!(listed(&server), names);
    assert_eq!(names.map(|name| answer(&server, name)), expected);
}

/// An adapter whose files have been changed is not read again under its name.
#[test]
fn an_adapter_that_has_changed_is_unloaded_with_the_shard() {
    let folders = folders("rewritten");
    let expected = expected(&folders);
    let server = Server::start(&FLAGS);
    for (name, folder) in ["first", "second"].into_iter().zip(&folders) {
        assert_eq!(load(&server, name, path(folder), false).status, 200);
    }
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(folders[1].path().join(file), folders[0].path().join(file)).unwrap();
    }
    server.signal_shards("KILL");
    server.wait_for_restarts(1);
    server.wait_for_log("its files have been changed while the server ran");
    assert_eq!(listed(&server), ["second"]);
    assert_eq!(answer(&server, "second"), expected[1]);
    assert_eq!(load(&server, "first", path(&folders[0]), false).status, 200, "it is another adapter");
    assert_eq!(answer(&server, "first"), expected[1]);
}

#[test]
fn two_shards_load_an_adapter() {
    let folder = AdapterFolder::new("ranks-later", 1);
    let flags = ["--num-shard", "2", "--dtype", "float32"];
    let at_start = Server::start(&[&flags[..], &["--lora-modules", &folder.named("a")]].concat());
    let expected = answer(&at_start, "a");
    let server = Server::start(&[&flags[..], &FLAGS].concat());
    assert_eq!(load(&server, "a", path(&folder), false).status, 200);
    assert_eq!(answer(&server, "a"), expected);
}

#[test]
fn what_cannot_be_loaded_is_refused_by_name() {
    let folders = folders("refused");
    let server = Server::start(&[&FLAGS[..], &["--max-lora-rank", "4"]].concat());
    let good = path(&folders[0]);
    let weights = folders[1].path().join("adapter_model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let refused = |name: &str, folder: &str, status: u16, text: &str| {
        let refused = load(&server, name, folder, false);
        let message = refused.body["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(refused.status == status && message.contains(text), "{}: {message}", refused.status);
    };
    refused("a", "/no/such/folder", 404, "No adapter found for '/no/such/folder'");
    refused("demo", good, 400, "demo is a name of the model");
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).unwrap();
    refused("a", path(&folders[1]), 400, "adapter_model.safetensors");
    std::fs::write(&weights, &bytes).unwrap();
    let config = folders[1].path().join("adapter_config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("\"r\":4", "\"r\":8")).unwrap();
    refused("a", path(&folders[1]), 400, "has rank 8, more than 4; --max-lora-rank 8 allows it");
    std::fs::write(&config, text.replace("\"bias\":\"none\"", "\"bias\":\"all\"")).unwrap();
    refused("a", path(&folders[1]), 400, "bias");
    for name in ["a", "b", "c"] {
        assert_eq!(load(&server, name, good, false).status, 200);
    }
    refused("a", good, 400, "has already been loaded");
    refused("d", good, 400, "All 3 places for adapters are taken (--max-loras)");
    assert_eq!(unload(&server, "b"), 200);
    assert_eq!(load(&server, "d", good, false).status, 200);
    assert_eq!(listed(&server), ["a", "c", "d"]);
    assert!(server.get("/metrics").1.contains("vllm:lora_requests_info{max_lora=\"3\""));
}

#[test]
fn adapters_need_the_admin_key() {
    let folder = AdapterFolder::new("forbidden", 1);
    let body = json!({"lora_name": "a", "lora_path": path(&folder)});
    let status = |server: &Server, headers: &[(&str, &str)]| {
        post_with(&server.url("/v1/load_lora_adapter"), headers, &body).status
    };
    let server = Server::start(&[&FLAGS[..], &["--api-key", "client"]].concat());
    let client = ("authorization", "Bearer client");
    assert_eq!([status(&server, &[]), status(&server, &[client]), status(&server, &[KEY])], [401, 401, 200]);
    let completion = post_with(&server.url("/v1/completions"), &[KEY], &json!({"model": "a", "prompt": "a"}));
    assert_eq!(completion.status, 401, "the admin key is no API key");
    let closed = Server::start(&[]);
    let refused = post(&closed.url("/v1/load_lora_adapter"), &body);
    assert!(refused.status == 403 && refused.body.to_string().contains("--admin-key"), "{}", refused.body);
}
