//! `/v1/chat/completions`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::stream::{self, SelectAll, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::error::{OpenAiError, OpenAiJson};
use super::logprobs::ChatLogprobs;
use super::messages;
use super::params::{Common, refuse_unsupported};
use super::types::{FINGERPRINT, Header, Usage, finish_reason};
use crate::http::{App, sse};
use crate::service::{Answer, Prompt, Service, TextEvent, TextStream};
use crate::text::{Specials, Tokenizer};

#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest {
    messages: Vec<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    continue_final_message: Option<bool>,
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Serialize)]
struct ChatCompletion {
    object: &'static str,
    id: String,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
    choices: Vec<Choice>,
    usage: Usage,
}

#[derive(Debug, Serialize)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
}

#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: String,
}

#[derive(Debug, Serialize)]
struct Chunk<'a> {
    object: &'static str,
    id: &'a str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<ChunkChoice>,
    usage: Option<Usage>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
}

/// Answers a conversation, at once or as a stream.
pub(super) async fn chat_completions(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<ChatRequest>,
) -> Result<Response, OpenAiError> {
    let ChatRequest { messages, logprobs, top_logprobs, continue_final_message, common, rest } = request;
    let header = Header::new("chatcmpl", common.check_model(&app)?);
    refuse_unsupported(&rest)?;
    let logprobs = logprobs.unwrap_or(false);
    if top_logprobs.is_some_and(|top| top > 0) && !logprobs {
        return Err(OpenAiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
    }
    let n = common.choices(&app, 1)?;
    let params = common.params(top_logprobs.unwrap_or(0))?;
    let (conversation, begun) = messages::conversation(messages, continue_final_message)?;
    let mut prompt = app.service.render(conversation).await?;
    if let Some(begun) = begun {
        prompt = messages::cut_after(prompt, &begun)?;
    }
    // The template has written what begins a prompt.
    let prepared = app.service.prepare(Prompt::Text(prompt, Specials::Omit), params).await?;
    let prompt_tokens = prepared.prompt().len();
    let streams = app.service.start_several(&prepared, n)?;
    let tokenizer = app.service.tokenizer();
    if common.streams() {
        let writer = Writer {
            header,
            tokenizer: logprobs.then(|| tokenizer.clone()),
            prompt_tokens,
            include_usage: common.includes_usage(),
        };
        return Ok(stream_chunks(writer, streams));
    }
    let answers = Service::collect(streams).await?;
    let usage = Usage::of(prompt_tokens, &answers);
    let choice = |(index, answer): (usize, Answer)| Choice {
        index,
        logprobs: logprobs.then(|| ChatLogprobs::new(tokenizer, &answer.tokens)),
        finish_reason: finish_reason(answer.finished.reason),
        message: Message { role: "assistant", content: answer.finished.text },
    };
    let Header { id, created, model } = header;
    let body = ChatCompletion {
        object: "chat.completion",
        id,
        created,
        model,
        system_fingerprint: FINGERPRINT,
        choices: answers.into_iter().enumerate().map(choice).collect(),
        usage,
    };
    Ok(Json(body).into_response())
}

struct Writer {
    header: Header,
    /// Set if log-probabilities were asked for.
    tokenizer: Option<Tokenizer>,
    prompt_tokens: usize,
    include_usage: bool,
}

impl Writer {
    fn chunk(&self, choices: Vec<ChunkChoice>, usage: Option<Usage>) -> String {
        sse::json(&Chunk {
            object: "chat.completion.chunk",
            id: &self.header.id,
            created: self.header.created,
            model: &self.header.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
        })
    }

    /// `None` if there is nothing to tell yet.
    fn event(&self, index: usize, event: TextEvent) -> Option<String> {
        if event.text.is_empty() && event.finished.is_none() && self.tokenizer.is_none() {
            return None;
        }
        let logprobs = self.tokenizer.as_ref();
        let choice = ChunkChoice {
            index,
            logprobs: logprobs.map(|tokenizer| ChatLogprobs::new(tokenizer, std::slice::from_ref(&event))),
            finish_reason: event.finished.as_ref().map(|finished| finish_reason(finished.reason)),
            delta: Message { role: "assistant", content: event.text },
        };
        Some(self.chunk(vec![choice], None))
    }
}

fn stream_chunks(writer: Writer, streams: Vec<TextStream>) -> Response {
    let events: SelectAll<_> = streams
        .into_iter()
        .enumerate()
        .map(|(index, stream)| sse::events(stream).map(move |event| (index, event)).boxed())
        .collect();
    let chunks = stream::unfold(Some((writer, events, 0)), |state| async move {
        let (writer, mut events, mut generated) = state?;
        while let Some((index, event)) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => return Some((OpenAiError::from(error).event(), None)),
            };
            generated += 1;
            if let Some(chunk) = writer.event(index, event) {
                return Some((chunk, Some((writer, events, generated))));
            }
        }
        let usage = Usage::new(writer.prompt_tokens, generated);
        writer.include_usage.then(|| (writer.chunk(Vec::new(), Some(usage)), None))
    });
    sse::response(chunks.chain(stream::iter(["[DONE]".to_owned()])))
}
