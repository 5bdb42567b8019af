//! OpenAI's routes.

mod chat;
mod completions;
mod error;
mod logprobs;
mod messages;
mod models;
mod params;
mod tools;
mod types;

use axum::Router;
use axum::routing::{get, post};

pub(super) use error::unauthorized;

use super::{App, panic};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::get))
        .layer(panic::answered_by(error::internal))
}
