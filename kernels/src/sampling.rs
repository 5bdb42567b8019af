//! How a token is chosen from logits: the parameters, one row's inputs, and the result.

/// The most top tokens that can be reported of a row.
pub const MOST_TOP: usize = 128;

/// The most biases that a sequence can have, end tokens that may come too early among them.
pub const MOST_BIASES: usize = 2048;

/// How the next token of one sequence is chosen.
///
/// Applied in this order: watermark, repetition, frequency and presence penalties, logit bias, end tokens that come too early, the
/// row's allowed tokens, temperature, top-k, top-p, min-p, typical-p. A greedy row stops before the temperature and takes
/// the largest logit, the lowest id on a tie.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Draw at random instead of taking the most likely token.
    pub do_sample: bool,
    /// Logits are divided by it; > 0.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most likely tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens less likely than this share of the most likely one; 0 keeps all.
    pub min_p: f32,
    /// Keep the most typical tokens up to this probability (Meister et al., "Locally Typical Sampling"); 1 keeps all.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output (Keskar et al., "CTRL").
    pub repetition_penalty: f32,
    /// Subtracted once per occurrence among the generated tokens (OpenAI).
    pub frequency_penalty: f32,
    /// Subtracted once from tokens that occur among the generated tokens (OpenAI).
    pub presence_penalty: f32,
    /// Added to the logits of single tokens; with `end_tokens` at most [`MOST_BIASES`].
    pub logit_bias: Vec<(u32, f32)>,
    /// Until so many tokens have been generated, `end_tokens` are impossible.
    pub min_new_tokens: u32,
    /// See `min_new_tokens`.
    pub end_tokens: Vec<u32>,
    /// Key of the counter-based generator; together with the position it determines the draw.
    pub seed: u64,
    /// How many of the most likely tokens to report; at most [`MOST_TOP`].
    pub top_n: u32,
    /// Report log-probabilities of the distribution drawn from instead of the model's own.
    pub warped_logprobs: bool,
    /// Marks the text for whoever knows how.
    pub watermark: Option<Watermark>,
}

/// After each token a part of the vocabulary is green, chosen by that token, and made more likely; see
/// [`watermark`](crate::watermark).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Watermark {
    /// The part of the vocabulary, in (0, 1).
    pub gamma: f32,
    /// Added to the logits of green tokens.
    pub delta: f32,
}

impl Default for SamplingParams {
    /// Greedy, with nothing reported but the token's own log-probability.
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

/// One row of logits to choose from.
#[derive(Debug, Clone, Copy)]
pub struct SampleRow<'a> {
    /// How to choose.
    pub params: &'a SamplingParams,
    /// All tokens of the sequence so far; the new one will have the position `tokens.len()`.
    pub tokens: &'a [u32],
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// The tokens that may be chosen: bit `t % 32` of word `t / 32` stands for token t; words that are not there are 0.
    /// It changes no log-probability of the model's own.
    pub allowed: Option<&'a [u32]>,
}

/// A token that is there already, to be judged by one row of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScoreRow {
    /// The token's id.
    pub token: u32,
    /// How many of the most likely tokens to report.
    pub top_n: u32,
}

/// What a row of logits makes of a token.
#[derive(Debug, Clone, PartialEq)]
pub struct Scored {
    /// The model's own log-probability of the token; NaN if a logit is NaN or plus infinity, or none is finite.
    pub logprob: f32,
    /// One more than the number of tokens that are more likely.
    pub rank: u32,
    /// The `top_n` most likely tokens, most likely first, the lower id first on a tie.
    pub top: Vec<(u32, f32)>,
}

/// A chosen token.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampled {
    /// The token's id.
    pub token: u32,
    /// Its log-probability; NaN if one of the model's logits is NaN or plus infinity, or no token is possible. The token is then the first
    /// one that the row allows.
    pub logprob: f32,
    /// The `top_n` most likely tokens, most likely first, the lower id first on a tie.
    pub top: Vec<(u32, f32)>,
}
