//! Limits of requests.

use millrace_answers::grammar::GrammarWorkerCommand;
use millrace_answers::reasoning::ReasoningParser;
use millrace_answers::tools::ToolFormat;
use millrace_proto::{Ready, Watermark};

use super::error::{ContextOverflow, ServiceError};
use crate::embedding::PoolingMode;
use crate::engine::SchedulerLimits;

/// Limits and settings of requests. TGI's flags have the same names and defaults.
#[derive(Debug, Clone)]
pub struct RequestLimits {
    /// Maximum number of requests waiting or running at the same time. The engine enforces it.
    pub max_concurrent_requests: usize,
    /// Maximum `best_of` and `n` of a request. `None` allows a `best_of` of
    /// [`DEFAULT_BEST_OF`](Self::DEFAULT_BEST_OF) on TGI's routes, and
    /// [`DEFAULT_ANSWERS`](Self::DEFAULT_ANSWERS) answers to a prompt on OpenAI's routes.
    pub max_best_of: Option<usize>,
    /// Names of the model in requests; the first one is also the name in answers. An empty list
    /// allows every name.
    pub model_names: Vec<String>,
    /// Maximum number of stop strings per request.
    pub max_stop_sequences: usize,
    /// Maximum number of alternatives per token on TGI's routes.
    pub max_top_n_tokens: u32,
    /// Maximum number of alternatives per token on all other routes.
    pub max_top_logprobs: u32,
    /// Maximum number of tokens of a prompt; by default one less than `max_total_tokens`.
    pub max_input_tokens: Option<usize>,
    /// Maximum number of tokens of prompt and answer together; by default the model's maximum for a
    /// sequence.
    pub max_total_tokens: Option<usize>,
    /// Maximum number of prompts in one request to `/v1/completions`.
    pub max_client_batch_size: usize,
    /// Maximum number of bytes of a request's body.
    pub payload_limit: PayloadLimit,
    /// Number of short texts, of long texts, and of conversations that are tokenized or rendered at
    /// the same time.
    pub validation_workers: usize,
    /// Maximum number of bytes of the token ids that are kept for later prompts; 0 keeps none.
    pub tokenizer_cache: usize,
    /// Maximum number of bytes of a text that is tokenized without being a prompt; by default the
    /// maximum for a prompt.
    pub max_tokenize_bytes: Option<usize>,
    /// Whether special tokens in clients' messages are parsed as such.
    pub parse_special_in_user_text: bool,
    /// Whether answers may be constrained by grammars.
    pub grammar_support: bool,
    /// The command for processes that compile grammars. Without it grammars are compiled in this
    /// process.
    pub grammar_worker: Option<GrammarWorkerCommand>,
    /// The format in which the model writes tool calls; by default it is detected from the chat
    /// template.
    pub tool_format: Option<ToolFormat>,
    /// The format of the model's reasoning, and whether it is separated from the answer.
    pub reasoning: ReasoningParser,
    /// The number of tokens of the reasoning, for requests that do not give it.
    pub default_thinking_budget: Option<u32>,
    /// The text with which the model is told that its reasoning ends at its budget, before the
    /// closing mark; by default the text that the model was trained on, or none.
    pub thinking_budget_message: Option<String>,
    /// Whether the sampling parameters of the model's `generation_config.json` apply if a request
    /// does not give them.
    pub model_sampling: bool,
    /// The pooling of a prompt into a vector; by default the model's folder determines it.
    pub pooling: Option<PoolingMode>,
    /// Parameters of the watermark, for requests that ask for it.
    pub watermark: Watermark,
    /// Whether prompts and answers are logged.
    pub log_requests: bool,
}

impl Default for RequestLimits {
    fn default() -> Self {
        RequestLimits {
            max_concurrent_requests: 128,
            max_best_of: None,
            model_names: Vec::new(),
            max_stop_sequences: 4,
            max_top_n_tokens: Self::DEFAULT_TOP_N_TOKENS,
            max_top_logprobs: Self::DEFAULT_TOP_LOGPROBS,
            max_input_tokens: None,
            max_total_tokens: None,
            max_client_batch_size: 128,
            payload_limit: PayloadLimit::Fixed(PayloadLimit::MIN_OF_MODEL),
            validation_workers: 2,
            tokenizer_cache: 64_000_000,
            max_tokenize_bytes: None,
            parse_special_in_user_text: false,
            grammar_support: true,
            grammar_worker: None,
            tool_format: None,
            reasoning: ReasoningParser::Auto,
            default_thinking_budget: None,
            thinking_budget_message: None,
            model_sampling: true,
            pooling: None,
            watermark: Watermark { gamma: 0.5, delta: 2.0 },
            log_requests: false,
        }
    }
}

/// The maximum number of bytes of a request's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PayloadLimit {
    /// This many.
    Fixed(usize),
    /// As many as a conversation has that fills the context of the model, but no more than this
    /// many.
    OfModel {
        /// The memory for the bodies of all requests.
        at_most: usize,
    },
}

impl PayloadLimit {
    /// Bytes of a body for each token of the context. The text of a token has about four bytes, and
    /// JSON, escapes, roles and tools need the rest.
    const BYTES_PER_TOKEN: usize = 16;

    /// TGI's default, and the smallest limit that follows a model.
    pub const MIN_OF_MODEL: usize = 2_000_000;

    /// The limit for a model whose prompts and answers have up to `max_total` tokens. `None` stands
    /// for a model that is not loaded: a body that might fit later is read, because the answer is
    /// that the model is loading.
    pub(super) fn bytes(self, max_total: Option<usize>) -> usize {
        match self {
            PayloadLimit::Fixed(bytes) => bytes,
            PayloadLimit::OfModel { at_most } => max_total.map_or(at_most, |tokens| {
                tokens.saturating_mul(Self::BYTES_PER_TOKEN).max(Self::MIN_OF_MODEL).min(at_most)
            }),
        }
    }
}

/// The limits on tokens for the loaded model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenLimits {
    /// Maximum number of tokens of a prompt.
    pub max_input: usize,
    /// Maximum number of tokens of prompt and answer together.
    pub max_total: usize,
}

impl RequestLimits {
    /// TGI's default maximum of `best_of`.
    pub const DEFAULT_BEST_OF: usize = 2;
    /// The default maximum of `n`, and of `best_of` of `/v1/completions`, which is never less than
    /// `n`. OpenAI's clients use more than TGI's two.
    pub const DEFAULT_ANSWERS: usize = 16;

    /// TGI's default maximum of `top_n_tokens`.
    pub const DEFAULT_TOP_N_TOKENS: u32 = 5;
    /// OpenAI's maximum of `top_logprobs`.
    pub const DEFAULT_TOP_LOGPROBS: u32 = 20;

    /// Maximum `best_of` on TGI's routes.
    pub fn best_of(&self) -> usize {
        self.max_best_of.unwrap_or(Self::DEFAULT_BEST_OF)
    }

    /// Maximum `n`, and maximum `best_of` of `/v1/completions`.
    pub fn answers(&self) -> usize {
        self.max_best_of.unwrap_or(Self::DEFAULT_ANSWERS)
    }

    /// The limits for the loaded model, whose sequences may be shorter than the configured limits.
    pub fn tokens(&self, ready: &Ready) -> TokenLimits {
        let holds = ready.max_sequence_tokens as usize;
        let max_total = self.max_total_tokens.map_or(holds, |configured| configured.min(holds));
        // A prompt that cannot be divided must fit a step.
        let prompt = SchedulerLimits::new(ready).map_or(holds, |limits| limits.max_prompt_tokens());
        // A model without a head generates nothing behind a prompt.
        let generated = usize::from(!ready.headless);
        let max_prompt = max_total.saturating_sub(generated).min(prompt);
        let max_input = self.max_input_tokens.map_or(max_prompt, |configured| configured.min(max_prompt));
        TokenLimits { max_input, max_total }
    }
}

impl TokenLimits {
    /// Returns these limits for prompts of at most `max_input` tokens.
    pub(super) fn at_most(self, max_input: Option<usize>) -> TokenLimits {
        TokenLimits { max_input: self.max_input.min(max_input.unwrap_or(usize::MAX)), ..self }
    }

    /// Maximum number of tokens to generate for a prompt of `input` tokens. With `clamp`, a number
    /// that does not fit is lowered.
    ///
    /// # Errors
    /// [`ServiceError::ContextLength`] if prompt and answer do not fit.
    pub(super) fn new_tokens(
        &self,
        input: usize,
        wanted: Option<u32>,
        clamp: bool,
    ) -> Result<u32, ServiceError> {
        // 0 for a prompt that is too long itself; the check below refuses it.
        let fits = self.max_total.saturating_sub(input);
        let wanted = match wanted {
            Some(wanted) if clamp => fits.min(wanted as usize),
            Some(wanted) => wanted as usize,
            None => fits,
        };
        if wanted > 0 && input.saturating_add(wanted) > self.max_total {
            return Err(self.overflow(input, Some(wanted), false));
        }
        if input > self.max_input {
            return Err(self.overflow(input, None, false));
        }
        // At most `max_total`, which comes from a u32.
        Ok(wanted as u32)
    }

    /// The error for a prompt of at least `tokens` tokens, which are too many.
    pub(super) fn input_too_long(&self, tokens: usize) -> ServiceError {
        self.overflow(tokens, None, true)
    }

    fn overflow(&self, prompt: usize, new: Option<usize>, is_estimate: bool) -> ServiceError {
        let TokenLimits { max_input, max_total } = *self;
        ServiceError::ContextLength(ContextOverflow {
            max_input,
            max_total,
            prompt,
            new,
            is_estimate,
            index: None,
        })
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
    use millrace_proto::PromptHandling;

    use super::*;

    #[test]
    fn the_model_bounds_the_configured_limits() {
        let ready = Ready { max_sequence_tokens: 100, ..Ready::default() };
        let limits = |max_input_tokens, max_total_tokens| {
            let limits = RequestLimits { max_input_tokens, max_total_tokens, ..RequestLimits::default() }
                .tokens(&ready);
            (limits.max_input, limits.max_total)
        };
        assert_eq!(limits(None, None), (99, 100));
        assert_eq!(limits(Some(10), Some(50)), (10, 50));
        assert_eq!(limits(Some(1000), Some(1000)), (99, 100));
    }

    #[test]
    fn the_longest_body_follows_the_context() {
        let limit = PayloadLimit::OfModel { at_most: 10_000_000 };
        for (context, bytes) in [
            (Some(1024), 2_000_000),
            (Some(131_072), 2_097_152),
            (Some(262_144), 4_194_304),
            (Some(1_048_576), 10_000_000),
            (Some(usize::MAX), 10_000_000),
            (None, 10_000_000),
        ] {
            assert_eq!(limit.bytes(context), bytes, "{context:?}");
            assert_eq!(PayloadLimit::Fixed(7).bytes(context), 7);
        }
    }

    #[test]
    fn a_prompt_that_cannot_be_divided_fits_a_step_beside_all_other_sequences() {
        let ready = |prompt_handling: PromptHandling| Ready {
            max_sequence_tokens: 100,
            max_step_tokens: 64,
            max_sequences: 8,
            block_size: 4,
            num_blocks: 100,
            vocab_size: 9,
            prompt_handling: prompt_handling.into(),
            ..Ready::default()
        };
        let limits = |handling| RequestLimits::default().tokens(&ready(handling));
        assert_eq!(limits(PromptHandling::Whole), TokenLimits { max_input: 57, max_total: 100 });
        assert_eq!(limits(PromptHandling::Unshared), TokenLimits { max_input: 99, max_total: 100 });
        let headless = Ready { headless: true, ..ready(PromptHandling::Unshared) };
        assert_eq!(RequestLimits::default().tokens(&headless).max_input, 100);
    }
}
