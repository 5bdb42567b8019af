//! Anthropic's Messages API.

mod error;
mod input;
mod messages;
mod models;
mod renderer;
mod request;
mod tools;
mod types;

use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) use error::{MessagesError, error, refused, unauthorized};
pub(super) use models::{AnthropicModel, AnthropicModelList, is_client};

use super::app::App;
use super::layers;

/// The schema that no route names itself.
#[derive(OpenApi)]
#[openapi(components(schemas(error::AnthropicErrorEnvelope)))]
struct AnthropicDocs;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(AnthropicDocs::openapi())
        .routes(routes!(messages::messages))
        .routes(routes!(messages::count_tokens))
        .layer(layers::answer_panics_with(error::internal))
}
