//! `/ui`: a page to talk with the model and to watch the server.
//!
//! The files of the page are in the binary. The page sends requests to this server alone, by the
//! same routes as every other client.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::file::{self, CSS, File, HTML, SCRIPT, SVG};
use crate::service::Service;

/// The files of the page.
pub(crate) const FILES: &[File] = &[
    File::new("/ui/", HTML, include_str!("index.html")),
    File::new("/ui/icon.svg", SVG, include_str!("icon.svg")),
    File::new("/ui/base.css", CSS, include_str!("base.css")),
    File::new("/ui/style.css", CSS, include_str!("style.css")),
    File::new("/ui/chat.css", CSS, include_str!("chat.css")),
    File::new("/ui/panel.css", CSS, include_str!("panel.css")),
    File::new("/ui/history.css", CSS, include_str!("history.css")),
    File::new("/ui/rich.css", CSS, include_str!("rich.css")),
    File::new("/ui/answer.js", SCRIPT, include_str!("answer.js")),
    File::new("/ui/api.js", SCRIPT, include_str!("api.js")),
    File::new("/ui/attach.js", SCRIPT, include_str!("attach.js")),
    File::new("/ui/chat.js", SCRIPT, include_str!("chat.js")),
    File::new("/ui/dom.js", SCRIPT, include_str!("dom.js")),
    File::new("/ui/enrich.js", SCRIPT, include_str!("enrich.js")),
    File::new("/ui/facts.js", SCRIPT, include_str!("facts.js")),
    File::new("/ui/hint.js", SCRIPT, include_str!("hint.js")),
    File::new("/ui/history.js", SCRIPT, include_str!("history.js")),
    File::new("/ui/library.js", SCRIPT, include_str!("library.js")),
    File::new("/ui/live.js", SCRIPT, include_str!("live.js")),
    File::new("/ui/main.js", SCRIPT, include_str!("main.js")),
    File::new("/ui/markdown.js", SCRIPT, include_str!("markdown.js")),
    File::new("/ui/message.js", SCRIPT, include_str!("message.js")),
    File::new("/ui/panel.js", SCRIPT, include_str!("panel.js")),
    File::new("/ui/parts.js", SCRIPT, include_str!("parts.js")),
    File::new("/ui/rates.js", SCRIPT, include_str!("rates.js")),
    File::new("/ui/request.js", SCRIPT, include_str!("request.js")),
    File::new("/ui/settings.js", SCRIPT, include_str!("settings.js")),
    File::new("/ui/sides.js", SCRIPT, include_str!("sides.js")),
    File::new("/ui/snippets.js", SCRIPT, include_str!("snippets.js")),
    File::new("/ui/store.js", SCRIPT, include_str!("store.js")),
    File::new("/ui/theme.js", SCRIPT, include_str!("theme.js")),
    File::new("/ui/toast.js", SCRIPT, include_str!("toast.js")),
    File::new("/ui/tokens.js", SCRIPT, include_str!("tokens.js")),
    File::new("/ui/transfer.js", SCRIPT, include_str!("transfer.js")),
    File::new("/ui/tree.js", SCRIPT, include_str!("tree.js")),
    File::new("/ui/wrap.js", SCRIPT, include_str!("wrap.js")),
    File::new("/ui/vendor/prism.js", SCRIPT, include_str!("vendor/prism.js")),
    File::new("/ui/vendor/temml.js", SCRIPT, include_str!("vendor/temml.js")),
];

/// The path that leads to the page.
pub(crate) const PATH: &str = "/ui";

/// Returns the routes of the page. `needs_key` says whether a POST needs an API key.
pub(crate) fn routes<S: Clone + Send + Sync + 'static>(service: &Service, needs_key: bool) -> Router<S> {
    let service = service.clone();
    let server = move || async move { server(&service, needs_key) };
    file::routes(FILES).route(PATH, get(redirect)).route("/ui/server.json", get(server))
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
