//! `/v1/models`.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::{Envelope, OpenAiError};
use crate::http::{App, anthropic};

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

#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", responses((status = 200, description = "What is served; in Anthropic's form for requests with the header `anthropic-version`", body = ModelList)))]
pub(super) async fn list(State(app): State<App>, headers: HeaderMap) -> Response {
    let model = model(&app);
    if anthropic::is_client(&headers) {
        return anthropic::model_list([model.id]);
    }
    Json(ModelList { object: "list", data: vec![model] }).into_response()
}

/// The id may contain slashes, as those of the hub do; that of a folder begins with one.
#[utoipa::path(get, path = "/v1/models/{id}", tag = "OpenAI", params(("id" = String, Path, description = "Its name")), responses((status = 200, description = "The model", body = Model), (status = 404, description = "It is not served here", body = Envelope)))]
pub(super) async fn get(State(app): State<App>, headers: HeaderMap, Path(id): Path<String>) -> Response {
    let found = find(&app, &id);
    if anthropic::is_client(&headers) {
        return anthropic::model(found.map(|model| model.id));
    }
    found.map(Json).into_response()
}

fn find(app: &App, id: &str) -> Result<Model, OpenAiError> {
    let served = model(app);
    if served.id == id || served.id.strip_prefix('/') == Some(id) {
        Ok(served)
    } else {
        Err(OpenAiError::model_not_found(id))
    }
}
