//! The routes of text-embeddings-inference (TEI).

mod embed;
mod predict;
mod rerank;
mod similarity;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::App;
use super::{layers, tgi};

/// The path of the classes of texts. It is also a usual choice of Vertex AI for its predictions.
pub(super) const PREDICT: &str = "/predict";

/// Returns the routes, except for the one at `chosen`, which a platform has chosen for itself.
pub(super) fn routes(chosen: Option<&str>) -> OpenApiRouter<App> {
    let predict = match chosen {
        Some(PREDICT) => OpenApiRouter::new(),
        _ => OpenApiRouter::new().routes(routes!(predict::predict)),
    };
    OpenApiRouter::new()
        .routes(routes!(embed::embed))
        .merge(predict)
        .routes(routes!(rerank::rerank))
        .routes(routes!(similarity::similarity))
        .layer(layers::answer_panics_with(tgi::internal))
}
