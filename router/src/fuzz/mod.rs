//! The entry points for bodies of requests, which may not panic, hang, or lead to a server error,
//! and for the files of models of vectors. `cargo xtask fuzz` runs them with libFuzzer. The inputs
//! in `fuzz/seeds` also run as normal tests.
//! Other kinds of untrusted input have their entry points in `millrace-text` and
//! `millrace-answers`.
#![allow(clippy::unwrap_used, missing_docs, reason = "the targets search for panics")]

pub mod cost;

use std::borrow::Cow;
use std::sync::OnceLock;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use serde_json::Value;
use tokio::runtime::Runtime;
use tower_service::Service as _;

use crate::embedding::{self, EmbeddingFiles, PoolingMode};
use crate::http::{HttpConfig, router};
use crate::service::{ModelInfo, RequestLimits, Service};
use crate::test_support::{self, FakeEngine, Script};

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls }}{% endfor %}{{ tools }}{{ documents }}";

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap())
}

/// Returns all routes with a scripted engine.
fn app() -> &'static Router {
    static APP: OnceLock<Router> = OnceLock::new();
    APP.get_or_init(|| {
        let _runtime = runtime().enter();
        let engine = FakeEngine::new(Script::Say("{\"a\": 1}".into()), 8).engine;
        let model = ModelInfo { id: "org/model".into(), ..ModelInfo::default() };
        let assets = test_support::assets_with_template(TEMPLATE);
        router(Service::new(&assets, engine, RequestLimits::default(), model).unwrap(), HttpConfig::default())
    })
}

fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    request.body(body.into()).unwrap()
}

/// Sends a request and reads the whole response, which must not be a server error.
fn assert_no_server_error(app: &Router, request: Request<Body>) {
    let path = request.uri().path().to_owned();
    runtime().block_on(async {
        let response = app.clone().call(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        assert!(!status.is_server_error(), "{path}: {status}: {}", String::from_utf8_lossy(&body));
    });
}

/// Returns the paths of all routes that take a body, from the description of the API.
fn post_paths() -> &'static [String] {
    static PATHS: OnceLock<Vec<String>> = OnceLock::new();
    PATHS.get_or_init(|| {
        let docs: Value = serde_json::from_str(&crate::http::openapi()).unwrap();
        let paths = docs["paths"].as_object().unwrap().iter();
        // KServe's routes have a parameter, whose value may be any name.
        let posts = paths.filter(|(_, item)| item.get("post").is_some());
        posts.map(|(path, _)| path.replace("{model}", "tgi")).collect()
    })
}

/// Sends a request and reads the whole response. The first line of an input is the path, the rest
/// is the body.
///
/// The fuzzer rarely guesses a path, so that a first line that is none selects a route by the sum
/// of its bytes. A new route changes this selection, so the inputs in `fuzz/seeds` have paths.
pub fn bodies(data: &[u8]) {
    let mut parts = data.splitn(2, |&byte| byte == b'\n');
    let line = parts.next().unwrap_or_default();
    let paths = post_paths();
    let sum: usize = line.iter().map(|&byte| usize::from(byte)).sum();
    let path = paths.iter().find(|path| path.as_bytes() == line).unwrap_or(&paths[sum % paths.len()]);
    assert_no_server_error(app(), post(path, parts.next().unwrap_or_default().to_vec()));
}

/// The small files of a model of vectors.
const EMBEDDING_FILES: [&str; 6] = [
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "1_Pooling/config.json",
    "2_Dense/config.json",
    "config.json",
];

/// Reads the files that describe a model of vectors. NUL bytes, which JSON cannot have, separate
/// them, and the rest is `2_Dense/model.safetensors`. An empty file counts as absent.
pub fn embedders(data: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    let mut parts = data.splitn(EMBEDDING_FILES.len() + 1, |&byte| byte == 0);
    let files: Vec<_> = EMBEDDING_FILES.into_iter().zip(&mut parts).collect();
    if let Some(weights) = parts.next() {
        std::fs::create_dir(folder.path().join("2_Dense")).unwrap();
        std::fs::write(folder.path().join("2_Dense/model.safetensors"), weights).unwrap();
    }
    let find = |name: &str| files.iter().find(|(file, bytes)| *file == name && !bytes.is_empty());
    let read = |name: &str| Ok(find(name).map(|(_, bytes)| Cow::Borrowed(*bytes)));
    let config = find("config.json").and_then(|(_, bytes)| serde_json::from_slice(bytes).ok());
    let config: Value = config.unwrap_or_default();
    let read = embedding::read(Some(folder.path()), &read, &config, &config);
    let EmbeddingFiles::Usable(model) = read else { return };
    let Ok(pooling) = model.pooling(None, || PoolingMode::Mean) else { return };
    for hidden in [8, 32] {
        let Ok(features) = model.output_features(hidden, pooling.modes.len()) else { continue };
        let vector = model.apply(vec![0.5; hidden * pooling.modes.len()]);
        assert_eq!(vector.len(), features);
    }
}

#[cfg(test)]
mod tests {
    use millrace_text::test_support::{replay_seeds, seeds};

    #[test]
    fn body_seeds_pass() {
        replay_seeds("bodies", super::bodies);
    }

    #[test]
    fn body_seeds_begin_with_paths() {
        for (path, seed) in seeds("bodies") {
            let line = String::from_utf8_lossy(seed.split(|&byte| byte == b'\n').next().unwrap());
            let is_served = super::post_paths().iter().any(|path| *path == line);
            assert!(is_served, "{path}: the first line must be the path of a route, not {line:?}");
        }
    }

    #[test]
    fn embedder_seeds_pass() {
        replay_seeds("embedders", super::embedders);
    }
}
