//! Paths that a platform chooses: Vertex AI sets `AIP_PREDICT_ROUTE` and `AIP_HEALTH_ROUTE` to the
//! paths that it requests.

/// The paths that a platform has chosen, where they are not served anyway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlatformRoutes {
    pub(in crate::http) predict: Option<String>,
    pub(in crate::http) health: Option<String>,
}
