//! The answer to a request as it is generated.

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ::metrics::Histogram;

use super::context::{RequestContext, Sizes};
use super::{Answer, Prepared, ServiceError};
use crate::engine::{Event, Finish, Generation, PromptToken, Started, Token};
use crate::metrics;
use crate::text::{Detokenizer, StopMatcher, StopText, Tokenizer};

/// A token with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextToken {
    /// Its id.
    pub id: u32,
    /// Its text.
    pub text: String,
    /// Its log-probability.
    pub logprob: f32,
    /// Whether it is a mark that is no part of the answer.
    pub special: bool,
}

/// A generated token and what it adds to the answer.
#[derive(Debug, Clone, PartialEq)]
pub struct TextEvent {
    /// With the first token what the model makes of the prompt's, from the second one on, if that was asked for.
    pub prompt: Vec<PromptToken>,
    /// The token. Its text is what it adds, or the mark's own text if it is special.
    pub token: TextToken,
    /// The most likely tokens at its place, each with its text by itself.
    pub top: Vec<TextToken>,
    /// What can be shown now; nothing that was shown is ever taken back.
    pub text: String,
    /// Set with the last token.
    pub finished: Option<Finished>,
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// As many tokens as asked for.
    Length,
    /// The model ended it.
    EosToken,
    /// A stop string was found.
    StopSequence,
}

/// A complete answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Why it ended.
    pub reason: FinishReason,
    /// The stop string that ended it.
    pub stop: Option<String>,
    /// The whole text.
    pub text: String,
    /// How many tokens were generated, the ending one included.
    pub generated_tokens: u32,
    /// Tokens of the prompt that did not have to be computed.
    pub cached_tokens: usize,
    /// Where the time went.
    pub timings: Timings,
}

/// Where the time of a request went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// From its arrival to its end.
    pub total: Duration,
    /// Until it was tokens.
    pub validation: Duration,
    /// Waiting for a place in a step.
    pub queue: Duration,
    /// From there to the last token.
    pub inference: Duration,
}

impl Timings {
    /// The mean time per token.
    pub fn per_token(&self, tokens: u32) -> Duration {
        self.inference / tokens.max(1)
    }
}

/// The answer to a request as it is generated. Dropping it cancels the request within a step.
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    eos: Arc<[u32]>,
    prepared: Prepared,
    /// Given up with the last token, which cancels what the engine still does.
    generation: Option<Generation>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    text: String,
    /// What has come of the prompt and was not passed on.
    prompt: Vec<PromptToken>,
    /// What the prompt has become.
    vector: Vec<f32>,
    /// Set when it has ended without a token.
    finished: Option<Finished>,
    generated: u32,
    started: Option<Started>,
    last_token: Option<Instant>,
    /// From the request's arrival.
    first_token: Duration,
    logs_text: bool,
    inter_token: Histogram,
}

impl TextStream {
    pub(super) fn new(
        tokenizer: Tokenizer,
        eos: Arc<[u32]>,
        mut prepared: Prepared,
        generation: Generation,
    ) -> Self {
        let continues = prepared.prompt().iter().any(|&id| !tokenizer.is_special(id));
        TextStream {
            detokenizer: tokenizer.detokenizer(true, continues).showing(prepared.params.marks.clone()),
            stops: StopMatcher::new(mem::take(&mut prepared.stops), prepared.params.stop_text),
            tokenizer,
            eos,
            prepared,
            generation: Some(generation),
            text: String::new(),
            prompt: Vec::new(),
            vector: Vec::new(),
            finished: None,
            generated: 0,
            started: None,
            last_token: None,
            first_token: Duration::ZERO,
            logs_text: false,
            inter_token: metrics::inter_token(),
        }
    }

    /// Whether the answer is written to the log when it is complete.
    pub(super) fn logs_text(&mut self, logs_text: bool) {
        self.logs_text = logs_text;
    }

    /// The request that is answered.
    pub fn request(&self) -> &Prepared {
        &self.prepared
    }

    /// The next token; `None` after the last one or an error.
    pub async fn next(&mut self) -> Option<Result<TextEvent, ServiceError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// As [`next`](Self::next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<TextEvent, ServiceError>>> {
        while let Some(generation) = &mut self.generation {
            match ready!(generation.poll_next(context)) {
                Some(Event::Started(started)) => self.started = Some(started),
                Some(Event::Prompt(tokens, finish)) => {
                    self.prompt.extend(tokens);
                    if finish.is_some() {
                        return self.end_of_prompt();
                    }
                }
                Some(Event::Vector(values)) => {
                    self.vector = values;
                    return self.end_of_prompt();
                }
                Some(Event::Token(token, finish)) => return Poll::Ready(Some(Ok(self.token(token, finish)))),
                Some(Event::Failed(failure)) => return Poll::Ready(Some(Err(self.end(failure.into())))),
                None => return Poll::Ready(Some(Err(self.end(ServiceError::Incomplete)))),
            }
        }
        Poll::Ready(None)
    }

    /// Waits until the request has left the queue, but not longer than `patience`.
    ///
    /// # Errors
    /// [`ServiceError::Unavailable`] if it will not.
    pub async fn begin(&mut self, patience: Duration) -> Result<(), ServiceError> {
        let Some(generation) = &mut self.generation else { return Ok(()) };
        match tokio::time::timeout(patience, generation.next()).await {
            Ok(Some(Event::Started(started))) => self.started = Some(started),
            Ok(Some(Event::Failed(failure))) => return Err(self.end(failure.into())),
            Ok(None) => return Err(self.end(ServiceError::Incomplete)),
            // Cannot be: nothing comes before the start. It would be lost here, so say so.
            Ok(Some(Event::Prompt(..) | Event::Vector(_) | Event::Token(..))) => {
                return Err(self.end(ServiceError::Incomplete));
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Tokens of the prompt that did not have to be computed; `None` until the request has left the queue.
    pub fn cached_tokens(&self) -> Option<usize> {
        self.started.map(|started| started.cached_tokens)
    }

    /// The prompt has been computed, and that is all.
    fn end_of_prompt(&mut self) -> Poll<Option<Result<TextEvent, ServiceError>>> {
        self.first_token = self.prepared.received.elapsed();
        self.finished = Some(self.finish(FinishReason::Length, None));
        Poll::Ready(None)
    }

    fn end(&mut self, error: ServiceError) -> ServiceError {
        self.generation = None;
        self.failed(error.kind());
        error
    }

    /// The whole answer.
    ///
    /// # Errors
    /// [`ServiceError`] if the engine breaks off.
    pub async fn collect(mut self) -> Result<Answer, ServiceError> {
        let (mut prompt, mut tokens) = (Vec::new(), Vec::new());
        while let Some(event) = self.next().await {
            let mut event = event?;
            prompt.append(&mut event.prompt);
            let finished = event.finished.clone();
            tokens.push(event);
            if let Some(finished) = finished {
                let vector = Vec::new();
                return Ok(Answer { seed: self.prepared.seed, prompt, tokens, vector, finished });
            }
        }
        let finished = self.finished.take().ok_or(ServiceError::Incomplete)?;
        let (prompt, vector) = (mem::take(&mut self.prompt), mem::take(&mut self.vector));
        Ok(Answer { seed: self.prepared.seed, prompt, tokens, vector, finished })
    }

    fn token(&mut self, token: Token, finish: Option<Finish>) -> TextEvent {
        self.generated += 1;
        self.time_token();
        let special = self.tokenizer.is_special(token.id);
        // Some models do not declare their end token special; its text is no part of the answer either.
        let ends = matches!(finish, Some(Finish::StopToken)) && self.eos.contains(&token.id);
        let decoded = if ends && !special { String::new() } else { self.detokenizer.push(token.id) };
        // What comes before the answer may end cannot be the beginning of its end.
        let early = self.generated <= self.prepared.params.min_new_tokens;
        let mut text = if early { decoded } else { self.stops.push(&decoded) };
        if finish.is_some() && !self.stops.stopped() {
            let rest = self.detokenizer.finish();
            text += &self.stops.push(&rest);
            text += &self.stops.finish();
        }
        self.text += &text;
        let reason = self.reason(token.id, finish);
        let shown = if special { self.tokenizer.token_text(token.id) } else { text.clone() };
        let top = token.top.iter().map(|&(id, logprob)| self.alternative(id, logprob)).collect();
        TextEvent {
            prompt: mem::take(&mut self.prompt),
            token: TextToken { id: token.id, text: shown, logprob: token.logprob, special },
            top,
            text,
            finished: reason.map(|reason| self.finish(reason, Some(token.id))),
        }
    }

    fn reason(&self, id: u32, finish: Option<Finish>) -> Option<FinishReason> {
        let keeps = self.prepared.params.stop_text == StopText::Keep;
        match finish {
            // As in TGI, whose users see the stop string; elsewhere it is gone, and that needs its reason.
            Some(Finish::Length) if keeps || !self.stops.stopped() => Some(FinishReason::Length),
            _ if self.stops.stopped() => Some(FinishReason::StopSequence),
            Some(Finish::StopToken) if self.eos.contains(&id) => Some(FinishReason::EosToken),
            Some(_) => Some(FinishReason::StopSequence),
            None => None,
        }
    }

    fn alternative(&self, id: u32, logprob: f32) -> TextToken {
        let special = self.tokenizer.is_special(id);
        TextToken { id, text: self.tokenizer.token_text(id), logprob, special }
    }

    fn time_token(&mut self) {
        let now = Instant::now();
        match self.last_token.replace(now) {
            None => {
                self.first_token = now - self.prepared.received;
                metrics::first_token(self.first_token);
            }
            Some(last) => self.inter_token.record(now - last),
        }
    }

    fn finish(&mut self, reason: FinishReason, last: Option<u32>) -> Finished {
        self.generation = None;
        let total = self.prepared.received.elapsed();
        let (validation, started) = (self.prepared.validation, self.started.unwrap_or_default());
        let queue = started.queued;
        let inference = total.saturating_sub(validation + queue);
        let timings = Timings { total, validation, queue, inference };
        if self.prepared.counted {
            metrics::request_succeeded(&timings, self.generated, started.cached_tokens);
        }
        let text = mem::take(&mut self.text);
        if let Some(context) = &self.prepared.context {
            let sizes = Sizes {
                prompt: self.prepared.prompt().len(),
                cached: started.cached_tokens,
                generated: self.generated,
            };
            context.phases(&timings, self.first_token, sizes);
        }
        if self.logs_text {
            let request_id = self.prepared.context.as_deref().map(RequestContext::id);
            tracing::info!(request_id, text, "answer");
        }
        // A stop string that is a special token is no text.
        let token = || last.and_then(|last| self.tokenizer.vocabulary_text(last));
        let stop = match reason {
            FinishReason::StopSequence => self.stops.found().map(str::to_owned).or_else(token),
            FinishReason::Length | FinishReason::EosToken => None,
        };
        Finished {
            reason,
            stop,
            text,
            generated_tokens: self.generated,
            cached_tokens: started.cached_tokens,
            timings,
        }
    }

    fn failed(&self, err: &'static str) {
        if let Some(context) = &self.prepared.context {
            context.failed(err);
        }
        if self.prepared.counted {
            metrics::request_failed(err);
        }
    }
}

impl Drop for TextStream {
    fn drop(&mut self) {
        if self.generation.is_some() {
            self.failed("dropped");
        }
    }
}
