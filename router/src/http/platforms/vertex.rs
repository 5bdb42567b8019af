//! `/vertex`: Vertex AI's form of predictions, a list of prompts or conversations.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::http::app::App;
use crate::http::offload::TurnJson;
use crate::http::openai::{self, OpenAiError};
use crate::http::tgi::{self, ErrorBody, GenerateRequest, TgiError};
use crate::service::{Service, ServiceError};

#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct VertexRequest {
    instances: Vec<Value>,
}

#[derive(Debug, Serialize, ToSchema)]
struct VertexResponse {
    predictions: Vec<String>,
}

/// Returns a text for each instance, in their order. If one cannot be answered, the whole request
/// fails, since the client could not see which text is missing.
#[utoipa::path(post, path = "/vertex", tag = "Platforms", request_body = VertexRequest, responses((status = 200, description = "One text per instance", body = VertexResponse)))]
pub(in crate::http) async fn predict(
    State(app): State<App>,
    TurnJson(request): TurnJson<VertexRequest>,
) -> Response {
    let (given, max_instances) = (request.instances.len(), app.service.limits().max_concurrent_requests);
    if given == 0 {
        let body = ErrorBody { error: "Input validation error".into(), error_type: "Input validation error" };
        return (StatusCode::UNPROCESSABLE_ENTITY, Json(body)).into_response();
    }
    if given > max_instances {
        let detail = format!("`instances` supports up to {max_instances} instances. Given: {given}");
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
        return openai::answer_text(app, instance).await.map_err(OpenAiError::into_service_error);
    }
    let request: Result<GenerateRequest, _> = app.service.in_turn(|| serde_json::from_value(instance)).await;
    let request =
        request.map_err(|error| Service::reject(ServiceError::invalid("instances", error.to_string())))?;
    tgi::generate_best(app, request).await
}
