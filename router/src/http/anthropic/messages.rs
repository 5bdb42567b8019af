//! `/v1/messages` and `/v1/messages/count_tokens`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use millrace_text::SpecialTokens;
use serde_json::{Value, json};

use super::error::{MessagesError, MessagesJson};
use super::request::{CountRequest, MessagesRequest};
use super::stream::MessageStreamWriter;
use super::types::{AnthropicMessage, AnthropicUsage, content, stop_reason};
use crate::chat::{BlockReader, PreparedChat};
use crate::http::app::App;
use crate::http::model_name::served_model;
use crate::http::sse::{self, EventDescription};
use crate::http::{headers, ignored, offload};
use crate::service::Service;

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
        .in_turn(|| Ok::<_, MessagesError>((request.chat(&app)?, request.params()?)))
        .await
        .inspect_err(|_| Service::charge_refused_body())?;
    let chat = chat.prepare(&app.service, params).await?;
    let PreparedChat { prepared, format, characters, ignored } = chat;
    let prompt_tokens = prepared.prompt().len();
    let mut message = AnthropicMessage::new(model, AnthropicUsage::new(prompt_tokens, 0, 0));
    let mut blocks = BlockReader::new(format.as_ref());
    let mut streams = vec![app.service.start(prepared)?];
    if request.stream.unwrap_or(false) {
        sse::begin(&mut streams).await?;
        let cached = streams[0].cached_tokens();
        message.usage = AnthropicUsage::new(prompt_tokens, cached.unwrap_or(0), 0);
        let headers = headers::before(&app, characters, &ignored);
        let writer = MessageStreamWriter::new(message, blocks);
        return Ok((headers, sse::response(&app, streams, cached, writer)).into_response());
    }
    let answers = Service::collect(streams).await?;
    let headers = headers::after(&app, characters, &ignored, prompt_tokens, &answers);
    let bytes = offload::bytes(&answers);
    let write = move || {
        if let Some(answer) = answers.into_iter().next() {
            message.content = blocks.read_all(&answer).iter().filter_map(content).collect();
            let finished = answer.finished;
            let (reason, sequence) = stop_reason(&finished, &blocks);
            (message.stop_reason, message.stop_sequence) = (Some(reason), sequence);
            message.usage =
                AnthropicUsage::new(prompt_tokens, finished.cached_tokens, finished.generated_tokens);
        }
        Json(message).into_response()
    };
    Ok((headers, app.service.in_turn_for(bytes, write).await).into_response())
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
    let encoded = app.service.tokenize(prompt, SpecialTokens::Omit).await?;
    Ok((headers, Json(json!({"input_tokens": encoded.ids.len()}))))
}
