//! `/v1/completions`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryStreamExt, stream};
use millrace_text::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{OpenAiError, OpenAiJson};
use super::guided::GuidedFields;
use super::logprobs::{CompletionLogprobs, PromptLogprobs, prompt_logprobs};
use super::params::{GenerationFields, check_answers, check_rest, concurrent_prompts};
use super::prompts::{PromptList, prompt_text};
use super::types::{
    FINGERPRINT, ReportOptions, ResponseHeader, STREAM_END, TokenUsage, answer_usage, finish_reason,
};
use crate::chat::{AnswerEvent, AnswerFormat, IgnoredFields};
use crate::http::answer_pipeline::{
    AnswerCounts, AnswerPipeline, AnswerProgress, CompleteAnswer, PreparedPrompt, Renderer,
};
use crate::http::app::App;
use crate::http::json_errors::flattened;
use crate::http::offload;
use crate::http::sse::{EventDescription, Events};
use crate::http::thinking::raw_budget;
use crate::service::{BYTES_PER_TOKEN, Params, Prompt, PromptToken, ServiceError, TextEvent, TokenCounts};

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct CompletionRequest {
    prompt: PromptList,
    /// vLLM's field: whether the tokenizer's own tokens go around a prompt that is a text.
    add_special_tokens: Option<bool>,
    logprobs: Option<u32>,
    echo: Option<bool>,
    best_of: Option<usize>,
    /// vLLM's field: report log-probabilities of the prompt's tokens, with so many alternatives.
    prompt_logprobs: Option<u32>,
    /// vLLM's field: the tokens that the model may think before it must answer; -1 is no limit.
    thinking_token_budget: Option<i64>,
    #[serde(flatten, deserialize_with = "flattened")]
    common: GenerationFields,
    #[serde(flatten, deserialize_with = "flattened")]
    guided: GuidedFields,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Completion<'a> {
    object: &'static str,
    id: &'a str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<CompletionChoice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<TokenUsage>,
}

#[derive(Debug, Serialize, ToSchema)]
struct CompletionChoice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    prompt_logprobs: Option<PromptLogprobs>,
}

/// Continues one or several prompts, at once or as a stream.
#[utoipa::path(post, path = "/v1/completions", tag = "OpenAI", request_body = CompletionRequest, responses((status = 200, description = "The answers, or chunks of them as a stream if `stream` is true", content((Completion<'_> = "application/json"), (inline(EventDescription) = "text/event-stream")))))]
pub(super) async fn completions(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<CompletionRequest>,
) -> Result<Response, OpenAiError> {
    let model = request.common.served_model(&app)?;
    let header = ResponseHeader::new("cmpl-", model.name);
    if request.rest.get("suffix").is_some_and(|suffix| !suffix.is_null() && suffix != "") {
        let message = "Suffix is not supported and can be achieved by preprocessing the prompt.";
        return Err(OpenAiError::invalid("suffix", message));
    }
    let mut ignored = IgnoredFields::default();
    check_rest(&request.rest, &mut ignored)?;
    let echo = request.echo.unwrap_or(false);
    let prompts = request.prompt.into_prompts(request.add_special_tokens);
    check_prompt_count(prompts.len(), app.service.limits().max_client_batch_size)?;
    let counts = counts(&app, &request.common, request.best_of, prompts.len())?;
    let echoed_logprobs = request.logprobs.filter(|_| echo);
    let mut params = request.common.params(request.logprobs.unwrap_or(0))?;
    params.adapter = model.adapter;
    params.grammar = request.guided.wanted(params.grammar.take())?;
    params.prompt_logprobs = request.prompt_logprobs.max(echoed_logprobs);
    params.thinking_budget = raw_budget(request.thinking_token_budget)?;
    params.echoes = echo || request.prompt_logprobs.is_some();
    check_stream(&request.common, &params, request.prompt_logprobs)?;
    let prepare = |prompt| async {
        let read = || {
            let characters = if let Prompt::Text(text, _) = &prompt { text.chars().count() } else { 0 };
            let echo = if echo { prompt_text(app.service.tokenizer(), &prompt) } else { String::new() };
            (characters, echo)
        };
        let (characters, echo) =
            app.service.in_turn_for(prompt.estimated_tokens() * BYTES_PER_TOKEN, read).await;
        let prepared = app.service.prepare(prompt, params.clone()).await?;
        Ok::<_, OpenAiError>((PreparedPrompt { prepared, characters }, echo))
    };
    // All prompts are validated before the first is computed.
    let prepared = stream::iter(prompts).map(prepare).buffered(concurrent_prompts(&app, 1));
    let prepared: Vec<(PreparedPrompt, String)> = prepared.try_collect().await?;
    let (prompts, echoes): (Vec<_>, Vec<_>) = prepared.into_iter().unzip();
    prompts.iter().for_each(|prompt| ignored.note_unenforced(&prompt.prepared));
    let wants_logprobs = request.logprobs.is_some();
    let wants_ids = request.common.return_token_ids.unwrap_or(false);
    let is_stream = request.common.streams();
    let renderer = CompletionRenderer {
        header,
        report: ReportOptions { every_token: wants_logprobs || wants_ids, ..request.common.report_options() },
        tokenizer: app.service.tokenizer().clone(),
        prompts: prompts.iter().map(|prompt| prompt.prepared.prompt().to_vec()).collect(),
        offsets: echoes
            .iter()
            .flat_map(|echo| std::iter::repeat_n(echo.chars().count(), counts.generated))
            .collect(),
        echoes,
        wants_logprobs,
        echoed_logprobs,
        wants_ids,
        prompt_top_n: request.prompt_logprobs,
    };
    let format = AnswerFormat::plain(&app.service);
    let pipeline = AnswerPipeline { prompts, counts, format, ignored, is_stream, renderer };
    Ok(pipeline.respond(&app).await?)
}

/// Refuses a request without prompts, and one with more prompts than `most`.
fn check_prompt_count(given: usize, most: usize) -> Result<(), OpenAiError> {
    if given > most {
        let message = format!(
            "Number of prompts exceeds the maximum allowed batch size of {most} (--max-client-batch-size). Given: {given}"
        );
        return Err(OpenAiError::invalid("prompt", message));
    }
    if given == 0 {
        return Err(OpenAiError::invalid("prompt", "`prompt` cannot be empty"));
    }
    Ok(())
}

/// Returns how many answers are generated and sent, if `n` and `best_of` allow it.
fn counts(
    app: &App,
    common: &GenerationFields,
    best_of: Option<usize>,
    prompts: usize,
) -> Result<AnswerCounts, OpenAiError> {
    let streams = common.streams();
    let answers = best_of.unwrap_or(1).max(common.n.unwrap_or(1));
    // All answers of a stream are computed at the same time.
    let concurrent_prompts = if streams { prompts } else { concurrent_prompts(app, answers).min(prompts) };
    let n = common.choices(app, concurrent_prompts)?;
    let best_of = best_of.unwrap_or(n);
    if best_of < n {
        let message = format!("`best_of` must be >= `n` ({n}). Given: {best_of}");
        return Err(OpenAiError::invalid("best_of", message));
    }
    if best_of > n {
        check_answers(app, "best_of", best_of, concurrent_prompts)?;
    }
    if streams && best_of != n {
        let message = "`best_of` != `n` is not supported when streaming tokens";
        return Err(OpenAiError::invalid("best_of", message));
    }
    Ok(AnswerCounts { sent: n, generated: best_of, concurrent_prompts })
}

/// Refuses the options that a stream cannot have.
fn check_stream(
    common: &GenerationFields,
    params: &Params,
    prompt_logprobs: Option<u32>,
) -> Result<(), OpenAiError> {
    if !common.streams() {
        return Ok(());
    }
    if prompt_logprobs.is_some() {
        let message = "`prompt_logprobs` is not supported when streaming tokens";
        return Err(OpenAiError::invalid("prompt_logprobs", message));
    }
    if params.max_new_tokens == Some(0) {
        let message = "`max_tokens` must be > 0 when streaming tokens";
        return Err(OpenAiError::invalid("max_tokens", message));
    }
    Ok(())
}

/// Writes the objects of `/v1/completions`.
struct CompletionRenderer {
    header: ResponseHeader,
    report: ReportOptions,
    tokenizer: Tokenizer,
    /// The tokens of each prompt.
    prompts: Vec<Vec<u32>>,
    /// The text with which the answers to each prompt begin: the prompt itself if `echo` asks for
    /// it.
    echoes: Vec<String>,
    /// Characters of each answer of a stream that have been sent, `echoes` included.
    offsets: Vec<usize>,
    wants_logprobs: bool,
    /// The alternatives to report for each token of the prompt, if the prompt is part of the text
    /// and log-probabilities were asked for.
    echoed_logprobs: Option<u32>,
    wants_ids: bool,
    /// The alternatives to report for each token of the prompt, if they were asked for.
    prompt_top_n: Option<u32>,
}

impl CompletionRenderer {
    fn complete_choice(&self, CompleteAnswer { progress, answer }: CompleteAnswer) -> CompletionChoice {
        let (prompt, echo) = (&self.prompts[progress.prompt_index], &self.echoes[progress.prompt_index]);
        let logprobs = |top_n| prompt_logprobs(&self.tokenizer, prompt, &answer.prompt, top_n);
        CompletionChoice {
            index: progress.index,
            logprobs: self.logprobs(Some((prompt, &answer.prompt)), &answer.tokens, echo.chars().count()),
            finish_reason: Some(finish_reason(answer.finished.reason)),
            prompt_token_ids: self.wants_ids.then(|| prompt.clone()),
            token_ids: self.wants_ids.then(|| answer.tokens.iter().map(|event| event.token.id).collect()),
            prompt_logprobs: self.prompt_top_n.map(logprobs),
            text: format!("{echo}{}", answer.finished.text),
        }
    }

    fn completion(&self, choices: Vec<CompletionChoice>, usage: Option<TokenUsage>) -> Completion<'_> {
        Completion {
            object: "text_completion",
            id: &self.header.id,
            created: self.header.created,
            model: &self.header.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
        }
    }

    /// Returns the log-probabilities of generated tokens if they were asked for. Those of `prompt`,
    /// its tokens and what the model reports about them, come first if `echo` asks for them.
    /// `offset` is the number of characters of the text before the first generated token.
    fn logprobs(
        &self,
        prompt: Option<(&[u32], &[PromptToken])>,
        events: &[TextEvent],
        offset: usize,
    ) -> Option<CompletionLogprobs> {
        if !self.wants_logprobs {
            return None;
        }
        let mut logprobs = match (prompt, self.echoed_logprobs) {
            (Some((ids, tokens)), Some(top_n)) => {
                CompletionLogprobs::of_prompt(&self.tokenizer, ids, tokens, top_n)
            }
            _ => CompletionLogprobs::default(),
        };
        logprobs.add(&self.tokenizer, events, offset);
        Some(logprobs)
    }
}

impl Renderer for CompletionRenderer {
    fn body(self, answers: Vec<CompleteAnswer>, counts: TokenCounts) -> Response {
        let choices = answers.into_iter().map(|answer| self.complete_choice(answer)).collect();
        Json(self.completion(choices, Some(TokenUsage::new(counts, None)))).into_response()
    }

    /// The first event of an answer may have the prompt: as text, as tokens, or as scores.
    fn event_bytes(&self, answer: &AnswerProgress, event: &TextEvent) -> usize {
        if answer.counts.generated > 0 {
            return 0;
        }
        let tokens = if self.wants_ids { self.prompts[answer.prompt_index].len() } else { 0 };
        let prompt = self.echoes[answer.prompt_index].len() + tokens * offload::TOKEN_BYTES;
        prompt + offload::prompt_bytes(&event.prompt)
    }

    fn event(&mut self, answer: &AnswerProgress, event: AnswerEvent<'_>, to: &mut Events) {
        let event = event.generated;
        let is_first = answer.counts.generated == 1;
        let echo = if is_first { self.echoes[answer.prompt_index].as_str() } else { "" };
        let is_last = event.finished.is_some();
        if echo.is_empty() && event.text.is_empty() && !is_last && !self.report.every_token {
            return;
        }
        let offset = self.offsets[answer.index];
        self.offsets[answer.index] += event.text.chars().count();
        let prompt = is_first.then(|| self.prompts[answer.prompt_index].as_slice());
        let logprobs_of = prompt.map(|ids| (ids, event.prompt.as_slice()));
        let choice = CompletionChoice {
            index: answer.index,
            logprobs: self.logprobs(logprobs_of, std::slice::from_ref(event), offset),
            finish_reason: event.finished.as_ref().map(|finished| finish_reason(finished.reason)),
            prompt_token_ids: prompt.filter(|_| self.wants_ids).map(<[u32]>::to_vec),
            token_ids: self.wants_ids.then(|| vec![event.token.id]),
            prompt_logprobs: None,
            text: format!("{echo}{}", event.text),
        };
        // As in TGI, the last token has the usage if no chunk of its own has it.
        let usage = (is_last && !self.report.usage).then(|| answer_usage(answer));
        to.json(&self.completion(vec![choice], usage.or_else(|| self.report.chunk_usage(answer))));
    }

    fn error(&mut self, error: ServiceError, to: &mut Events) {
        OpenAiError::from(error).write(to);
    }

    fn end(&mut self, answers: &[AnswerProgress], to: &mut Events) {
        if let Some(usage) = self.report.total_usage(answers) {
            to.json(&self.completion(Vec::new(), Some(usage)));
        }
        to.line(STREAM_END);
    }
}
