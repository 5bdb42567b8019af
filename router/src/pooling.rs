//! The pooling of a model: how a text becomes a vector.

use std::str::FromStr;

use millrace_proto::{PromptHandling, Ready};
use serde_json::{Map, Value};

pub use crate::engine::Pooling;

/// A pooling that is not supported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("vectors by the pooling `{0}` are not supported; --pooling last, mean and cls are")]
pub struct UnknownPooling(String);

impl FromStr for Pooling {
    type Err = UnknownPooling;

    fn from_str(name: &str) -> Result<Self, UnknownPooling> {
        match name {
            "last" => Ok(Pooling::Last),
            "mean" => Ok(Pooling::Mean),
            "first" | "cls" => Ok(Pooling::First),
            other => Err(UnknownPooling(other.to_owned())),
        }
    }
}

/// The pooling of sentence-transformers' `1_Pooling/config.json`, if there is such a file with a
/// mode in it.
///
/// # Errors
/// [`UnknownPooling`] if the file has another mode, or several modes.
pub(crate) fn configured(config: &Map<String, Value>) -> Result<Option<Pooling>, UnknownPooling> {
    let switches = config.iter().filter(|(_, on)| **on == Value::Bool(true));
    let modes: Vec<_> = switches.filter_map(|(name, _)| name.strip_prefix("pooling_mode_")).collect();
    match modes.as_slice() {
        [] => Ok(None),
        ["lasttoken"] => Ok(Some(Pooling::Last)),
        ["mean_tokens"] => Ok(Some(Pooling::Mean)),
        ["cls_token"] => Ok(Some(Pooling::First)),
        others => Err(UnknownPooling(others.join(", "))),
    }
}

/// The pooling of a model that asks for none. A token of a decoder attends only to the tokens
/// before it (in a few models, to those of a context), so only the last state depends on the whole
/// text in all models. All states of an encoder do, and sentence-transformers takes their mean.
pub(crate) fn usual(ready: &Ready) -> Pooling {
    let is_encoder = ready.headless && ready.prompt_handling() == PromptHandling::Whole;
    if is_encoder { Pooling::Mean } else { Pooling::Last }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_encoders_are_pooled_by_their_mean() {
        let of = |headless, handling: PromptHandling| {
            usual(&Ready { headless, prompt_handling: handling.into(), ..Ready::default() })
        };
        assert_eq!(of(true, PromptHandling::Whole), Pooling::Mean);
        assert_eq!(of(true, PromptHandling::Shared), Pooling::Last);
        assert_eq!(of(false, PromptHandling::Whole), Pooling::Last);
    }

    #[test]
    fn the_configuration_of_sentence_transformers_is_read() {
        let read = |config: Value| configured(config.as_object().unwrap()).map_err(|error| error.0);
        assert_eq!(read(json!({})), Ok(None));
        let last = json!({"word_embedding_dimension": 8, "pooling_mode_mean_tokens": false, "pooling_mode_lasttoken": true,
                          "include_prompt": true});
        assert_eq!(read(last), Ok(Some(Pooling::Last)));
        assert_eq!(read(json!({"pooling_mode_mean_tokens": true})), Ok(Some(Pooling::Mean)));
        assert_eq!(read(json!({"pooling_mode_cls_token": true})), Ok(Some(Pooling::First)));
        let both = json!({"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true});
        assert_eq!(read(both), Err("mean_tokens, max_tokens".into()));
    }
}
