//! `/v1/chat/completions`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use millrace_text::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{OpenAiError, OpenAiJson};
use super::generation::{
    AnswerCounts, AnswerPipeline, PreparedPrompt, PromptAnswers, Renderer, ReportOptions, StreamedAnswer,
};
use super::guided::GuidedFields;
use super::logprobs::{ChatLogprobs, PromptLogprobs, prompt_logprobs};
use super::params::{GenerationFields, check_rest};
use super::tool_calls::{ChatAnswerReader, ChatDelta, ToolCall};
use super::tool_choice::tool_selection;
use super::types::{FINGERPRINT, ResponseHeader, TokenUsage, finish_reason};
use crate::chat::{
    AnswerFormat, ContinuationOptions, ConversationRequest, IgnoredFields, PreparedChat, ThinkingOptions,
    ToolOptions,
};
use crate::http::app::App;
use crate::http::json_errors::flattened;
use crate::http::sse::{self, EventDescription};
use crate::http::thinking::{ReasoningField, ThinkingFields, thinking_options};
use crate::service::{Answer, Params, TextEvent};

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

/// The finish reason of an answer that ended with tool calls.
const TOOL_CALLS: &str = "tool_calls";

/// Answers a conversation, at once or as a stream.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "OpenAI", request_body = ChatRequest, responses((status = 200, description = "The answer, or chunks of it as a stream if `stream` is true", content((ChatCompletion = "application/json"), (inline(EventDescription) = "text/event-stream")))))]
pub(super) async fn chat_completions(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<ChatRequest>,
) -> Result<Response, OpenAiError> {
    let header = ResponseHeader::new("chatcmpl-", request.common.served_model(&app)?);
    let mut ignored = IgnoredFields::default();
    check_rest(&request.rest, &mut ignored)?;
    let names = request.common.chat_names();
    let thinking = thinking_options(&request.thinking, request.reasoning.as_ref(), None, &mut ignored)?;
    let n = request.common.choices(&app, 1)?;
    let params = params(&request)?;
    let wants_logprobs = request.logprobs.unwrap_or(false);
    let wants_ids = request.common.return_token_ids.unwrap_or(false);
    let report =
        ReportOptions { every_token: wants_logprobs || wants_ids, ..request.common.report_options() };
    let prompt_top_n = request.prompt_logprobs;
    let chat = chat_input(request, ignored).map_err(|error| OpenAiError::from_chat(error, &names))?;
    let chat = ConversationRequest { thinking, ..chat };
    let chat = chat.prepare(&app.service, params).await;
    let PreparedChat { prepared, format, characters, ignored } =
        chat.map_err(|error| OpenAiError::from_chat(error, &names))?;
    let renderer = ChatRenderer {
        tokenizer: app.service.tokenizer().clone(),
        readers: format.iter().flat_map(|format| (0..n).map(|_| ChatAnswerReader::new(format))).collect(),
        format,
        wants_logprobs,
        wants_ids,
        prompt_top_n,
        prompt_token_ids: wants_ids.then(|| prepared.prompt().to_vec()),
    };
    let generation = AnswerPipeline {
        header,
        prompts: vec![PreparedPrompt { prepared, echo: String::new(), characters }],
        counts: AnswerCounts { sent: n, generated: n, concurrent_prompts: 1 },
        report,
        ignored,
        renderer,
    };
    generation.respond(&app).await
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
    tokenizer: Tokenizer,
    /// Set if the answers may contain reasoning or tool calls.
    format: Option<AnswerFormat>,
    /// One for each answer of a stream if `format` is set, otherwise none.
    readers: Vec<ChatAnswerReader>,
    wants_logprobs: bool,
    wants_ids: bool,
    /// The alternatives to report for each token of the prompt, if they were asked for.
    prompt_top_n: Option<u32>,
    /// The tokens of the prompt if they were asked for, until they have been sent.
    prompt_token_ids: Option<Vec<u32>>,
}

impl ChatRenderer {
    /// Returns an answer and the number of tokens of its reasoning, if it is separated.
    fn choice(&self, index: usize, answer: Answer) -> (ChatChoice, Option<usize>) {
        let reason = answer.finished.reason;
        let (delta, ended_with_calls, reasoning_tokens) = match &self.format {
            None => (ChatDelta { content: answer.finished.text, ..ChatDelta::default() }, false, None),
            Some(format) => {
                let mut reader = ChatAnswerReader::new(format);
                let delta = reader.read_all(&answer);
                (delta, reader.ended_with_calls(reason), reader.reasoning_tokens())
            }
        };
        let message = ChatMessage::new(delta);
        let choice = ChatChoice {
            index,
            message,
            logprobs: self.wants_logprobs.then(|| ChatLogprobs::new(&self.tokenizer, &answer.tokens)),
            finish_reason: if ended_with_calls { TOOL_CALLS } else { finish_reason(reason) },
            token_ids: self.wants_ids.then(|| answer.tokens.iter().map(|event| event.token.id).collect()),
        };
        (choice, reasoning_tokens)
    }
}

impl Renderer for ChatRenderer {
    type ChunkChoice = ChatChunkChoice;

    const USAGE_WITH_LAST_TOKEN: bool = false;

    fn body(self, header: ResponseHeader, prompts: Vec<PromptAnswers>, usage: TokenUsage) -> Response {
        let first = prompts.first().and_then(|prompt| Some((prompt, prompt.answers.first()?)));
        let prompt_logprobs = first.zip(self.prompt_top_n).map(|((prompt, answer), top_n)| {
            prompt_logprobs(&self.tokenizer, &prompt.prompt, &answer.prompt, top_n)
        });
        let answers = prompts.into_iter().flat_map(|prompt| prompt.answers).enumerate();
        let (choices, reasoning): (Vec<_>, Vec<_>) =
            answers.map(|(index, answer)| self.choice(index, answer)).unzip();
        let usage = usage.with_reasoning(reasoning.into_iter().sum());
        let ResponseHeader { id, created, model } = header;
        let completion = ChatCompletion {
            object: "chat.completion",
            id,
            created,
            model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
            prompt_token_ids: self.prompt_token_ids,
            prompt_logprobs,
        };
        Json(completion).into_response()
    }

    fn choice(
        &mut self,
        answer: &mut StreamedAnswer,
        event: TextEvent,
        is_reported: bool,
    ) -> Option<ChatChunkChoice> {
        let mut reader = self.readers.get_mut(answer.index);
        let delta = match &mut reader {
            Some(reader) => reader.push(&event),
            None => ChatDelta { content: event.text.clone(), ..ChatDelta::default() },
        };
        answer.reasoning_tokens = reader.as_ref().and_then(|reader| reader.reasoning_tokens());
        if delta.is_empty() && !is_reported {
            return None;
        }
        let logprobs =
            self.wants_logprobs.then(|| ChatLogprobs::new(&self.tokenizer, std::slice::from_ref(&event)));
        let reason = event.finished.as_ref().map(|finished| finished.reason);
        let ended_with_calls = |reason| reader.as_ref().is_some_and(|reader| reader.ended_with_calls(reason));
        let finish_reason =
            reason.map(|reason| if ended_with_calls(reason) { TOOL_CALLS } else { finish_reason(reason) });
        Some(ChatChunkChoice {
            index: answer.index,
            delta: ChatMessage::new(delta),
            logprobs,
            finish_reason,
            token_ids: self.wants_ids.then_some([event.token.id]),
        })
    }

    fn chunk(
        &mut self,
        header: &ResponseHeader,
        choice: Option<ChatChunkChoice>,
        usage: Option<TokenUsage>,
        to: &mut sse::Events,
    ) {
        to.json(&ChatChunk {
            object: "chat.completion.chunk",
            id: &header.id,
            created: header.created,
            model: &header.model,
            system_fingerprint: FINGERPRINT,
            choices: choice.as_slice(),
            usage,
            prompt_token_ids: self.prompt_token_ids.take(),
        });
    }
}
