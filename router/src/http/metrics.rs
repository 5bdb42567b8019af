//! `/metrics`.

use std::collections::{BTreeSet, HashSet};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Query, State};
use axum::http::header;
use axum::response::IntoResponse;
use metrics_exporter_prometheus::PrometheusHandle;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::App;
use crate::engine::AdapterId;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(metrics))
}

/// All metrics, or with `?name[]=…` those series alone, as other exporters have it.
#[utoipa::path(get, path = "/metrics", tag = "Server", params(("name[]" = Option<Vec<String>>, Query, description = "Series to show instead of all")), responses((status = 200, description = "Metrics for Prometheus", body = String, content_type = "text/plain")))]
async fn metrics(State(app): State<App>, Query(query): Query<Vec<(String, String)>>) -> impl IntoResponse {
    let mut text = app.config.metrics.as_ref().map(PrometheusHandle::render).unwrap_or_default();
    text += &lora_requests_info(&app);
    let wanted: HashSet<_> =
        query.into_iter().filter(|(key, _)| key == "name[]").map(|(_, name)| name).collect();
    if !wanted.is_empty() {
        let is_wanted = |line: &&str| line.split(['{', ' ']).next().is_some_and(|name| wanted.contains(name));
        text = text.lines().filter(is_wanted).map(|line| format!("{line}\n")).collect();
    }
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text)
}

/// vLLM's gauge of the adapters in use, whose value is the time and whose labels have the names.
/// Inference gateways read it. The recorder would keep a series for each set of adapters that was
/// ever in use, so it is written here. A server without places for adapters has none. An adapter
/// that was unloaded is listed as long as requests run with it.
fn lora_requests_info(app: &App) -> String {
    let adapters = &app.service.model().adapters;
    // The shards tell the number of places when they are ready.
    let places = app.service.ready().map_or(0, |ready| ready.adapters as usize);
    let places = places.max(adapters.named().len());
    if places == 0 {
        return String::new();
    }
    let names = |ids: &[AdapterId]| {
        let held = ids.iter().filter_map(|&id| adapters.held(id));
        // Two adapters may have the same name: one that is loaded, and one that it has replaced.
        let names: BTreeSet<String> = held.map(|adapter| label(&adapter.info.name)).collect();
        names.into_iter().collect::<Vec<_>>().join(",")
    };
    let in_use = app.service.engine().adapters_in_use();
    let (running, waiting) = (names(&in_use.running), names(&in_use.waiting));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    format!(
        "# HELP {LORA_REQUESTS} Adapters of running and waiting requests, at this time\n# TYPE {LORA_REQUESTS} gauge\n\
         {LORA_REQUESTS}{{max_lora=\"{places}\",running_lora_adapters=\"{running}\",waiting_lora_adapters=\"{waiting}\"}} \
         {now}\n"
    )
}

/// The name of vLLM's gauge.
const LORA_REQUESTS: &str = "vllm:lora_requests_info";

/// Writes a text as a part of a label's value.
fn label(text: &str) -> String {
    text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}
