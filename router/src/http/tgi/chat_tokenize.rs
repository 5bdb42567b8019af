//! `/chat_tokenize`: a conversation as its template writes it, and as tokens.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::error::TgiError;
use super::tokenize::{SimpleToken, tokens};
use crate::http::{App, openai};
use crate::text::Specials;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ChatTokenizeRequest {
    messages: Vec<Value>,
    continue_final_message: Option<bool>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChatTokenizeResponse {
    tokenize_response: Vec<SimpleToken>,
    templated_text: String,
}

/// The rest of a chat's fields does not change its prompt.
#[utoipa::path(post, path = "/chat_tokenize", tag = "TGI", request_body = ChatTokenizeRequest, responses((status = 200, description = "Text and tokens", body = ChatTokenizeResponse)))]
pub(super) async fn chat_tokenize(
    State(app): State<App>,
    Json(request): Json<ChatTokenizeRequest>,
) -> Result<Json<ChatTokenizeResponse>, TgiError> {
    let ChatTokenizeRequest { messages, continue_final_message } = request;
    let templated_text = openai::render(&app, messages, continue_final_message)
        .await
        .map_err(|error| TgiError(error.into_service_error()))?;
    // The template has written what begins a prompt.
    let tokenize_response = tokens(&app, &templated_text, Specials::Omit).await?;
    Ok(Json(ChatTokenizeResponse { tokenize_response, templated_text }))
}
