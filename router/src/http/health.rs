//! Liveness and readiness.

use std::time::Duration;

use axum::Json;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::{App, HttpConfig};
use super::{layers, tgi};
use crate::engine::EngineState;
use crate::web;

/// The paths that probes request, whose answers cost very little.
pub(super) const PROBE_PATHS: &[&str] =
    &["/health", "/ping", "/ready", "/v2/health/live", "/v2/health/ready"];

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(root))
        .routes(routes!(health))
        .routes(routes!(live))
        .routes(routes!(ready))
        .layer(layers::answer_panics_with(tgi::internal))
}

/// Returns [`PROBE_PATHS`] and the path that a platform has chosen for its probes.
pub(crate) fn probe_paths(config: &HttpConfig) -> Vec<String> {
    let chosen = config.platform.health.as_deref();
    PROBE_PATHS.iter().copied().chain(chosen).map(str::to_owned).collect()
}

/// The response to a probe when the threads that answer requests have made no progress for longer
/// than `limit`.
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

/// Liveness, as in TGI's API. A browser is redirected to the page.
#[utoipa::path(get, path = "/", tag = "Server", responses((status = 200, description = "It lives"), (status = 303, description = "The page, for browsers"), (status = 503, description = "The engine has failed", body = Object)))]
async fn root(State(app): State<App>, headers: HeaderMap) -> Response {
    let is_browser = !app.config.disable_ui && web::ui::accepts_html(&headers);
    if is_browser { web::ui::redirect().await } else { live(State(app)).await }
}

/// Returns 200 unless the engine has failed for good; a server that loads is alive.
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
        EngineState::Failed(reason) => json!({"status": "failed", "error": reason}),
    };
    (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "1")], Json(body)).into_response()
}
