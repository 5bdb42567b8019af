//! The routes of text-generation-inference (TGI), and vLLM's routes for tokens.

mod chat_tokenize;
mod detokenize;
mod error;
mod generate;
mod info;
mod renderer;
mod tokenize;
mod tokenizer_info;
mod types;

use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) use error::{ErrorBody, TgiError, internal, refused, unhealthy, unhealthy_because};
pub(super) use generate::{compat, generate_best};
pub(super) use types::{GenerateParameters, GenerateRequest, default_parameters};

use super::app::App;
use super::layers;

/// The schemas that no route names itself.
#[derive(OpenApi)]
#[openapi(components(schemas(
    error::ErrorBody,
    tokenize::TokenIdsResponse,
    types::BestOfSequence,
    types::StreamResponse
)))]
struct TgiDocs;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(TgiDocs::openapi())
        .routes(routes!(generate::compat))
        .routes(routes!(generate::generate))
        .routes(routes!(generate::generate_stream))
        .routes(routes!(tokenize::tokenize))
        .routes(routes!(detokenize::detokenize))
        .routes(routes!(tokenizer_info::tokenizer_info))
        .routes(routes!(chat_tokenize::chat_tokenize))
        .routes(routes!(info::info))
        .routes(routes!(info::version))
        .layer(layers::answer_panics_with(error::internal))
}
