//! The pooling of a model: how a text becomes a vector.

use std::str::FromStr;

use serde_json::{Map, Value};

pub use crate::engine::Pooling;

/// A pooling that is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("vectors by the pooling `{0}` are not supported; --pooling last and --pooling mean are")]
pub struct UnknownPooling(String);

impl FromStr for Pooling {
    type Err = UnknownPooling;

    fn from_str(name: &str) -> Result<Self, UnknownPooling> {
        match name {
            "last" => Ok(Pooling::Last),
            "mean" => Ok(Pooling::Mean),
            other => Err(UnknownPooling(other.to_owned())),
        }
    }
}

/// The pooling of sentence-transformers' `1_Pooling/config.json`. Without this file, or without a
/// mode in it, it is the last state: a token of a decoder attends only to the tokens before it, so
/// only the last state depends on the whole text.
///
/// # Errors
/// [`UnknownPooling`] if the file has another mode, or several modes.
pub(crate) fn configured(config: &Map<String, Value>) -> Result<Pooling, UnknownPooling> {
    let switches = config.iter().filter(|(_, on)| **on == Value::Bool(true));
    let modes: Vec<_> = switches.filter_map(|(name, _)| name.strip_prefix("pooling_mode_")).collect();
    match modes.as_slice() {
        [] | ["lasttoken"] => Ok(Pooling::Last),
        ["mean_tokens"] => Ok(Pooling::Mean),
        others => Err(UnknownPooling(others.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_configuration_of_sentence_transformers_is_read() {
        let read = |config: Value| configured(config.as_object().unwrap()).map_err(|error| error.0);
        assert_eq!(read(json!({})), Ok(Pooling::Last));
        let last = json!({"word_embedding_dimension": 8, "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true,
                          "include_prompt": true});
        assert_eq!(read(last), Ok(Pooling::Last));
        assert_eq!(read(json!({"pooling_mode_mean_tokens": true})), Ok(Pooling::Mean));
        assert_eq!(read(json!({"pooling_mode_cls_token": true})), Err("cls_token".into()));
        let both = json!({"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true});
        assert_eq!(read(both), Err("mean_tokens, max_tokens".into()));
    }
}
