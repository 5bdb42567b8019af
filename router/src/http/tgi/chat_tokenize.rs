//! `/chat_tokenize`: the text and the tokens of a conversation.

use axum::extract::State;
use axum::response::Response;
use millrace_text::SpecialTokens;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::TgiError;
use super::tokenize::{SimpleToken, tokens};
use crate::chat::{ContinuationOptions, ConversationRequest, ToolOptions};
use crate::http::app::App;
use crate::http::offload::TurnJson;
use crate::http::openai::tool_selection;

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

/// The response, which [`TokensBody`](super::tokenize::TokensBody) writes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChatTokenizeResponse {
    tokenize_response: Vec<SimpleToken>,
    templated_text: String,
}

/// Returns the text and the tokens of a conversation. Other fields of a chat do not change its
/// prompt.
#[utoipa::path(post, path = "/chat_tokenize", tag = "TGI", request_body = ChatTokenizeRequest, responses((status = 200, description = "Text and tokens", body = ChatTokenizeResponse)))]
pub(super) async fn chat_tokenize(
    State(app): State<App>,
    TurnJson(request): TurnJson<ChatTokenizeRequest>,
) -> Result<Response, TgiError> {
    let chat = ConversationRequest {
        messages: request.messages,
        tools: ToolOptions {
            tools: request.tools.unwrap_or_default(),
            selection: tool_selection(request.tool_choice.as_ref())?,
            parallel: None,
        },
        tool_prompt: request.tool_prompt,
        documents: request.documents,
        variables: request.chat_template_kwargs,
        continuation: ContinuationOptions {
            continue_final_message: request.continue_final_message,
            add_generation_prompt: request.add_generation_prompt,
        },
        ..ConversationRequest::default()
    };
    let prompt = chat.render(&app.service).await?;
    // The template has written the tokens that begin a prompt.
    Ok(tokens(&app, prompt, SpecialTokens::Omit).await?.with_text().response())
}
