//! The pipeline that answers the requests of all APIs that generate text.
//!
//! A route validates its request, prepares its prompts and creates a [`Renderer`]. The pipeline
//! submits the prompts to the engine, reads reasoning and tool calls out of the generated text,
//! counts tokens, and sends the response at once or as a stream. The renderer alone knows the
//! objects of its API:
//!
//! ```text
//! route ─► AnswerPipeline ─service─► TextEvent ─AnswerReader─► AnswerEvent ─Renderer─► bytes
//! ```

mod event_stream;
mod renderer;

use axum::response::{IntoResponse, Response};
use futures::{StreamExt, TryStreamExt, stream};

use self::event_stream::AnswerStreams;
use self::renderer::first_answers;
pub(super) use self::renderer::{AnswerProgress, CompleteAnswer, Renderer, total_counts};
use super::app::App;
use super::{headers, offload};
use crate::chat::{AnswerFormat, IgnoredFields, PreparedChat};
use crate::service::{Answer, Prepared, Service, ServiceError, TokenCounts};

/// A request whose prompts are ready to be answered.
pub(super) struct AnswerPipeline<R> {
    /// The prompts; never empty.
    pub(super) prompts: Vec<PreparedPrompt>,
    pub(super) counts: AnswerCounts,
    /// The form in which the answers contain reasoning and tool calls.
    pub(super) format: AnswerFormat,
    pub(super) ignored: IgnoredFields,
    /// Whether the response is a stream.
    pub(super) is_stream: bool,
    pub(super) renderer: R,
}

/// A prompt of a request.
pub(super) struct PreparedPrompt {
    pub(super) prepared: Prepared,
    /// Characters of the prompt; 0 if it was given as tokens.
    pub(super) characters: usize,
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

impl AnswerCounts {
    /// So many answers to one prompt, all of which are sent.
    pub(super) fn all(answers: usize) -> Self {
        AnswerCounts { sent: answers, generated: answers, concurrent_prompts: 1 }
    }
}

impl<R: Renderer> AnswerPipeline<R> {
    /// The pipeline of a conversation.
    pub(super) fn for_chat(chat: PreparedChat, answers: usize, is_stream: bool, renderer: R) -> Self {
        let PreparedChat { prepared, format, characters, ignored } = chat;
        AnswerPipeline {
            prompts: vec![PreparedPrompt { prepared, characters }],
            counts: AnswerCounts::all(answers),
            format,
            ignored,
            is_stream,
            renderer,
        }
    }

    /// Answers the request, at once or as a stream.
    ///
    /// # Errors
    /// The first [`ServiceError`] of any answer, before the response has begun.
    pub(super) async fn respond(self, app: &App) -> Result<Response, ServiceError> {
        if self.is_stream { self.stream(app).await } else { self.complete(app).await }
    }

    fn characters(&self) -> usize {
        self.prompts.iter().map(|prompt| prompt.characters).sum()
    }

    /// Sends the best answers to each prompt, in the order of the prompts.
    async fn complete(self, app: &App) -> Result<Response, ServiceError> {
        let characters = self.characters();
        let AnswerPipeline { prompts, counts, format, ignored, renderer, .. } = self;
        let format = &format;
        let answer = |(prompt_index, PreparedPrompt { prepared, .. }): (usize, PreparedPrompt)| async move {
            let streams = app.service.start_several(&prepared, counts.generated)?;
            let answers = Service::collect(streams).await?;
            let complete = |answer: Answer| CompleteAnswer {
                progress: AnswerProgress {
                    index: 0,
                    prompt_index,
                    counts: TokenCounts {
                        prompt: prepared.prompt().len(),
                        cached: answer.finished.cached_tokens,
                        generated: answer.finished.generated_tokens,
                        drafts: answer.finished.drafts,
                    },
                    reader: format.reader(),
                },
                answer,
            };
            Ok::<Vec<CompleteAnswer>, ServiceError>(answers.into_iter().map(complete).collect())
        };
        let answers = stream::iter(prompts.into_iter().enumerate()).map(answer);
        let mut prompts: Vec<Vec<CompleteAnswer>> =
            answers.buffered(counts.concurrent_prompts).try_collect().await?;
        let all = || prompts.iter().flatten();
        let total = total_counts(all().map(|answer| &answer.progress));
        let finished = all().map(|answer| &answer.answer.finished);
        let headers = headers::after(headers::before(app, characters, &ignored), total, finished);
        prompts.iter_mut().for_each(|answers| keep_best(answers, counts.sent));
        let mut answers: Vec<CompleteAnswer> = prompts.into_iter().flatten().collect();
        answers.iter_mut().enumerate().for_each(|(index, answer)| answer.progress.index = index);
        let bytes = answers.iter().map(|answer| offload::answer_bytes(&answer.answer)).sum();
        let body = app.service.in_turn_for(bytes, move || renderer.body(answers, total));
        Ok((headers, body.await).into_response())
    }

    /// Streams the answers to all prompts.
    async fn stream(self, app: &App) -> Result<Response, ServiceError> {
        let headers = headers::before(app, self.characters(), &self.ignored);
        let AnswerPipeline { prompts, counts, format, renderer, .. } = self;
        let (mut streams, mut answers) = (Vec::new(), Vec::new());
        for (prompt_index, PreparedPrompt { prepared, .. }) in prompts.into_iter().enumerate() {
            for stream in app.service.start_several(&prepared, counts.generated)? {
                answers.push(AnswerProgress {
                    index: answers.len(),
                    prompt_index,
                    counts: TokenCounts { prompt: prepared.prompt().len(), ..TokenCounts::default() },
                    reader: format.reader(),
                });
                streams.push(stream);
            }
        }
        event_stream::wait_for_start(&mut streams).await?;
        for (answer, stream) in answers.iter_mut().zip(&streams) {
            answer.counts.cached = stream.cached_tokens().unwrap_or(0);
        }
        // The header is left out if the number is not known for all prompts.
        let are_known = first_answers(&answers).all(|first| streams[first.index].cached_tokens().is_some());
        let cached_tokens = are_known.then(|| total_counts(&answers).cached);
        let response =
            event_stream::response(app, AnswerStreams { streams, answers, cached_tokens }, renderer);
        Ok((headers, response).into_response())
    }
}

/// Keeps the `count` most likely answers, the best first; all of them in their order if there are
/// no more.
fn keep_best(answers: &mut Vec<CompleteAnswer>, count: usize) {
    if answers.len() > count {
        answers.sort_by(|a, b| b.answer.mean_logprob().total_cmp(&a.answer.mean_logprob()));
        answers.truncate(count);
    }
}
