//! Routes of platforms that run inference servers: SageMaker and Vertex AI.

mod paths;
mod sagemaker;
mod vertex;

use axum::Router;
use axum::routing::{get, post};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub use paths::PlatformRoutes;

use super::app::App;
use super::{health, panic, tgi};

/// Returns the routes with fixed paths.
pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sagemaker::invocations))
        .routes(routes!(vertex::predict))
        .layer(panic::answered_by(tgi::internal))
}

/// Returns the routes at the paths that a platform has chosen.
pub(super) fn chosen_routes(chosen: &PlatformRoutes) -> Router<App> {
    let mut router = Router::new();
    if let Some(path) = &chosen.predict {
        router = router.route(path, post(vertex::predict));
    }
    if let Some(path) = &chosen.health {
        router = router.route(path, get(health::ready));
    }
    router.layer(panic::answered_by(tgi::internal))
}
