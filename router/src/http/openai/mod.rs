//! OpenAI's routes.

mod chat;
mod completions;
mod embeddings;
mod error;
mod guided;
mod logprobs;
mod messages;
mod models;
mod names;
mod params;
mod plain;
mod prompt;
mod responses;
mod tools;
mod transcript;
mod types;

use axum::Router;
use axum::routing::{get, post};
use utoipa::OpenApi;

pub(super) use error::{OpenAiError, unauthorized};
pub(super) use plain::{answer, chat, check_model, complete, sampling};
pub(super) use prompt::{Chat, Ready};
pub(super) use tools::{Asked, Calling, Reader};
pub(super) use transcript::Transcript;

use super::{App, panic};

/// What these routes take and give.
#[derive(OpenApi)]
#[openapi(
    paths(
        chat::chat_completions,
        completions::completions,
        embeddings::embeddings,
        responses::responses,
        models::list,
        models::get
    ),
    components(schemas(error::Envelope))
)]
pub(super) struct Docs;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::get))
        .layer(panic::answered_by(error::internal))
}
