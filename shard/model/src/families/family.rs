//! The description of a family of models.

use super::config::Config;
use super::error::ConfigError;
use super::names::Names;
use crate::description::DecoderSpec;

/// A family: models that share a layout of weights, and the meaning of the keys of their
/// configuration.
pub(super) struct Family {
    /// The value of `model_type`.
    pub(super) model_type: &'static str,
    /// The values of `architectures` whose models compute logits of the next token.
    pub(super) architectures: &'static [&'static str],
    /// Reads the specification of the decoder from the configuration.
    pub(super) spec: fn(&Config) -> Result<DecoderSpec, ConfigError>,
    /// The names of the stored tensors.
    pub(super) names: Names,
}
