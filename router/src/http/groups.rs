//! The route with which an administrator restarts the shards.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::admin_key::AdminKey;
use super::app::App;
use super::layers;
use super::openai::{self, OpenAiError};
use crate::engine::RestartError;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(restart)).layer(layers::answer_panics_with(openai::internal))
}

/// The groups that have been restarted.
#[derive(Debug, Serialize, ToSchema)]
struct Restarted {
    /// The time that each group took, from the command until its new shards were ready.
    seconds: Vec<f64>,
}

/// Restarts the groups of shards, one after the other. Requests continue on the other groups, or
/// wait if there is one group. The answer comes when all groups are ready again. It needs the admin
/// key.
#[utoipa::path(post, path = "/v1/restart_groups", tag = "Server", request_body = Object, responses((status = 200, description = "All groups have been restarted", body = Restarted), (status = 409, description = "They are being restarted already", body = Object)))]
async fn restart(_: AdminKey, State(app): State<App>) -> Result<Json<Restarted>, OpenAiError> {
    app.service.ready()?;
    // The restarts go on if the client leaves.
    let engine = app.service.engine().clone();
    let work = tokio::spawn(async move { engine.restart_groups().await });
    let restarted = work.await.map_err(|_| OpenAiError::internal())?;
    match restarted {
        Ok(times) => {
            let seconds = times.iter().map(std::time::Duration::as_secs_f64).collect();
            tracing::info!("restarted {} groups of shards", times.len());
            Ok(Json(Restarted { seconds }))
        }
        Err(error @ RestartError::Busy) => Err(OpenAiError::plain(StatusCode::CONFLICT, error.to_string())),
        Err(error @ RestartError::Failed { .. }) => {
            tracing::error!("{error}");
            Err(OpenAiError::plain(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))
        }
    }
}
