//! Health, keys, limits, and clients that disconnect.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Request, StatusCode};
use futures::StreamExt;
use millrace_test_patience::patience;
use serde_json::json;
use tower::ServiceExt;

use super::{HttpConfig, Script, Server, post};
use crate::engine::{EngineState, Priority};
use crate::http::ApiKeys;

/// Returns the longest time that a test waits.
fn soon() -> Duration {
    patience(Duration::from_secs(30))
}

#[tokio::test]
async fn health_is_liveness_and_ready_is_readiness() {
    let server = Server::saying("x");
    let status = async |path| server.get(path).await.status.as_u16();
    let generate = || server.post("/generate", json!({"inputs": "a"}));
    for path in ["/", "/health", "/ping", "/health?ready", "/ready"] {
        assert_eq!(status(path).await, 200, "{path}");
    }
    assert_eq!(server.get("/health").await.body, "");

    server.engine.state.send(EngineState::Loading { phase: "weights".into(), done: 1, total: 2 }).unwrap();
    assert_eq!(
        (status("/health").await, status("/health?ready").await, status("/info").await),
        (200, 503, 503)
    );
    let reply = server.get("/ready").await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, "1"));
    assert_eq!(
        reply.json(),
        json!({"status": "loading", "phase": "weights", "done_bytes": 1, "total_bytes": 2})
    );
    let reply = generate().await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, "1"));
    assert_eq!(reply.json(), json!({"error": "Model is loading", "error_type": "unavailable"}));
    let body = json!({"messages": [{"role": "user", "content": "a"}], "stream": true});
    let reply = server.post("/v1/chat/completions", body).await;
    assert_eq!((reply.status.as_u16(), reply.header("retry-after")), (503, "1"));

    server.engine.state.send(EngineState::Draining).unwrap();
    assert_eq!(
        (status("/health").await, status("/ready").await, generate().await.status.as_u16()),
        (200, 503, 503)
    );

    server.engine.state.send(EngineState::Failed("no memory".into())).unwrap();
    assert_eq!(status("/ready").await, 503);
    for path in ["/", "/health", "/ping"] {
        let reply = server.get(path).await;
        let expected = json!({"error": "unhealthy", "error_type": "healthcheck"});
        assert_eq!((reply.status.as_u16(), reply.json()), (503, expected), "{path}");
    }
}

#[tokio::test]
async fn a_full_server_says_when_to_retry() {
    let server = Server::with(Script::Forever("a".into()), 1, HttpConfig::default());
    let running = server.app.clone().oneshot(post("/generate_stream", r#"{"inputs":"a"}"#)).await.unwrap();
    for path in ["/generate", "/generate_stream"] {
        let reply = server.post(path, json!({"inputs": "a"})).await;
        assert_eq!((reply.status, reply.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1"));
        assert_eq!(reply.json(), json!({"error": "Model is overloaded", "error_type": "overloaded"}));
    }
    let reply = server.post("/v1/completions", json!({"prompt": "a", "stream": true})).await;
    assert_eq!((reply.status, reply.header("retry-after")), (StatusCode::TOO_MANY_REQUESTS, "1"));
    assert_eq!(reply.json()["error"]["code"], "overloaded");
    // As in TGI, a full server refuses a request before it is validated.
    let wrong = server.post("/generate", json!({"inputs": ""})).await;
    assert_eq!(wrong.status, StatusCode::TOO_MANY_REQUESTS);
    drop(running);
}

#[tokio::test]
async fn requests_are_accepted_while_shards_restart() {
    let server = Server::saying("x");
    let EngineState::Ready(ready) = server.engine.state.borrow().clone() else { panic!("not ready") };
    server.engine.state.send(EngineState::Recovering(ready)).unwrap();
    let reply = server.get("/ready").await;
    assert_eq!((reply.status.as_u16(), reply.json()), (503, json!({"status": "recovering"})));
    assert_eq!(server.get("/health").await.status, StatusCode::OK);
    assert_eq!(server.post("/generate", json!({"inputs": "a"})).await.status, StatusCode::OK);
}

#[tokio::test]
async fn cached_tokens_are_reported_and_salts_and_priorities_reach_the_engine() {
    let mut server = Server::saying("x");
    let chat =
        json!({"messages": [{"role": "user", "content": "a"}], "priority": "high", "cache_salt": "me"});
    let tgi = json!({"inputs": "a", "parameters": {"priority": "high", "cache_salt": "me"}});
    let completions = json!({"prompt": "a", "priority": "high", "cache_salt": "me"});
    for (path, mut body) in [
        ("/generate", tgi.clone()),
        ("/generate_stream", tgi),
        ("/v1/completions", completions.clone()),
        ("/v1/completions", completions),
        ("/v1/chat/completions", chat.clone()),
        ("/v1/chat/completions", chat),
    ]
    .into_iter()
    .enumerate()
    .map(|(i, (path, mut body))| {
        body["stream"] = json!(i % 2 == 1);
        (path, body)
    }) {
        let reply = server.post(path, body.clone()).await;
        assert_eq!((reply.status, reply.header("x-cached-tokens")), (StatusCode::OK, "3"), "{path}");
        let asked = server.engine.requests.recv().await.unwrap();
        assert_eq!((asked.priority, asked.cache_salt.as_deref()), (Priority::High, Some("me")), "{path}");
        let parameters = if path.starts_with("/v1") { &mut body } else { &mut body["parameters"] };
        parameters["priority"] = json!("urgent");
        let reply = server.post(path, body.clone()).await;
        assert!(reply.status.is_client_error() && reply.body.contains("`high`, `normal` or `low`"), "{path}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_request() {
    let mut server = Server::new(Script::Forever("a".into()));
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "stream": true, "n": 2}).to_string();
    let cases = [("/generate_stream", r#"{"inputs":"a"}"#.to_owned(), 1), ("/v1/chat/completions", chat, 2)];
    for (path, body, sequences) in cases {
        let response = server.app.clone().oneshot(post(path, body)).await.unwrap();
        let mut body = response.into_body().into_data_stream();
        assert!(body.next().await.unwrap().unwrap().starts_with(b"data: {"));
        drop(body);
        for _ in 0..sequences {
            let gone = tokio::time::timeout(soon(), server.engine.cancelled.recv()).await;
            assert_eq!(gone, Ok(Some(())), "{path}");
        }
    }
    // The same holds for a client that waits for the complete answer.
    while server.engine.requests.try_recv().is_ok() {}
    let waiting = server
        .app
        .clone()
        .oneshot(post("/generate", r#"{"inputs":"a","parameters":{"max_new_tokens":1000}}"#));
    tokio::select! {
        reply = waiting => panic!("{reply:?}"),
        asked = server.engine.requests.recv() => assert!(asked.is_some()),
    }
    let gone = tokio::time::timeout(soon(), server.engine.cancelled.recv()).await;
    assert_eq!(gone, Ok(Some(())));
}

#[tokio::test]
async fn a_stop_string_releases_the_sequence() {
    let mut server = Server::new(Script::Forever("abcd".into()));
    let body = json!({"inputs": "a", "parameters": {"stop": ["dab"]}});
    assert_eq!(server.post("/generate", body).await.json(), json!({"generated_text": "abcdab"}));
    let gone = tokio::time::timeout(soon(), server.engine.cancelled.recv()).await;
    assert_eq!(gone, Ok(Some(())));
}

#[tokio::test]
async fn every_post_needs_a_key_if_there_are_keys() {
    let api_keys = ApiKeys::new(&["one".parse().unwrap(), "Two".parse().unwrap()], None);
    let config = HttpConfig { api_keys, ..HttpConfig::default() };
    let server = Server::with(Script::Say("x".into()), 8, config);
    let ask = async |path: &str, key: Option<&str>| {
        let body = json!({"inputs": "a", "prompt": "a", "messages": [{"role": "user", "content": "a"}]});
        let mut request = post(path, body.to_string());
        if let Some(key) = key {
            request.headers_mut().insert("authorization", key.parse().unwrap());
        }
        server.send(request).await
    };
    for path in ["/", "/generate", "/generate_stream", "/tokenize", "/v1/completions", "/v1/chat/completions"]
    {
        for key in
            [None, Some("one"), Some("Bearer two"), Some("Bearer on"), Some("Basic one"), Some("Bearer ")]
        {
            let reply = ask(path, key).await;
            assert_eq!(reply.status, StatusCode::UNAUTHORIZED, "{path} {key:?}");
            assert_eq!(reply.header("www-authenticate"), "Bearer", "{path} {key:?}");
            if path.starts_with("/v1/") {
                assert_eq!(reply.json()["error"]["code"], "invalid_api_key");
            } else {
                assert_eq!(reply.body, "");
            }
        }
        for key in ["Bearer one", "Bearer Two", "bearer one", "BEARER  Two"] {
            assert_eq!(ask(path, Some(key)).await.status, StatusCode::OK, "{path} {key}");
        }
        for (key, status) in [("Two", 200), ("two", 401), ("", 401)] {
            let body = json!({"inputs": "a", "prompt": "a", "messages": [{"role": "user", "content": "a"}]});
            let mut request = post(path, body.to_string());
            request.headers_mut().insert("x-api-key", key.parse().unwrap());
            assert_eq!(server.send(request).await.status.as_u16(), status, "{path} {key}");
        }
    }
    for path in ["/health", "/info", "/v1/models", "/metrics"] {
        assert_eq!(server.get(path).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn browsers_may_send_requests() {
    let server = Server::saying("x");
    let reply = server.get("/info").await;
    assert_eq!(reply.header("access-control-allow-origin"), "*");
    let vary = "origin, access-control-request-method, access-control-request-headers";
    assert_eq!(reply.header("vary"), vary);
    for (path, body) in [("/generate", "{\"inputs\":\"a\"}"), ("/generate", "{"), ("/nothing", "{}")] {
        let reply = server.post_text(path, body).await;
        let told = (reply.header("access-control-allow-origin"), reply.header("vary"));
        assert_eq!(told, ("*", vary), "{path} {body}");
    }
    let preflight = Request::options("/generate")
        .header("origin", "http://a")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization, content-type, x-stainless-os")
        .body(Body::empty())
        .unwrap();
    let reply = server.send(preflight).await;
    assert_eq!(reply.header("access-control-allow-methods"), "GET,POST");
    assert_eq!(reply.header("access-control-allow-headers"), "authorization, content-type, x-stainless-os");
}

#[tokio::test]
async fn errors_of_unknown_paths_and_methods_have_the_form_of_the_api() {
    let server = Server::saying("x");
    let reply = server.get("/nothing").await;
    let expected = json!({"error": "/nothing is not served here; /docs lists the paths that are", "error_type": "not_found"});
    assert_eq!((reply.status.as_u16(), reply.json()), (404, expected));
    let reply = server.post("/v1/chat/completion", json!({})).await;
    let error = reply.json()["error"].clone();
    let text = "/v1/chat/completion is not served here; did you mean /v1/chat/completions?";
    assert_eq!(
        (reply.status.as_u16(), &error["message"], &error["code"]),
        (404, &json!(text), &json!("unknown_url"))
    );
    let reply = server.post("/v1/messages/count", json!({})).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["type"]), (404, &json!("not_found_error")));
    // A long path is not repeated.
    let reply = server.get(&format!("/{}", "a".repeat(5000))).await;
    assert!(reply.status == 404 && reply.body.len() < 300, "{}", reply.body);

    let reply = server.get("/generate").await;
    assert_eq!((reply.status.as_u16(), reply.header("allow")), (405, "POST"));
    assert_eq!(
        (reply.header("content-type"), &reply.json()["error_type"]),
        ("application/json", &json!("method_not_allowed"))
    );
    let reply = server.get("/v1/chat/completions").await;
    assert_eq!((reply.status.as_u16(), reply.header("allow")), (405, "POST"));
    let text = "GET is not allowed at /v1/chat/completions; the header `allow` names the methods that are";
    assert_eq!(reply.json()["error"]["message"], text);
    let reply = server.get("/v1/messages").await;
    assert_eq!((reply.status.as_u16(), &reply.json()["type"]), (405, &json!("error")));
}

#[tokio::test]
async fn a_panic_becomes_a_response() {
    async fn panicking() {
        panic!("a bug");
    }
    let app = axum::Router::new()
        .route("/", axum::routing::get(panicking))
        .layer(super::super::layers::answer_panics_with(super::super::tgi::unhealthy));
    let reply = app.oneshot(Request::get("/").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(reply.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn requests_are_counted_once() {
    let metrics = crate::metrics::install(1024).unwrap();
    let config = HttpConfig { metrics: Some(metrics), ..HttpConfig::default() };
    let server = Server::with(Script::Say("abc".into()), 8, config);
    let value = async |name: &str| {
        let text = server.get("/metrics").await.body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
        line.unwrap_or(0.0)
    };
    // The recorder also counts the requests of other tests in this process, so these are lower
    // bounds.
    server.post("/v1/completions", json!({"prompt": "a"})).await;
    server.post("/generate", json!({"inputs": ""})).await;
    for name in ["tgi_request_count", "tgi_request_success", "tgi_request_failure{err=\"validation\"}"] {
        assert!(value(name).await >= 1.0, "{name}");
    }
    let text = server.get("/metrics").await;
    assert_eq!(text.header("content-type"), "text/plain; charset=utf-8");
    for series in [
        "tgi_request_time_to_first_token_duration_bucket{le=\"0.00015000000000000001\"}",
        "tgi_request_generated_tokens_bucket{le=\"10.24\"}",
        "tgi_request_inter_token_duration_sum",
        "tgi_request_queue_duration_count",
    ] {
        assert!(text.body.contains(series), "{series} in {}", text.body);
    }
    let some =
        server.get("/metrics?name[]=tgi_request_failure&name[]=tgi_request_duration_count&name[]=none").await;
    let names: Vec<_> = some.body.lines().filter_map(|line| line.split(['{', ' ']).next()).collect();
    assert!(
        names.contains(&"tgi_request_duration_count") && names.contains(&"tgi_request_failure"),
        "{names:?}"
    );
    assert!(names.iter().all(|name| name.ends_with("_failure") || name.ends_with("_count")), "{names:?}");
}

#[tokio::test]
async fn a_real_socket_drains_on_shutdown() {
    let FakeParts { server, service } = parts(Script::Say("slow".repeat(50)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(crate::serve::serve(
        listener,
        service,
        HttpConfig::default(),
        crate::serve::ServeOptions { grace: soon(), ..Default::default() },
        futures::stream::once(async { drop(stopped.await) }),
    ));
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
    let body = r#"{"inputs":"a"}"#;
    let request = format!(
        "POST /generate_stream HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(request.as_bytes()).await.unwrap();
    let mut first = [0; 64];
    client.read_exact(&mut first).await.unwrap();
    stop.send(()).unwrap();
    let mut rest = String::new();
    client.read_to_string(&mut rest).await.unwrap();
    assert!(rest.contains(&"slow".repeat(50)), "{rest}");
    let ended = tokio::time::timeout(soon(), running).await;
    ended.unwrap().unwrap().unwrap();
    drop(server);
}

#[tokio::test]
async fn every_response_has_the_id_of_its_request() {
    let server = Server::saying("x");
    let ask = async |path: &str, id: Option<&[u8]>| {
        let mut request = post(path, r#"{"inputs":"a","prompt":"a"}"#);
        if let Some(id) = id {
            request.headers_mut().insert("x-request-id", HeaderValue::from_bytes(id).unwrap());
        }
        server.send(request).await.header("x-request-id").to_owned()
    };
    let long = "a".repeat(128);
    for path in ["/generate", "/generate_stream", "/v1/completions", "/nothing", "/info"] {
        assert_eq!(ask(path, Some(b"mine-7")).await, "mine-7", "{path}");
        assert_eq!(ask(path, Some(long.as_bytes())).await, long, "{path}");
        for unfit in [&b""[..], b"two words", b"\xff", "a".repeat(129).as_bytes()] {
            let id = ask(path, Some(unfit)).await;
            assert!(
                id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{path} {unfit:?}: {id}"
            );
        }
        assert_ne!(ask(path, None).await, ask(path, None).await, "{path}");
    }
}

struct FakeParts {
    server: crate::test_support::FakeEngine,
    service: crate::service::Service,
}

fn parts(script: Script) -> FakeParts {
    let server = crate::test_support::FakeEngine::new(script, 8);
    let model = crate::service::ModelInfo { id: "m".into(), ..Default::default() };
    let limits = crate::service::RequestLimits::default();
    let service =
        crate::service::Service::new(&crate::test_support::assets(), server.engine.clone(), limits, model)
            .unwrap();
    FakeParts { server, service }
}
