//! The routes of text-generation-inference.

mod chat_tokenize;
mod detokenize;
mod error;
mod generate;
mod info;
mod invocations;
mod stream;
mod tokenize;
mod tokenizer_info;
mod types;
mod vertex;

use axum::Router;
use axum::routing::{get, post};
use utoipa::OpenApi;

pub(super) use error::{TgiError, internal, refused, unhealthy, unhealthy_because};
pub(super) use types::{GenerateParameters, absent};
pub(super) use vertex::predict;

use super::{App, health, panic};

/// What these routes take and give.
#[derive(OpenApi)]
#[openapi(
    paths(
        generate::generate,
        generate::compat,
        stream::generate_stream,
        tokenize::tokenize,
        detokenize::detokenize,
        tokenizer_info::tokenizer_info,
        chat_tokenize::chat_tokenize,
        info::info,
        invocations::invocations,
        vertex::predict
    ),
    components(schemas(error::ErrorBody, tokenize::TokenIds, types::BestOfSequence, types::StreamResponse))
)]
pub(super) struct Docs;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/", get(health::root).post(generate::compat))
        .route("/generate", post(generate::generate))
        .route("/generate_stream", post(stream::generate_stream))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(detokenize::detokenize))
        .route("/tokenizer_info", get(tokenizer_info::tokenizer_info))
        .route("/chat_tokenize", post(chat_tokenize::chat_tokenize))
        .route("/invocations", post(invocations::invocations))
        .route("/vertex", post(vertex::predict))
        .route("/info", get(info::info))
        .layer(panic::answered_by(error::internal))
}
