//! The text of an answer while it is generated.

use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use ::metrics::Histogram;
use millrace_answers::reasoning::ReasoningGate;
use millrace_scheduler::DraftCounts;
use millrace_text::{Detokenizer, StopMatcher, StopText, Tokenizer};

use super::answer::{Answer, FinishReason, Finished, TextEvent, TextToken};
use super::context::{AnswerFigures, RequestContext, TokenCounts};
use super::error::ServiceError;
use super::prepared::Prepared;
use crate::engine::{Finish, GeneratedToken, Generation, GenerationEvent, GenerationStart, PromptToken};
use crate::metrics::{self, Timings};

/// An answer while it is generated. Dropping it cancels the request at once.
#[derive(Debug)]
pub struct TextStream {
    tokenizer: Tokenizer,
    eos: Arc<[u32]>,
    prepared: Prepared,
    /// Dropped with the last token, which cancels the request in the engine.
    generation: Option<Generation>,
    detokenizer: Detokenizer,
    stops: StopMatcher,
    /// Set until the answer after the reasoning begins, if there are stop strings.
    reasoning: Option<ReasoningGate>,
    text: String,
    /// Scores of the prompt that have not been returned.
    prompt: Vec<PromptToken>,
    /// The vector of the prompt.
    vector: Vec<f32>,
    /// Set when the answer has ended without a token.
    finished: Option<Finished>,
    generated: u32,
    /// Guesses of generated tokens.
    drafts: DraftCounts,
    started: Option<GenerationStart>,
    last_token: Option<Instant>,
    /// Time from the request's arrival to its first token.
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
        let reasoning = prepared.params.reasoning.filter(|_| !prepared.stops.is_empty());
        TextStream {
            reasoning: reasoning.map(|(marks, start)| ReasoningGate::new(marks, start)),
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
            drafts: DraftCounts::default(),
            started: None,
            last_token: None,
            first_token: Duration::ZERO,
            logs_text: false,
            inter_token: metrics::inter_token(),
        }
    }

    /// Sets whether the answer is logged when it is complete.
    pub(super) fn logs_text(&mut self, logs_text: bool) {
        self.logs_text = logs_text;
    }

    /// The request.
    pub fn request(&self) -> &Prepared {
        &self.prepared
    }

    /// Waits for the next token. Returns `None` after the last token or an error.
    pub async fn next(&mut self) -> Option<Result<TextEvent, ServiceError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Polls for the result of [`next`](Self::next).
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<TextEvent, ServiceError>>> {
        while let Some(generation) = &mut self.generation {
            match ready!(generation.poll_next(context)) {
                Some(GenerationEvent::Started(started)) => self.started = Some(started),
                Some(GenerationEvent::Prompt(tokens, finish)) => {
                    self.prompt.extend(tokens);
                    if finish.is_some() {
                        return self.end_of_prompt();
                    }
                }
                Some(GenerationEvent::Vector(values)) => {
                    self.vector = values;
                    return self.end_of_prompt();
                }
                Some(GenerationEvent::Token(token, finish)) => {
                    return Poll::Ready(Some(Ok(self.token(token, finish))));
                }
                Some(GenerationEvent::Failed(failure)) => {
                    return Poll::Ready(Some(Err(self.end(failure.into()))));
                }
                None => return Poll::Ready(Some(Err(self.end(ServiceError::Incomplete)))),
            }
        }
        Poll::Ready(None)
    }

    /// Waits until the request has left the queue, for at most `limit`.
    ///
    /// # Errors
    /// The failure of the request, if it fails before it leaves the queue.
    pub async fn wait_for_start(&mut self, limit: Duration) -> Result<(), ServiceError> {
        let Some(generation) = &mut self.generation else { return Ok(()) };
        match tokio::time::timeout(limit, generation.next()).await {
            Ok(Some(GenerationEvent::Started(started))) => self.started = Some(started),
            Ok(Some(GenerationEvent::Failed(failure))) => return Err(self.end(failure.into())),
            Ok(None) => return Err(self.end(ServiceError::Incomplete)),
            // Unreachable, because the start is the first event. Otherwise this event would be
            // lost.
            Ok(Some(
                GenerationEvent::Prompt(..) | GenerationEvent::Vector(_) | GenerationEvent::Token(..),
            )) => {
                return Err(self.end(ServiceError::Incomplete));
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Number of tokens of the prompt that were found in the prefix cache; `None` until the request
    /// has left the queue.
    pub fn cached_tokens(&self) -> Option<usize> {
        self.started.map(|started| started.cached_tokens)
    }

    /// Ends an answer without generated tokens.
    fn end_of_prompt(&mut self) -> Poll<Option<Result<TextEvent, ServiceError>>> {
        self.first_token = self.prepared.received.elapsed();
        self.finished = Some(self.finish(FinishReason::Length, None));
        Poll::Ready(None)
    }

    /// Ends the answer with an error.
    fn end(&mut self, error: ServiceError) -> ServiceError {
        self.generation = None;
        self.failed(error.kind());
        error
    }

    /// Waits for the complete answer.
    ///
    /// # Errors
    /// [`ServiceError`] if the request fails.
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

    fn token(&mut self, token: GeneratedToken, finish: Option<Finish>) -> TextEvent {
        self.generated += 1;
        self.drafts += token.drafts;
        if let Some(account) = self.prepared.account() {
            account.charge_generated();
        }
        self.time_token();
        let special = self.tokenizer.is_special(token.id);
        // Some models do not declare their end token as special. Its text is not part of the answer
        // either.
        let ends = matches!(finish, Some(Finish::StopToken)) && self.eos.contains(&token.id);
        let decoded = if ends && !special { String::new() } else { self.detokenizer.push(token.id) };
        // Text before the minimum length cannot be the beginning of a stop string.
        let early = self.generated <= self.prepared.params.min_new_tokens;
        let mut text = self.without_stops(decoded, early);
        if finish.is_some() && !self.stops.stopped() {
            let rest = self.detokenizer.finish();
            text += &self.without_stops(rest, false);
            let rest = self.reasoning.as_mut().map(ReasoningGate::finish).unwrap_or_default();
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

    /// Searches for stop strings in a text, but not in the reasoning before the answer. Returns the
    /// text that can be shown. `early` text is not searched at all.
    fn without_stops(&mut self, text: String, early: bool) -> String {
        let (reasoning, answer) = match &mut self.reasoning {
            Some(gate) => gate.push(&text),
            None => (String::new(), text),
        };
        reasoning + &if early { answer } else { self.stops.push(&answer) }
    }

    fn reason(&self, id: u32, finish: Option<Finish>) -> Option<FinishReason> {
        let keeps = self.prepared.params.stop_text == StopText::Keep;
        match finish {
            // Like TGI, which keeps the stop string in the text. If it is removed, the reason must
            // explain that.
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
            let counts = TokenCounts {
                prompt: self.prepared.prompt().len(),
                cached: started.cached_tokens,
                generated: self.generated,
                drafts: self.drafts,
            };
            context.phases(&timings, self.first_token, counts);
        }
        self.add_figures();
        if self.logs_text {
            let request_id = self.prepared.context.as_deref().map(RequestContext::id);
            tracing::info!(request_id, text, "answer");
        }
        // A stop string that is a special token is not found in the text.
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
            drafts: self.drafts,
            timings,
        }
    }

    /// The tokens so far. Answers to one prompt share its tokens, so that only one of them has
    /// them.
    fn counts(&self) -> TokenCounts {
        let cached = self.started.map_or(0, |started| started.cached_tokens);
        let (prompt, cached) =
            if self.prepared.counted { (self.prepared.prompt().len(), cached) } else { (0, 0) };
        TokenCounts { prompt, cached, generated: self.generated, drafts: self.drafts }
    }

    /// Adds the figures of this answer to the figures of the request.
    fn add_figures(&self) {
        let Some(context) = &self.prepared.context else { return };
        let queue = self.started.map_or(Duration::ZERO, |started| started.queued);
        let first_token = (!self.first_token.is_zero()).then_some(self.first_token);
        context.add_figures(AnswerFigures { queue, first_token, counts: self.counts() });
    }

    fn failed(&self, err: &'static str) {
        self.add_figures();
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
