//! The parameters of a generation and their validation.

use std::sync::Arc;

use millrace_proto::rules::MAX_TOP_N;
use millrace_proto::{LogitBias, Ready, Sampling, Watermark};

use super::{Limits, ServiceError};
use crate::assets::SamplingDefaults;
use crate::engine::{Pooling, Priority};
use crate::grammar::Wanted;
use crate::text::{Rendered, Specials, StopText};

/// What is continued.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// A text, whose special tokens are parsed.
    Text(String, Specials),
    /// What a chat template has written, in which the special tokens that clients have written are only text.
    Chat(Rendered),
    /// Tokens, taken as they are.
    Ids(Vec<u32>),
}

/// How a prompt is continued. The default is greedy until the model ends or nothing more fits.
#[derive(Debug, Clone)]
pub struct Params {
    /// Tokens at most; `None` fills what the model can hold.
    pub max_new_tokens: Option<u32>,
    /// Lower `max_new_tokens` to what fits behind the prompt instead of refusing the request.
    pub clamp_new_tokens: bool,
    /// Keep only the last tokens of the prompt.
    pub truncate: Option<usize>,
    /// Draw at random even if no other parameter asks for it.
    pub do_sample: bool,
    /// Logits are divided by it; > 0.
    pub temperature: Option<f32>,
    /// Keep the k most likely tokens; > 0.
    pub top_k: Option<i64>,
    /// Keep the most likely tokens up to this probability; 1 keeps all.
    pub top_p: Option<f32>,
    /// Keep the most typical tokens up to this probability.
    pub typical_p: Option<f32>,
    /// Drop tokens less likely than this share of the most likely one.
    pub min_p: Option<f32>,
    /// Of tokens seen in prompt or answer; > 0, 1 is off.
    pub repetition_penalty: Option<f32>,
    /// Per occurrence in the answer, from -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// For tokens that occur in the answer, from -2 to 2.
    pub presence_penalty: Option<f32>,
    /// Added to the logits of single tokens, from -100 to 100.
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the random draws.
    pub seed: Option<u64>,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// Whether they stay in the text.
    pub stop_text: StopText,
    /// Alternatives to report per token.
    pub top_n: u32,
    /// Report log-probabilities of the distribution drawn from instead of the model's own.
    pub warped_logprobs: bool,
    /// Answers to choose the best from, by TGI's rules for it.
    pub best_of: Option<usize>,
    /// Who goes first when not all can.
    pub priority: Priority,
    /// Computed prefixes are shared only with requests of the same salt.
    pub cache_salt: Option<Arc<str>>,
    /// What the answer must be.
    pub grammar: Option<Wanted>,
    /// Go on after the model has ended the answer.
    pub ignore_eos: bool,
    /// Tokens before which neither the model nor a stop string can end the answer.
    pub min_new_tokens: u32,
    /// Special tokens that are part of the answer's text.
    pub marks: Arc<[u32]>,
    /// Alternatives to report at each token of the prompt, if what the model makes of it shall be reported.
    pub prompt_logprobs: Option<u32>,
    /// The prompt is part of the answer, so that there may be no new tokens.
    pub echoes: bool,
    /// The prompt becomes a vector, and nothing is generated.
    pub pooling: Option<Pooling>,
    /// Mark the answer as the server is set up to.
    pub watermark: bool,
    /// Sampling parameters that are `None` are those of the model's `generation_config.json`.
    pub model_defaults: bool,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            max_new_tokens: None,
            clamp_new_tokens: false,
            truncate: None,
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
            warped_logprobs: false,
            best_of: None,
            priority: Priority::Normal,
            cache_salt: None,
            grammar: None,
            ignore_eos: false,
            min_new_tokens: 0,
            marks: Arc::default(),
            prompt_logprobs: None,
            echoes: false,
            pooling: None,
            watermark: false,
            model_defaults: false,
        }
    }
}

/// Below this a temperature leaves nothing to chance, and dividing by it leaves the range of numbers.
const COLDEST: f32 = 1e-5;
/// OpenAI's bound.
const MAX_LOGIT_BIAS: usize = 1024;
/// Bytes of the longest salt. They are kept with every cached block.
const LONGEST_SALT: usize = 256;

/// The priority of this name; the usual one without.
///
/// # Errors
/// If there is none of this name.
pub(crate) fn priority(name: Option<&str>) -> Result<Priority, ServiceError> {
    match name {
        Some("high") => Ok(Priority::High),
        None | Some("normal") => Ok(Priority::Normal),
        Some("low") => Ok(Priority::Low),
        Some(_) => Err(ServiceError::invalid("priority", "`priority` must be `high`, `normal` or `low`")),
    }
}

impl Params {
    /// A `top_k` that keeps every token, for a request that turns the model's own off.
    pub const ALL: i64 = i64::MAX;

    /// Takes what the request has not given from the model's `generation_config.json`, if it may. A greedy request stays
    /// greedy.
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

    /// Whether the answer is drawn at random.
    pub fn samples(&self) -> bool {
        if self.temperature.is_some_and(|temperature| temperature < COLDEST) {
            return false;
        }
        self.do_sample
            || self.temperature.is_some_and(|temperature| temperature != 1.0)
            || self.top_k.is_some()
            || self.top_p.is_some_and(|p| p < 1.0)
            || self.typical_p.is_some()
            || self.min_p.is_some_and(|p| p > 0.0)
    }

    /// TGI's checks, in its order and words; what TGI does not have comes last.
    pub(super) fn check(&self, limits: &Limits, ready: &Ready) -> Result<(), ServiceError> {
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
            let (most, given) = (limits.max_stop_sequences, self.stop.len());
            return fail("stop", format!("`stop` supports up to {most} stop sequences. Given: {given}"));
        }
        if best_of > 1 && self.seed.is_some() {
            return fail("seed", "`seed` must not be set when `best_of` > 1");
        }
        let most_top = limits.max_top_n_tokens.min(MAX_TOP_N as u32).min(ready.vocab_size);
        if self.top_n > most_top {
            let (most, given) = (most_top, self.top_n);
            return fail(
                "top_n_tokens",
                format!("`top_n_tokens` must be >= 0 and <= {most}. Given: {given}"),
            );
        }
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
        if self.cache_salt.as_ref().is_some_and(|salt| salt.len() > LONGEST_SALT) {
            return fail("cache_salt", format!("`cache_salt` must be at most {LONGEST_SALT} bytes long"));
        }
        if let Some(given) = self.prompt_logprobs.filter(|&given| given > most_top) {
            let detail = format!("`prompt_logprobs` must be >= 0 and <= {most_top}. Given: {given}");
            return fail("prompt_logprobs", detail);
        }
        if self.max_new_tokens.is_some_and(|most| self.min_new_tokens > most) {
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

    /// `end_tokens` are those that end the answer, and `watermark` is what marks it if it is to be marked. The model has token ids below
    /// `vocab_size`: it can never generate an end token beyond them, so there is nothing to keep it from.
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
            temperature: self.temperature.filter(|&temperature| temperature >= COLDEST).unwrap_or(1.0),
            // As many as there are is all of them, which the shards write as 0.
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

/// A number too large for 32 bits arrives as infinity, which is no factor either.
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
