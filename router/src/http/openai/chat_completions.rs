//! `/v1/chat/completions`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use millrace_answers::tools::AnswerDelta;
use millrace_text::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{OpenAiError, OpenAiJson};
use super::guided::GuidedFields;
use super::logprobs::{ChatLogprobs, PromptLogprobs, prompt_logprobs};
use super::params::{GenerationFields, check_rest};
use super::tool_calls::{CallWriter, ChatDelta, ToolCall};
use super::tool_choice::tool_selection;
use super::types::{FINGERPRINT, ReportOptions, ResponseHeader, STREAM_END, TokenUsage, finish_reason};
use crate::chat::{
    AnswerEvent, ContinuationOptions, ConversationRequest, IgnoredFields, ThinkingOptions, ToolOptions,
};
use crate::http::answer_pipeline::{AnswerPipeline, AnswerProgress, CompleteAnswer, Renderer};
use crate::http::app::App;
use crate::http::json_errors::flattened;
use crate::http::offload;
use crate::http::sse::{EventDescription, Events};
use crate::http::thinking::{ReasoningField, ThinkingFields, thinking_options};
use crate::service::{FinishReason, Params, ServiceError, TextEvent, TokenCounts};

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
    /// How much the model reasons, for chat templates that read it.
    reasoning_effort: Option<String>,
    /// The same as `reasoning_effort`.
    effort: Option<String>,
    /// OpenRouter's field: the effort or the budget of the reasoning, and whether it is shown.
    reasoning: Option<ReasoningField>,
    #[serde(flatten)]
    thinking: ThinkingFields,
    /// vLLM's field: report log-probabilities of the prompt's tokens, with so many alternatives.
    prompt_logprobs: Option<u32>,
    #[serde(flatten, deserialize_with = "flattened")]
    common: GenerationFields,
    #[serde(flatten, deserialize_with = "flattened")]
    guided: GuidedFields,
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
    choices: Vec<ChatChoice>,
    usage: TokenUsage,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    prompt_logprobs: Option<PromptLogprobs>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ChatChoice {
    index: usize,
    message: ChatMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ChatMessage {
    role: &'static str,
    /// The text with which the model has reasoned before the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    /// Null if there are only calls or reasoning.
    content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

impl ChatMessage {
    fn new(ChatDelta { reasoning, content, calls }: ChatDelta) -> Self {
        let is_other = !calls.is_empty() || !reasoning.is_empty();
        ChatMessage {
            role: "assistant",
            reasoning_content: Some(reasoning).filter(|reasoning| !reasoning.is_empty()),
            content: Some(content).filter(|content| !is_other || !content.is_empty()),
            tool_calls: calls,
        }
    }
}

#[derive(Debug, Serialize)]
struct ChatChunk<'a> {
    object: &'static str,
    id: &'a str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: &'a [ChatChunkChoice],
    usage: Option<TokenUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
struct ChatChunkChoice {
    index: usize,
    delta: ChatMessage,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<[u32; 1]>,
}

/// Answers a conversation, at once or as a stream.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "OpenAI", request_body = ChatRequest, responses((status = 200, description = "The answer, or chunks of it as a stream if `stream` is true", content((ChatCompletion = "application/json"), (inline(EventDescription) = "text/event-stream")))))]
pub(super) async fn chat_completions(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<ChatRequest>,
) -> Result<Response, OpenAiError> {
    let model = request.common.served_model(&app)?;
    let header = ResponseHeader::new("chatcmpl-", model.name);
    let mut ignored = IgnoredFields::default();
    check_rest(&request.rest, &mut ignored)?;
    let names = request.common.chat_names();
    let thinking = thinking_options(&request.thinking, request.reasoning.as_ref(), None, &mut ignored)?;
    let n = request.common.choices(&app, 1)?;
    let params = Params { adapter: model.adapter, ..params(&request)? };
    let wants_logprobs = request.logprobs.unwrap_or(false);
    let wants_ids = request.common.return_token_ids.unwrap_or(false);
    let report =
        ReportOptions { every_token: wants_logprobs || wants_ids, ..request.common.report_options() };
    let (prompt_top_n, is_stream) = (request.prompt_logprobs, request.common.streams());
    let chat = chat_input(request, ignored).map_err(|error| OpenAiError::from_chat(error, &names))?;
    let chat = ConversationRequest { thinking, ..chat };
    let chat = chat.prepare(&app.service, params).await;
    let chat = chat.map_err(|error| OpenAiError::from_chat(error, &names))?;
    let renderer = ChatRenderer {
        header,
        report,
        tokenizer: app.service.tokenizer().clone(),
        calls: (0..n).map(|_| CallWriter::new(&chat.format)).collect(),
        wants_logprobs,
        wants_ids,
        prompt_top_n,
        prompt: if prompt_top_n.is_some() { chat.prepared.prompt().to_vec() } else { Vec::new() },
        prompt_token_ids: wants_ids.then(|| chat.prepared.prompt().to_vec()),
    };
    Ok(AnswerPipeline::for_chat(chat, n, is_stream, renderer).respond(&app).await?)
}

/// The parameters of the generation.
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

/// The conversation of a request for the chat core.
fn chat_input(
    request: ChatRequest,
    ignored: IgnoredFields,
) -> Result<ConversationRequest, crate::chat::ChatError> {
    let effort = [
        ("reasoning_effort", request.reasoning_effort),
        ("effort", request.effort),
        ("reasoning.effort", request.reasoning.and_then(|reasoning| reasoning.effort)),
    ];
    let effort = effort.into_iter().filter_map(|(name, value)| Some((name, Value::String(value?))));
    Ok(ConversationRequest {
        messages: request.messages,
        tools: ToolOptions {
            tools: request.tools.unwrap_or_default(),
            selection: tool_selection(request.tool_choice.as_ref())?,
            parallel: request.parallel_tool_calls,
        },
        tool_prompt: request.tool_prompt,
        documents: request.documents,
        variables: request.chat_template_kwargs,
        continuation: ContinuationOptions {
            continue_final_message: request.continue_final_message,
            add_generation_prompt: request.add_generation_prompt,
        },
        effort: effort.collect(),
        thinking: ThinkingOptions::default(),
        ignored,
    })
}

/// Writes the objects of `/v1/chat/completions`.
struct ChatRenderer {
    header: ResponseHeader,
    report: ReportOptions,
    tokenizer: Tokenizer,
    /// One for each answer.
    calls: Vec<CallWriter>,
    wants_logprobs: bool,
    wants_ids: bool,
    /// The alternatives to report for each token of the prompt, if they were asked for.
    prompt_top_n: Option<u32>,
    /// The tokens of the prompt if their log-probabilities were asked for.
    prompt: Vec<u32>,
    /// The tokens of the prompt if they were asked for, until they have been sent.
    prompt_token_ids: Option<Vec<u32>>,
}

impl ChatRenderer {
    /// Returns a complete answer, and the number of tokens of its reasoning if it is separated.
    fn complete_choice(&mut self, mut complete: CompleteAnswer) -> (ChatChoice, Option<usize>) {
        let mut delta = AnswerDelta::default();
        complete.events().for_each(|event| delta.extend(event.delta));
        let CompleteAnswer { progress, answer } = complete;
        let calls = self.calls.get_mut(progress.index);
        let delta = calls.map(|calls| calls.translate_all(delta)).unwrap_or_default();
        let choice = ChatChoice {
            index: progress.index,
            message: ChatMessage::new(delta),
            logprobs: self.wants_logprobs.then(|| ChatLogprobs::new(&self.tokenizer, &answer.tokens)),
            finish_reason: chat_finish_reason(&progress, answer.finished.reason),
            token_ids: self.wants_ids.then(|| answer.tokens.iter().map(|event| event.token.id).collect()),
        };
        (choice, progress.reasoning_tokens())
    }

    fn chunk(&mut self, choices: &[ChatChunkChoice], usage: Option<TokenUsage>, to: &mut Events) {
        to.json(&ChatChunk {
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

/// Returns why an answer ended. An answer that was cut off did not end with its calls.
fn chat_finish_reason(answer: &AnswerProgress, reason: FinishReason) -> &'static str {
    if answer.ended_with_calls(reason) { "tool_calls" } else { finish_reason(reason) }
}

impl Renderer for ChatRenderer {
    fn body(mut self, answers: Vec<CompleteAnswer>, counts: TokenCounts) -> Response {
        let first = answers.first().zip(self.prompt_top_n);
        let prompt_logprobs = first.map(|(first, top_n)| {
            prompt_logprobs(&self.tokenizer, &self.prompt, &first.answer.prompt, top_n)
        });
        let answers = answers.into_iter().map(|answer| self.complete_choice(answer));
        let (choices, reasoning): (Vec<_>, Vec<_>) = answers.unzip();
        let ResponseHeader { id, created, model } = self.header;
        let completion = ChatCompletion {
            object: "chat.completion",
            id,
            created,
            model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage: TokenUsage::new(counts, reasoning.into_iter().sum()),
            prompt_token_ids: self.prompt_token_ids,
            prompt_logprobs,
        };
        Json(completion).into_response()
    }

    /// The first event has the tokens of the prompt if they were asked for.
    fn event_bytes(&self, _: &AnswerProgress, _: &TextEvent) -> usize {
        self.prompt_token_ids.as_ref().map_or(0, |prompt| prompt.len() * offload::TOKEN_BYTES)
    }

    fn event(&mut self, answer: &AnswerProgress, event: AnswerEvent<'_>, to: &mut Events) {
        let AnswerEvent { delta, generated, .. } = event;
        let reason = generated.finished.as_ref().map(|finished| finished.reason);
        let Some(calls) = self.calls.get_mut(answer.index) else { return };
        let delta = calls.translate(delta, reason.is_some());
        if delta.is_empty() && reason.is_none() && !self.report.every_token {
            return;
        }
        let logprobs = || ChatLogprobs::new(&self.tokenizer, std::slice::from_ref(generated));
        let choice = ChatChunkChoice {
            index: answer.index,
            delta: ChatMessage::new(delta),
            logprobs: self.wants_logprobs.then(logprobs),
            finish_reason: reason.map(|reason| chat_finish_reason(answer, reason)),
            token_ids: self.wants_ids.then_some([generated.token.id]),
        };
        self.chunk(&[choice], self.report.chunk_usage(answer), to);
    }

    fn error(&mut self, error: ServiceError, to: &mut Events) {
        OpenAiError::from(error).write(to);
    }

    fn end(&mut self, answers: &[AnswerProgress], to: &mut Events) {
        if let Some(usage) = self.report.total_usage(answers) {
            self.chunk(&[], Some(usage), to);
        }
        to.line(STREAM_END);
    }
}
