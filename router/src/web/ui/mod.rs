//! `/ui`: a page to talk with the model and to watch the server.
//!
//! The files of the page are in the binary. The page sends requests to this server alone, by the
//! same routes as every other client.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::service::Service;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// The path, the content type and the text of each file.
pub(crate) const FILES: &[(&str, &str, &str)] = &[
    ("/ui/", HTML, include_str!("index.html")),
    ("/ui/icon.svg", SVG, include_str!("icon.svg")),
    ("/ui/style.css", CSS, include_str!("style.css")),
    ("/ui/chat.css", CSS, include_str!("chat.css")),
    ("/ui/panel.css", CSS, include_str!("panel.css")),
    ("/ui/history.css", CSS, include_str!("history.css")),
    ("/ui/rich.css", CSS, include_str!("rich.css")),
    ("/ui/answer.js", SCRIPT, include_str!("answer.js")),
    ("/ui/api.js", SCRIPT, include_str!("api.js")),
    ("/ui/attach.js", SCRIPT, include_str!("attach.js")),
    ("/ui/chat.js", SCRIPT, include_str!("chat.js")),
    ("/ui/dom.js", SCRIPT, include_str!("dom.js")),
    ("/ui/enrich.js", SCRIPT, include_str!("enrich.js")),
    ("/ui/hint.js", SCRIPT, include_str!("hint.js")),
    ("/ui/history.js", SCRIPT, include_str!("history.js")),
    ("/ui/library.js", SCRIPT, include_str!("library.js")),
    ("/ui/live.js", SCRIPT, include_str!("live.js")),
    ("/ui/main.js", SCRIPT, include_str!("main.js")),
    ("/ui/markdown.js", SCRIPT, include_str!("markdown.js")),
    ("/ui/message.js", SCRIPT, include_str!("message.js")),
    ("/ui/panel.js", SCRIPT, include_str!("panel.js")),
    ("/ui/parts.js", SCRIPT, include_str!("parts.js")),
    ("/ui/rates.js", SCRIPT, include_str!("rates.js")),
    ("/ui/request.js", SCRIPT, include_str!("request.js")),
    ("/ui/settings.js", SCRIPT, include_str!("settings.js")),
    ("/ui/snippets.js", SCRIPT, include_str!("snippets.js")),
    ("/ui/store.js", SCRIPT, include_str!("store.js")),
    ("/ui/theme.js", SCRIPT, include_str!("theme.js")),
    ("/ui/toast.js", SCRIPT, include_str!("toast.js")),
    ("/ui/tokens.js", SCRIPT, include_str!("tokens.js")),
    ("/ui/transfer.js", SCRIPT, include_str!("transfer.js")),
    ("/ui/tree.js", SCRIPT, include_str!("tree.js")),
    ("/ui/vendor/prism.js", SCRIPT, include_str!("vendor/prism.js")),
    ("/ui/vendor/temml.js", SCRIPT, include_str!("vendor/temml.js")),
];

/// The path that leads to the page.
pub(crate) const PATH: &str = "/ui";

/// The page may run its own scripts and send requests to its own server. Trusted types are
/// forbidden, so that no script can turn a text into HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// Returns the routes of the page. `needs_key` says whether a POST needs an API key.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(service: &Service, needs_key: bool) -> Router<S> {
    let mut router = Router::new();
    for &(path, kind, text) in FILES {
        let headers = [
            (header::CONTENT_TYPE, kind),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            // Another version of the server has other files at the same paths.
            (header::CACHE_CONTROL, "no-cache"),
        ];
        router = router.route(path, get(move || async move { (headers, text) }));
    }
    let service = service.clone();
    let server = move || async move { server(&service, needs_key) };
    router.route(PATH, get(redirect)).route("/ui/server.json", get(server))
}

/// Returns whether a request comes from a browser that shows a page. Other clients do not accept
/// HTML.
pub(crate) fn accepts_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

/// Redirects to the page. The location is relative, so that it is right behind a proxy that serves
/// this server below another path.
pub(crate) async fn redirect() -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, "ui/")]).into_response()
}

/// Returns the properties of the server by which the page decides what it offers, also while the
/// model is loading.
fn server(service: &Service, needs_key: bool) -> Json<Value> {
    let limits = service.limits();
    let tokens = service.ready().ok().map(|ready| limits.tokens(&ready).max_total);
    Json(json!({
        "model": service.model().id,
        "version": env!("CARGO_PKG_VERSION"),
        "has_chat_template": service.has_template(),
        "needs_key": needs_key,
        "grammar": limits.grammar_support,
        "max_total_tokens": tokens,
        "max_stop_sequences": limits.max_stop_sequences,
        "max_top_n_tokens": limits.max_top_n_tokens,
    }))
}
