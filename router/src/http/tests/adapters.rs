//! Adapters in requests, lists of models and metrics.

use std::sync::Arc;

use millrace_scheduler::AdapterId;
use serde_json::{Value, json};

use super::rows::posts;
use super::{HttpConfig, Reply, RequestLimits, Script, Server};
use crate::http::adapter_admin::ADMIN_PATHS;
use crate::http::{AdapterAdmin, ApiKeys, FindAdapter, FindError, FoundAdapter};
use crate::service::{AdapterInfo, ModelInfo};
use crate::test_support::assets;

/// A model with two adapters. Clients see another parent of the second one.
fn adapted(script: Script) -> Server {
    let info = |name: &str, parent: Option<&str>| AdapterInfo {
        name: name.to_owned(),
        root: format!("org/{name}"),
        parent: parent.map(str::to_owned),
    };
    let adapters = [info("polite", None), info("terse \"x\"", Some("org/other"))].into();
    let model = ModelInfo { id: "org/model".into(), adapters, ..ModelInfo::default() };
    Server::of_model(model, &assets(), script, RequestLimits::default(), HttpConfig::default())
}

/// The requests of the routes with a field `model` that compute something, and an example of TGI's
/// and KServe's requests, all for the model or adapter `name`.
fn requests(name: &str) -> Vec<(String, Value)> {
    let computes = |path: &str| path.starts_with("/v1/") && !path.ends_with("count_tokens");
    let named = posts().into_iter().filter(|(path, _)| computes(path) || *path == "/v2/rerank").map(
        |(path, mut body)| {
            body["model"] = json!(name);
            (path.to_owned(), body)
        },
    );
    named.collect()
}

#[tokio::test]
async fn requests_choose_an_adapter_by_the_name_of_the_model() {
    let mut server = adapted(Script::Say("x".into()));
    let expected = [
        ("org/model", None),
        ("tgi", None),
        ("polite", Some(AdapterId(0))),
        ("terse \"x\"", Some(AdapterId(1))),
    ];
    for (name, adapter) in expected {
        for (path, body) in requests(name) {
            let reply = server.post(&path, body).await;
            assert_eq!(reply.status, 200, "{path} {name}: {}", reply.body);
            let told = if adapter.is_none() { "org/model" } else { name };
            assert_eq!(reply.json()["model"], told, "{path}");
            assert_eq!(server.engine.requests.recv().await.unwrap().adapter, adapter, "{path} {name}");
        }
    }
    for (path, body) in requests("gpt-4o") {
        let reply = server.post(&path, body).await;
        assert_eq!(reply.status, 404, "{path}: {}", reply.body);
        assert!(reply.body.contains("model not found: gpt-4o"), "{path}: {}", reply.body);
    }
    for path in ["/tokenize", "/v1/messages/count_tokens"] {
        let body = |name| json!({"model": name, "messages": [{"role": "user", "content": "a"}]});
        assert_eq!(server.post(path, body("polite")).await.status, 200, "{path}");
        assert!(server.post(path, body("gpt-4o")).await.status.is_client_error(), "{path}");
    }
}

#[tokio::test]
async fn tgis_routes_have_adapter_id_and_kserves_have_the_path() {
    let mut server = adapted(Script::Say("x".into()));
    for path in ["/", "/generate", "/generate_stream", "/invocations"] {
        for (id, adapter) in [(json!(null), None), (json!("polite"), Some(AdapterId(0)))] {
            let body = json!({"inputs": "a", "parameters": {"adapter_id": id}});
            assert_eq!(server.post(path, body).await.status, 200, "{path}");
            assert_eq!(server.engine.requests.recv().await.unwrap().adapter, adapter, "{path} {id}");
        }
        let reply = server.post(path, json!({"inputs": "a", "parameters": {"adapter_id": "rude"}})).await;
        assert_eq!(reply.status, 422, "{path}");
        let text = "`adapter_id` rude is not known: the adapters are polite, terse";
        assert!(reply.body.contains(text), "{path}: {}", reply.body);
    }
    let tensor = json!({"name": "input", "datatype": "BYTES", "data": ["a"]});
    for (parameters, adapter) in [(json!({}), 0), (json!({"adapter_id": "terse \"x\""}), 1)] {
        let body = json!({"inputs": [tensor], "parameters": parameters});
        let reply = server.post("/v2/models/polite/infer", body).await;
        assert_eq!(reply.json()["model_name"], "polite", "{}", reply.body);
        assert_eq!(server.engine.requests.recv().await.unwrap().adapter, Some(AdapterId(adapter)));
    }
    assert_eq!(server.get("/v2/models/polite").await.json()["name"], "polite");
    assert_eq!(server.get("/v2/models/rude").await.status, 404);
}

#[tokio::test]
async fn several_answers_with_a_grammar_and_tools_have_the_adapter() {
    let mut server = adapted(Script::Obey("{}".into()));
    let message = json!([{"role": "user", "content": "a"}]);
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
    let format = json!({"type": "json_object"});
    for (body, count) in [
        (json!({"messages": message, "n": 3, "logprobs": true, "top_logprobs": 2}), 3),
        (json!({"messages": message, "response_format": format}), 1),
        (json!({"messages": message, "tools": tools, "tool_choice": "required"}), 1),
    ] {
        let mut body = body;
        body["model"] = json!("polite");
        body["max_tokens"] = json!(4);
        let reply = server.post("/v1/chat/completions", body).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        for _ in 0..count {
            assert_eq!(server.engine.requests.recv().await.unwrap().adapter, Some(AdapterId(0)));
        }
    }
    let body = json!({"prompt": ["a", "b"], "model": "polite", "echo": true, "logprobs": 1, "best_of": 2});
    let reply = server.post("/v1/completions", body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    for _ in 0..4 {
        assert_eq!(server.engine.requests.recv().await.unwrap().adapter, Some(AdapterId(0)));
    }
}

#[tokio::test]
async fn block_hashes_depend_on_the_adapter() {
    let mut server = adapted(Script::Say("x".into()));
    let mut hashes = Vec::new();
    for model in ["org/model", "polite", "terse \"x\"", "polite"] {
        server.post("/v1/completions", json!({"prompt": "a".repeat(40), "model": model})).await;
        hashes.push(server.engine.requests.recv().await.unwrap().block_hashes.unwrap());
    }
    assert_eq!(hashes[1], hashes[3]);
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2] && hashes[0] != hashes[2]);
}

#[tokio::test]
async fn adapters_are_listed_with_their_parents() {
    let server = adapted(Script::Say("x".into()));
    let list = server.get("/v1/models").await.json();
    let fields = |model: &Value| [&model["id"], &model["root"], &model["parent"]].map(Value::clone);
    let listed: Vec<_> = list["data"].as_array().unwrap().iter().map(fields).collect();
    let expected = [
        [json!("org/model"), json!("org/model"), json!(null)],
        [json!("polite"), json!("org/polite"), json!("org/model")],
        [json!("terse \"x\""), json!("org/terse \"x\""), json!("org/other")],
    ];
    assert_eq!(listed, expected);
    assert_eq!(fields(&server.get("/v1/models/polite").await.json()), expected[1]);
    assert_eq!(server.get("/v1/models/rude").await.status, 404);
    assert_eq!(server.get("/info").await.json()["model_id"], "org/model");
}

#[tokio::test]
async fn the_metrics_name_the_adapters_in_use() {
    let server = adapted(Script::Silence("a".into()));
    let gauge = async || {
        let text = server.get("/metrics").await.body;
        let line = text.lines().find(|line| line.starts_with("vllm:lora_requests_info{")).unwrap().to_owned();
        let (labels, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().unwrap() > 1.7e9, "{value}");
        labels.to_owned()
    };
    let labels = |waiting: &str| {
        format!(
            "vllm:lora_requests_info{{max_lora=\"2\",running_lora_adapters=\"\",waiting_lora_adapters=\"{waiting}\"}}"
        )
    };
    assert_eq!(gauge().await, labels(""));
    // The fake engine never starts these requests.
    let ask = |model: &str| {
        let body = json!({"prompt": "a", "model": model, "stream": true});
        let app = server.app.clone();
        async move { tower::ServiceExt::oneshot(app, super::post("/v1/completions", body.to_string())).await }
    };
    let _first = ask("terse \"x\"").await.unwrap();
    let _second = ask("polite").await.unwrap();
    assert_eq!(gauge().await, labels("polite,terse \\\"x\\\""));
    let without = Server::saying("x").get("/metrics").await.body;
    assert!(!without.contains("lora_requests_info"), "{without}");
}

/// The admin key of the servers below.
const ADMIN: &str = "the admin key";

/// Finds an adapter at every path but two.
fn find(name: &str, path: &str) -> Result<FoundAdapter, FindError> {
    match path {
        "/absent" => Err(FindError::NotFound("No adapter found for '/absent'".into())),
        "/text" => Err(FindError::Refused("it is no adapter".into())),
        _ => {
            let info = AdapterInfo { name: name.into(), root: path.into(), parent: None };
            Ok(FoundAdapter { info, folder: path.into() })
        }
    }
}

/// A server whose administrator has a key, beside the key of a client.
fn administered(key: Option<&str>, can_load: bool) -> Server {
    let keys: Vec<_> = key.iter().map(|key| key.replace(' ', "-").parse().unwrap()).collect();
    let find: FindAdapter = Arc::new(find);
    let config = HttpConfig {
        api_keys: ApiKeys::new(&["client".parse().unwrap()], None),
        adapter_admin: AdapterAdmin::new(ApiKeys::new(&keys, None), can_load.then_some(find)),
        ..HttpConfig::default()
    };
    Server::with(Script::Say("x".into()), 8, config)
}

impl Server {
    async fn post_as(&self, key: &str, path: &str, body: &Value) -> Reply {
        let mut request = super::post(path, body.to_string());
        let value = format!("Bearer {}", key.replace(' ', "-")).parse().unwrap();
        request.headers_mut().insert("authorization", value);
        self.send(request).await
    }

    async fn change(&self, route: &str, body: Value) -> (u16, String) {
        let reply = self.post_as(ADMIN, &format!("/v1/{route}_lora_adapter"), &body).await;
        let text = match reply.status.is_success() {
            true => reply.body,
            false => reply.json()["error"]["message"].as_str().unwrap().to_owned(),
        };
        (reply.status.as_u16(), text)
    }
}

#[tokio::test]
async fn adapters_are_loaded_replaced_and_unloaded_by_name() {
    let mut server = administered(Some(ADMIN), true);
    let load = |name: &str, path: &str| json!({"lora_name": name, "lora_path": path});
    let listed = async |server: &Server| {
        let list = server.get("/v1/models").await.json();
        let names =
            list["data"].as_array().unwrap().iter().skip(1).map(|one| one["id"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    // Without adapters, a request may call the model by any name.
    let completion = |model: &str| json!({"model": model, "prompt": "a"});
    assert_eq!(server.post_as("client", "/v1/completions", &completion("sql")).await.status, 200);
    assert_eq!(server.engine.requests.recv().await.unwrap().adapter, None);
    let added = (200, "Success: LoRA adapter 'sql' added successfully.".to_owned());
    assert_eq!(server.change("load", load("sql", "/one")).await, added);
    assert_eq!(listed(&server).await, ["sql"]);
    assert_eq!(server.get("/v1/models/sql").await.json()["root"], "/one");
    server.post_as("client", "/v1/completions", &completion("sql")).await;
    let first = server.engine.requests.recv().await.unwrap().adapter.unwrap();

    let taken = server.change("load", load("sql", "/two")).await;
    assert!(taken.0 == 400 && taken.1.contains("has already been loaded"), "{taken:?}");
    let mut again = load("sql", "/two");
    again["load_inplace"] = json!(true);
    assert_eq!(server.change("load", again).await, added);
    assert_eq!(
        (listed(&server).await, server.get("/v1/models/sql").await.json()["root"].clone()),
        (vec!["sql".into()], json!("/two"))
    );
    server.post_as("client", "/v1/completions", &completion("sql")).await;
    assert_ne!(server.engine.requests.recv().await.unwrap().adapter, Some(first));

    let removed = (200, "Success: LoRA adapter 'sql' removed successfully.".to_owned());
    assert_eq!(server.change("unload", json!({"lora_name": "sql"})).await, removed);
    let absent = (404, "The lora adapter 'sql' cannot be found.".to_owned());
    assert_eq!(server.change("unload", json!({"lora_name": "sql"})).await, absent);
    assert!(listed(&server).await.is_empty());
}

#[tokio::test]
async fn the_examples_of_the_page_are_answered() {
    let server = administered(Some(ADMIN), true);
    for path in ADMIN_PATHS {
        let example = crate::http::examples::example(path).unwrap();
        let reply = server.post_as(ADMIN, path, &example).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.body);
    }
}

#[tokio::test]
async fn wrong_adapters_are_refused_by_name() {
    let server = administered(Some(ADMIN), true);
    let long = "n".repeat(257);
    for (name, path, status, text) in [
        ("", "/a", 400, "Both 'lora_name' and 'lora_path'"),
        ("a", "", 400, "Both 'lora_name' and 'lora_path'"),
        ("org/model", "/a", 400, "org/model is a name of the model"),
        ("tgi", "/a", 400, "tgi is a name of the model"),
        (long.as_str(), "/a", 400, "at most 256 bytes"),
        ("a", "/absent", 404, "No adapter found for '/absent'"),
        ("a", "/text", 400, "it is no adapter"),
        ("a", "/damaged", 400, "the file is damaged"),
        ("a", "/full", 400, "All 2 places for adapters are taken (--max-loras)"),
        ("a", "/lost", 503, "being restarted"),
    ] {
        let (got, message) = server.change("load", json!({"lora_name": name, "lora_path": path})).await;
        assert!(got == status && message.contains(text), "{name} {path}: {got} {message}");
    }
    let (status, message) = server.change("unload", json!({})).await;
    assert!(status == 400 && message.contains("'lora_name' needs to be provided"), "{message}");
    assert_eq!(server.get("/v1/models").await.json()["data"].as_array().unwrap().len(), 1);
}

/// The admin key opens the routes for adapters and no others, and a client's key opens all others.
#[tokio::test]
async fn only_the_admin_key_changes_adapters() {
    let body = json!({"lora_name": "a", "lora_path": "/a"});
    for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
        let server = administered(Some(ADMIN), true);
        for (key, status) in [("client", 401), ("", 401), ("wrong", 401)] {
            assert_eq!(server.post_as(key, path, &body).await.status, status, "{path} {key}");
        }
        assert_eq!(server.post(path, body.clone()).await.status, 401, "{path}");
        let completion = json!({"prompt": "a"});
        assert_eq!(server.post_as(ADMIN, "/v1/completions", &completion).await.status, 401);
        for (server, flag) in
            [(administered(None, true), "--admin-key"), (administered(Some(ADMIN), false), "--enable-lora")]
        {
            let reply = server.post_as(ADMIN, path, &body).await;
            assert!(reply.status == 403 && reply.body.contains(flag), "{path}: {}", reply.body);
        }
    }
}
