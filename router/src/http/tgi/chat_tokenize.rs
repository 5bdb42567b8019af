//! `/chat_tokenize`: a conversation as its template writes it, and as tokens.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::TgiError;
use super::tokenize::{SimpleToken, tokens};
use crate::http::App;
use crate::http::openai::{Asked, Chat};
use crate::text::Specials;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ChatTokenizeRequest {
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    tool_prompt: Option<String>,
    documents: Option<Vec<Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    continue_final_message: Option<bool>,
    add_generation_prompt: Option<bool>,
}

/// What the answer is like; [`Tokens`](super::tokenize::Tokens) writes it.
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
) -> Result<Response, TgiError> {
    let chat = Chat {
        messages: request.messages,
        asked: Asked { tools: request.tools, choice: request.tool_choice, parallel: None },
        tool_prompt: request.tool_prompt,
        documents: request.documents,
        variables: request.chat_template_kwargs,
        continue_final_message: request.continue_final_message,
        add_generation_prompt: request.add_generation_prompt,
        ..Chat::default()
    };
    let prompt = chat.render(&app).await.map_err(|error| TgiError(error.into_service_error()))?;
    // The template has written what begins a prompt.
    Ok(tokens(&app, prompt, Specials::Omit).await?.with_text().response())
}
