//! Tests of the whole HTTP surface with a fake engine.

mod adapters;
mod answer_bytes;
mod anthropic;
mod anthropic_agents;
mod anthropic_tools;
mod chat;
mod codex;
mod compatibility;
mod completions;
mod context;
mod defaults;
mod docs;
mod edges;
mod embeddings;
mod guided;
mod hints;
mod hostile_text;
mod inputs;
mod keys;
mod names;
mod platforms;
mod reasoning;
mod responses;
mod responses_tools;
mod rows;
mod schemas;
mod server;
mod tei;
mod tgi;
mod thinking;
mod tokens;
mod tools;
mod ui;
mod wire;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use serde_json::Value;
use tower::ServiceExt;

use super::{HttpConfig, router};
use crate::assets::Assets;
use crate::service::{ModelInfo, RequestLimits, Service};
use crate::test_support::{self, FakeEngine, Script};

/// A server whose fake model gives the same answer to every prompt.
struct Server {
    app: Router,
    engine: FakeEngine,
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Server {
    fn new(script: Script) -> Self {
        Self::with(script, 128, HttpConfig::default())
    }

    fn saying(text: &str) -> Self {
        Self::new(Script::Say(text.into()))
    }

    fn with(script: Script, concurrent: usize, config: HttpConfig) -> Self {
        let limits = RequestLimits { max_concurrent_requests: concurrent, ..RequestLimits::default() };
        Self::serving(&test_support::assets(), script, limits, config)
    }

    fn serving(assets: &Assets, script: Script, limits: RequestLimits, config: HttpConfig) -> Self {
        let model = ModelInfo { id: "org/model".into(), ..ModelInfo::default() };
        Self::of_model(model, assets, script, limits, config)
    }

    fn of_model(
        model: ModelInfo,
        assets: &Assets,
        script: Script,
        limits: RequestLimits,
        config: HttpConfig,
    ) -> Self {
        let mut engine = FakeEngine::new(script, limits.max_concurrent_requests);
        engine.engine = engine.engine.clone().with_adapters(model.adapters.clone());
        let service = Service::new(assets, engine.engine.clone(), limits, model).unwrap();
        Server { app: router(service, config), engine }
    }

    async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.app.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        Reply { status: parts.status, headers: parts.headers, body }
    }

    async fn get(&self, path: &str) -> Reply {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    async fn post(&self, path: &str, body: Value) -> Reply {
        self.post_text(path, body.to_string()).await
    }

    async fn post_text(&self, path: &str, body: impl Into<Body>) -> Reply {
        self.send(post(path, body)).await
    }
}

fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    let builder = Request::builder().method(Method::POST).uri(path);
    builder.header(header::CONTENT_TYPE, "application/json").body(body.into()).unwrap()
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap()
    }

    /// Returns the data of each event, after checking every byte of the framing.
    fn events(&self) -> Vec<String> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        assert_eq!(self.header("content-type"), "text/event-stream");
        assert_eq!(self.header("cache-control"), "no-cache");
        assert_eq!(self.header("x-accel-buffering"), "no");
        let body = self.body.strip_suffix("\n\n").expect("ends with an empty line");
        body.split("\n\n").map(|event| event.strip_prefix("data: ").expect("data").to_owned()).collect()
    }

    fn json_events(&self) -> Vec<Value> {
        self.events().iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// Returns the names and data of named events, after checking every byte of the framing.
    fn named_events(&self) -> Vec<(String, Value)> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.body);
        assert_eq!(self.header("content-type"), "text/event-stream");
        let body = self.body.strip_suffix("\n\n").expect("ends with an empty line");
        let event = |event: &str| {
            let (name, data) = event.split_once('\n').expect("two lines");
            let name = name.strip_prefix("event: ").expect("a name").to_owned();
            let data: Value = serde_json::from_str(data.strip_prefix("data: ").expect("data")).unwrap();
            assert_eq!(data["type"], name);
            (name, data)
        };
        body.split("\n\n").map(event).collect()
    }

    /// Returns the events of an OpenAI stream, without the one that ends it.
    fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}
