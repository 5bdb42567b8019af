//! The routes of text-embeddings-inference (TEI).

mod embed;
mod rerank;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::App;
use super::{panic, tgi};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(embed::embed))
        .routes(routes!(rerank::rerank))
        .layer(panic::answered_by(tgi::internal))
}
