//! Paths and methods that are not served: a JSON error that names the nearest ones that are.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::body::Api;

/// Paths that a client may have meant. Those with parameters are left out.
const PATHS: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/v1/responses",
    "/generate",
    "/generate_stream",
    "/tokenize",
    "/detokenize",
    "/tokenizer_info",
    "/chat_tokenize",
    "/invocations",
    "/vertex",
    "/info",
    "/health",
    "/ping",
    "/ready",
    "/metrics",
    "/docs",
    "/api-doc/openapi.json",
    "/ui",
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
];

/// Bytes of the longest path that is looked at and repeated. The comparison takes time with the square of its length.
const LONGEST: usize = 128;

/// How alike two paths must be, from 0 to 1.
const NEAR: f64 = 0.6;

/// Answers a path that is not served.
pub(super) async fn path(request: Request) -> Response {
    let path = request.uri().path();
    let text = match (fits(path), nearest(path)) {
        (true, Some(near)) => format!("{path} is not served here; did you mean {near}?"),
        (true, None) => format!("{path} is not served here; /docs lists what is"),
        (false, _) => "this path is not served here; /docs lists what is".to_owned(),
    };
    Api::of(path).absent(StatusCode::NOT_FOUND, text)
}

/// Says in JSON that a path is served by other methods, which the header `allow` names.
pub(super) async fn method(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    if response.status() != StatusCode::METHOD_NOT_ALLOWED || method == Method::HEAD {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    let method = if method.as_str().len() <= 16 { method.as_str() } else { "this method" };
    let path = if fits(&path) { path.as_str() } else { "this path" };
    // The router adds the header later, outside of all layers.
    let text = format!("{method} is not allowed at {path}; the header `allow` says what is");
    let (new, body) = Api::of(path).absent(StatusCode::METHOD_NOT_ALLOWED, text).into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.extend(new.headers);
    Response::from_parts(parts, Body::new(body)).into_response()
}

/// Whether a path is fit to be repeated.
fn fits(path: &str) -> bool {
    path.len() <= LONGEST && path.bytes().all(|byte| byte.is_ascii_graphic())
}

/// The path that was probably meant.
fn nearest(path: &str) -> Option<&'static str> {
    if !fits(path) {
        return None;
    }
    let path = path.trim_end_matches('/').to_ascii_lowercase();
    // A base URL with too much or too little in it is the usual mistake.
    let is_part = |known: &&str| !path.is_empty() && (known.ends_with(&path) || path.ends_with(known));
    let whole = PATHS.iter().copied().filter(is_part).max_by_key(|known| known.len());
    let alike = || {
        let likeness = |known: &'static str| (strsim::normalized_levenshtein(known, &path), known);
        let best = PATHS.iter().copied().map(likeness).max_by(|a, b| a.0.total_cmp(&b.0));
        best.filter(|(likeness, _)| *likeness >= NEAR).map(|(_, known)| known)
    };
    whole.or_else(alike)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_path_is_named() {
        for (path, near) in [
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1/chat/completions/", Some("/v1/chat/completions")),
            ("/openai/v1/models", Some("/v1/models")),
            ("/v1/chat/completion", Some("/v1/chat/completions")),
            ("/v1/embedding", Some("/v1/embeddings")),
            ("/V1/Models", Some("/v1/models")),
            ("/generate_streams", Some("/generate_stream")),
            ("/favicon.ico", None),
            ("/", None),
            ("//////", None),
        ] {
            assert_eq!(nearest(path), near, "{path}");
        }
        assert_eq!(nearest(&format!("/{}/v1/models", "a".repeat(200))), None);
    }
}
