//! `/v1/messages` and `/v1/messages/count_tokens`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::error::{MessagesError, MessagesJson};
use super::request::{CountRequest, MessagesRequest};
use super::stream::Writer;
use crate::http::blocks::{Block, Blocks};
use crate::http::openai::Ready;
use crate::http::{App, headers, offload, openai, sse};
use crate::service::{FinishReason, Finished, Service};
use crate::text::Specials;

/// An answer; while it is streamed, without what is not known yet.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = AnthropicMessage)]
pub(super) struct Message {
    pub(super) id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: String,
    pub(super) content: Vec<Value>,
    pub(super) stop_reason: Option<&'static str>,
    pub(super) stop_sequence: Option<String>,
    pub(super) usage: Usage,
}

/// Tokens from the cache do not count among those of the input.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
#[schema(as = AnthropicUsage)]
pub(super) struct Usage {
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    pub(super) output_tokens: u32,
}

impl Usage {
    pub(super) fn new(prompt: usize, cached: usize, output_tokens: u32) -> Self {
        Usage {
            input_tokens: prompt.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens,
        }
    }
}

/// A block as content. Arguments that were cut off are none.
pub(super) fn content(block: &Block) -> Value {
    match block {
        Block::Text(text) => json!({"type": "text", "text": text}),
        Block::Call { id, name, arguments } => {
            let input = serde_json::from_str(arguments).ok().filter(Value::is_object);
            json!({"type": "tool_use", "id": id, "name": name, "input": input.unwrap_or_else(|| json!({}))})
        }
    }
}

/// Why an answer ended, and the text that ended it.
pub(super) fn stop_reason(finished: &Finished, blocks: &Blocks) -> (&'static str, Option<String>) {
    match finished.reason {
        reason if blocks.called(reason) => ("tool_use", None),
        FinishReason::Length => ("max_tokens", None),
        FinishReason::EosToken => ("end_turn", None),
        FinishReason::StopSequence => ("stop_sequence", finished.stop.clone()),
    }
}

/// Answers a conversation, at once or as a stream of Anthropic's events. If the last message is the assistant's, the answer
/// continues it.
#[utoipa::path(post, path = "/v1/messages", tag = "Anthropic", request_body = MessagesRequest, responses((status = 200, description = "The answer, or Anthropic's events if `stream` is true", body = Message)))]
pub(super) async fn messages(
    State(app): State<App>,
    MessagesJson(request): MessagesJson<MessagesRequest>,
) -> Result<Response, MessagesError> {
    let model = openai::check_model(&app, request.model())?;
    let Ready { prepared, calling, characters, ignored } =
        request.chat(&app)?.prepare(&app, request.params()?).await?;
    let prompt_tokens = prepared.prompt().len();
    let mut message = Message {
        id: format!("msg_{:032x}", rand::random::<u128>()),
        kind: "message",
        role: "assistant",
        model,
        content: Vec::new(),
        stop_reason: None,
        stop_sequence: None,
        usage: Usage::new(prompt_tokens, 0, 0),
    };
    let mut blocks = Blocks::new(calling.as_ref());
    let mut streams = vec![app.service.start(prepared)?];
    if request.stream.unwrap_or(false) {
        sse::begin(&mut streams).await?;
        let cached = streams[0].cached_tokens();
        message.usage = Usage::new(prompt_tokens, cached.unwrap_or(0), 0);
        let headers = headers::before(&app, characters, &ignored);
        return Ok((headers, sse::response(streams, cached, Writer::new(message, blocks))).into_response());
    }
    let answers = Service::collect(streams).await?;
    let headers = headers::after(&app, characters, &ignored, prompt_tokens, &answers);
    let bytes = offload::bytes(&answers);
    let write = move || {
        if let Some(answer) = answers.into_iter().next() {
            message.content = blocks.whole(&answer).iter().map(content).collect();
            let finished = answer.finished;
            let (reason, sequence) = stop_reason(&finished, &blocks);
            (message.stop_reason, message.stop_sequence) = (Some(reason), sequence);
            message.usage = Usage::new(prompt_tokens, finished.cached_tokens, finished.generated_tokens);
        }
        Json(message).into_response()
    };
    Ok((headers, offload::run(bytes, write).await).into_response())
}

/// How many tokens a conversation has as the model gets it.
#[utoipa::path(post, path = "/v1/messages/count_tokens", tag = "Anthropic", request_body = CountRequest, responses((status = 200, description = "How many tokens", body = Object)))]
pub(super) async fn count_tokens(
    State(app): State<App>,
    MessagesJson(request): MessagesJson<CountRequest>,
) -> Result<(HeaderMap, Json<Value>), MessagesError> {
    openai::check_model(&app, request.model())?;
    let mut chat = request.chat(&app)?;
    let mut headers = HeaderMap::new();
    std::mem::take(&mut chat.ignored).write(&mut headers);
    let prompt = chat.render(&app).await?;
    let encoded = app.service.tokenize(prompt, Specials::Omit).await?;
    Ok((headers, Json(json!({"input_tokens": encoded.ids.len()}))))
}
