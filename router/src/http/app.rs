//! The configuration of the HTTP surface, and the state that its handlers share.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderValue;
use metrics_exporter_prometheus::PrometheusHandle;

use super::adapter_admin::AdapterAdmin;
use super::fair_by::FairBy;
use super::keys::ApiKeys;
use crate::service::Service;

/// The configuration of the HTTP surface. It has no `Debug` output, since it holds keys.
#[derive(Clone, Default)]
pub struct HttpConfig {
    /// The API keys, one of which every POST must have; if empty, no key is needed.
    pub api_keys: ApiKeys,
    /// The source of the tenant of a request.
    pub fair_by: FairBy,
    /// The origins whose pages may send requests from a browser; if empty, all may.
    pub allowed_origins: Vec<HeaderValue>,
    /// Additional routes at paths that a platform chooses.
    pub platform: PlatformRoutes,
    /// The source of `/metrics`.
    pub metrics: Option<PrometheusHandle>,
    /// Whether the page `/ui` is left out.
    pub disable_ui: bool,
    /// The right to load and unload adapters while the server runs.
    pub adapter_admin: AdapterAdmin,
}

/// The paths that a platform has chosen, where they are not served anyway: Vertex AI sets
/// `AIP_PREDICT_ROUTE` and `AIP_HEALTH_ROUTE` to the paths that it requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlatformRoutes {
    pub(super) predict: Option<String>,
    pub(super) health: Option<String>,
}

/// The state that all handlers share.
#[derive(Clone)]
pub(super) struct App {
    pub(super) service: Service,
    pub(super) config: Arc<HttpConfig>,
    /// When the server was started, in seconds since 1970.
    pub(super) started: u64,
}

impl App {
    /// The state of a server that starts now.
    pub(super) fn new(service: Service, config: HttpConfig) -> Self {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        App { service, config: Arc::new(config), started }
    }
}
