//! Anthropic's form of `/v1/models`, for clients that send the header `anthropic-version`.

use axum::Json;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::MessagesError;
use crate::http::openai::OpenAiError;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AnthropicModel)]
pub(super) struct Model {
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    display_name: String,
    /// The begin of 1970, which stands for a time that is not known.
    created_at: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AnthropicModelList)]
pub(super) struct ModelList {
    data: Vec<Model>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

/// Whether a request comes from one of Anthropic's clients, which send this header with all they ask.
pub(in crate::http) fn is_client(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

/// The models of these names, all on one page.
pub(in crate::http) fn model_list(ids: impl IntoIterator<Item = String>) -> Response {
    let data: Vec<Model> = ids.into_iter().map(described).collect();
    let id = |model: Option<&Model>| model.map(|model| model.id.clone());
    let (first_id, last_id) = (id(data.first()), id(data.last()));
    Json(ModelList { data, has_more: false, first_id, last_id }).into_response()
}

/// The model of this name, or why there is none.
pub(in crate::http) fn model(id: Result<String, OpenAiError>) -> Response {
    match id {
        Ok(id) => Json(described(id)).into_response(),
        Err(error) => MessagesError::from(error).into_response(),
    }
}

fn described(id: String) -> Model {
    Model { kind: "model", display_name: id.clone(), id, created_at: "1970-01-01T00:00:00Z" }
}
