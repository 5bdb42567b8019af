//! The conversion of sampling parameters from the protocol to the backend.

use millrace_backend::{SamplingParams, Watermark, sampling};
use millrace_proto::Sampling;
use millrace_proto::rules::{self, OutOfRange};

// A backend must support everything that the protocol allows.
const _: () = assert!(rules::MAX_TOP_N == sampling::MAX_TOP_N && rules::MAX_BIASES == sampling::MAX_BIASES);

/// Checks the parameters of a sequence and converts them.
///
/// Parameters that a greedy sequence ignores are not checked, and get neutral values.
///
/// # Errors
/// The first parameter that is out of range.
pub(super) fn check(sampling: &Sampling, vocab: usize) -> Result<SamplingParams, OutOfRange> {
    let s = sampling;
    rules::check_sampling(s, vocab)?;
    let common = SamplingParams {
        repetition_penalty: s.repetition_penalty,
        frequency_penalty: s.frequency_penalty,
        presence_penalty: s.presence_penalty,
        logit_bias: s.logit_bias.iter().map(|of| (of.token, of.bias)).collect(),
        min_new_tokens: s.min_new_tokens,
        end_tokens: s.end_tokens.clone(),
        seed: s.seed,
        top_n: s.top_n,
        warped_logprobs: s.warped_logprobs,
        watermark: s.watermark.as_ref().map(|of| Watermark { gamma: of.gamma, delta: of.delta }),
        ..SamplingParams::default()
    };
    if !s.do_sample {
        return Ok(common);
    }
    Ok(SamplingParams {
        do_sample: true,
        temperature: s.temperature,
        top_k: s.top_k,
        top_p: s.top_p,
        min_p: s.min_p,
        typical_p: s.typical_p,
        ..common
    })
}

#[cfg(test)]
mod tests {
    use millrace_proto::{self as proto, LogitBias};

    use super::*;

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
    fn every_parameter_arrives() {
        let sampling = Sampling {
            top_k: 5,
            min_p: 0.1,
            frequency_penalty: -0.5,
            presence_penalty: 0.25,
            logit_bias: vec![LogitBias { token: 9, bias: -100.0 }],
            min_new_tokens: 4,
            end_tokens: vec![1, 2],
            seed: 77,
            top_n: 3,
            warped_logprobs: true,
            watermark: Some(proto::Watermark { gamma: 0.25, delta: -1.5 }),
            ..valid()
        };
        let expected = SamplingParams {
            do_sample: true,
            temperature: 0.7,
            top_k: 5,
            top_p: 0.9,
            min_p: 0.1,
            typical_p: 1.0,
            repetition_penalty: 1.1,
            frequency_penalty: -0.5,
            presence_penalty: 0.25,
            logit_bias: vec![(9, -100.0)],
            min_new_tokens: 4,
            end_tokens: vec![1, 2],
            seed: 77,
            top_n: 3,
            warped_logprobs: true,
            watermark: Some(Watermark { gamma: 0.25, delta: -1.5 }),
        };
        assert_eq!(check(&sampling, 10), Ok(expected));
    }

    #[test]
    fn a_greedy_sequence_ignores_what_only_sampling_uses() {
        let greedy = Sampling {
            do_sample: false,
            temperature: 0.0,
            top_p: f32::NAN,
            typical_p: 0.0,
            min_p: 7.0,
            ..valid()
        };
        let expected = SamplingParams { repetition_penalty: 1.1, ..Default::default() };
        assert_eq!(check(&greedy, 10), Ok(expected));
    }
}
