//! The rules of the contract that a request can break.
//!
//! The router refuses a request that breaks a rule before the request reaches a shard, and the
//! shard checks the rules again. Both sides use the functions of this module, so they cannot
//! disagree.

use crate::Sampling;

/// Maximum number of alternatives that can be reported for one token.
pub const MAX_TOP_N: usize = 128;

/// Maximum number of biases of one sequence: its `logit_bias` and its `end_tokens` together.
pub const MAX_BIASES: usize = 2048;

/// Maximum length of the text of a row error, in bytes.
pub const MAX_ROW_ERROR: usize = 128;

/// A sampling parameter outside its range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("the sampling parameter `{field}` is out of range: {value}")]
pub struct OutOfRange {
    /// Name of the parameter in the contract.
    pub field: &'static str,
    /// Value of the parameter.
    pub value: f64,
}

/// Checks sampling parameters for a model with `vocab` token ids, in time linear in the number of
/// biases.
///
/// If the parameters are greedy, those that greedy sampling ignores are not checked.
///
/// # Errors
/// The first parameter that is out of range.
pub fn check_sampling(sampling: &Sampling, vocab: usize) -> Result<(), OutOfRange> {
    let s = sampling;
    let require = |valid: bool, field, value: f32| match valid {
        true => Ok(()),
        false => Err(OutOfRange { field, value: f64::from(value) }),
    };
    let require_count = |valid: bool, field, count: usize| match valid {
        true => Ok(()),
        false => Err(OutOfRange { field, value: count as f64 }),
    };
    let positive = |field, value: f32| require(value.is_finite() && value > 0.0, field, value);
    let finite = |field, value: f32| require(value.is_finite(), field, value);
    // These comparisons are false for NaN.
    let share = |field, value: f32| require(value > 0.0 && value <= 1.0, field, value);

    positive("repetition_penalty", s.repetition_penalty)?;
    finite("frequency_penalty", s.frequency_penalty)?;
    finite("presence_penalty", s.presence_penalty)?;
    let biases = s.logit_bias.len() + s.end_tokens.len();
    require_count(biases <= MAX_BIASES, "logit_bias", biases)?;
    for bias in &s.logit_bias {
        require_count((bias.token as usize) < vocab, "logit_bias.token", bias.token as usize)?;
        finite("logit_bias.bias", bias.bias)?;
    }
    for &token in &s.end_tokens {
        require_count((token as usize) < vocab, "end_tokens", token as usize)?;
    }
    require_count(s.top_n as usize <= vocab.min(MAX_TOP_N), "top_n", s.top_n as usize)?;
    if let Some(watermark) = &s.watermark {
        require(watermark.gamma > 0.0 && watermark.gamma < 1.0, "watermark.gamma", watermark.gamma)?;
        finite("watermark.delta", watermark.delta)?;
    }
    if !s.do_sample {
        return Ok(());
    }
    positive("temperature", s.temperature)?;
    share("top_p", s.top_p)?;
    require(s.min_p >= 0.0 && s.min_p < 1.0, "min_p", s.min_p)?;
    share("typical_p", s.typical_p)
}

/// Number of words of a mask with one bit for each of `vocab` tokens.
pub fn mask_words(vocab: usize) -> usize {
    vocab.div_ceil(32)
}

/// Whether a mask allows at least one token of the vocabulary, and none outside of it. Bit `t % 32`
/// of word `t / 32` stands for token t, and missing words are 0.
pub fn is_mask(allowed: &[u32], vocab: usize) -> bool {
    let inside = allowed.len() <= mask_words(vocab);
    let beyond = allowed.get(vocab / 32).map_or(0, |word| word >> (vocab % 32));
    inside && beyond == 0 && allowed.iter().any(|word| *word != 0)
}

/// Whether the tokens that a row may sample are a mask, or all tokens, for which `allowed` is
/// empty.
pub fn is_mask_or_free(allowed: &[u32], vocab: usize) -> bool {
    allowed.is_empty() || is_mask(allowed, vocab)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LogitBias, Watermark};

    fn valid() -> Sampling {
        Sampling {
            do_sample: true,
            temperature: 0.7,
            top_p: 0.9,
            typical_p: 1.0,
            repetition_penalty: 1.1,
            ..Default::default()
        }
    }

    #[test]
    fn each_parameter_has_its_range() {
        assert_eq!(check_sampling(&valid(), 10), Ok(()));
        type Change = fn(&mut Sampling);
        let cases: [(&str, Change); 25] = [
            ("temperature", |s| s.temperature = 0.0),
            ("temperature", |s| s.temperature = -1.0),
            ("temperature", |s| s.temperature = f32::INFINITY),
            ("temperature", |s| s.temperature = f32::NAN),
            ("top_p", |s| s.top_p = 0.0),
            ("top_p", |s| s.top_p = 1.01),
            ("top_p", |s| s.top_p = f32::NAN),
            ("min_p", |s| s.min_p = 1.0),
            ("min_p", |s| s.min_p = -0.1),
            ("min_p", |s| s.min_p = f32::NAN),
            ("typical_p", |s| s.typical_p = 0.0),
            ("typical_p", |s| s.typical_p = 2.0),
            ("repetition_penalty", |s| s.repetition_penalty = 0.0),
            ("repetition_penalty", |s| s.repetition_penalty = f32::NAN),
            ("frequency_penalty", |s| s.frequency_penalty = f32::NEG_INFINITY),
            ("presence_penalty", |s| s.presence_penalty = f32::NAN),
            ("logit_bias.token", |s| s.logit_bias = vec![LogitBias { token: 10, bias: 1.0 }]),
            ("logit_bias.bias", |s| s.logit_bias = vec![LogitBias { token: 9, bias: f32::NAN }]),
            ("logit_bias", |s| s.end_tokens = vec![3; MAX_BIASES + 1]),
            ("end_tokens", |s| s.end_tokens = vec![3, 10]),
            ("top_n", |s| s.top_n = 11),
            ("watermark.gamma", |s| s.watermark = Some(Watermark { gamma: 0.0, delta: 1.0 })),
            ("watermark.gamma", |s| s.watermark = Some(Watermark { gamma: 1.0, delta: 1.0 })),
            ("watermark.gamma", |s| s.watermark = Some(Watermark { gamma: f32::NAN, delta: 1.0 })),
            ("watermark.delta", |s| s.watermark = Some(Watermark { gamma: 0.5, delta: f32::INFINITY })),
        ];
        for (field, change) in cases {
            let mut sampling = valid();
            change(&mut sampling);
            assert_eq!(check_sampling(&sampling, 10).map_err(|error| error.field), Err(field));
        }
        let many = Sampling { top_n: MAX_TOP_N as u32 + 1, ..valid() };
        assert_eq!(check_sampling(&many, 1000).map_err(|error| error.field), Err("top_n"));
    }

    #[test]
    fn a_mask_allows_some_token_and_none_outside_of_the_vocabulary() {
        assert!(is_mask(&[0b110], 20) && is_mask(&[0, 1], 33) && is_mask(&[1 << 31], 32));
        for wrong in [&[][..], &[0], &[1, 0], &[1 | 1 << 20]] {
            assert!(!is_mask(wrong, 20), "{wrong:?}");
        }
        assert!(!is_mask(&[1, 1], 32));
        assert!(is_mask_or_free(&[], 20) && is_mask_or_free(&[2], 20) && !is_mask_or_free(&[0], 20));
    }
}
