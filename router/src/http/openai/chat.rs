//! `/v1/chat/completions`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{OpenAiError, OpenAiJson};
use super::logprobs::ChatLogprobs;
use super::messages;
use super::params::{Common, refuse_unsupported};
use super::types::{FINGERPRINT, Header, Usage, finish_reason};
use crate::http::{App, headers, sse};
use crate::service::{Answer, Prompt, Service, ServiceError, TextEvent};
use crate::text::{Specials, Tokenizer};

#[derive(Debug, Deserialize, ToSchema)]
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

#[derive(Debug, Serialize, ToSchema)]
struct ChatCompletion {
    object: &'static str,
    id: String,
    created: u64,
    model: String,
    system_fingerprint: &'static str,
    choices: Vec<Choice>,
    usage: Usage,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChoice)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatMessage)]
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
    choices: &'a [ChunkChoice],
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
#[utoipa::path(post, path = "/v1/chat/completions", tag = "OpenAI", request_body = ChatRequest, responses((status = 200, description = "The answer, or chunks of it as a stream if `stream` is true", body = ChatCompletion)))]
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
    let characters = prompt.chars().count();
    // The template has written what begins a prompt.
    let prepared = app.service.prepare(Prompt::Text(prompt, Specials::Omit), params).await?;
    let prompt_tokens = prepared.prompt().len();
    let mut streams = app.service.start_several(&prepared, n)?;
    let tokenizer = app.service.tokenizer();
    if common.streams() {
        sse::begin(&mut streams).await?;
        let cached_tokens = streams[0].cached_tokens();
        let writer = Writer {
            header,
            tokenizer: logprobs.then(|| tokenizer.clone()),
            prompt_tokens,
            cached_tokens: None,
            generated: 0,
            include_usage: common.includes_usage(),
        };
        let headers = headers::before(&app, characters);
        return Ok((headers, sse::response(streams, cached_tokens, writer)).into_response());
    }
    let answers = Service::collect(streams).await?;
    let usage = Usage::of(prompt_tokens, &answers);
    let headers = headers::after(&app, characters, prompt_tokens, &answers);
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
    Ok((headers, Json(body)).into_response())
}

struct Writer {
    header: Header,
    /// Set if log-probabilities were asked for.
    tokenizer: Option<Tokenizer>,
    prompt_tokens: usize,
    /// Of the first answer that was complete.
    cached_tokens: Option<usize>,
    /// Tokens of all answers so far.
    generated: usize,
    include_usage: bool,
}

impl Writer {
    fn chunk(&self, choices: &[ChunkChoice], usage: Option<Usage>, to: &mut sse::Events) {
        to.json(&Chunk {
            object: "chat.completion.chunk",
            id: &self.header.id,
            created: self.header.created,
            model: &self.header.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
        });
    }
}

impl sse::Write for Writer {
    fn event(&mut self, index: usize, event: TextEvent, to: &mut sse::Events) {
        self.generated += 1;
        if event.text.is_empty() && event.finished.is_none() && self.tokenizer.is_none() {
            return;
        }
        if let Some(finished) = &event.finished {
            self.cached_tokens.get_or_insert(finished.cached_tokens);
        }
        let logprobs = self.tokenizer.as_ref();
        let choice = ChunkChoice {
            index,
            logprobs: logprobs.map(|tokenizer| ChatLogprobs::new(tokenizer, std::slice::from_ref(&event))),
            finish_reason: event.finished.as_ref().map(|finished| finish_reason(finished.reason)),
            delta: Message { role: "assistant", content: event.text },
        };
        self.chunk(&[choice], None, to);
    }

    fn error(&mut self, error: ServiceError, to: &mut sse::Events) {
        OpenAiError::from(error).write(to);
        to.line("[DONE]");
    }

    fn end(&mut self, to: &mut sse::Events) {
        if self.include_usage {
            let cached = self.cached_tokens.unwrap_or(0);
            self.chunk(&[], Some(Usage::new(self.prompt_tokens, cached, self.generated)), to);
        }
        to.line("[DONE]");
    }
}
