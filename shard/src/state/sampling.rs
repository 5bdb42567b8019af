//! Sampling parameters, checked.

use millrace_kernels::{SamplingParams, Watermark};
use millrace_proto::Sampling;

/// The parameters as the device takes them, or the first one out of range with its value.
///
/// What a greedy sequence ignores is not checked, and comes out neutral.
pub(super) fn check(sampling: &Sampling, vocab: usize) -> Result<SamplingParams, (&'static str, f64)> {
    let s = sampling;
    let require =
        |valid: bool, field, value: f32| if valid { Ok(value) } else { Err((field, f64::from(value))) };
    let positive = |field, value: f32| require(value.is_finite() && value > 0.0, field, value);
    let finite = |field, value: f32| require(value.is_finite(), field, value);
    // NaN is in no range.
    let share = |field, value: f32| require(value > 0.0 && value <= 1.0, field, value);

    let repetition_penalty = positive("repetition_penalty", s.repetition_penalty)?;
    let frequency_penalty = finite("frequency_penalty", s.frequency_penalty)?;
    let presence_penalty = finite("presence_penalty", s.presence_penalty)?;
    let mut logit_bias = Vec::with_capacity(s.logit_bias.len());
    for bias in &s.logit_bias {
        if bias.token as usize >= vocab {
            return Err(("logit_bias.token", f64::from(bias.token)));
        }
        logit_bias.push((bias.token, finite("logit_bias.bias", bias.bias)?));
    }
    if let Some(&token) = s.end_tokens.iter().find(|&&token| token as usize >= vocab) {
        return Err(("end_tokens", f64::from(token)));
    }
    if s.top_n as usize > vocab {
        return Err(("top_n", f64::from(s.top_n)));
    }
    let watermark = match &s.watermark {
        Some(of) => Some(Watermark {
            gamma: require(of.gamma > 0.0 && of.gamma < 1.0, "watermark.gamma", of.gamma)?,
            delta: finite("watermark.delta", of.delta)?,
        }),
        None => None,
    };
    let common = SamplingParams {
        repetition_penalty,
        frequency_penalty,
        presence_penalty,
        logit_bias,
        min_new_tokens: s.min_new_tokens,
        end_tokens: s.end_tokens.clone(),
        seed: s.seed,
        top_n: s.top_n,
        warped_logprobs: s.warped_logprobs,
        watermark,
        ..SamplingParams::default()
    };
    if !s.do_sample {
        return Ok(common);
    }
    Ok(SamplingParams {
        do_sample: true,
        temperature: positive("temperature", s.temperature)?,
        top_k: s.top_k,
        top_p: share("top_p", s.top_p)?,
        min_p: require(s.min_p >= 0.0 && s.min_p < 1.0, "min_p", s.min_p)?,
        typical_p: share("typical_p", s.typical_p)?,
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

    #[test]
    fn each_parameter_has_its_range() {
        type Change = fn(&mut Sampling);
        let cases: [(&str, Change); 24] = [
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
            ("end_tokens", |s| s.end_tokens = vec![3, 10]),
            ("top_n", |s| s.top_n = 11),
            ("watermark.gamma", |s| s.watermark = Some(proto::Watermark { gamma: 0.0, delta: 1.0 })),
            ("watermark.gamma", |s| s.watermark = Some(proto::Watermark { gamma: 1.0, delta: 1.0 })),
            ("watermark.gamma", |s| s.watermark = Some(proto::Watermark { gamma: f32::NAN, delta: 1.0 })),
            ("watermark.delta", |s| {
                s.watermark = Some(proto::Watermark { gamma: 0.5, delta: f32::INFINITY })
            }),
        ];
        for (field, change) in cases {
            let mut sampling = valid();
            change(&mut sampling);
            assert_eq!(check(&sampling, 10).map_err(|(field, _)| field), Err(field));
        }
    }
}
