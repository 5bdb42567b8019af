//! Whether the server lives, and whether it serves.

use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::json;
use utoipa::OpenApi;

use super::{App, HttpConfig, tgi, ui};
use crate::engine::State as EngineState;

/// What these routes take and give.
#[derive(OpenApi)]
#[openapi(paths(root, health, live, ready))]
pub(super) struct Docs;

pub(super) fn routes() -> Router<App> {
    Router::new().route("/health", get(health)).route("/ping", get(live)).route("/ready", get(ready))
}

/// The paths of GETs that a probe asks and that cost next to nothing.
pub(crate) fn probe_paths(config: &HttpConfig) -> Vec<String> {
    let ours = ["/health", "/ping", "/ready", "/v2/health/live", "/v2/health/ready"];
    ours.into_iter().chain(config.platform.health_path()).map(str::to_owned).collect()
}

/// What a probe is told when the threads that answer requests have made no progress for longer than `limit`.
pub(crate) fn stuck(limit: Duration) -> Response {
    tgi::unhealthy_because(&format!(
        "the server's threads are stuck: no progress for more than {:.1} s (--watchdog-timeout); restart the server",
        limit.as_secs_f64()
    ))
}

/// `/health` is liveness; `/health?ready` is readiness.
#[utoipa::path(get, path = "/health", tag = "Server", responses((status = 200, description = "It lives"), (status = 503, description = "The engine has failed", body = Object)))]
async fn health(State(app): State<App>, RawQuery(query): RawQuery) -> Response {
    let asks_ready =
        query.is_some_and(|query| query.split('&').any(|part| part == "ready" || part == "ready="));
    if asks_ready { ready(State(app)).await } else { live(State(app)).await }
}

/// TGI's `/` is liveness; people are shown the page.
#[utoipa::path(get, path = "/", tag = "Server", responses((status = 200, description = "It lives"), (status = 303, description = "The page, for browsers"), (status = 503, description = "The engine has failed", body = Object)))]
pub(super) async fn root(State(app): State<App>, headers: HeaderMap) -> Response {
    if ui::is_for_people(&app.config, &headers) { ui::to_page().await } else { live(State(app)).await }
}

/// 200 unless the engine has failed for good: loading is life.
#[utoipa::path(get, path = "/ping", tag = "Server", responses((status = 200, description = "It lives"), (status = 503, description = "The engine has failed", body = Object)))]
async fn live(State(app): State<App>) -> Response {
    match &*app.service.engine().state().borrow() {
        EngineState::Failed(_) => tgi::unhealthy(),
        _ => StatusCode::OK.into_response(),
    }
}

#[utoipa::path(get, path = "/ready", tag = "Server", responses((status = 200, description = "It serves", body = Object), (status = 503, description = "Not yet, or not any more", body = Object)))]
pub(super) async fn ready(State(app): State<App>) -> Response {
    let body = match &*app.service.engine().state().borrow() {
        EngineState::Ready(_) => return Json(json!({"status": "ready"})).into_response(),
        EngineState::Loading { phase, done, total } => {
            json!({"status": "loading", "phase": phase, "done_bytes": done, "total_bytes": total})
        }
        EngineState::Recovering(_) => json!({"status": "recovering"}),
        EngineState::Draining => json!({"status": "draining"}),
        EngineState::Failed(why) => json!({"status": "failed", "error": why}),
    };
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], Json(body)).into_response()
}
