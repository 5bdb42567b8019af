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
    /// When the server was started.
    created: u64,
    owned_by: String,
    /// As vLLM has it: tokens of prompt and answer together. Absent while the model is loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ModelList {
    object: &'static str,
    data: Vec<Model>,
}

fn model(app: &App, id: &str) -> Model {
    let max_model_len = app.service.ready().ok().map(|ready| app.service.limits().tokens(&ready).max_total);
    let owned_by = app.service.model().id.clone();
    Model { owned_by, id: id.to_owned(), object: "model", created: app.started, max_model_len }
}

/// The names that the model is listed by, the one in answers first.
fn names(app: &App) -> Vec<&str> {
    let id = app.service.model().id.as_str();
    let others = app.service.limits().model_names.iter().map(String::as_str).filter(|name| *name != id);
    [id].into_iter().chain(others).collect()
}

#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", responses((status = 200, description = "What is served; in Anthropic's form for requests with the header `anthropic-version`", body = ModelList)))]
pub(super) async fn list(State(app): State<App>, headers: HeaderMap) -> Response {
    let names = names(&app);
    if anthropic::is_client(&headers) {
        return anthropic::model_list(names.into_iter().map(str::to_owned));
    }
    let data = names.into_iter().map(|name| model(&app, name)).collect();
    Json(ModelList { object: "list", data }).into_response()
}

/// The id may contain slashes, as those of the hub do; one that begins with a slash comes without it.
#[utoipa::path(get, path = "/v1/models/{id}", tag = "OpenAI", params(("id" = String, Path, description = "Its name")), responses((status = 200, description = "The model", body = Model), (status = 404, description = "It is not served here", body = Envelope)))]
pub(super) async fn get(State(app): State<App>, headers: HeaderMap, Path(id): Path<String>) -> Response {
    let found = find(&app, &id);
    if anthropic::is_client(&headers) {
        return anthropic::model(found.map(str::to_owned));
    }
    found.map(|name| Json(model(&app, name))).into_response()
}

fn find<'a>(app: &'a App, id: &str) -> Result<&'a str, OpenAiError> {
    let is_meant = |name: &&str| *name == id || name.strip_prefix('/') == Some(id);
    match names(app).into_iter().find(is_meant) {
        Some(name) => Ok(name),
        None => Err(OpenAiError::model_not_found(id)),
    }
}
