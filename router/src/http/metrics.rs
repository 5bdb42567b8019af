//! `/metrics`.

use std::collections::HashSet;

use axum::extract::{Query, State};
use axum::http::header;
use axum::response::IntoResponse;
use metrics_exporter_prometheus::PrometheusHandle;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::App;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// All metrics, or with `?name[]=…` those series alone, as other exporters have it.
#[utoipa::path(get, path = "/metrics", tag = "Server", params(("name[]" = Option<Vec<String>>, Query, description = "Series to show instead of all")), responses((status = 200, description = "Metrics for Prometheus", body = String, content_type = "text/plain")))]
async fn metrics(State(app): State<App>, Query(query): Query<Vec<(String, String)>>) -> impl IntoResponse {
    let mut text = app.config.metrics.as_ref().map(PrometheusHandle::render).unwrap_or_default();
    let wanted: HashSet<_> =
        query.into_iter().filter(|(key, _)| key == "name[]").map(|(_, name)| name).collect();
    if !wanted.is_empty() {
        let is_wanted = |line: &&str| line.split(['{', ' ']).next().is_some_and(|name| wanted.contains(name));
        text = text.lines().filter(is_wanted).map(|line| format!("{line}\n")).collect();
    }
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text)
}
