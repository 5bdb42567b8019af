//! `/v1/models`.

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::{Envelope, OpenAiError};
use crate::http::App;

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

fn model(app: &App) -> Model {
    let id = app.service.model().id.clone();
    Model { owned_by: id.clone(), id, object: "model", created: 0 }
}

#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", responses((status = 200, description = "What is served", body = ModelList)))]
pub(super) async fn list(State(app): State<App>) -> Json<ModelList> {
    Json(ModelList { object: "list", data: vec![model(&app)] })
}

/// The id may contain slashes, as those of the hub do; that of a folder begins with one.
#[utoipa::path(get, path = "/v1/models/{id}", tag = "OpenAI", params(("id" = String, Path, description = "Its name")), responses((status = 200, description = "The model", body = Model), (status = 404, description = "It is not served here", body = Envelope)))]
pub(super) async fn get(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Model>, OpenAiError> {
    let served = model(&app);
    if served.id == id || served.id.strip_prefix('/') == Some(id.as_str()) {
        Ok(Json(served))
    } else {
        Err(OpenAiError::model_not_found(&id))
    }
}
