//! The table of all routes, from which everything else learns the paths.
//!
//! Each API collects its handlers with `utoipa_axum::routes!`, which reads the method, the path and
//! the description from the attribute `#[utoipa::path]` of the handler. A route is therefore
//! registered once, and its description, the suggestions for unknown paths, the paths that a
//! platform may not choose, and the routes that the fuzzers attack follow from that.

use std::sync::LazyLock;

use axum::Router;
use axum::routing::{get, post};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use super::app::{App, PlatformRoutes};
use super::health::PROBE_PATHS;
use super::{anthropic, groups, health, kserve, layers, metrics, models, openai, platforms, tei, tgi};
use crate::web::{api_docs, ui};

#[derive(OpenApi)]
#[openapi(info(
    title = "Millrace",
    description = "Text generation: the APIs of text-generation-inference, text-embeddings-inference, OpenAI, Anthropic, KServe, SageMaker and Vertex AI"
))]
struct MillraceDocs;

/// The pages for people. The description of the API leaves them out.
const PAGES: [&str; 3] = [api_docs::PAGE_PATH, api_docs::JSON_PATH, ui::PATH];

/// Returns all routes with their descriptions, except for the pages and the paths that a platform
/// has chosen with `platform`.
pub(super) fn described(platform: &PlatformRoutes) -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(MillraceDocs::openapi())
        .merge(tgi::routes())
        .merge(tei::routes(platform.predict.as_deref()))
        .merge(openai::routes())
        .merge(anthropic::routes())
        .merge(models::routes())
        .merge(health::routes())
        .merge(groups::routes())
        .merge(kserve::routes())
        .merge(platforms::routes())
        .merge(metrics::routes())
}

/// Returns the routes at the paths that a platform has chosen.
pub(super) fn chosen(paths: &PlatformRoutes) -> Router<App> {
    let mut router = Router::new();
    if let Some(path) = &paths.predict {
        router = router.route(path, post(platforms::predict));
    }
    if let Some(path) = &paths.health {
        router = router.route(path, get(health::ready));
    }
    router.layer(layers::answer_panics_with(tgi::internal))
}

/// Returns the paths of all described routes and of the pages, in axum's syntax.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    static DESCRIBED: LazyLock<Vec<String>> = LazyLock::new(|| {
        described(&PlatformRoutes::default()).into_openapi().paths.paths.into_keys().collect()
    });
    DESCRIBED.iter().map(String::as_str).chain(PAGES)
}

/// The error of a path that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the path {0} cannot be a route: it must begin with /, hold none of {{}}*?#, and not belong to another API"
)]
pub struct RouteTaken(String);

/// The first segments of routes that have no API below them, so that a platform may choose paths
/// there.
const OPEN_SEGMENTS: &[&str] = &["health", "ping", "ready", "vertex"];

impl PlatformRoutes {
    /// Validates the paths for predictions and for health.
    ///
    /// # Errors
    /// [`RouteTaken`] if a path is malformed or belongs to another route.
    pub fn new(predict: Option<String>, health: Option<String>) -> Result<Self, RouteTaken> {
        let checked = |path: Option<String>, is_served: fn(&str) -> bool| match path {
            Some(path) if is_served(&path) => Ok(None),
            Some(path) if is_free(&path) => Ok(Some(path)),
            Some(path) => Err(RouteTaken(path)),
            None => Ok(None),
        };
        // The platform needs the path that it has chosen more than clients of TEI need theirs.
        let predict = match predict {
            Some(path) if path == tei::PREDICT => Some(path),
            predict => checked(predict, |path| path == "/vertex")?,
        };
        let health = checked(health, |path| path == "/" || PROBE_PATHS.contains(&path))?;
        match (predict, health) {
            (Some(predict), Some(health)) if predict == health => Err(RouteTaken(health)),
            (predict, health) => Ok(PlatformRoutes { predict, health }),
        }
    }
}

/// Returns whether a path is well-formed and belongs to no other route.
fn is_free(path: &str) -> bool {
    let Some(first) = first_segment(path) else { return false };
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && !b"{}*?#".contains(&byte));
    // The router refuses a segment that begins with a colon, which its older syntax had for
    // parameters.
    let is_plain = is_plain && !path.contains("/:");
    // The paths that Vertex AI chooses by default are below `/v1`.
    let is_default = path.starts_with("/v1/endpoints/");
    let is_open = is_default || OPEN_SEGMENTS.contains(&first);
    is_plain && paths().all(|known| known != path && (is_open || first_segment(known) != Some(first)))
}

/// Returns the text between the first and the second slash of a path, which begins with a slash.
fn first_segment(path: &str) -> Option<&str> {
    path.strip_prefix('/')?.split('/').next()
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
        assert_eq!(new("/vertex/a", "/health/a"), Ok(routes(Some("/vertex/a"), Some("/health/a"))));
        let long = "/v1/endpoints/1/deployedModels/2:predict";
        assert_eq!(new(long, "/health"), Ok(routes(Some(long), None)));
        assert!(PlatformRoutes::new(None, Some("/predict".into())).is_err());
        for wrong in [
            "",
            "predict",
            "/",
            "//a",
            "/generate",
            "/generate/x",
            "/v1",
            "/v1/x",
            "/v2",
            "/{a}",
            "/a?b",
            "/health",
            "/a b",
            "/a/:b",
            "/docs/x",
            "/ui/x",
            "/api-doc/x",
            "/metrics",
            "/tokenizer_info/x",
            "/ready",
        ] {
            assert_eq!(new(wrong, "/alive"), Err(RouteTaken(wrong.into())));
        }
        assert!(new("/same", "/same").is_err());
    }

    #[test]
    fn every_path_that_is_special_here_is_a_route() {
        for path in PROBE_PATHS {
            assert!(paths().any(|known| known == *path), "{path}");
        }
        for segment in OPEN_SEGMENTS {
            assert!(paths().any(|known| known == format!("/{segment}")), "{segment}");
        }
    }
}
