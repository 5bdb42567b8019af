//! `/v1/messages` and `/v1/messages/count_tokens`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use millrace_text::SpecialTokens;
use serde_json::{Value, json};

use super::error::{MessagesError, MessagesJson};
use super::renderer::MessageRenderer;
use super::request::{CountRequest, MessagesRequest};
use super::types::AnthropicMessage;
use crate::chat::BlockReader;
use crate::http::answer_pipeline::AnswerPipeline;
use crate::http::app::App;
use crate::http::ignored;
use crate::http::model_name::served_model;
use crate::http::sse::EventDescription;
use crate::service::{Params, Service};

/// Answers a conversation, at once or as a stream of Anthropic's events. If the last message is the
/// assistant's, the answer continues it.
#[utoipa::path(post, path = "/v1/messages", tag = "Anthropic", request_body = MessagesRequest, responses((status = 200, description = "The answer, or Anthropic's events if `stream` is true", content((AnthropicMessage = "application/json"), (inline(EventDescription) = "text/event-stream")))))]
pub(super) async fn messages(
    State(app): State<App>,
    MessagesJson(request): MessagesJson<MessagesRequest>,
) -> Result<Response, MessagesError> {
    let model = served_model(&app, request.model())?;
    let (chat, params) = app
        .service
        .in_turn(|| {
            let params = Params { adapter: model.adapter, ..request.params()? };
            Ok::<_, MessagesError>((request.chat(&app)?, params))
        })
        .await
        .inspect_err(|_| Service::charge_refused_body())?;
    let chat = chat.prepare(&app.service, params).await?;
    let renderer = MessageRenderer::new(AnthropicMessage::new(model.name), BlockReader::new(&chat.format));
    let is_stream = request.stream.unwrap_or(false);
    Ok(AnswerPipeline::for_chat(chat, 1, is_stream, renderer).respond(&app).await?)
}

/// Returns the number of tokens of a conversation, as the model's chat template writes it.
#[utoipa::path(post, path = "/v1/messages/count_tokens", tag = "Anthropic", request_body = CountRequest, responses((status = 200, description = "How many tokens", body = Object)))]
pub(super) async fn count_tokens(
    State(app): State<App>,
    MessagesJson(request): MessagesJson<CountRequest>,
) -> Result<(HeaderMap, Json<Value>), MessagesError> {
    served_model(&app, request.model())?;
    let chat = app.service.in_turn(|| request.chat(&app)).await;
    let chat = chat.inspect_err(|_| Service::charge_refused_body())?;
    let mut headers = HeaderMap::new();
    ignored::write_header(&chat.ignored, &mut headers);
    let prompt = chat.render(&app.service).await?;
    let ids = app.service.token_ids(prompt, SpecialTokens::Omit).await?;
    Ok((headers, Json(json!({"input_tokens": ids.len()}))))
}
