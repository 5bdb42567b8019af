//! Anthropic's Messages API.

mod error;
mod input;
mod messages;
mod models;
mod request;
mod stream;
mod tools;

use axum::Router;
use axum::routing::post;
use utoipa::OpenApi;

pub(super) use error::{error, unauthorized};
pub(super) use models::{is_client, model, model_list};

use super::{App, panic};

/// What these routes take and give.
#[derive(OpenApi)]
#[openapi(
    paths(messages::messages, messages::count_tokens),
    components(schemas(error::Envelope, models::Model, models::ModelList))
)]
pub(super) struct Docs;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/messages", post(messages::messages))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .layer(panic::answered_by(error::internal))
}
