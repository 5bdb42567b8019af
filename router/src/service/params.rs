//! The parameters of a generation and their validation.

use std::sync::Arc;

use millrace_answers::grammar::RequestedGrammar;
use millrace_answers::reasoning::{ReasoningLimit, ReasoningMarks, ReasoningStart};
use millrace_proto::rules::MAX_TOP_N;
use millrace_proto::{LogitBias, Ready, Sampling, Watermark};
use millrace_text::{RenderedPrompt, SpecialTokens, StopText};

use super::error::ServiceError;
use super::limits::RequestLimits;
use crate::assets::SamplingDefaults;
use crate::engine::{AdapterId, Pooling, Priority};

/// The text or tokens to continue.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// A text. Special tokens in it are parsed.
    Text(String, SpecialTokens),
    /// The output of a chat template. Special tokens that clients have written into messages are
    /// plain text.
    Chat(RenderedPrompt),
    /// Token ids.
    Ids(Vec<u32>),
}

/// The side of a text from which tokens are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TruncationSide {
    /// The beginning is cut.
    Left,
    /// The end is cut.
    Right,
}

/// Bytes of a token of usual texts, on average.
pub(crate) const BYTES_PER_TOKEN: usize = 4;

impl Prompt {
    /// Returns the approximate number of tokens, without tokenizing a text. The tokens of usual
    /// texts have about [`BYTES_PER_TOKEN`] bytes.
    pub(crate) fn estimated_tokens(&self) -> usize {
        match self {
            Prompt::Text(text, _) => text.len() / BYTES_PER_TOKEN,
            Prompt::Chat(prompt) => prompt.text.len() / BYTES_PER_TOKEN,
            Prompt::Ids(ids) => ids.len(),
        }
    }
}

/// The parameters of a generation. By default it is greedy, and ends when the model ends it or the
/// context is full.
#[derive(Debug, Clone)]
pub struct Params {
    /// Maximum number of tokens to generate; `None` fills the context.
    pub max_new_tokens: Option<u32>,
    /// Lower `max_new_tokens` to the number that fits after the prompt, instead of refusing the
    /// request.
    pub clamp_new_tokens: bool,
    /// Number of tokens to keep of the prompt.
    pub truncate: Option<usize>,
    /// The side of the prompt from which tokens are cut if `truncate` is set.
    pub truncation_side: TruncationSide,
    /// Maximum number of tokens of the prompt, if it is lower than the server's.
    pub max_input: Option<usize>,
    /// Sample even if no other parameter implies it.
    pub do_sample: bool,
    /// Divisor of the logits; > 0.
    pub temperature: Option<f32>,
    /// Keep the k most likely tokens; > 0.
    pub top_k: Option<i64>,
    /// Keep the most likely tokens up to this probability; 1 keeps all.
    pub top_p: Option<f32>,
    /// Keep the most typical tokens up to this probability.
    pub typical_p: Option<f32>,
    /// Drop tokens less likely than this share of the most likely one.
    pub min_p: Option<f32>,
    /// Penalty of tokens that occur in the prompt or the answer; > 0, and 1 turns it off.
    pub repetition_penalty: Option<f32>,
    /// Penalty of a token per occurrence in the answer, from -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// Penalty of tokens that occur in the answer, from -2 to 2.
    pub presence_penalty: Option<f32>,
    /// Values to add to the logits of single tokens, from -100 to 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Sampling seed.
    pub seed: Option<u64>,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Whether stop strings stay in the text.
    pub stop_text: StopText,
    /// Number of alternatives to report per token.
    pub top_n: u32,
    /// Whether `top_n` and `prompt_logprobs` have the bounds of OpenAI's API instead of TGI's.
    pub openai_bounds: bool,
    /// Report log-probabilities of the sampled distribution and not of the model's.
    pub warped_logprobs: bool,
    /// Number of answers to choose the best from, with TGI's rules.
    pub best_of: Option<usize>,
    /// Scheduling priority.
    pub priority: Priority,
    /// The adapter that the answer is computed with; `None` for the model itself.
    pub adapter: Option<AdapterId>,
    /// Salt of the prefix cache: computed prefixes are shared only with requests that have the same
    /// salt.
    pub cache_salt: Option<Arc<str>>,
    /// Grammar of the answer.
    pub grammar: Option<RequestedGrammar>,
    /// Continue after the model has generated an end token.
    pub ignore_eos: bool,
    /// Minimum number of tokens before an end token or a stop string can end the answer.
    pub min_new_tokens: u32,
    /// Special tokens that are part of the answer's text.
    pub marks: Arc<[u32]>,
    /// The marks of the reasoning before the answer, in which stop strings have no effect, and
    /// whether the prompt opens it.
    pub reasoning: Option<(ReasoningMarks, ReasoningStart)>,
    /// The number of tokens of the reasoning after a raw prompt, if it is limited. Conversations
    /// have a `reasoning_limit` at once.
    pub thinking_budget: Option<u32>,
    /// How the reasoning is ended, if the number of its tokens is limited.
    pub reasoning_limit: Option<ReasoningLimit>,
    /// Number of alternatives to report at each token of the prompt, if the prompt shall be scored.
    pub prompt_logprobs: Option<u32>,
    /// Whether the prompt is part of the answer, so `max_new_tokens` may be 0.
    pub echoes: bool,
    /// How to pool the prompt into a vector, if a vector is wanted instead of new tokens.
    pub pooling: Option<Pooling>,
    /// Number of states at the beginning of the prompt that are not pooled.
    pub pooling_start: usize,
    /// Position from which on the tokens of a pooled prompt have the model's second token type.
    pub second_type_start: Option<usize>,
    /// Watermark the answer with the server's parameters.
    pub watermark: bool,
    /// Whether sampling parameters that are `None` come from the model's `generation_config.json`.
    pub model_defaults: bool,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            max_new_tokens: None,
            clamp_new_tokens: false,
            truncate: None,
            truncation_side: TruncationSide::Left,
            max_input: None,
            do_sample: false,
            temperature: None,
            top_k: None,
            top_p: None,
            typical_p: None,
            min_p: None,
            repetition_penalty: None,
            frequency_penalty: None,
            presence_penalty: None,
            logit_bias: Vec::new(),
            seed: None,
            stop: Vec::new(),
            stop_text: StopText::Keep,
            top_n: 0,
            openai_bounds: false,
            warped_logprobs: false,
            best_of: None,
            priority: Priority::Normal,
            adapter: None,
            cache_salt: None,
            grammar: None,
            ignore_eos: false,
            min_new_tokens: 0,
            marks: Arc::default(),
            reasoning: None,
            thinking_budget: None,
            reasoning_limit: None,
            prompt_logprobs: None,
            echoes: false,
            pooling: None,
            pooling_start: 0,
            second_type_start: None,
            watermark: false,
            model_defaults: false,
        }
    }
}

/// Temperature below which sampling is greedy, because the division by it could overflow.
const MIN_TEMPERATURE: f32 = 1e-5;
/// Maximum number of logit biases, as in OpenAI's API.
const MAX_LOGIT_BIAS: usize = 1024;
/// Maximum length of a salt in bytes.
const MAX_SALT_LENGTH: usize = 256;

/// The priority with this name; the normal one without a name.
///
/// # Errors
/// [`ServiceError::Validation`] for an unknown name.
pub(crate) fn priority(name: Option<&str>) -> Result<Priority, ServiceError> {
    match name {
        Some("high") => Ok(Priority::High),
        None | Some("normal") => Ok(Priority::Normal),
        Some("low") => Ok(Priority::Low),
        Some(_) => Err(ServiceError::invalid("priority", "`priority` must be `high`, `normal` or `low`")),
    }
}

impl Params {
    /// A `top_k` that keeps every token, for a request that turns the model's default off.
    pub const ALL: i64 = i64::MAX;

    /// Takes parameters that the request has not given from the model's `generation_config.json`,
    /// if `model_defaults` is set. A greedy request stays greedy.
    pub(super) fn with_defaults(mut self, defaults: SamplingDefaults) -> Self {
        if !self.model_defaults {
            return self;
        }
        self.repetition_penalty = self.repetition_penalty.or(defaults.repetition_penalty);
        if self.samples() {
            self.temperature = self.temperature.or(defaults.temperature);
            self.top_p = self.top_p.or(defaults.top_p);
            self.top_k = self.top_k.or(defaults.top_k.map(i64::from));
            self.min_p = self.min_p.or(defaults.min_p);
        }
        self
    }

    /// Whether the answer is sampled instead of greedy.
    pub fn samples(&self) -> bool {
        if self.temperature.is_some_and(|temperature| temperature < MIN_TEMPERATURE) {
            return false;
        }
        self.do_sample
            || self.temperature.is_some_and(|temperature| temperature != 1.0)
            || self.top_k.is_some()
            || self.top_p.is_some_and(|p| p < 1.0)
            || self.typical_p.is_some()
            || self.min_p.is_some_and(|p| p > 0.0)
    }

    /// Checks the parameters. TGI's checks come first, in TGI's order and with its texts.
    pub(super) fn check(&self, limits: &RequestLimits, ready: &Ready) -> Result<(), ServiceError> {
        self.check_like_tgi(limits, ready)?;
        self.check_more(limits, ready)
    }

    /// Maximum number of alternatives per token.
    fn max_alternatives(&self, limits: &RequestLimits, ready: &Ready) -> u32 {
        let configured = if self.openai_bounds { limits.max_top_logprobs } else { limits.max_top_n_tokens };
        configured.min(MAX_TOP_N as u32).min(ready.vocab_size)
    }

    /// TGI's checks, in TGI's order and with its texts.
    fn check_like_tgi(&self, limits: &RequestLimits, ready: &Ready) -> Result<(), ServiceError> {
        let best_of = self.best_of.unwrap_or(1);
        if best_of > 1 {
            if limits.best_of() == 1 {
                return fail("best_of", "`best_of` != 1 is not allowed for this endpoint");
            }
            if best_of > limits.best_of() {
                let detail = format!("`best_of` must be > 0 and <= {}. Given: {best_of}", limits.best_of());
                return fail("best_of", detail);
            }
            if !self.samples() {
                return fail("best_of", "you must use sampling when `best_of` is > 1");
            }
        }
        positive("temperature", self.temperature)?;
        positive("repetition_penalty", self.repetition_penalty)?;
        within_two("frequency_penalty", self.frequency_penalty)?;
        if self.top_p.is_some_and(|p| !(p > 0.0 && p <= 1.0)) {
            return fail("top_p", "`top_p` must be > 0.0 and < 1.0");
        }
        if self.typical_p.is_some_and(|p| !(p > 0.0 && p < 1.0)) {
            return fail("typical_p", "`typical_p` must be > 0.0 and < 1.0");
        }
        if self.top_k.is_some_and(|k| k <= 0) {
            return fail("top_k", "`top_k` must be strictly positive");
        }
        if self.max_new_tokens == Some(0) && !self.echoes {
            return fail("max_new_tokens", "`max_new_tokens` must be strictly positive");
        }
        if self.stop.len() > limits.max_stop_sequences {
            let (max_allowed, given) = (limits.max_stop_sequences, self.stop.len());
            return fail(
                "stop",
                format!("`stop` supports up to {max_allowed} stop sequences. Given: {given}"),
            );
        }
        if best_of > 1 && self.seed.is_some() {
            return fail("seed", "`seed` must not be set when `best_of` > 1");
        }
        let max_allowed = self.max_alternatives(limits, ready);
        if self.top_n > max_allowed {
            let given = self.top_n;
            return fail(
                "top_n_tokens",
                format!("`top_n_tokens` must be >= 0 and <= {max_allowed}. Given: {given}"),
            );
        }
        Ok(())
    }

    /// The checks of parameters and values that TGI does not have.
    fn check_more(&self, limits: &RequestLimits, ready: &Ready) -> Result<(), ServiceError> {
        if self.stop.iter().any(String::is_empty) {
            return fail("stop", "`stop` must not contain an empty text");
        }
        within_two("presence_penalty", self.presence_penalty)?;
        if self.min_p.is_some_and(|p| !(0.0..1.0).contains(&p)) {
            return fail("min_p", "`min_p` must be >= 0.0 and < 1.0");
        }
        if self.logit_bias.len() > MAX_LOGIT_BIAS {
            return fail("logit_bias", format!("`logit_bias` supports up to {MAX_LOGIT_BIAS} tokens"));
        }
        if self.cache_salt.as_ref().is_some_and(|salt| salt.len() > MAX_SALT_LENGTH) {
            return fail("cache_salt", format!("`cache_salt` must be at most {MAX_SALT_LENGTH} bytes long"));
        }
        let max_allowed = self.max_alternatives(limits, ready);
        if let Some(given) = self.prompt_logprobs.filter(|&given| given > max_allowed) {
            let detail = format!("`prompt_logprobs` must be >= 0 and <= {max_allowed}. Given: {given}");
            return fail("prompt_logprobs", detail);
        }
        if self.max_new_tokens.is_some_and(|max_allowed| self.min_new_tokens > max_allowed) {
            return fail("min_tokens", "`min_tokens` must be <= `max_new_tokens`");
        }
        if self.grammar.is_some() && (self.ignore_eos || self.min_new_tokens > 0) {
            let param = if self.ignore_eos { "ignore_eos" } else { "min_tokens" };
            return fail(param, format!("`{param}` has no meaning for an answer that a grammar ends"));
        }
        let vocab_size = ready.vocab_size;
        for &(id, bias) in &self.logit_bias {
            if id >= vocab_size {
                let detail =
                    format!("`logit_bias` names token {id}, but the vocabulary has {vocab_size} tokens");
                return fail("logit_bias", detail);
            }
            if !(-100.0..=100.0).contains(&bias) {
                return fail("logit_bias", "`logit_bias` must be >= -100 and <= 100");
            }
        }
        Ok(())
    }

    /// Converts the parameters for the shards. `end_tokens` are the tokens that end the answer, and
    /// `watermark` has the server's parameters. End tokens outside the vocabulary of `vocab_size`
    /// are dropped, because the model cannot generate them.
    pub(super) fn sampling(
        &self,
        seed: u64,
        end_tokens: &[u32],
        watermark: Watermark,
        vocab_size: u32,
    ) -> Sampling {
        let end_tokens = end_tokens.iter().copied().filter(|&token| token < vocab_size);
        let bias = |&(token, bias): &(u32, f32)| LogitBias { token, bias };
        Sampling {
            do_sample: self.samples(),
            temperature: self
                .temperature
                .filter(|&temperature| temperature >= MIN_TEMPERATURE)
                .unwrap_or(1.0),
            // A `top_k` of at least the vocabulary keeps all tokens, which is 0 for the shards.
            top_k: self.top_k.and_then(|k| u32::try_from(k).ok()).filter(|&k| k < vocab_size).unwrap_or(0),
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p.unwrap_or(0.0),
            typical_p: self.typical_p.unwrap_or(1.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            logit_bias: self.logit_bias.iter().map(bias).collect(),
            seed,
            top_n: self.top_n,
            warped_logprobs: self.warped_logprobs,
            min_new_tokens: self.min_new_tokens,
            watermark: self.watermark.then_some(watermark),
            end_tokens: if self.min_new_tokens > 0 { end_tokens.collect() } else { Vec::new() },
        }
    }
}

fn fail(param: &'static str, detail: impl Into<String>) -> Result<(), ServiceError> {
    Err(ServiceError::invalid(param, detail))
}

/// Checks that a factor is positive and finite. A number that is too large for 32 bits arrives as
/// infinity.
fn positive(param: &'static str, value: Option<f32>) -> Result<(), ServiceError> {
    match value {
        Some(value) if value.is_infinite() => fail(param, format!("`{param}` is too large")),
        Some(value) if value.is_nan() || value <= 0.0 => {
            fail(param, format!("`{param}` must be strictly positive"))
        }
        _ => Ok(()),
    }
}

fn within_two(param: &'static str, value: Option<f32>) -> Result<(), ServiceError> {
    match value {
        Some(value) if !(-2.0..=2.0).contains(&value) => {
            fail(param, format!("`{param}` must be >= -2.0 and <= 2.0"))
        }
        _ => Ok(()),
    }
}
