//! `/v1/models`, in OpenAI's form or in Anthropic's.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::anthropic::{self, AnthropicModel, AnthropicModelList};
use super::app::App;
use super::layers;
use super::model_name::{UnknownModel, listed_names};
use super::openai::{self, OpenAiErrorEnvelope, OpenAiModel, OpenAiModelList};

/// The schemas that no route names itself.
#[derive(OpenApi)]
#[openapi(components(schemas(AnthropicModel, AnthropicModelList)))]
struct ModelsDocs;

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(ModelsDocs::openapi())
        .routes(routes!(list))
        .routes(routes!(get_model))
        .layer(layers::answer_panics_with(openai::internal))
}

#[utoipa::path(get, path = "/v1/models", tag = "OpenAI", operation_id = "list", responses((status = 200, description = "What is served; in Anthropic's form for requests with the header `anthropic-version`", body = OpenAiModelList)))]
async fn list(State(app): State<App>, headers: HeaderMap) -> Response {
    if anthropic::is_client(&headers) {
        return Json(AnthropicModelList::new(&app)).into_response();
    }
    Json(OpenAiModelList::new(&app)).into_response()
}

/// The id may contain slashes, as names on the Hugging Face Hub do. If a name begins with a slash,
/// the slash is left out of the path.
#[utoipa::path(get, path = "/v1/models/{*id}", tag = "OpenAI", operation_id = "get", params(("id" = String, Path, description = "Its name")), responses((status = 200, description = "The model", body = OpenAiModel), (status = 404, description = "It is not served here", body = OpenAiErrorEnvelope)))]
async fn get_model(State(app): State<App>, headers: HeaderMap, Path(id): Path<String>) -> Response {
    let is_meant = |name: &String| *name == id || name.strip_prefix('/') == Some(&*id);
    let found = listed_names(&app).into_iter().find(is_meant).ok_or_else(|| UnknownModel(id.clone()));
    if anthropic::is_client(&headers) {
        let found = found.map(|name| Json(AnthropicModel::new(&app, &name)));
        return found.map_err(anthropic::MessagesError::from).into_response();
    }
    found.map(|name| Json(OpenAiModel::new(&app, &name))).map_err(openai::OpenAiError::from).into_response()
}
