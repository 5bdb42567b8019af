//! Routes whose paths a platform chooses: Vertex AI says by `AIP_PREDICT_ROUTE` and `AIP_HEALTH_ROUTE` where it asks.

use axum::Router;
use axum::routing::{get, post};

use super::{App, health, panic, tgi};

/// Paths in addition to our own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlatformRoutes {
    predict: Option<String>,
    health: Option<String>,
}

/// A path that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the path {0} cannot be a route: it must begin with /, hold none of {{}}*?#, and not belong to another API"
)]
pub struct RouteTaken(String);

/// First parts of paths that mean something else.
const OURS: &[&str] = &[
    "",
    "api-doc",
    "chat_tokenize",
    "detokenize",
    "docs",
    "generate",
    "generate_stream",
    "info",
    "invocations",
    "metrics",
    "tokenize",
    "tokenizer_info",
    "ui",
    "v1",
    "v2",
];

impl PlatformRoutes {
    /// Serves predictions and health at these paths, where they are not served anyway.
    ///
    /// # Errors
    /// [`RouteTaken`] if a path is no path, or means something else.
    pub fn new(predict: Option<String>, health: Option<String>) -> Result<Self, RouteTaken> {
        let checked = |path: Option<String>, same: &[&str]| match path {
            Some(path) if same.contains(&path.as_str()) => Ok(None),
            Some(path) if is_free(&path) => Ok(Some(path)),
            Some(path) => Err(RouteTaken(path)),
            None => Ok(None),
        };
        let predict = checked(predict, &["/vertex"])?;
        let health =
            checked(health, &["/", "/health", "/ping", "/ready", "/v2/health/live", "/v2/health/ready"])?;
        match (predict, health) {
            (Some(predict), Some(health)) if predict == health => Err(RouteTaken(health)),
            (predict, health) => Ok(PlatformRoutes { predict, health }),
        }
    }

    /// Where the platform asks for health, if not where others do.
    pub(super) fn health_path(&self) -> Option<&str> {
        self.health.as_deref()
    }
}

fn is_free(path: &str) -> bool {
    let Some(rest) = path.strip_prefix('/') else { return false };
    let first = rest.split('/').next().unwrap_or_default();
    let plain = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"{}*?#".contains(&byte));
    // A colon in front would name a parameter in the router's old syntax, which it refuses.
    let plain = plain && !path.contains("/:");
    // What Vertex AI chooses if the user does not.
    let theirs = path.starts_with("/v1/endpoints/");
    plain && (theirs || !OURS.contains(&first)) && !["vertex", "health", "ping", "ready"].contains(&rest)
}

pub(super) fn routes(routes: &PlatformRoutes) -> Router<App> {
    let mut router = Router::new();
    if let Some(path) = &routes.predict {
        router = router.route(path, post(tgi::predict));
    }
    if let Some(path) = &routes.health {
        router = router.route(path, get(health::ready));
    }
    router.layer(panic::answered_by(tgi::internal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_other_routes_are_refused() {
        let new =
            |predict: &str, health: &str| PlatformRoutes::new(Some(predict.into()), Some(health.into()));
        let routes = |predict: Option<&str>, health: Option<&str>| PlatformRoutes {
            predict: predict.map(Into::into),
            health: health.map(Into::into),
        };
        assert_eq!(new("/predict", "/alive"), Ok(routes(Some("/predict"), Some("/alive"))));
        assert_eq!(new("/vertex", "/health"), Ok(routes(None, None)));
        let long = "/v1/endpoints/1/deployedModels/2:predict";
        assert_eq!(new(long, "/health"), Ok(routes(Some(long), None)));
        for wrong in
            ["", "predict", "/", "/generate", "/v1/x", "/{a}", "/a?b", "/health", "/a b", "/a/:b", "/docs/x"]
        {
            assert_eq!(new(wrong, "/alive"), Err(RouteTaken(wrong.into())));
        }
        assert!(new("/same", "/same").is_err());
    }
}
