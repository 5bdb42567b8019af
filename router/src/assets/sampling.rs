//! Sampling parameters that a model's authors recommend.

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// The sampling parameters of `generation_config.json`. They apply to requests of OpenAI's and
/// Anthropic's APIs that do not set them. A parameter is `None` if the file does not have it, or if
/// its value has no effect or is invalid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub struct SamplingDefaults {
    /// The divisor of the logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// The probability mass of the most likely tokens that are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// The number of most likely tokens that are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// The minimum probability of a token, relative to the most likely one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// The penalty on tokens that occur in the prompt or the answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// Reads the parameters from the fields of `generation_config.json`. If `do_sample` is false,
    /// the authors recommend greedy decoding, and the other fields are the defaults of
    /// transformers.
    pub fn of(config: &Map<String, Value>) -> Self {
        if config.get("do_sample") == Some(&Value::Bool(false)) {
            return SamplingDefaults::default();
        }
        let number = |name: &str| config.get(name).and_then(Value::as_f64).map(|number| number as f32);
        let factor = |name: &str| number(name).filter(|&n| n.is_finite() && n > 0.0 && n != 1.0);
        SamplingDefaults {
            temperature: factor("temperature"),
            top_p: number("top_p").filter(|&p| p > 0.0 && p < 1.0),
            top_k: config
                .get("top_k")
                .and_then(Value::as_u64)
                .and_then(|k| u32::try_from(k).ok())
                .filter(|&k| k > 0),
            min_p: number("min_p").filter(|&p| p > 0.0 && p < 1.0),
            repetition_penalty: factor("repetition_penalty"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(config: Value) -> SamplingDefaults {
        let Value::Object(config) = config else { panic!("the tests have objects") };
        SamplingDefaults::of(&config)
    }

    #[test]
    fn the_parameters_of_published_models_are_read() {
        let qwen = json!({"do_sample": true, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05});
        let expected = SamplingDefaults {
            temperature: Some(0.7),
            top_p: Some(0.8),
            top_k: Some(20),
            min_p: None,
            repetition_penalty: Some(1.05),
        };
        assert_eq!(of(qwen.clone()), expected);
        let mut silent = qwen.clone();
        silent["do_sample"] = Value::Null;
        assert_eq!(of(silent), expected);
        let mut greedy = qwen;
        greedy["do_sample"] = json!(false);
        assert_eq!(of(greedy), SamplingDefaults::default());
    }

    #[test]
    fn values_without_effect_or_meaning_are_left_out() {
        for config in [
            json!({}),
            json!({"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}),
            json!({"temperature": 0, "top_p": -1, "top_k": -1, "min_p": 2, "repetition_penalty": 0}),
            json!({"temperature": "0.7", "top_p": null, "top_k": 1.5, "min_p": [], "repetition_penalty": 1e300}),
        ] {
            assert_eq!(of(config.clone()), SamplingDefaults::default(), "{config}");
        }
    }
}
