//! The table of all routes, from which everything else learns the paths.
//!
//! Each API collects its handlers with `utoipa_axum::routes!`, which reads the method, the path and
//! the description from the attribute `#[utoipa::path]` of the handler. A route is therefore
//! registered once, and its description, the suggestions for unknown paths, the paths that a
//! platform may not choose, and the routes that the fuzzers attack follow from that.

use std::sync::LazyLock;

use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use super::app::App;
use super::{anthropic, health, kserve, metrics, models, openai, platforms, tei, tgi};
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
/// has chosen.
pub(super) fn described() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(MillraceDocs::openapi())
        .merge(tgi::routes())
        .merge(tei::routes())
        .merge(openai::routes())
        .merge(anthropic::routes())
        .merge(models::routes())
        .merge(health::routes())
        .merge(kserve::routes())
        .merge(platforms::routes())
        .merge(metrics::routes())
}

/// Returns the paths of all described routes and of the pages, in axum's syntax.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    static DESCRIBED: LazyLock<Vec<String>> =
        LazyLock::new(|| described().into_openapi().paths.paths.into_keys().collect());
    DESCRIBED.iter().map(String::as_str).chain(PAGES)
}
