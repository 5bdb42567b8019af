//! The rights of an API key: access, shared cached prefixes and priority. Also the number of
//! answers that a request may have.

use std::sync::Arc;

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{HttpConfig, Reply, RequestLimits, Script, Server, post};
use crate::engine::{Priority, Tenant};
use crate::http::{ApiKeys, FairBy};
use crate::test_support;

fn api_keys(keys: &[&str], cache_salt_per_key: Option<bool>) -> ApiKeys {
    let keys: Vec<_> = keys.iter().map(|key| key.parse().unwrap()).collect();
    ApiKeys::new(&keys, cache_salt_per_key)
}

fn server(keys: &[&str], cache_salt_per_key: Option<bool>) -> Server {
    let config = HttpConfig { api_keys: api_keys(keys, cache_salt_per_key), ..HttpConfig::default() };
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

    /// Sends a request with a key and returns the salt that its sequence has in the scheduler.
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

/// The routes that compute something. The others only tokenize.
fn generating_routes() -> impl Iterator<Item = (&'static str, Value)> {
    super::rows::posts().into_iter().filter(|(path, _)| !path.contains("token"))
}

#[tokio::test]
async fn one_valid_key_in_either_header_is_enough() {
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
async fn each_of_several_keys_has_its_own_prefix_cache_on_every_route() {
    let mut server = server(&["one", "two"], None);
    for (path, body) in generating_routes() {
        let one = server.salt(path, "one", &body).await;
        let two = server.salt(path, "two", &body).await;
        assert!(one.is_some() && two.is_some() && one != two, "{path}: {one:?} and {two:?}");
        assert_eq!(server.salt(path, "one", &body).await, one, "{path}");
    }
    // A client's own salt divides its cache further, and never reaches the cache of another key.
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
async fn keys_share_a_cache_if_the_operator_wants_it_or_there_is_only_one() {
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
        // A client's own salt always applies.
        let body = json!({"inputs": "a", "parameters": {"cache_salt": "mine"}});
        let salted = server.salt("/generate", "one", &body).await.unwrap();
        assert!(if separate { salted.ends_with("\0mine") } else { &*salted == "mine" }, "{salted:?}");
    }
}

#[tokio::test]
async fn high_priority_may_be_limited_to_some_keys() {
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
    // Only the requests that were answered have reached the engine.
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
    let serving = |limits: RequestLimits| {
        let assets = test_support::assets();
        Server::serving(&assets, Script::Say("x".into()), limits, HttpConfig::default())
    };
    let completion = |n: usize, prompts: usize| json!({"prompt": vec!["a"; prompts], "n": n});
    let chat = |n: usize| json!({"messages": [{"role": "user", "content": "a"}], "n": n});
    // The flag limits `n` like `best_of`. By default OpenAI's routes allow more than TGI's.
    for (max_best_of, most) in [(Some(1), 1), (Some(3), 3), (None, 16)] {
        let server = serving(RequestLimits { max_best_of, ..RequestLimits::default() });
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
    // All answers of a stream are computed at the same time. Without a stream, prompts wait for
    // each other.
    let mut server = serving(RequestLimits { max_concurrent_requests: 8, ..RequestLimits::default() });
    assert_eq!(server.post("/v1/completions", completion(2, 4)).await.status, StatusCode::OK);
    while server.engine.requests.try_recv().is_ok() {}
    assert_eq!(server.post("/v1/completions", completion(3, 3)).await.status, StatusCode::OK);
    while server.engine.requests.try_recv().is_ok() {}
    let mut streamed = completion(3, 3);
    streamed["stream"] = json!(true);
    let reply = server.post("/v1/completions", streamed).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert!(reply.body.contains("--max-concurrent-requests"), "{}", reply.body);
    // If there is capacity for only some of the answers, none is started.
    let limits = RequestLimits { max_concurrent_requests: 8, ..RequestLimits::default() };
    let assets = test_support::assets();
    let mut busy = Server::serving(&assets, Script::Forever("a".into()), limits, HttpConfig::default());
    let running = crate::http::tests::post("/generate_stream", r#"{"inputs":"a"}"#);
    let running = tower::ServiceExt::oneshot(busy.app.clone(), running).await.unwrap();
    assert!(busy.engine.requests.recv().await.is_some());
    let reply = busy.post("/v1/chat/completions", chat(8)).await;
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{}", reply.body);
    assert!(busy.engine.requests.try_recv().is_err(), "a refused request starts nothing");
    drop(running);
    assert!(server.engine.requests.try_recv().is_err());
}

/// The routes of the three APIs that generate, a short request for each, and the type of the error
/// when a limit is reached.
fn apis() -> [(&'static str, Value, &'static str, &'static str); 3] {
    let message = json!([{"role": "user", "content": "a"}]);
    [
        (
            "/generate",
            json!({"inputs": "a", "parameters": {"max_new_tokens": 3}}),
            "/error_type",
            "rate_limit_exceeded",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": message, "max_tokens": 3}),
            "/error/code",
            "rate_limit_exceeded",
        ),
        (
            "/v1/messages",
            json!({"model": "m", "messages": message, "max_tokens": 3}),
            "/error/type",
            "rate_limit_error",
        ),
    ]
}

/// Checks the answer to a request that a limit refuses.
fn check_refusal(reply: &Reply, path: &str, at: &str, kind: &str, text: &str) {
    assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{path}: {}", reply.body);
    assert!(reply.header("retry-after").parse::<u64>().unwrap() > 0, "{path}");
    assert_eq!(reply.json().pointer(at), Some(&json!(kind)), "{path}: {}", reply.body);
    assert!(reply.body.contains(text), "{path}: {}", reply.body);
}

#[tokio::test]
async fn the_requests_of_a_key_are_limited() {
    for (path, body, at, kind) in apis() {
        let api_keys = api_keys(&["limited requests=1", "free"], None);
        let config = HttpConfig { api_keys, ..HttpConfig::default() };
        let mut server = Server::with(Script::Forever("x".into()), 64, config);
        let mut endless = post("/generate_stream", r#"{"inputs":"a","parameters":{"max_new_tokens":900}}"#);
        endless.headers_mut().insert("x-api-key", "limited".parse().unwrap());
        let running = tower::ServiceExt::oneshot(server.app.clone(), endless).await.unwrap();
        assert!(server.engine.requests.recv().await.is_some());
        let refused = server.post_with(path, &[("x-api-key", "limited")], &body).await;
        check_refusal(&refused, path, at, kind, "has 1 requests waiting or running");
        assert!(server.engine.requests.try_recv().is_err(), "a refused request starts nothing");
        let other = server.post_with(path, &[("x-api-key", "free")], &body).await;
        assert_eq!(other.status, StatusCode::OK, "another key is not affected: {}", other.body);
        drop(running);
        server.engine.cancelled.recv().await.unwrap();
        // The permit is returned a moment after the cancellation.
        while server.engine.engine.in_flight() > 0 {
            tokio::task::yield_now().await;
        }
        let again = server.post_with(path, &[("x-api-key", "limited")], &body).await;
        assert_eq!(again.status, StatusCode::OK, "{path}: {}", again.body);
    }
}

#[tokio::test]
async fn the_tokens_of_a_key_are_limited() {
    for (path, body, at, kind) in apis() {
        let server = server(&["limited tokens-per-minute=1", "free"], None);
        // The length of an answer is not known before, so the first request is accepted.
        let first = server.post_with(path, &[("x-api-key", "limited")], &body).await;
        assert_eq!(first.status, StatusCode::OK, "{path}: {}", first.body);
        let refused = server.post_with(path, &[("x-api-key", "limited")], &body).await;
        check_refusal(&refused, path, at, kind, "has used its 1 tokens per minute");
        assert!(refused.header("retry-after").parse::<u64>().unwrap() > 60, "{path}");
        assert_eq!(server.post_with(path, &[("x-api-key", "free")], &body).await.status, StatusCode::OK);
        // A route that writes the errors of another API in TGI's form keeps the text.
        let vertex = json!({"instances": [{"messages": [{"role": "user", "content": "a"}]}]});
        let refused = server.post_with("/vertex", &[("x-api-key", "limited")], &vertex).await;
        check_refusal(&refused, "/vertex", "/error_type", "rate_limit_exceeded", "has used its 1 tokens");
    }
}

#[tokio::test]
async fn refused_prompts_are_charged() {
    let long = "a".repeat(5000);
    let many = vec![json!({"role": "bad", "content": "a"}); 1200];
    for (path, body, status) in [
        ("/generate", json!({"inputs": long}), 422),
        ("/v1/completions", json!({"prompt": long}), 400),
        ("/v1/completions", json!({"prompt": vec![97; 5000], "echo": true, "max_tokens": 0}), 400),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": long}]}), 400),
        // The template refuses this role.
        ("/v1/chat/completions", json!({"messages": many}), 400),
    ] {
        let server = server(&["limited tokens-per-minute=1000"], None);
        let refused = server.post_with(path, &[("x-api-key", "limited")], &body).await;
        assert_eq!(refused.status.as_u16(), status, "{path}: {}", refused.body);
        let small = json!({"inputs": "a", "parameters": {"max_new_tokens": 1}});
        let reply = server.post_with("/generate", &[("x-api-key", "limited")], &small).await;
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{path}: {}", reply.body);
        assert!(reply.body.contains("has used its 1000 tokens"), "{path}: {}", reply.body);
    }
}

/// Long bodies are read by other code than short ones. They are refused with the same errors, and
/// count against the budget of their key.
#[tokio::test]
async fn long_bodies_that_are_refused_for_their_form_are_charged() {
    let mut messages = vec![json!({"role": "user", "content": "hello"}); 2000];
    messages.push(json!({"role": "root", "content": "hello"}));
    let chat = json!({"model": "m", "max_tokens": 3, "messages": messages});
    let long = "a ".repeat(20_000);
    for (path, body, text) in [
        ("/v1/chat/completions", &chat, "`messages[2000]` has the unknown role"),
        ("/v1/messages", &chat, "messages"),
        ("/chat_tokenize", &chat, "unknown role"),
        ("/v1/completions", &json!({"prompt": long, "max_tokens": "x"}), "`max_tokens` must be"),
        ("/generate", &json!({"inputs": long, "parameters": 5}), "parameters: invalid type"),
    ] {
        let api_keys = api_keys(&["limited tokens-per-minute=100", "free"], None);
        let server =
            Server::with(Script::Say("x".into()), 64, HttpConfig { api_keys, ..HttpConfig::default() });
        let limited = [("x-api-key", "limited")];
        let refused = server.post_with(path, &limited, body).await;
        assert!(refused.status.is_client_error() && refused.body.contains(text), "{path}: {}", refused.body);
        let next = server.post_with("/generate", &limited, &json!({"inputs": "a"})).await;
        assert_eq!(next.status, StatusCode::TOO_MANY_REQUESTS, "{path}: {}", next.body);
    }
    let untyped = axum::http::Request::post("/generate").body(axum::body::Body::from(long)).unwrap();
    let reply = tower::ServiceExt::oneshot(server(&[], None).app, untyped).await.unwrap();
    assert_eq!(reply.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
}

#[tokio::test]
async fn several_answers_that_exceed_a_limit_are_refused_before_any_starts() {
    let mut server = server(&["limited requests=2"], None);
    let chat = |n: usize| json!({"messages": [{"role": "user", "content": "a"}], "n": n});
    let path = "/v1/chat/completions";
    let refused = server.post_with(path, &[("x-api-key", "limited")], &chat(3)).await;
    check_refusal(&refused, path, "/error/code", "rate_limit_exceeded", "which is its limit");
    assert!(server.engine.requests.try_recv().is_err());
    assert_eq!(server.post_with(path, &[("x-api-key", "limited")], &chat(2)).await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_tenant_is_the_key_or_a_header() {
    let body = json!({"inputs": "a"});
    for (keys, by, header, expected) in [
        (&["one", "two"][..], FairBy::Key, None, Tenant::named("key 1")),
        (&["one", "two"], FairBy::Key, Some("a"), Tenant::named("key 1")),
        (&["one", "two"], "header:x-tenant".parse().unwrap(), Some("a"), Tenant::named("header a")),
        (&["one", "two"], "header:x-tenant".parse().unwrap(), None, Tenant::named("key 1")),
        (&[], "header:x-tenant".parse().unwrap(), Some("a"), Tenant::named("header a")),
        (&[], FairBy::Key, Some("a"), Tenant::default()),
    ] {
        let config = HttpConfig { api_keys: api_keys(keys, None), fair_by: by, ..HttpConfig::default() };
        let mut server = Server::with(Script::Say("x".into()), 64, config);
        let mut headers = vec![("x-api-key", "two")];
        headers.extend(header.map(|tenant| ("x-tenant", tenant)));
        assert_eq!(server.post_with("/generate", &headers, &body).await.status, StatusCode::OK);
        assert_eq!(server.engine.requests.try_recv().unwrap().tenant, expected, "{keys:?} {header:?}");
    }
}
