//! OpenAI's routes.

mod adapters;
mod chat_completions;
mod completions;
mod embeddings;
mod error;
mod guided;
mod logprobs;
mod models;
mod params;
mod plain;
mod prompts;
mod rerank;
mod responses;
mod tool_calls;
mod tool_choice;
mod types;

use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) use error::{OpenAiError, OpenAiErrorEnvelope, internal, unauthorized};
pub(super) use models::{OpenAiModel, OpenAiModelList};
pub(super) use params::concurrent_prompts;
pub(super) use plain::{answer_chat, answer_completion, answer_text};
pub(super) use prompts::PromptList;
pub(super) use tool_choice::tool_selection;

use super::app::App;
use super::layers;

/// The schema that no route names itself.
#[derive(OpenApi)]
#[openapi(components(schemas(error::OpenAiErrorEnvelope)))]
struct OpenAiDocs;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(OpenAiDocs::openapi())
        .routes(routes!(completions::completions))
        .routes(routes!(chat_completions::chat_completions))
        .routes(routes!(embeddings::embeddings))
        .routes(routes!(rerank::v1))
        .routes(routes!(rerank::v2))
        .routes(routes!(responses::responses))
        .routes(routes!(adapters::load))
        .routes(routes!(adapters::unload))
        .layer(layers::answer_panics_with(error::internal))
}
