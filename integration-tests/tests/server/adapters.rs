//! Tests LoRA adapters through the real binary: each request gets its own adapter, whatever runs
//! beside it, and a server with adapters answers for the model as one without them does.

use std::path::Path;

use millrace_integration_tests::hub::FakeHub;
use millrace_integration_tests::{AdapterFolder, Server, adapter_files, post, shards_of, stream};
use serde_json::{Value, json};

/// The names of the adapters; `None` is the model itself.
const MODELS: [Option<&str>; 3] = [None, Some("polite"), Some("terse")];

/// A request for up to 60 tokens.
fn request(adapter: Option<&str>, prompt: &str) -> Value {
    let parameters = json!({"max_new_tokens": 60, "stop": ["\u{1}"], "details": true, "adapter_id": adapter});
    json!({"inputs": prompt, "parameters": parameters})
}

/// Returns the tokens of an answer with their log-probabilities.
fn tokens(server: &Server, request: &Value) -> Value {
    let answer = post(&server.url("/generate"), request);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let tokens = answer.body["details"]["tokens"].clone();
    assert!(tokens.as_array().is_some_and(|tokens| !tokens.is_empty()), "{}", answer.body);
    tokens
}

/// Returns the texts of tokens.
fn texts(tokens: &Value) -> Vec<&str> {
    tokens.as_array().unwrap().iter().map(|token| token["text"].as_str().unwrap()).collect()
}

/// Starts a server with two adapters and these flags.
fn start(folders: &[AdapterFolder; 2], flags: &[&str]) -> Server {
    let [polite, terse] = [folders[0].named("polite"), folders[1].named("terse")];
    Server::start(&[&["--lora-modules", &polite, &terse], flags].concat())
}

fn folders(name: &str) -> [AdapterFolder; 2] {
    [1, 2].map(|seed| AdapterFolder::new(&format!("{name}-{seed}"), seed))
}

#[test]
fn adapters_change_their_own_answers_and_no_others() {
    let folders = folders("mixed");
    let (plain, server) = (Server::start(&[]), start(&folders, &[]));
    let prompts: Vec<String> = (0..6).map(|n| format!("Once upon a time there were {n} foxes")).collect();
    let requests: Vec<(Option<&str>, Value)> =
        prompts.iter().flat_map(|prompt| MODELS.map(|adapter| (adapter, request(adapter, prompt)))).collect();
    let alone: Vec<Value> = requests.iter().map(|(_, request)| tokens(&server, request)).collect();
    for (answers, prompt) in alone.chunks(MODELS.len()).zip(&prompts) {
        assert_eq!(answers[0], tokens(&plain, &request(None, prompt)), "{prompt}");
        assert!(answers[0] != answers[1] && answers[1] != answers[2] && answers[0] != answers[2], "{prompt}");
    }
    // All of them at once, on a server without anything in its cache.
    let fresh = start(&folders, &["--prefix-caching", "false"]);
    let together: Vec<Value> = std::thread::scope(|scope| {
        let running: Vec<_> =
            requests.iter().map(|(_, request)| scope.spawn(|| tokens(&fresh, request))).collect();
        running.into_iter().map(|client| client.join().unwrap()).collect()
    });
    for ((together, alone), (adapter, request)) in together.iter().zip(&alone).zip(&requests) {
        assert_eq!(together, alone, "{adapter:?}: {request}");
    }
}

#[test]
fn prefixes_are_shared_within_an_adapter_alone() {
    let folders = folders("prefix");
    let server = start(&folders, &[]);
    let prompt = "Once upon a time there was a fox with a lantern. ".repeat(8);
    let ask = |adapter: Option<&str>| {
        let answer = post(&server.url("/generate"), &request(adapter, &prompt));
        let cached: usize = answer.header("x-cached-tokens").unwrap().parse().unwrap();
        (answer.body["details"]["tokens"].clone(), cached)
    };
    let first = MODELS.map(ask);
    assert_eq!(first.each_ref().map(|(_, cached)| *cached), [0; 3]);
    for (adapter, (expected, _)) in MODELS.into_iter().zip(&first) {
        let (got, cached) = ask(adapter);
        assert!(cached > 50, "{adapter:?}: {cached}");
        assert_eq!(got, *expected, "{adapter:?}");
    }
}

#[test]
fn two_shards_say_what_one_says() {
    let folders = folders("ranks");
    // float32, because sums over shards are rounded differently.
    let one = start(&folders, &["--dtype", "float32"]);
    let two = start(&folders, &["--dtype", "float32", "--num-shard", "2"]);
    assert_eq!(shards_of(two.pid()).len(), 2);
    for prompt in ["Once upon a time", "The fox had a lantern"] {
        for adapter in MODELS {
            let request = request(adapter, prompt);
            let (one, two) = (tokens(&one, &request), tokens(&two, &request));
            assert_eq!(texts(&two), texts(&one), "{adapter:?}: {prompt}");
        }
    }
}

#[test]
fn a_killed_shard_loses_no_adapter() {
    let folders = folders("killed");
    let server = start(&folders, &[]);
    let request = |adapter: Option<&str>| {
        json!({
            "model": adapter.unwrap_or("demo"), "prompt": "Once upon a time there was a fox", "max_tokens": 900,
            "ignore_eos": true, "temperature": 0, "stream": true,
        })
    };
    let text = |events: &mut dyn Iterator<Item = Value>| {
        events.map(|event| event["choices"][0]["text"].as_str().unwrap().to_owned()).collect::<String>()
    };
    let url = server.url("/v1/completions");
    let expected = MODELS.map(|adapter| text(&mut stream(&url, &request(adapter))));
    let mut streams = MODELS.map(|adapter| stream(&url, &request(adapter)));
    let begun = streams.each_mut().map(|events| text(&mut events.take(5)));
    // A stopped shard ends no stream before it is killed.
    server.signal_shards("STOP");
    assert_eq!(server.metric("vllm:num_requests_running"), 3.0);
    server.signal_shards("KILL");
    for ((begun, mut events), expected) in begun.into_iter().zip(streams).zip(&expected) {
        assert!(begun.len() < expected.len());
        assert_eq!(begun + &text(&mut events), *expected);
    }
    server.wait_for_restarts(1);
}

#[test]
fn models_lists_and_errors_name_the_adapters() {
    let folders = folders("names");
    let server = start(&folders, &["--enable-lora", "--max-loras", "2", "--max-cpu-loras", "2"]);
    let list: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    let listed: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|model| (&model["id"], &model["parent"])).collect();
    let (demo, null) = (json!("demo"), Value::Null);
    assert_eq!(listed, [(&demo, &null), (&json!("polite"), &demo), (&json!("terse"), &demo)]);
    let chat = |model: &str| {
        let message = json!({"role": "user", "content": "What does the fox have?"});
        let body = json!({"model": model, "messages": [message], "max_tokens": 8, "temperature": 0});
        post(&server.url("/v1/chat/completions"), &body)
    };
    let text = |model: &str| chat(model).body["choices"][0]["message"]["content"].clone();
    assert_eq!(chat("polite").body["model"], "polite");
    assert_ne!(text("polite"), text("demo"));
    let unknown = chat("rude");
    assert_eq!((unknown.status, &unknown.body["error"]["code"]), (404, &json!("model_not_found")));
    let unknown = post(&server.url("/generate"), &request(Some("rude"), "Once"));
    assert_eq!(unknown.status, 422);
    assert!(unknown.body["error"].as_str().unwrap().contains("the adapters are polite, terse"));
    assert!(server.get("/metrics").1.contains("vllm:lora_requests_info{max_lora=\"2\""));
}

#[test]
fn an_adapter_of_another_model_ends_the_start_by_its_name() {
    let folder = AdapterFolder::new("foreign", 1);
    let config = folder.path().join("adapter_config.json");
    let text = std::fs::read_to_string(&config).unwrap().replace("\"bias\":\"none\"", "\"bias\":\"all\"");
    std::fs::write(config, text).unwrap();
    let server = Server::start_loading(&["--lora-modules", &folder.named("foreign")]);
    server.wait_for_log("bias");
    assert_eq!(server.wait().code(), Some(1));
}

#[test]
fn an_adapter_of_the_hub_is_downloaded_once() {
    let hub = FakeHub::start(adapter_files(1));
    let cache = tempfile::tempdir().unwrap();
    let environment = hub.environment(cache.path());
    let variables: Vec<(&str, &str)> =
        environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let folder = AdapterFolder::new("hub", 1);
    let local = Server::start(&["--lora-modules", &folder.named("polite")]);
    let expected = tokens(&local, &request(Some("polite"), "Once upon a time"));
    for _ in 0..2 {
        let server = Server::start_with_env(&variables, &["--lora-adapters", "polite=org/tiny@main"]);
        assert_eq!(tokens(&server, &request(Some("polite"), "Once upon a time")), expected);
        let model: Value = serde_json::from_str(&server.get("/v1/models/polite").1).unwrap();
        assert_eq!(model["root"], "org/tiny");
    }
    assert_eq!(hub.downloads_of("adapter_model.safetensors").len(), 1);
    let snapshot = millrace_integration_tests::hub::snapshot(cache.path());
    assert!(Path::new(&snapshot).join("adapter_config.json").exists());
}
