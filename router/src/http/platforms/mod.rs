//! Routes of platforms that run inference servers: SageMaker and Vertex AI.

mod sagemaker;
mod vertex;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) use vertex::predict;

use super::app::App;
use super::{layers, tgi};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sagemaker::invocations))
        .routes(routes!(vertex::predict))
        .layer(layers::answer_panics_with(tgi::internal))
}
