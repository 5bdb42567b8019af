//! What clients may ask for.

use millrace_proto::{Ready, Watermark};

use super::ServiceError;
use crate::engine::Pooling;
use crate::grammar::WorkerCommand;
use crate::tools::Format;

/// What clients may ask for; names and defaults are TGI's flags.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Requests waiting or running at the same time; the engine enforces it.
    pub max_concurrent_requests: usize,
    /// The largest `best_of` and `n` of a request. `None` allows [`DEFAULT_BEST_OF`](Self::DEFAULT_BEST_OF) answers to choose
    /// the best from on TGI's routes, and [`DEFAULT_ANSWERS`](Self::DEFAULT_ANSWERS) answers to a prompt on OpenAI's.
    pub max_best_of: Option<usize>,
    /// Stop strings per request.
    pub max_stop_sequences: usize,
    /// Alternatives reported per token.
    pub max_top_n_tokens: u32,
    /// Tokens of a prompt; by default one less than `max_total_tokens`.
    pub max_input_tokens: Option<usize>,
    /// Tokens of prompt and answer together; by default what a sequence of the model can hold.
    pub max_total_tokens: Option<usize>,
    /// Prompts in one request to `/v1/completions`.
    pub max_client_batch_size: usize,
    /// Bytes of a request's body.
    pub payload_limit: usize,
    /// Short texts, long texts, and conversations, of each kind so many, that are tokenized or rendered at the same time.
    pub validation_workers: usize,
    /// Bytes of a text that is tokenized without being a prompt; by default as many as the longest prompt can have.
    pub max_tokenize_bytes: Option<usize>,
    /// Clients may write special tokens into messages, and get them.
    pub parse_special_in_user_text: bool,
    /// Whether answers may be constrained by grammars.
    pub grammar_support: bool,
    /// How the processes are started in which grammars are tried; without it they are compiled in this one.
    pub grammar_worker: Option<WorkerCommand>,
    /// How the model writes calls of tools; found in its chat template if not given.
    pub tool_format: Option<Format>,
    /// Whether the sampling parameters of the model's `generation_config.json` apply where a request does not give them.
    pub model_sampling: bool,
    /// How a prompt becomes a vector; the model's folder says it if this does not.
    pub pooling: Option<Pooling>,
    /// How answers are marked that ask for it.
    pub watermark: Watermark,
    /// Write prompts and answers to the log.
    pub log_requests: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_concurrent_requests: 128,
            max_best_of: None,
            max_stop_sequences: 4,
            max_top_n_tokens: 5,
            max_input_tokens: None,
            max_total_tokens: None,
            max_client_batch_size: 4,
            payload_limit: 2_000_000,
            validation_workers: 2,
            max_tokenize_bytes: None,
            parse_special_in_user_text: false,
            grammar_support: true,
            grammar_worker: None,
            tool_format: None,
            model_sampling: true,
            pooling: None,
            watermark: Watermark { gamma: 0.5, delta: 2.0 },
            log_requests: false,
        }
    }
}

/// How many tokens fit, now that the model is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenLimits {
    /// Tokens of a prompt.
    pub max_input: usize,
    /// Tokens of prompt and answer together.
    pub max_total: usize,
}

impl Limits {
    /// TGI's default for `best_of`.
    pub const DEFAULT_BEST_OF: usize = 2;
    /// The default for `n`, and for `best_of` of `/v1/completions`, which is never less than `n`. OpenAI's clients use more
    /// than TGI's two.
    pub const DEFAULT_ANSWERS: usize = 16;

    /// The largest `best_of` on TGI's routes.
    pub fn best_of(&self) -> usize {
        self.max_best_of.unwrap_or(Self::DEFAULT_BEST_OF)
    }

    /// The largest `n`, and the largest `best_of` of `/v1/completions`.
    pub fn answers(&self) -> usize {
        self.max_best_of.unwrap_or(Self::DEFAULT_ANSWERS)
    }

    /// The limits for a loaded model, which may hold less than what was configured.
    pub fn tokens(&self, ready: &Ready) -> TokenLimits {
        let holds = ready.max_sequence_tokens as usize;
        let max_total = self.max_total_tokens.map_or(holds, |configured| configured.min(holds));
        let most = max_total.saturating_sub(1);
        let max_input = self.max_input_tokens.map_or(most, |configured| configured.min(most));
        TokenLimits { max_input, max_total }
    }
}

impl TokenLimits {
    /// How many tokens may be generated for a prompt. With `clamp` a number that does not fit is lowered.
    ///
    /// # Errors
    /// The validation error if prompt and answer do not fit.
    pub(super) fn new_tokens(
        &self,
        input: usize,
        wanted: Option<u32>,
        clamp: bool,
    ) -> Result<u32, ServiceError> {
        // Nothing fits behind a prompt that is itself too long, which is told so below.
        let fits = self.max_total.saturating_sub(input);
        let wanted = match wanted {
            Some(wanted) if clamp => fits.min(wanted as usize),
            Some(wanted) => wanted as usize,
            None => fits,
        };
        if wanted > 0 && input + wanted > self.max_total {
            let detail = format!(
                "`inputs` tokens + `max_new_tokens` must be <= {}. Given: {input} `inputs` tokens and {wanted} \
                 `max_new_tokens`",
                self.max_total
            );
            return Err(ServiceError::invalid("max_new_tokens", detail));
        }
        if input > self.max_input {
            return Err(self.input_too_long(input));
        }
        // At most `max_total`, which came from a u32.
        Ok(wanted as u32)
    }

    pub(super) fn input_too_long(&self, given: usize) -> ServiceError {
        let detail = format!("`inputs` must have less than {} tokens. Given: {given}", self.max_input);
        ServiceError::invalid("inputs", detail)
    }

    pub(super) fn check_truncate(&self, truncate: Option<usize>) -> Result<(), ServiceError> {
        match truncate {
            Some(given) if given == 0 || given > self.max_input => {
                let detail = format!(
                    "`truncate` must be strictly positive and less than {}. Given: {given}",
                    self.max_input
                );
                Err(ServiceError::invalid("truncate", detail))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_bounds_what_is_configured() {
        let ready = Ready { max_sequence_tokens: 100, ..Ready::default() };
        let limits = |max_input_tokens, max_total_tokens| {
            let limits = Limits { max_input_tokens, max_total_tokens, ..Limits::default() }.tokens(&ready);
            (limits.max_input, limits.max_total)
        };
        assert_eq!(limits(None, None), (99, 100));
        assert_eq!(limits(Some(10), Some(50)), (10, 50));
        assert_eq!(limits(Some(1000), Some(1000)), (99, 100));
    }
}
