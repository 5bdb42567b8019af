//! `/ui`: a page to talk with the model and to watch the server. Its files are in the binary, and it asks nobody but this
//! server, by the same routes as every other client.

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use super::{App, HttpConfig};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Path, content type, text.
pub(super) const FILES: &[(&str, &str, &str)] = &[
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

/// The page runs its own files and talks to its own server; no text becomes HTML, because nothing may write HTML at all.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

pub(super) fn routes(config: &HttpConfig) -> Router<App> {
    let mut router = Router::new();
    if config.disable_ui {
        return router;
    }
    for &(path, kind, text) in FILES {
        let headers = [
            (header::CONTENT_TYPE, kind),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            // The next version of the server has the next version of the page.
            (header::CACHE_CONTROL, "no-cache"),
        ];
        router = router.route(path, get(move || async move { (headers, text) }));
    }
    // Without a slash in front, so that the way holds behind a proxy that serves this below some path.
    router.route("/ui", get(to_page)).route("/ui/server.json", get(server))
}

/// Whether this is a browser that somebody has typed the server's address into: programs do not ask for HTML.
pub(super) fn is_for_people(config: &HttpConfig, headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
    !config.disable_ui && accept.is_some_and(|accept| accept.contains("text/html"))
}

/// To the page.
pub(super) async fn to_page() -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, "ui/")]).into_response()
}

/// What the page has to know to offer only what is served, also while the model is loading.
async fn server(State(app): State<App>) -> Json<Value> {
    let limits = app.service.limits();
    let tokens = app.service.ready().ok().map(|ready| limits.tokens(&ready).max_total);
    Json(json!({
        "model": app.service.model().id,
        "version": env!("CARGO_PKG_VERSION"),
        "has_chat_template": app.service.has_template(),
        "needs_key": !app.config.api_keys.is_empty(),
        "grammar": limits.grammar_support,
        "max_total_tokens": tokens,
        "max_stop_sequences": limits.max_stop_sequences,
        "max_top_n_tokens": limits.max_top_n_tokens,
    }))
}
