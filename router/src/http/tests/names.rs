//! The names of the model in requests and responses.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::rows::posts;
use super::{HttpConfig, RequestLimits, Script, Server};
use crate::test_support::assets;

/// A server whose operator has given these names to the model.
fn named(names: &[&str]) -> Server {
    let limits = RequestLimits {
        model_names: names.iter().map(|&name| name.to_owned()).collect(),
        ..RequestLimits::default()
    };
    Server::serving(&assets(), Script::Say("x".into()), limits, HttpConfig::default())
}

/// Requests of the routes that have a field `model`.
fn requests(model: &str) -> impl Iterator<Item = (&'static str, Value)> {
    posts().into_iter().filter(|(path, _)| path.starts_with("/v1/") || *path == "/detokenize").map(
        move |(path, mut body)| {
            body["model"] = json!(model);
            (path, body)
        },
    )
}

#[tokio::test]
async fn without_names_the_model_may_be_called_anything() {
    let server = Server::saying("x");
    for name in ["gpt-4o", "https://api.example/v1/chat/completions", "org/model"] {
        for (path, body) in requests(name) {
            let reply = server.post(path, body).await;
            assert_eq!(reply.status.as_u16(), 200, "{path}: {}", reply.body);
            if let Some(told) = reply.json().get("model") {
                assert_eq!(told, "org/model", "{path}");
            }
        }
        assert_eq!(server.post("/tokenize", json!({"prompt": "a", "model": name})).await.status, 200);
    }
    assert_eq!(server.get("/v2/models/whatever").await.json()["name"], "org/model");
}

#[tokio::test]
async fn with_names_every_other_name_is_not_found() {
    let server = named(&["large", "org/model", "gpt-4o"]);
    for name in ["large", "gpt-4o", "tgi", ""] {
        for (path, body) in requests(name) {
            let reply = server.post(path, body).await;
            assert_eq!(reply.status.as_u16(), 200, "{path} {name}: {}", reply.body);
        }
    }
    for (path, body) in requests("small") {
        let reply = server.post(path, body).await;
        let status = if path == "/detokenize" { 422 } else { 404 };
        assert_eq!(reply.status.as_u16(), status, "{path}: {}", reply.body);
        assert!(reply.body.contains("model not found: small"), "{path}: {}", reply.body);
    }
    let reply = server
        .post(
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}], "model": "small"}),
        )
        .await;
    let error = reply.json()["error"].clone();
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    assert_eq!(server.get("/v2/models/small").await.status, 404);
    assert_eq!(server.get("/v2/models/gpt-4o").await.status, 200);

    let list = server.get("/v1/models").await.json();
    let ids: Vec<_> = list["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, ["org/model", "large", "gpt-4o"].map(|id| json!(id)));
    assert_eq!(server.get("/v1/models/gpt-4o").await.json()["id"], "gpt-4o");
    assert_eq!(server.get("/v1/models/small").await.status, 404);
}

#[tokio::test]
async fn models_are_listed_with_their_context_and_creation_time() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let before = now();
    let server = Server::saying("x");
    let mut model = server.get("/v1/models").await.json()["data"][0].take();
    let created = model["created"].take().as_u64().unwrap();
    assert!((before..=now()).contains(&created), "{created}");
    let expected = json!({
        "id": "org/model", "object": "model", "created": null, "owned_by": "org/model", "root": "org/model", "parent": null, "max_model_len": 1024,
    });
    assert_eq!(model, expected);
    assert_eq!(server.get("/v1/models/org/model").await.json()["created"], created);
    let reply = server.get("/v1/models/other").await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
}
