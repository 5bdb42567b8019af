//! The border between the pipeline and the APIs: events in, the bytes of a response out.

use axum::response::Response;

use crate::chat::{AnswerEvent, AnswerReader};
use crate::http::sse::Events;
use crate::service::{Answer, FinishReason, ServiceError, TextEvent, TokenCounts};

/// Writes the objects of an API.
pub(in crate::http) trait Renderer: Send + Unpin + 'static {
    /// Returns the response with complete answers, in the order of the prompts. `counts` are the
    /// tokens of all answers that were generated, even if fewer are sent.
    fn body(self, answers: Vec<CompleteAnswer>, counts: TokenCounts) -> Response;

    /// Writes the events before the first token of a stream.
    fn start(&mut self, _answers: &[AnswerProgress], _to: &mut Events) {}

    /// Returns about how many bytes a token's events have, unless they are few.
    fn event_bytes(&self, _answer: &AnswerProgress, _event: &TextEvent) -> usize {
        0
    }

    /// Writes the events of a token.
    fn event(&mut self, answer: &AnswerProgress, event: AnswerEvent<'_>, to: &mut Events);

    /// Shows that the connection is alive: with a comment, unless the API has an event for it.
    fn keep_alive(&mut self, to: &mut Events) {
        to.comment();
    }

    /// Writes the error that ends the stream.
    fn error(&mut self, error: ServiceError, to: &mut Events);

    /// Writes the events after all answers are complete.
    fn end(&mut self, _answers: &[AnswerProgress], _to: &mut Events) {}
}

/// One answer of a response, as far as it has been generated.
#[derive(Debug)]
pub(in crate::http) struct AnswerProgress {
    /// The place of the answer among all answers of the response.
    pub(in crate::http) index: usize,
    /// The place of its prompt in the request.
    pub(in crate::http) prompt_index: usize,
    pub(in crate::http) counts: TokenCounts,
    pub(super) reader: AnswerReader,
}

impl AnswerProgress {
    /// Reads the next token of a stream.
    pub(in crate::http) fn advance<'a>(&mut self, event: &'a TextEvent) -> AnswerEvent<'a> {
        self.counts.generated += 1;
        if let Some(finished) = &event.finished {
            self.counts.cached = finished.cached_tokens;
            self.counts.drafts = finished.drafts;
        }
        self.reader.read(event)
    }

    /// Returns whether the answer ended with tool calls. An answer that was cut off did not.
    pub(in crate::http) fn ended_with_calls(&self, reason: FinishReason) -> bool {
        self.reader.ended_with_calls(reason)
    }

    /// Returns the number of tokens of the reasoning so far, if it is separated from the answer.
    pub(in crate::http) fn reasoning_tokens(&self) -> Option<usize> {
        self.reader.reasoning_tokens()
    }
}

/// An answer that has been generated and not yet been read.
pub(in crate::http) struct CompleteAnswer {
    pub(in crate::http) progress: AnswerProgress,
    pub(in crate::http) answer: Answer,
}

impl CompleteAnswer {
    /// Reads the tokens of the answer.
    pub(in crate::http) fn events(&mut self) -> impl Iterator<Item = AnswerEvent<'_>> {
        let CompleteAnswer { progress, answer } = self;
        answer.tokens.iter().map(|event| progress.reader.read(event))
    }
}

/// The first answer to each prompt, for which the prompt was computed.
pub(super) fn first_answers<'a>(
    answers: impl IntoIterator<Item = &'a AnswerProgress>,
) -> impl Iterator<Item = &'a AnswerProgress> {
    let mut next_prompt = 0;
    answers.into_iter().filter(move |answer| {
        let is_first = answer.prompt_index == next_prompt;
        next_prompt += usize::from(is_first);
        is_first
    })
}

/// Returns the tokens of all answers, in the order of their prompts. A prompt counts once, since it
/// is computed for its first answer.
pub(in crate::http) fn total_counts<'a>(
    answers: impl IntoIterator<Item = &'a AnswerProgress> + Clone,
) -> TokenCounts {
    let mut all = TokenCounts::default();
    for answer in answers.clone() {
        all.generated += answer.counts.generated;
        all.drafts += answer.counts.drafts;
    }
    first_answers(answers).fold(all, |total, first| TokenCounts {
        prompt: total.prompt + first.counts.prompt,
        cached: total.cached + first.counts.cached,
        ..total
    })
}
