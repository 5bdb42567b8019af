//! The pipeline that `/v1/chat/completions` and `/v1/completions` share.
//!
//! A route validates its request and prepares its prompts. The pipeline starts the answers, follows
//! them, counts tokens, and sends the response at once or as a stream. A [`Renderer`] writes the
//! objects of the route.

use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryStreamExt, stream};

use super::error::OpenAiError;
use super::types::{ResponseHeader, TokenUsage};
use crate::chat::IgnoredFields;
use crate::http::app::App;
use crate::http::{headers, offload, sse};
use crate::service::{Answer, Prepared, Service, ServiceError, TextEvent};

/// One of the prompts of a request, ready to be answered.
pub(super) struct PreparedPrompt {
    pub(super) prepared: Prepared,
    /// The text that every answer begins with: the prompt itself if `echo` asks for it.
    pub(super) echo: String,
    /// Characters of the prompt; 0 if it was given as tokens.
    pub(super) characters: usize,
}

/// A request whose prompts are ready to be answered.
pub(super) struct AnswerPipeline<R> {
    pub(super) header: ResponseHeader,
    /// The prompts; never empty.
    pub(super) prompts: Vec<PreparedPrompt>,
    pub(super) counts: AnswerCounts,
    pub(super) report: ReportOptions,
    pub(super) ignored: IgnoredFields,
    pub(super) renderer: R,
}

/// The numbers of answers that are computed and sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerCounts {
    /// Answers that are sent for each prompt.
    pub(super) sent: usize,
    /// Answers that are generated for each prompt, of which the most likely are sent. A stream
    /// sends all of them.
    pub(super) generated: usize,
    /// Prompts that are computed at the same time.
    pub(super) concurrent_prompts: usize,
}

/// The parts of a response that a request asks for beside the text.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReportOptions {
    /// Whether the response is a stream.
    pub(super) stream: bool,
    /// Whether a stream ends with a chunk that has the usage.
    pub(super) usage: bool,
    /// Whether each chunk of a stream has the usage so far.
    pub(super) continuous_usage: bool,
    /// Whether each token is reported even if it has no text: its id or its log-probability.
    pub(super) every_token: bool,
}

/// The complete answers to one prompt.
pub(super) struct PromptAnswers {
    /// The tokens of the prompt.
    pub(super) prompt: Vec<u32>,
    /// The text that every answer begins with.
    pub(super) echo: String,
    pub(super) answers: Vec<Answer>,
}

/// One answer of a stream, as far as it has been sent.
#[derive(Debug)]
pub(super) struct StreamedAnswer {
    /// The place of the answer among all answers of the response.
    pub(super) index: usize,
    /// The tokens of its prompt, until the first choice has been sent.
    pub(super) prompt: Option<Vec<u32>>,
    /// The text that the answer begins with, until it has been sent.
    pub(super) echo: String,
    /// Characters sent so far, `echo` included.
    pub(super) characters: usize,
    /// The place of its prompt in the request.
    prompt_index: usize,
    prompt_tokens: usize,
    cached_tokens: usize,
    generated_tokens: usize,
    /// Tokens of the reasoning so far, if it is separated from the answer.
    pub(super) reasoning_tokens: Option<usize>,
}

/// Writes the objects of a route.
pub(super) trait Renderer: Send + Unpin + 'static {
    /// A choice of a chunk: what a token adds to an answer.
    type ChunkChoice;

    /// Whether the last chunk of an answer has the usage of the answer if no chunk of its own has
    /// it.
    const USAGE_WITH_LAST_TOKEN: bool;

    /// Returns the response body with all answers.
    fn body(self, header: ResponseHeader, prompts: Vec<PromptAnswers>, usage: TokenUsage) -> Response;

    /// Returns what a token adds to an answer. `None` if it adds neither text nor a call; a token
    /// for which `is_reported` is true always adds something.
    fn choice(
        &mut self,
        answer: &mut StreamedAnswer,
        event: TextEvent,
        is_reported: bool,
    ) -> Option<Self::ChunkChoice>;

    /// Writes a chunk with one choice, or the chunk without a choice that has the usage.
    fn chunk(
        &mut self,
        header: &ResponseHeader,
        choice: Option<Self::ChunkChoice>,
        usage: Option<TokenUsage>,
        to: &mut sse::Events,
    );
}

impl<R: Renderer> AnswerPipeline<R> {
    /// Answers the request, at once or as a stream.
    pub(super) async fn respond(self, app: &App) -> Result<Response, OpenAiError> {
        if self.report.stream { self.stream(app).await } else { self.complete(app).await }
    }

    fn characters(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.characters).sum()
    }

    /// Sends the best answers to each prompt, in the order of the prompts.
    async fn complete(self, app: &App) -> Result<Response, OpenAiError> {
        let characters = self.characters();
        let AnswerPipeline { header, prompts, counts, ignored, renderer, .. } = self;
        let answer = |PreparedPrompt { prepared, echo, .. }: PreparedPrompt| async move {
            let streams = app.service.start_several(&prepared, counts.generated)?;
            let answers = Service::collect(streams).await?;
            Ok::<_, OpenAiError>(PromptAnswers { prompt: prepared.prompt().to_vec(), echo, answers })
        };
        let answers = stream::iter(prompts).map(answer).buffered(counts.concurrent_prompts);
        let mut prompts: Vec<PromptAnswers> = answers.try_collect().await?;
        let prompt_tokens = prompts.iter().map(|prompt| prompt.prompt.len()).sum();
        let all = prompts.iter().flat_map(|prompt| &prompt.answers);
        let mut headers = headers::after(app, characters, &ignored, prompt_tokens, all);
        let usages = prompts.iter().map(|p| TokenUsage::of_answers(p.prompt.len(), &p.answers));
        let usage: TokenUsage = usages.sum();
        headers.insert(sse::CACHED_TOKENS, usage.cached_tokens().into());
        prompts.iter_mut().for_each(|prompt| prompt.keep_best(counts.sent));
        let bytes = prompts.iter().map(|prompt| offload::bytes(&prompt.answers)).sum();
        let body = app.service.in_turn_for(bytes, move || renderer.body(header, prompts, usage));
        Ok((headers, body.await).into_response())
    }

    /// Streams the answers to all prompts.
    async fn stream(self, app: &App) -> Result<Response, OpenAiError> {
        let headers = headers::before(app, self.characters(), &self.ignored);
        let AnswerPipeline { header, prompts, counts, report, renderer, .. } = self;
        let (mut streams, mut answers) = (Vec::new(), Vec::new());
        for (prompt_index, PreparedPrompt { prepared, echo, .. }) in prompts.into_iter().enumerate() {
            for stream in app.service.start_several(&prepared, counts.generated)? {
                answers.push(StreamedAnswer {
                    index: answers.len(),
                    prompt: Some(prepared.prompt().to_vec()),
                    characters: echo.chars().count(),
                    echo: echo.clone(),
                    prompt_index,
                    prompt_tokens: prepared.prompt().len(),
                    cached_tokens: 0,
                    generated_tokens: 0,
                    reasoning_tokens: None,
                });
                streams.push(stream);
            }
        }
        sse::begin(&mut streams).await?;
        let cached: Vec<Option<usize>> = streams.iter().map(|stream| stream.cached_tokens()).collect();
        for (answer, cached) in answers.iter_mut().zip(&cached) {
            answer.cached_tokens = cached.unwrap_or(0);
        }
        let firsts = first_answers(&answers).map(|first| cached[first.index]);
        let cached_tokens = firsts.sum();
        let writer = GenerationWriter { header, answers, report, renderer };
        Ok((headers, sse::response(app, streams, cached_tokens, writer)).into_response())
    }
}

/// The first answer to each prompt, for which the prompt was computed.
fn first_answers(answers: &[StreamedAnswer]) -> impl Iterator<Item = &StreamedAnswer> {
    answers.chunk_by(|a, b| a.prompt_index == b.prompt_index).filter_map(|answers| answers.first())
}

impl PromptAnswers {
    /// Keeps the `count` most likely answers, the best first; all of them in their order if there
    /// are no more.
    fn keep_best(&mut self, count: usize) {
        if self.answers.len() > count {
            self.answers.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
            self.answers.truncate(count);
        }
    }
}

/// Writes the events of a stream.
struct GenerationWriter<R> {
    header: ResponseHeader,
    answers: Vec<StreamedAnswer>,
    report: ReportOptions,
    renderer: R,
}

impl<R: Renderer> sse::Write for GenerationWriter<R> {
    /// The first event of an answer may have the prompt: as text, as tokens, or as scores.
    fn event_bytes(&self, index: usize, event: &TextEvent) -> usize {
        let Some(answer) = self.answers.get(index) else { return 0 };
        let prompt = answer.prompt.as_ref().filter(|_| self.report.every_token);
        let tokens = prompt.map_or(0, |prompt| prompt.len() * offload::TOKEN_BYTES);
        answer.echo.len() + tokens + offload::prompt_bytes(&event.prompt)
    }

    fn event(&mut self, index: usize, event: TextEvent, to: &mut sse::Events) {
        let Some(answer) = self.answers.get_mut(index) else { return };
        answer.generated_tokens += 1;
        if let Some(finished) = &event.finished {
            answer.cached_tokens = finished.cached_tokens;
        }
        let is_last = event.finished.is_some();
        let is_reported = is_last || self.report.every_token;
        let Some(choice) = self.renderer.choice(answer, event, is_reported) else { return };
        answer.prompt = None;
        let has_usage = if self.report.usage {
            self.report.continuous_usage
        } else {
            is_last && R::USAGE_WITH_LAST_TOKEN
        };
        let usage = TokenUsage::new(answer.prompt_tokens, answer.cached_tokens, answer.generated_tokens)
            .with_reasoning(answer.reasoning_tokens);
        self.renderer.chunk(&self.header, Some(choice), has_usage.then_some(usage), to);
    }

    fn error(&mut self, error: ServiceError, to: &mut sse::Events) {
        OpenAiError::from(error).write(to);
        to.line("[DONE]");
    }

    fn end(&mut self, to: &mut sse::Events) {
        if self.report.usage {
            let generated = self.answers.iter().map(|answer| answer.generated_tokens).sum();
            // A prompt counts once, since it is computed for its first answer.
            let prompts = first_answers(&self.answers)
                .map(|first| TokenUsage::new(first.prompt_tokens, first.cached_tokens, 0));
            let usage: TokenUsage = prompts.chain([TokenUsage::new(0, 0, generated)]).sum();
            let reasoning = self.answers.iter().map(|answer| answer.reasoning_tokens).sum();
            self.renderer.chunk(&self.header, None, Some(usage.with_reasoning(reasoning)), to);
        }
        to.line("[DONE]");
    }
}
