//! `/invocations`: SageMaker has one route for all kinds of requests, which differ in their fields.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::http::app::App;
use crate::http::offload::TurnJson;
use crate::http::sse::EventDescription;
use crate::http::{openai, tgi};

/// Answers like `/`, `/v1/chat/completions` or `/v1/completions`, also with errors.
#[utoipa::path(post, path = "/invocations", tag = "Platforms", request_body = Object, responses((status = 200, description = "As the route whose request this is", content((serde_json::Value = "application/json"), (inline(EventDescription) = "text/event-stream")))))]
pub(super) async fn invocations(state: State<App>, TurnJson(body): TurnJson<Map<String, Value>>) -> Response {
    let has = |field: &str| body.contains_key(field);
    if has("inputs") {
        match state.service.in_turn(|| typed(body)).await {
            Ok(request) => tgi::compat(state, TurnJson(request)).await.into_response(),
            Err(text) => (StatusCode::UNPROCESSABLE_ENTITY, text).into_response(),
        }
    } else if has("messages") {
        openai::answer_chat(state, Value::Object(body)).await
    } else if has("prompt") {
        openai::answer_completion(state, Value::Object(body)).await
    } else {
        let text = "Failed to deserialize the JSON body into the target type: one of the fields `inputs`, `messages` and \
                    `prompt` is needed";
        (StatusCode::UNPROCESSABLE_ENTITY, text).into_response()
    }
}

/// Converts a body that has been parsed already. The error is worded like axum's.
fn typed<T: DeserializeOwned>(body: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(body))
        .map_err(|error| format!("Failed to deserialize the JSON body into the target type: {error}"))
}
