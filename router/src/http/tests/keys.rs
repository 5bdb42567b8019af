//! What an API key means for its requests: whether they are let in, which cached prefixes they
//! share, and which priority they may have; and how many answers one request may ask for.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{HttpConfig, Limits, Reply, Script, Server, post};
use crate::engine::Priority;
use crate::test_support;

fn server(keys: &[&str], cache_salt_per_key: Option<bool>) -> Server {
    let api_keys = keys.iter().map(|key| key.parse().unwrap()).collect();
    let config = HttpConfig { api_keys, cache_salt_per_key, ..HttpConfig::default() };
    Server::with(Script::Say("x".into()), 64, config)
}

impl Server {
    async fn post_with(&self, path: &str, headers: &[(&'static str, &str)], body: &Value) -> Reply {
        let mut request = post(path, body.to_string());
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        self.send(request).await
    }

    /// The salt under which the scheduler got the one sequence of a request with this key.
    async fn salt(&mut self, path: &str, key: &str, body: &Value) -> Option<Arc<str>> {
        while self.engine.requests.try_recv().is_ok() {}
        let reply = self.post_with(path, &[("x-api-key", key)], body).await;
        assert_eq!(reply.status, StatusCode::OK, "{path}: {}", reply.body);
        self.engine
            .requests
            .try_recv()
            .unwrap_or_else(|_| panic!("{path} asks the engine nothing"))
            .cache_salt
    }
}

/// The routes that compute something. The others count tokens.
fn computing() -> impl Iterator<Item = (&'static str, Value)> {
    super::rows::posts().into_iter().filter(|(path, _)| !path.contains("token"))
}

#[tokio::test]
async fn one_valid_key_in_either_header_suffices() {
    let server = server(&["one", "two"], None);
    let body = json!({"inputs": "a"});
    for (authorization, other, status) in [
        ("bearer one", "two", 200),
        ("Bearer one", "wrong", 200),
        ("Bearer wrong", "two", 200),
        ("Basic one", "two", 200),
        ("Bearer wrong", "wrong", 401),
        ("one", "", 401),
    ] {
        let headers = [("authorization", authorization), ("x-api-key", other)];
        let reply = server.post_with("/generate", &headers, &body).await;
        assert_eq!(reply.status.as_u16(), status, "{authorization} and {other}");
    }
}

#[tokio::test]
async fn each_of_several_keys_has_a_prefix_cache_of_its_own_on_every_route() {
    let mut server = server(&["one", "two"], None);
    for (path, body) in computing() {
        let one = server.salt(path, "one", &body).await;
        let two = server.salt(path, "two", &body).await;
        assert!(one.is_some() && two.is_some() && one != two, "{path}: {one:?} and {two:?}");
        assert_eq!(server.salt(path, "one", &body).await, one, "{path}");
    }
    // A client's own salt parts its cache further, and reaches no other key's.
    let salted = |salt: &str| json!({"inputs": "a", "parameters": {"cache_salt": salt}});
    let plain = json!({"inputs": "a"});
    let two = server.salt("/generate", "two", &plain).await.unwrap();
    let mine = server.salt("/generate", "one", &salted("mine")).await;
    assert_ne!(mine, server.salt("/generate", "one", &plain).await);
    assert_ne!(mine, server.salt("/generate", "two", &salted("mine")).await);
    for forged in [&*two, &format!("{two}\0"), ""] {
        assert_ne!(server.salt("/generate", "one", &salted(forged)).await.as_ref(), Some(&two), "{forged:?}");
    }
}

#[tokio::test]
async fn keys_share_a_cache_where_the_operator_says_so_or_there_is_only_one() {
    for (keys, flag, separate) in [
        (&["one", "two"][..], None, true),
        (&["one", "two"], Some(true), true),
        (&["one", "two"], Some(false), false),
        (&["one"], None, false),
        (&["one", "one"], None, false),
        (&["one"], Some(true), true),
    ] {
        let mut server = server(keys, flag);
        let salt = server.salt("/generate", "one", &json!({"inputs": "a"})).await;
        assert_eq!(salt.is_some(), separate, "{keys:?} {flag:?}");
        // What a client chooses itself counts in any case.
        let body = json!({"inputs": "a", "parameters": {"cache_salt": "mine"}});
        let salted = server.salt("/generate", "one", &body).await.unwrap();
        assert!(if separate { salted.ends_with("\0mine") } else { &*salted == "mine" }, "{salted:?}");
    }
}

#[tokio::test]
async fn high_priority_may_be_kept_for_some_keys() {
    let mut server = server(&["fast priority=high", "slow"], None);
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    for (path, mut body) in [
        ("/generate", json!({"inputs": "a", "parameters": {}})),
        ("/generate_stream", json!({"inputs": "a", "parameters": {}})),
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/chat/completions", chat.clone()),
        ("/vertex", json!({"instances": [chat]})),
        ("/v2/models/tgi/infer", json!({"inputs": [{"name": "i", "data": ["a"]}], "parameters": {}})),
    ] {
        let mut ask = async |key: &str, priority: &str| {
            let fields = match path {
                "/vertex" => &mut body["instances"][0],
                path if path.starts_with("/v1/") => &mut body,
                _ => &mut body["parameters"],
            };
            fields["priority"] = json!(priority);
            server.post_with(path, &[("x-api-key", key)], &body).await
        };
        for (key, priority) in [("fast", "high"), ("fast", "low"), ("slow", "normal"), ("slow", "low")] {
            let reply = ask(key, priority).await;
            assert_eq!(reply.status, StatusCode::OK, "{path} {key} {priority}: {}", reply.body);
        }
        let refused = ask("slow", "high").await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{path}: {}", refused.body);
        assert!(refused.body.contains("priority=high"), "{path}: {}", refused.body);
        let error = refused.json();
        if path.starts_with("/v1/") {
            let told = (&error["error"]["param"], &error["error"]["code"]);
            assert_eq!(told, (&json!("priority"), &json!("insufficient_permissions")), "{path}");
        } else {
            assert_eq!(error["error_type"], "forbidden", "{path}");
        }
    }
    let mut asked = Vec::new();
    while let Ok(request) = server.engine.requests.try_recv() {
        asked.push(request.priority);
    }
    // Of each route those that were answered, and nothing of those that were not.
    let expected = [Priority::High, Priority::Low, Priority::Normal, Priority::Low].repeat(6);
    assert_eq!(asked, expected);
}

#[tokio::test]
async fn every_key_may_ask_for_high_priority_unless_some_are_marked() {
    let body = json!({"inputs": "a", "parameters": {"priority": "high"}});
    let reply = server(&["one", "two"], None).post_with("/generate", &[("x-api-key", "two")], &body).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    assert_eq!(server(&[], None).post("/generate", body).await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_number_of_answers_is_bounded_before_any_work() {
    let serving = |limits: Limits| {
        let assets = test_support::assets();
        Server::serving(&assets, Script::Say("x".into()), limits, HttpConfig::default())
    };
    let completion = |n: usize, prompts: usize| json!({"prompt": vec!["a"; prompts], "n": n});
    let chat = |n: usize| json!({"messages": [{"role": "user", "content": "a"}], "n": n});
    // Given explicitly the flag bounds `n` as it bounds `best_of`; else OpenAI's routes allow more
    // than TGI's.
    for (max_best_of, most) in [(Some(1), 1), (Some(3), 3), (None, 16)] {
        let server = serving(Limits { max_best_of, ..Limits::default() });
        for (n, status) in [(0, 400), (most, 200), (most + 1, 400), (usize::MAX, 400)] {
            for (path, body) in [("/v1/chat/completions", chat(n)), ("/v1/completions", completion(n, 1))] {
                let reply = server.post(path, body).await;
                assert_eq!(reply.status.as_u16(), status, "{path} {max_best_of:?} {n}: {}", reply.body);
                if status == 400 {
                    let error = &reply.json()["error"];
                    let text = format!("`n` must be > 0 and <= {most} (--max-best-of). Given: {n}");
                    assert_eq!((&error["param"], &error["message"]), (&json!("n"), &json!(text)), "{path}");
                }
            }
        }
    }
    // All answers of a stream are in flight at the same time; prompts whose answers are sent as a whole wait for others.
    let mut server = serving(Limits { max_concurrent_requests: 8, ..Limits::default() });
    assert_eq!(server.post("/v1/completions", completion(2, 4)).await.status, StatusCode::OK);
    while server.engine.requests.try_recv().is_ok() {}
    assert_eq!(server.post("/v1/completions", completion(3, 3)).await.status, StatusCode::OK);
    while server.engine.requests.try_recv().is_ok() {}
    let mut streamed = completion(3, 3);
    streamed["stream"] = json!(true);
    let reply = server.post("/v1/completions", streamed).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert!(reply.body.contains("--max-concurrent-requests"), "{}", reply.body);
    // With room for some of the answers none is begun.
    let limits = Limits { max_concurrent_requests: 8, ..Limits::default() };
    let assets = test_support::assets();
    let mut busy = Server::serving(&assets, Script::Forever("a".into()), limits, HttpConfig::default());
    let running = crate::http::tests::post("/generate_stream", r#"{"inputs":"a"}"#);
    let running = tower::ServiceExt::oneshot(busy.app.clone(), running).await.unwrap();
    assert!(busy.engine.requests.recv().await.is_some());
    let reply = busy.post("/v1/chat/completions", chat(8)).await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{}", reply.body);
    assert!(busy.engine.requests.try_recv().is_err(), "nothing of a request that is refused is begun");
    drop(running);
    assert!(server.engine.requests.try_recv().is_err());
}
