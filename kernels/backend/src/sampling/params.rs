//! The parameters, inputs and results of sampling.

/// The largest number of top tokens that a row can report.
pub const MAX_TOP_N: usize = 128;

/// The largest number of biases of a sequence, including its end tokens.
pub const MAX_BIASES: usize = 2048;

/// How the next token of one sequence is chosen.
///
/// The steps apply in this order: watermark, repetition, frequency and presence penalties, logit
/// bias, end tokens that come too early, the row's allowed tokens, temperature, top-k, top-p,
/// min-p, typical-p. A greedy row stops before the temperature and takes the largest logit, the
/// lowest id on a tie.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Whether to draw at random instead of taking the most likely token.
    pub do_sample: bool,
    /// Divides the logits; must be above 0.
    pub temperature: f32,
    /// Keeps the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of most likely tokens whose probability reaches this value; 1 keeps
    /// all.
    pub top_p: f32,
    /// Drops tokens less likely than this share of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Keeps the most typical tokens up to this probability (Meister et al., "Locally Typical
    /// Sampling"); 1 keeps all.
    pub typical_p: f32,
    /// Divides positive logits and multiplies negative logits of tokens that occur in prompt or
    /// output (Keskar et al., "CTRL").
    pub repetition_penalty: f32,
    /// Subtracted once per occurrence among the generated tokens (OpenAI).
    pub frequency_penalty: f32,
    /// Subtracted once from tokens that occur among the generated tokens (OpenAI).
    pub presence_penalty: f32,
    /// Values added to the logits of single tokens. Together with `end_tokens` at most
    /// [`MAX_BIASES`].
    pub logit_bias: Vec<(u32, f32)>,
    /// The number of generated tokens until which `end_tokens` are impossible.
    pub min_new_tokens: u32,
    /// The tokens that `min_new_tokens` rules out.
    pub end_tokens: Vec<u32>,
    /// The key of the counter-based generator. Key and position determine the draw.
    pub seed: u64,
    /// The number of most likely tokens to report; at most [`MAX_TOP_N`].
    pub top_n: u32,
    /// Whether to report log-probabilities of the warped distribution instead of the model's own.
    pub warped_logprobs: bool,
    /// The watermark to apply, if any.
    pub watermark: Option<Watermark>,
}

/// A watermark. After each token a part of the vocabulary, chosen by that token, is green and made
/// more likely; see [`watermark`](super::watermark).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Watermark {
    /// The part of the vocabulary that is green, in (0, 1).
    pub gamma: f32,
    /// The value added to the logits of green tokens.
    pub delta: f32,
}

impl Default for SamplingParams {
    /// Greedy sampling that reports only the token's own log-probability.
    fn default() -> Self {
        SamplingParams {
            do_sample: false,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            min_new_tokens: 0,
            end_tokens: Vec::new(),
            seed: 0,
            top_n: 0,
            warped_logprobs: false,
            watermark: None,
        }
    }
}

/// One row of logits to sample from.
#[derive(Debug, Clone, Copy)]
pub struct SampleRow<'a> {
    /// The sampling parameters.
    pub params: &'a SamplingParams,
    /// All tokens of the sequence so far. The new token gets the position `tokens.len()`.
    pub tokens: &'a [u32],
    /// The number of prompt tokens among them.
    pub prompt_len: usize,
    /// The tokens that may be chosen: bit `t % 32` of word `t / 32` stands for token t, and missing
    /// words count as 0. The model's own log-probabilities ignore it.
    pub allowed: Option<&'a [u32]>,
}

/// A given token that a row of logits scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreRow {
    /// The token's id.
    pub token: u32,
    /// The number of most likely tokens to report.
    pub top_n: u32,
}

/// The score of a token by a row of logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The model's own log-probability of the token. NaN if a logit is NaN or plus infinity, or if
    /// none is finite.
    pub logprob: f32,
    /// The token's rank: one more than the number of tokens that are more likely.
    pub rank: u32,
    /// The `top_n` most likely tokens, most likely first, the lower id first on a tie.
    pub top: Vec<(u32, f32)>,
}

/// A sampled token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token's id.
    pub token: u32,
    /// The token's log-probability. NaN if one of the model's logits is NaN or plus infinity, or if
    /// no token is possible. The token is then the first one that the row allows.
    pub logprob: f32,
    /// The `top_n` most likely tokens, most likely first, the lower id first on a tie.
    pub top: Vec<(u32, f32)>,
}
