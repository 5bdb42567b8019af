//! `/invocations`: SageMaker's one route for all kinds of requests, told apart by their fields.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::generate;
use crate::http::{App, openai};

/// Answers as `/`, `/v1/chat/completions` or `/v1/completions` do, errors included.
#[utoipa::path(post, path = "/invocations", tag = "Platforms", request_body = Object, responses((status = 200, description = "As the route whose request this is", body = Object)))]
pub(super) async fn invocations(state: State<App>, Json(body): Json<Map<String, Value>>) -> Response {
    let has = |field: &str| body.contains_key(field);
    if has("inputs") {
        match typed(body) {
            Ok(request) => generate::compat(state, Json(request)).await.into_response(),
            Err(text) => (StatusCode::UNPROCESSABLE_ENTITY, text).into_response(),
        }
    } else if has("messages") {
        openai::chat(state, Value::Object(body)).await
    } else if has("prompt") {
        openai::complete(state, Value::Object(body)).await
    } else {
        let text = "Failed to deserialize the JSON body into the target type: one of the fields `inputs`, `messages` and \
                    `prompt` is needed";
        (StatusCode::UNPROCESSABLE_ENTITY, text).into_response()
    }
}

/// The error of a body of the wrong shape, as TGI words it.
fn typed<T: DeserializeOwned>(body: Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(body))
        .map_err(|error| format!("Failed to deserialize the JSON body into the target type: {error}"))
}
