//! `/vertex`: Vertex AI's shape for predictions, a list of prompts or conversations.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::error::{ErrorBody, TgiError};
use super::types::GenerateRequest;
use crate::http::{App, openai};
use crate::service::{Prompt, Service, ServiceError};
use crate::text::Specials;

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct VertexRequest {
    instances: Vec<Value>,
}

#[derive(Debug, Serialize, ToSchema)]
struct VertexResponse {
    predictions: Vec<String>,
}

/// The text for each instance, in their order. One that cannot be answered fails all, as a client could not tell which
/// one is missing.
#[utoipa::path(post, path = "/vertex", tag = "Platforms", request_body = VertexRequest, responses((status = 200, description = "One text per instance", body = VertexResponse)))]
pub(in crate::http) async fn predict(State(app): State<App>, Json(request): Json<VertexRequest>) -> Response {
    let (given, most) = (request.instances.len(), app.service.limits().max_concurrent_requests);
    if given == 0 {
        let body = ErrorBody { error: "Input validation error".into(), error_type: "Input validation error" };
        return (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response();
    }
    if given > most {
        let detail = format!("`instances` supports up to {most} instances. Given: {given}");
        return TgiError(Service::reject(ServiceError::invalid("instances", detail))).into_response();
    }
    match try_join_all(request.instances.into_iter().map(|instance| answer(&app, instance))).await {
        Ok(predictions) => Json(VertexResponse { predictions }).into_response(),
        Err(ServiceError::Generation(_)) => TgiError(ServiceError::Incomplete).into_response(),
        Err(error) => TgiError(error).into_response(),
    }
}

async fn answer(app: &App, instance: Value) -> Result<String, ServiceError> {
    if instance.get("messages").is_some() {
        return openai::answer(app, instance).await.map_err(openai::OpenAiError::into_service_error);
    }
    let request: GenerateRequest = serde_json::from_value(instance)
        .map_err(|error| Service::reject(ServiceError::invalid("instances", error.to_string())))?;
    let params = request.parameters.params().map_err(Service::reject)?;
    let prepared = app.service.prepare(Prompt::Text(request.inputs, Specials::Add), params).await?;
    let mut answers =
        Service::collect(app.service.start_several(&prepared, request.parameters.best_of())?).await?;
    answers.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
    answers.into_iter().next().map(|best| best.finished.text).ok_or(ServiceError::Incomplete)
}
