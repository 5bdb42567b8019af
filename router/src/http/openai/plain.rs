//! OpenAI's bodies on the routes of platforms, which have one route for the bodies of several APIs.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::chat_completions::chat_completions;
use super::completions::completions;
use super::error::{OpenAiError, OpenAiJson};
use super::guided::GuidedFields;
use super::params::{GenerationFields, check_rest};
use crate::chat::{ConversationRequest, IgnoredFields};
use crate::http::app::App;
use crate::http::field_names::FieldNames;
use crate::http::json_errors::{flattened, typed};

/// A body of `/v1/chat/completions` whose answer is plain text. It can have no tools.
#[derive(Debug, Deserialize)]
struct PlainChatRequest {
    messages: Vec<Value>,
    #[serde(flatten, deserialize_with = "flattened")]
    common: GenerationFields,
    #[serde(flatten, deserialize_with = "flattened")]
    guided: GuidedFields,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Returns the text of the one answer to a body of `/v1/chat/completions`.
pub(in crate::http) async fn answer_text(app: &App, body: Value) -> Result<String, OpenAiError> {
    let PlainChatRequest { messages, common, guided, rest } = app.service.in_turn(|| typed(body)).await?;
    let model = common.served_model(app)?;
    let mut ignored = IgnoredFields::default();
    check_rest(&rest, &mut ignored)?;
    let mut params = common.params(0)?;
    params.adapter = model.adapter;
    params.grammar = guided.wanted(params.grammar.take())?;
    let chat = ConversationRequest { messages, ..ConversationRequest::default() }
        .prepare(&app.service, params)
        .await;
    let chat = chat.map_err(|error| OpenAiError::from_chat(error, &FieldNames::CHAT))?;
    Ok(app.service.start(chat.prepared)?.collect().await?.finished.text)
}

/// Answers a body of `/v1/chat/completions`.
pub(in crate::http) async fn answer_chat(state: State<App>, body: Value) -> Response {
    match state.service.in_turn(|| typed(body)).await {
        Ok(request) => chat_completions(state, OpenAiJson(request)).await.into_response(),
        Err(error) => OpenAiError::from(error).into_response(),
    }
}

/// Answers a body of `/v1/completions`.
pub(in crate::http) async fn answer_completion(state: State<App>, body: Value) -> Response {
    match state.service.in_turn(|| typed(body)).await {
        Ok(request) => completions(state, OpenAiJson(request)).await.into_response(),
        Err(error) => OpenAiError::from(error).into_response(),
    }
}
