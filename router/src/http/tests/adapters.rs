//! Adapters in requests, lists of models and metrics.

use std::sync::Arc;

use millrace_scheduler::AdapterId;
use serde_json::{Value, json};

use super::rows::posts;
use super::{HttpConfig, RequestLimits, Script, Server};
use crate::service::{AdapterInfo, ModelInfo};
use crate::test_support::assets;

/// A model with two adapters. Clients see another parent of the second one.
fn adapted(script: Script) -> Server {
    let info = |name: &str, parent: Option<&str>| AdapterInfo {
        name: name.to_owned(),
        root: format!("org/{name}"),
        parent: parent.map(str::to_owned),
    };
    let adapters = Arc::new([info("polite", None), info("terse \"x\"", Some("org/other"))]);
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
