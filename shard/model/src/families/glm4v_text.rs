//! The text part of GLM-4.1V: GLM-4-0414 with biases on query, key and value.

use super::config::Config;
use super::error::ConfigError;
use super::family::Family;
use super::glm4;
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family =
    Family { model_type: "glm4v_text", architectures: &[], spec, names: glm4::FAMILY.names };

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let mut config = config.clone();
    config.insert_absent("attention_bias", true.into());
    config.insert_absent("partial_rotary_factor", 1.into());
    // Heads always share the width.
    config.replace("head_dim", serde_json::Value::Null);
    (glm4::FAMILY.spec)(&config)
}
