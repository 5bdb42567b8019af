//! The HTTP surface. One folder per API; this file puts them together.

mod anthropic;
mod auth;
mod blocks;
mod body;
mod docs;
mod encoding;
mod fields;
mod grammar;
mod headers;
mod health;
mod ignored;
mod kserve;
mod offload;
mod openai;
mod panic;
mod platform;
mod request;
mod sse;
mod tgi;
mod ui;
mod unknown;

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{DefaultBodyLimit, Query, State};
pub use axum::http::HeaderValue;
use axum::http::{Method, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Router, middleware};
use metrics_exporter_prometheus::PrometheusHandle;
use tower_http::cors::{AllowHeaders, AllowOrigin, Any, CorsLayer};

pub use self::auth::{ApiKey, ApiKeyError};
pub(crate) use self::body::{BodyFate, SharedFate};
pub use self::docs::openapi;
pub(crate) use self::encoding::BodyRoom;
pub(crate) use self::health::{probe_paths, stuck};
pub use self::platform::{PlatformRoutes, RouteTaken};
use crate::service::Service;

/// How the surface is configured. Not printable, since it holds keys.
#[derive(Clone, Default)]
pub struct HttpConfig {
    /// Keys of which every POST must bring one; empty lets everybody in.
    pub api_keys: Vec<ApiKey>,
    /// Whether each key has a prefix cache of its own; `None` if there is more than one key.
    pub cache_salt_per_key: Option<bool>,
    /// Origins that browsers may ask from; empty allows all.
    pub allowed_origins: Vec<HeaderValue>,
    /// Routes that a platform asks for.
    pub platform: PlatformRoutes,
    /// Where `/metrics` reads from.
    pub metrics: Option<PrometheusHandle>,
    /// Serve no page.
    pub disable_ui: bool,
}

#[derive(Clone)]
struct App {
    service: Service,
    config: Arc<HttpConfig>,
    keys: Arc<auth::Keyring>,
    /// When the server was started, in seconds since 1970.
    started: u64,
}

/// The routes of a service.
pub fn router(service: Service, config: HttpConfig) -> Router {
    let limit = service.limits().payload_limit;
    let cors = cors(&config);
    let config = Arc::new(config);
    let keys = Arc::new(auth::Keyring::new(&config.api_keys, config.cache_salt_per_key));
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let app = App { service, config: config.clone(), keys, started };
    Router::new()
        .merge(tgi::routes())
        .merge(openai::routes())
        .merge(anthropic::routes())
        .merge(health::routes())
        .merge(kserve::routes())
        .merge(docs::routes(&config))
        .merge(platform::routes(&config.platform))
        .merge(ui::routes(&config))
        .route("/metrics", get(metrics))
        .fallback(unknown::path)
        .layer(middleware::from_fn(unknown::method))
        .layer(middleware::from_fn_with_state(app.clone(), encoding::decode))
        .layer(middleware::from_fn_with_state(app.clone(), auth::require_key))
        .layer(DefaultBodyLimit::max(limit))
        .layer(middleware::from_fn(body::explain))
        .layer(cors)
        .layer(middleware::from_fn(request::follow))
        .with_state(app)
}

fn cors(config: &HttpConfig) -> CorsLayer {
    let origins = match config.allowed_origins.as_slice() {
        [] => AllowOrigin::any(),
        origins => AllowOrigin::list(origins.iter().cloned()),
    };
    // Keys come in headers that a page must set itself, never in cookies, so any header may be sent from where any request may.
    CorsLayer::new()
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(Any)
        .allow_origin(origins)
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
