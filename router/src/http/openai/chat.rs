//! `/v1/chat/completions`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{OpenAiError, OpenAiJson};
use super::guided::Guided;
use super::logprobs::{ChatLogprobs, PromptLogprobs, prompt_logprobs};
use super::params::{Common, check_rest};
use super::prompt::{Chat, ChatNames, Ready};
use super::tools::{Asked, Calling, Reader, ToolCall};
use super::types::{FINGERPRINT, Header, Usage, finish_reason};
use crate::http::ignored::Ignored;
use crate::http::{App, headers, offload, sse};
use crate::service::{Answer, Params, Prepared, Service, ServiceError, TextEvent};
use crate::text::Tokenizer;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct ChatRequest {
    messages: Vec<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    continue_final_message: Option<bool>,
    add_generation_prompt: Option<bool>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    tool_prompt: Option<String>,
    documents: Option<Vec<Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    /// For templates that tell the model how hard to think.
    reasoning_effort: Option<String>,
    /// The same.
    effort: Option<String>,
    /// As vLLM has it: what the model makes of the prompt's tokens, with so many alternatives.
    prompt_logprobs: Option<u32>,
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    guided: Guided,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    prompt_logprobs: Option<PromptLogprobs>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatChoice)]
struct Choice {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatMessage)]
struct Message {
    role: &'static str,
    /// Null if there are only calls.
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

impl Message {
    fn new(content: String, tool_calls: Vec<ToolCall>) -> Self {
        let content = Some(content).filter(|content| tool_calls.is_empty() || !content.is_empty());
        Message { role: "assistant", content, tool_calls }
    }
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
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
struct ChunkChoice {
    index: usize,
    delta: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<[u32; 1]>,
}

/// Why an answer ended that calls tools.
const TOOL_CALLS: &str = "tool_calls";

/// Answers a conversation, at once or as a stream.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "OpenAI", request_body = ChatRequest, responses((status = 200, description = "The answer, or chunks of it as a stream if `stream` is true", body = ChatCompletion)))]
pub(super) async fn chat_completions(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<ChatRequest>,
) -> Result<Response, OpenAiError> {
    let header = Header::new("chatcmpl", request.common.check_model(&app)?);
    let mut ignored = Ignored::default();
    check_rest(&request.rest, &mut ignored)?;
    let logprobs = request.logprobs.unwrap_or(false);
    let names = request.common.chat_names();
    let n = request.common.choices(&app, 1)?;
    let params = params(&request)?;
    let asked =
        Asked { tools: request.tools, choice: request.tool_choice, parallel: request.parallel_tool_calls };
    let chat = Chat {
        messages: request.messages,
        asked,
        tool_prompt: request.tool_prompt,
        documents: request.documents,
        variables: request.chat_template_kwargs,
        continue_final_message: request.continue_final_message,
        add_generation_prompt: request.add_generation_prompt,
        effort: efforts(request.reasoning_effort, request.effort),
        names: ChatNames(names),
        ignored,
    };
    let Ready { prepared, calling, characters, ignored } = chat.prepare(&app, params).await?;
    let common = request.common;
    let prompt_tokens = prepared.prompt().len();
    let wants_ids = common.return_token_ids.unwrap_or(false);
    let prompt_token_ids = wants_ids.then(|| prepared.prompt().to_vec());
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
            cached_at_start: cached_tokens.unwrap_or(0),
            generated: vec![0; n],
            include_usage: common.includes_usage(),
            continuous_usage: common.includes_continuous_usage(),
            readers: calling.map(|calling| (0..n).map(|_| calling.reader()).collect()),
            wants_ids,
            prompt_token_ids,
        };
        let headers = headers::before(&app, characters, &ignored);
        return Ok((headers, sse::response(streams, cached_tokens, writer)).into_response());
    }
    let answers = Service::collect(streams).await?;
    let usage = Usage::of(prompt_tokens, &answers);
    let headers = headers::after(&app, characters, &ignored, prompt_tokens, &answers);
    let whole = Whole {
        header,
        calling,
        tokenizer: tokenizer.clone(),
        prepared,
        logprobs,
        wants_ids,
        prompt_top_n: request.prompt_logprobs,
    };
    let body = offload::run(offload::bytes(&answers), move || {
        Json(whole.body(answers, usage, prompt_token_ids)).into_response()
    });
    Ok((headers, body.await).into_response())
}

/// How the answer is generated.
fn params(request: &ChatRequest) -> Result<Params, OpenAiError> {
    if request.top_logprobs.is_some_and(|top| top > 0) && !request.logprobs.unwrap_or(false) {
        return Err(OpenAiError::invalid("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
    }
    let mut params = request.common.params(request.top_logprobs.unwrap_or(0))?;
    params.grammar = request.guided.wanted(params.grammar.take())?;
    params.prompt_logprobs = request.prompt_logprobs;
    if params.prompt_logprobs.is_some() && request.common.streams() {
        let message = "`prompt_logprobs` is not supported when streaming tokens";
        return Err(OpenAiError::invalid("prompt_logprobs", message));
    }
    Ok(params)
}

/// The fields that say how hard the model shall think.
fn efforts(reasoning_effort: Option<String>, effort: Option<String>) -> Vec<(&'static str, Value)> {
    let fields = [("reasoning_effort", reasoning_effort), ("effort", effort)];
    fields.into_iter().filter_map(|(name, value)| Some((name, Value::String(value?)))).collect()
}

/// What is needed to write answers that are complete.
struct Whole {
    header: Header,
    /// If tools may be called.
    calling: Option<Calling>,
    tokenizer: Tokenizer,
    prepared: Prepared,
    logprobs: bool,
    wants_ids: bool,
    prompt_top_n: Option<u32>,
}

impl Whole {
    fn body(self, answers: Vec<Answer>, usage: Usage, prompt_token_ids: Option<Vec<u32>>) -> ChatCompletion {
        let prompt_logprobs = answers.first().zip(self.prompt_top_n).map(|(answer, top_n)| {
            prompt_logprobs(&self.tokenizer, self.prepared.prompt(), &answer.prompt, top_n)
        });
        let choices = answers.into_iter().enumerate().map(|(index, answer)| self.choice(index, answer));
        let choices = choices.collect();
        let Header { id, created, model } = self.header;
        ChatCompletion {
            object: "chat.completion",
            id,
            created,
            model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
            prompt_token_ids,
            prompt_logprobs,
        }
    }

    fn choice(&self, index: usize, answer: Answer) -> Choice {
        let (text, reason) = (answer.finished.text, answer.finished.reason);
        let (message, called) = match &self.calling {
            None => (Message::new(text, Vec::new()), None),
            Some(calling) => {
                let mut reader = calling.reader();
                let (content, calls) = reader.whole(&text);
                (Message::new(content, calls), reader.called(reason).then_some(TOOL_CALLS))
            }
        };
        Choice {
            index,
            message,
            logprobs: self.logprobs.then(|| ChatLogprobs::new(&self.tokenizer, &answer.tokens)),
            finish_reason: called.unwrap_or(finish_reason(reason)),
            token_ids: self.wants_ids.then(|| answer.tokens.iter().map(|event| event.token.id).collect()),
        }
    }
}

struct Writer {
    header: Header,
    /// Set if log-probabilities were asked for.
    tokenizer: Option<Tokenizer>,
    prompt_tokens: usize,
    /// Of the first answer that was complete.
    cached_tokens: Option<usize>,
    /// Of the first answer when the stream began.
    cached_at_start: usize,
    /// Tokens of each answer so far.
    generated: Vec<usize>,
    include_usage: bool,
    /// Each chunk has the usage of its answer so far.
    continuous_usage: bool,
    /// One for each answer, if tools may be called.
    readers: Option<Vec<Reader>>,
    wants_ids: bool,
    /// Goes with the first chunk, if asked for.
    prompt_token_ids: Option<Vec<u32>>,
}

impl Writer {
    fn chunk(&mut self, choices: &[ChunkChoice], usage: Option<Usage>, to: &mut sse::Events) {
        to.json(&Chunk {
            object: "chat.completion.chunk",
            id: &self.header.id,
            created: self.header.created,
            model: &self.header.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
            prompt_token_ids: self.prompt_token_ids.take(),
        });
    }
}

impl sse::Write for Writer {
    fn event(&mut self, index: usize, event: TextEvent, to: &mut sse::Events) {
        let generated = self.generated.get_mut(index).map_or(0, |generated| {
            *generated += 1;
            *generated
        });
        let mut reader = self.readers.as_mut().and_then(|readers| readers.get_mut(index));
        let (content, calls) = match &mut reader {
            Some(reader) => reader.part(&event),
            None => (event.text.clone(), Vec::new()),
        };
        let says_nothing = content.is_empty() && calls.is_empty() && event.finished.is_none();
        if says_nothing && self.tokenizer.is_none() && !self.wants_ids {
            return;
        }
        if let Some(finished) = &event.finished {
            self.cached_tokens.get_or_insert(finished.cached_tokens);
        }
        let reason = event.finished.as_ref().map(|finished| finished.reason);
        let called =
            reason.filter(|&reason| reader.is_some_and(|reader| reader.called(reason))).map(|_| TOOL_CALLS);
        let logprobs = self.tokenizer.as_ref();
        let choice = ChunkChoice {
            index,
            logprobs: logprobs.map(|tokenizer| ChatLogprobs::new(tokenizer, std::slice::from_ref(&event))),
            finish_reason: called.or(reason.map(finish_reason)),
            delta: Message::new(content, calls),
            token_ids: self.wants_ids.then_some([event.token.id]),
        };
        let cached = self.cached_tokens.unwrap_or(self.cached_at_start);
        let usage = self.continuous_usage.then(|| Usage::new(self.prompt_tokens, cached, generated));
        self.chunk(&[choice], usage, to);
    }

    fn error(&mut self, error: ServiceError, to: &mut sse::Events) {
        OpenAiError::from(error).write(to);
        to.line("[DONE]");
    }

    fn end(&mut self, to: &mut sse::Events) {
        if self.include_usage {
            let cached = self.cached_tokens.unwrap_or(0);
            let generated = self.generated.iter().sum();
            self.chunk(&[], Some(Usage::new(self.prompt_tokens, cached, generated)), to);
        }
        to.line("[DONE]");
    }
}
