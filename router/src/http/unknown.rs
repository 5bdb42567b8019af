//! Paths and methods that are not served. The JSON error for a path suggests the most similar path.

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::api::Api;
use super::routes;

/// Bytes of the longest path that is compared and repeated. The time of a comparison grows with the
/// square of the length.
const MAX_PATH_BYTES: usize = 128;

/// The least similarity of a path that is suggested, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.6;

/// The response to a path that is not served.
pub(super) async fn path(request: Request) -> Response {
    let path = request.uri().path();
    let text = match (is_repeatable(path), suggestion(path)) {
        (true, Some(similar)) => format!("{path} is not served here; did you mean {similar}?"),
        (true, None) => format!("{path} is not served here; /docs lists the paths that are"),
        (false, _) => "this path is not served here; /docs lists the paths that are".to_owned(),
    };
    let response = Api::of(path).absent(StatusCode::NOT_FOUND, text);
    if leaves_body(&request) { closing(response) } else { response }
}

/// Writes the error in JSON if a path is not served by the method. The header `allow` names the
/// methods.
pub(super) async fn method(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let leaves_body = leaves_body(&request);
    let response = next.run(request).await;
    if response.status() != StatusCode::METHOD_NOT_ALLOWED || method == Method::HEAD {
        return response;
    }
    let (mut parts, _) = response.into_parts();
    let method = if method.as_str().len() <= 16 { method.as_str() } else { "this method" };
    let path = if is_repeatable(&path) { path.as_str() } else { "this path" };
    // The router adds the header `allow` outside of all layers.
    let text = format!("{method} is not allowed at {path}; the header `allow` names the methods that are");
    let (new, body) = Api::of(path).absent(StatusCode::METHOD_NOT_ALLOWED, text).into_parts();
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.extend(new.headers);
    let response = Response::from_parts(parts, Body::new(body)).into_response();
    if leaves_body { closing(response) } else { response }
}

/// Whether a response that does not read the body of this request ends the connection. HTTP/2 has a
/// stream for each request.
fn leaves_body(request: &Request) -> bool {
    request.version() < Version::HTTP_2 && !request.body().is_end_stream()
}

/// Tells the client that the connection ends with this response. A client that is not told sends
/// its next request into a connection that is being closed, and takes that for a failure.
fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Returns whether a path may be repeated in an error.
fn is_repeatable(path: &str) -> bool {
    path.len() <= MAX_PATH_BYTES && path.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns the path that the client probably meant.
fn suggestion(path: &str) -> Option<&'static str> {
    if !is_repeatable(path) {
        return None;
    }
    let path = path.trim_end_matches('/').to_ascii_lowercase();
    // The most frequent mistake is a base URL that has too much or too little of the path.
    let is_part = |known: &&str| !path.is_empty() && (known.ends_with(&path) || path.ends_with(known));
    // A path with parameters is no text that a client could use.
    let paths = || routes::paths().filter(|known| !known.contains('{'));
    let contained = paths().filter(is_part).max_by_key(|known| known.len());
    // Whoever asks for the base URL itself wants to know what is there.
    let models = || paths().find(|known| known.strip_suffix("/models") == Some(&path));
    let max_similar = || {
        let similarity = |known: &'static str| (strsim::normalized_levenshtein(known, &path), known);
        let best = paths().map(similarity).max_by(|a, b| a.0.total_cmp(&b.0));
        best.filter(|(similarity, _)| *similarity >= MIN_SIMILARITY).map(|(_, known)| known)
    };
    contained.or_else(models).or_else(max_similar)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_similar_path_is_suggested() {
        for (path, near) in [
            ("/chat/completions", Some("/v1/chat/completions")),
            ("/v1/v1/chat/completions", Some("/v1/chat/completions")),
            ("/v1/chat/completions/", Some("/v1/chat/completions")),
            ("/openai/v1/models", Some("/v1/models")),
            ("/v1/chat/completion", Some("/v1/chat/completions")),
            ("/v1/embedding", Some("/v1/embeddings")),
            ("/V1/Models", Some("/v1/models")),
            ("/v1", Some("/v1/models")),
            ("/v1/", Some("/v1/models")),
            ("/generate_streams", Some("/generate_stream")),
            ("/favicon.ico", None),
            ("/", None),
            ("//////", None),
        ] {
            assert_eq!(suggestion(path), near, "{path}");
        }
        assert_eq!(suggestion(&format!("/{}/v1/models", "a".repeat(200))), None);
    }

    #[tokio::test]
    async fn the_connection_ends_if_a_body_was_not_read() {
        let request = |version, body: &'static str| {
            Request::post("/nowhere").version(version).body(Body::from(body)).unwrap()
        };
        for (version, body, closes) in [
            (Version::HTTP_11, "{}", true),
            (Version::HTTP_10, "{}", true),
            (Version::HTTP_11, "", false),
            (Version::HTTP_2, "{}", false),
        ] {
            let response = path(request(version, body)).await;
            let closed = response.headers().get(header::CONNECTION).is_some_and(|value| value == "close");
            assert_eq!(closed, closes, "{version:?} {body}");
        }
    }
}
