//! The routes of text-generation-inference.

mod error;
mod generate;
mod info;
mod stream;
mod tokenize;
mod types;

use axum::Router;
use axum::routing::{get, post};

pub(super) use error::unhealthy;

use super::{App, health, panic};

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/", get(health::live).post(generate::compat))
        .route("/generate", post(generate::generate))
        .route("/generate_stream", post(stream::generate_stream))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/info", get(info::info))
        .layer(panic::answered_by(error::internal))
}
