//! Answers in the form of TGI's API.

use axum::Json;
use axum::response::{IntoResponse, Response};
use millrace_text::Tokenizer;

use super::error::{ErrorBody, TgiError};
use super::types::{
    BestOfSequence, Details, GenerateResponse, PrefillToken, StreamDetails, StreamResponse, TgiToken,
    finish_reason,
};
use crate::chat::AnswerEvent;
use crate::http::answer_pipeline::{AnswerProgress, CompleteAnswer, Renderer};
use crate::http::sse::Events;
use crate::service::{Answer, ServiceError, TextEvent, TokenCounts};

/// The form of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseForm {
    Object,
    /// A list of one object.
    List,
    Stream,
}

/// Writes the best answer to one prompt, or one event for each token.
pub(super) struct GenerateRenderer {
    pub(super) tokenizer: Tokenizer,
    pub(super) form: ResponseForm,
    /// The text before the generated text.
    pub(super) prefix: String,
    /// Whether the answer has details.
    pub(super) details: bool,
    /// The seed of the first answer.
    pub(super) seed: Option<u64>,
    /// The tokens of the prompt if the details report them.
    pub(super) prefill: Option<Vec<u32>>,
}

impl GenerateRenderer {
    fn text(&self, answer: &Answer) -> String {
        format!("{}{}", self.prefix, answer.finished.text)
    }

    fn prefill(&self, answer: &Answer) -> Vec<PrefillToken> {
        let logprobs = [None].into_iter().chain(answer.prompt.iter().map(|token| Some(token.logprob)));
        let token = |(&id, logprob)| PrefillToken { id, text: self.tokenizer.token_text(id), logprob };
        self.prefill.iter().flatten().zip(logprobs).map(token).collect()
    }

    fn details(&self, answer: &Answer, best_of_sequences: Vec<BestOfSequence>) -> Details {
        let top = answer.tokens.iter().map(|event| event.top.iter().map(TgiToken::from).collect());
        let has_top = answer.tokens.iter().any(|event| !event.top.is_empty());
        Details {
            finish_reason: finish_reason(answer.finished.reason),
            generated_tokens: answer.finished.generated_tokens,
            seed: answer.seed,
            prefill: self.prefill(answer),
            tokens: answer.tokens.iter().map(|event| TgiToken::from(&event.token)).collect(),
            best_of_sequences,
            top_tokens: if has_top { top.collect() } else { Vec::new() },
        }
    }
}

impl Renderer for GenerateRenderer {
    fn body(self, mut answers: Vec<CompleteAnswer>, _: TokenCounts) -> Response {
        let likelihood = |answer: &CompleteAnswer| answer.answer.mean_logprob();
        let best =
            (0..answers.len()).max_by(|&a, &b| likelihood(&answers[a]).total_cmp(&likelihood(&answers[b])));
        let Some(best) = best.map(|best| answers.remove(best).answer) else {
            return TgiError(ServiceError::Incomplete).into_response();
        };
        let details = self.details.then(|| {
            let others = answers.iter().map(|CompleteAnswer { answer, .. }| BestOfSequence {
                generated_text: self.text(answer),
                details: self.details(answer, Vec::new()),
            });
            self.details(&best, others.collect())
        });
        let response = GenerateResponse { generated_text: self.text(&best), details };
        match self.form {
            ResponseForm::List => Json([response]).into_response(),
            ResponseForm::Object | ResponseForm::Stream => Json(response).into_response(),
        }
    }

    fn event(&mut self, answer: &AnswerProgress, event: AnswerEvent<'_>, to: &mut Events) {
        let TextEvent { token, top, finished, .. } = event.generated;
        let details = finished.as_ref().filter(|_| self.details).map(|finished| StreamDetails {
            finish_reason: finish_reason(finished.reason),
            generated_tokens: finished.generated_tokens,
            seed: self.seed,
            input_length: answer.counts.prompt,
        });
        to.json(&StreamResponse {
            index: answer.counts.generated,
            token: token.into(),
            top_tokens: top.iter().map(TgiToken::from).collect(),
            details,
            generated_text: finished
                .as_ref()
                .map(|finished| std::mem::take(&mut self.prefix) + &finished.text),
        });
    }

    fn error(&mut self, error: ServiceError, to: &mut Events) {
        to.json(&match error {
            // TGI has another error type for streams.
            ServiceError::Incomplete => ErrorBody {
                error: "Incomplete generation stream".into(),
                error_type: "incomplete_generation_stream",
            },
            error => ErrorBody::from(&error),
        });
    }
}
