//! The pooling of a model: how the states of a text become one vector.

use std::fmt;
use std::str::FromStr;

use millrace_proto::{PromptHandling, Ready};
use serde_json::{Map, Value};

use super::configuration::{EmbeddingError, size};
use crate::engine::Pooling;

/// One pooling of states, by sentence-transformers' definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolingMode {
    /// The first state.
    First,
    /// The largest value of each feature.
    Max,
    /// The mean of all states.
    Mean,
    /// The sum of all states, divided by the square root of their number.
    MeanSqrtLen,
    /// The mean of all states, in which the state at position p has the weight p + 1.
    WeightedMean,
    /// The last state.
    Last,
}

/// Each mode with its name, its name in older files and the names that `--pooling` also accepts, in
/// the order in which the vectors of several modes of an older file follow each other.
const MODES: [(PoolingMode, &str, &str, &[&str]); 6] = [
    (PoolingMode::First, "cls", "pooling_mode_cls_token", &["first"]),
    (PoolingMode::Max, "max", "pooling_mode_max_tokens", &[]),
    (PoolingMode::Mean, "mean", "pooling_mode_mean_tokens", &[]),
    (
        PoolingMode::MeanSqrtLen,
        "mean_sqrt_len_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        &["mean_sqrt_len"],
    ),
    (PoolingMode::WeightedMean, "weightedmean", "pooling_mode_weightedmean_tokens", &["weighted_mean"]),
    (PoolingMode::Last, "lasttoken", "pooling_mode_lasttoken", &["last"]),
];

/// The poolings of GGUF files by their numbers, and their names in llama.cpp. The first one leaves
/// the states as they are, and the last one is the score of a classifier.
const GGUF_POOLINGS: [(&str, Option<PoolingMode>); 5] = [
    ("none", None),
    ("mean", Some(PoolingMode::Mean)),
    ("cls", Some(PoolingMode::First)),
    ("last", Some(PoolingMode::Last)),
    ("rank", None),
];

/// The most modes whose vectors may follow each other.
const MAX_MODES: usize = MODES.len();

/// A name that is not the name of a pooling.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the pooling `{0}` is not supported; cls, max, mean, mean_sqrt_len_tokens, weightedmean and lasttoken are"
)]
pub struct UnknownPooling(String);

impl FromStr for PoolingMode {
    type Err = UnknownPooling;

    fn from_str(name: &str) -> Result<Self, UnknownPooling> {
        let found = MODES.iter().find(|(_, known, _, others)| *known == name || others.contains(&name));
        found.map(|(mode, ..)| *mode).ok_or_else(|| UnknownPooling(name.to_owned()))
    }
}

impl fmt::Display for PoolingMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MODES.iter().find(|(mode, ..)| mode == self).map_or("", |(_, name, ..)| name))
    }
}

impl PoolingMode {
    /// Returns the pooling of the shard that this mode is computed from.
    pub fn computed_as(self) -> Pooling {
        match self {
            PoolingMode::First => Pooling::First,
            PoolingMode::Max => Pooling::Max,
            PoolingMode::Mean | PoolingMode::MeanSqrtLen => Pooling::Mean,
            PoolingMode::WeightedMean => Pooling::WeightedMean,
            PoolingMode::Last => Pooling::Last,
        }
    }

    /// Turns the result of the shard for `states` states into the vector of this mode.
    pub fn finish(self, vector: &mut [f32], states: usize) {
        if self == PoolingMode::MeanSqrtLen {
            let factor = (states as f64).sqrt();
            vector.iter_mut().for_each(|value| *value = (f64::from(*value) * factor) as f32);
        }
    }

    /// Returns the pooling of a model whose files ask for none. A token of a decoder attends only
    /// to the tokens before it (in a few models, to a context of them), so only the last state
    /// depends on the whole text in all models. All states of an encoder do, and
    /// sentence-transformers takes their mean.
    pub fn usual(ready: &Ready) -> PoolingMode {
        let is_encoder = ready.headless && ready.prompt_handling() == PromptHandling::Whole;
        if is_encoder { PoolingMode::Mean } else { PoolingMode::Last }
    }
}

/// The content of the configuration of a pooling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PoolingConfig {
    /// The modes, whose vectors follow each other. An error if the file names an unknown one.
    pub(super) modes: Result<Vec<PoolingMode>, UnknownPooling>,
    /// The number of features of a state, if the file has it.
    pub(super) features: Option<usize>,
    /// Whether the states of a prompt in front of a text are pooled with the text.
    pub(super) include_prompt: bool,
}

impl PoolingConfig {
    /// Reads the configuration in `file`. Keys that are not known are warned about.
    ///
    /// # Errors
    /// If a known key has a value of a wrong kind.
    pub(super) fn read(file: &str, config: &Map<String, Value>) -> Result<Self, EmbeddingError> {
        const OTHERS: [&str; 4] =
            ["pooling_mode", "include_prompt", "word_embedding_dimension", "embedding_dimension"];
        for key in config.keys() {
            if !OTHERS.contains(&key.as_str()) && !key.starts_with("pooling_mode_") {
                tracing::warn!("{file}: the key `{key}` is not known and has no effect");
            }
        }
        let wrong = |key: &str, wanted: &str| EmbeddingError::new(file, format!("`{key}` must be {wanted}"));
        let features = OTHERS[2..].iter().find_map(|key| config.get(*key).map(|value| (key, value)));
        let features = match features {
            None => None,
            Some((key, value)) => Some(size(value).ok_or_else(|| wrong(key, "a number of features"))?),
        };
        let include_prompt = match config.get("include_prompt") {
            None => true,
            Some(value) => value.as_bool().ok_or_else(|| wrong("include_prompt", "true or false"))?,
        };
        Ok(PoolingConfig { modes: modes(config), features, include_prompt })
    }
}

/// Returns the mode of the pooling with this number in GGUF files.
pub(super) fn gguf_mode(number: u64) -> Result<PoolingMode, UnknownPooling> {
    let known = usize::try_from(number).ok().and_then(|number| GGUF_POOLINGS.get(number));
    match known {
        Some((_, Some(mode))) => Ok(*mode),
        Some((name, None)) => Err(UnknownPooling(format!("{number} ({name})"))),
        None => Err(UnknownPooling(number.to_string())),
    }
}

/// Returns the modes of a configuration. Newer files name them in `pooling_mode`; older ones have a
/// switch for each, and without any of them the mean is meant.
fn modes(config: &Map<String, Value>) -> Result<Vec<PoolingMode>, UnknownPooling> {
    let named = |value: &Value| match value.as_str() {
        Some(name) if MODES.iter().any(|(_, known, ..)| *known == name) => name.parse(),
        Some(name) => Err(UnknownPooling(name.to_owned())),
        None => Err(UnknownPooling(value.to_string())),
    };
    match config.get("pooling_mode") {
        Some(Value::Array(names)) if (1..=MAX_MODES).contains(&names.len()) => {
            return names.iter().map(named).collect();
        }
        Some(name) => return Ok(vec![named(name)?]),
        None => {}
    }
    let switches = config.iter().filter(|(key, _)| key.starts_with("pooling_mode_"));
    for (key, _) in switches.filter(|(_, on)| **on == Value::Bool(true)) {
        if !MODES.iter().any(|(_, _, old, _)| old == key) {
            return Err(UnknownPooling(key["pooling_mode_".len()..].to_owned()));
        }
    }
    let is_on = |old: &str| config.get(old).and_then(Value::as_bool) == Some(true);
    let mut found: Vec<_> =
        MODES.iter().filter(|(_, _, old, _)| is_on(old)).map(|(mode, ..)| *mode).collect();
    if found.is_empty() {
        found.push(PoolingMode::Mean);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: Value) -> PoolingConfig {
        PoolingConfig::read("x", config.as_object().unwrap()).unwrap()
    }

    #[test]
    fn only_encoders_are_pooled_by_their_mean() {
        let of = |headless, handling: PromptHandling| {
            PoolingMode::usual(&Ready { headless, prompt_handling: handling.into(), ..Ready::default() })
        };
        assert_eq!(of(true, PromptHandling::Whole), PoolingMode::Mean);
        assert_eq!(of(true, PromptHandling::Shared), PoolingMode::Last);
        assert_eq!(of(false, PromptHandling::Whole), PoolingMode::Last);
    }

    #[test]
    fn both_spellings_of_the_modes_are_read() {
        for (mode, name, old, _) in MODES {
            assert_eq!(read(json!({"pooling_mode": name})).modes, Ok(vec![mode]));
            assert_eq!(
                read(json!({"pooling_mode": [name, "mean"]})).modes,
                Ok(vec![mode, PoolingMode::Mean])
            );
            let other =
                if mode == PoolingMode::Max { "pooling_mode_lasttoken" } else { "pooling_mode_max_tokens" };
            assert_eq!(read(json!({old: true, other: false})).modes, Ok(vec![mode]));
            assert_eq!(name.parse(), Ok(mode));
            assert_eq!(mode.to_string(), name);
        }
        let both = json!({"pooling_mode_lasttoken": true, "pooling_mode_cls_token": true});
        assert_eq!(read(both).modes, Ok(vec![PoolingMode::First, PoolingMode::Last]));
        assert_eq!(read(json!({"pooling_mode_cls_token": false})).modes, Ok(vec![PoolingMode::Mean]));
    }

    #[test]
    fn unknown_modes_are_refused_by_name() {
        for config in [
            json!({"pooling_mode": "attention"}),
            json!({"pooling_mode": ["mean", "attention"]}),
            json!({"pooling_mode_attention": true, "pooling_mode_mean_tokens": true}),
        ] {
            let error = read(config).modes.unwrap_err().to_string();
            assert!(error.contains("the pooling `attention` is not supported"), "{error}");
        }
        assert!(read(json!({"pooling_mode": []})).modes.is_err());
    }

    #[test]
    fn the_numbers_of_gguf_files_are_modes() {
        let modes = [PoolingMode::Mean, PoolingMode::First, PoolingMode::Last];
        assert_eq!([1, 2, 3].map(gguf_mode), modes.map(Ok));
        for (number, name) in
            [(0, "`0 (none)`"), (4, "`4 (rank)`"), (5, "`5`"), (u64::MAX, "`18446744073709551615`")]
        {
            let error = gguf_mode(number).unwrap_err().to_string();
            assert!(error.contains(&format!("the pooling {name} is not supported")), "{error}");
        }
    }

    #[test]
    fn other_keys_of_the_pooling_are_read() {
        let config = read(json!({"word_embedding_dimension": 8, "include_prompt": false}));
        assert_eq!((config.features, config.include_prompt), (Some(8), false));
        assert_eq!(read(json!({"embedding_dimension": 9})).features, Some(9));
        for wrong in [json!({"embedding_dimension": -1}), json!({"include_prompt": "no"})] {
            let error = PoolingConfig::read("F", wrong.as_object().unwrap()).unwrap_err().to_string();
            assert!(error.starts_with("F: "), "{error}");
        }
    }

    #[test]
    fn the_sum_is_divided_by_the_square_root_of_the_number_of_states() {
        let mut vector = [1.5, -3.0];
        PoolingMode::MeanSqrtLen.finish(&mut vector, 4);
        assert_eq!(vector, [3.0, -6.0]);
        PoolingMode::Mean.finish(&mut vector, 4);
        assert_eq!(vector, [3.0, -6.0]);
    }
}
