//! The description of an architecture of GGUF files, and the two that most others differ from.

use serde_json::{Map, Value};

use super::adapt::{experts, keys};
use super::model::{KvHeads, Model};
use super::names;
use super::naming::Naming;
use crate::error::Error;

/// A value of `general.architecture` whose models can be served.
pub(super) struct Architecture {
    /// The value.
    pub(super) name: &'static str,
    /// The values of `model_type` and `architectures` of the same model in Hugging Face layout.
    pub(super) model_type: &'static str,
    pub(super) class: &'static str,
    /// Other values of `model_type` whose models have this architecture. The keys of the file say
    /// which one it is, or both compute the same.
    pub(super) also: &'static [&'static str],
    /// Whether features `2 * i` and `2 * i + 1` are rotated together where the original model
    /// rotates others together, because the converter has reordered the rows of query and key.
    pub(super) interleaved: bool,
    pub(super) naming: Naming,
    /// The key of the epsilon of norms in the file, and in the configuration.
    pub(super) epsilon: (&'static str, &'static str),
    /// Whether the converter has added 1 to the scales of norms.
    pub(super) norms_plus_one: bool,
    /// Whether the converter has reordered the value heads of recurrent layers, so that the
    /// value heads of a key head no longer follow each other.
    pub(super) strided_value_heads: bool,
    /// Whether a tensor with query, key and value has all queries before all keys and values. The
    /// original model keeps the queries, the key and the value of a key head together.
    pub(super) stacked_qkv: bool,
    /// Whether matrices are stored by output feature, where the original model has them by input
    /// feature.
    pub(super) by_output: bool,
    /// Whether scores fall with the distance (ALiBi).
    pub(super) has_linear_biases: bool,
    /// Keys with a number for each layer, and the tensor of a layer that has it.
    pub(super) layer_numbers: &'static [(&'static str, &'static str)],
    /// Whether files have tensors that models are loaded without, so that none can be written.
    pub(super) is_only_read: bool,
    pub(super) window: Window,
    pub(super) kv_heads: KvHeads,
    /// Whether tensors with all experts are known.
    pub(super) has_experts: bool,
    /// Adds the keys that other architectures do not have.
    pub(super) adapt: fn(&Model<'_>, &mut Map<String, Value>) -> Result<(), Error>,
}

/// The meaning of a sliding window in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    /// A window is an error.
    Unknown,
    /// A model with a window is a Mistral.
    Mistral,
    /// All layers have it, or those that the family says.
    ByFamily,
}

pub(super) const LAYER_NORM: (&str, &str) = ("attention.layer_norm_epsilon", "layer_norm_epsilon");
pub(super) const RMS: (&str, &str) = ("attention.layer_norm_rms_epsilon", "rms_norm_eps");

/// Llama, which the others differ from.
pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    model_type: "llama",
    class: "LlamaForCausalLM",
    also: &["mistral", "mixtral", "internlm3"],
    interleaved: true,
    naming: names::LLAMA,
    epsilon: RMS,
    norms_plus_one: false,
    strided_value_heads: false,
    stacked_qkv: false,
    by_output: false,
    has_linear_biases: false,
    layer_numbers: &[],
    is_only_read: false,
    window: Window::Mistral,
    kv_heads: KvHeads::AllLayers,
    has_experts: true,
    adapt: experts::mixtral,
};

/// A model in the layout of Llama without its peculiarities.
pub(super) const PLAIN: Architecture = Architecture {
    also: &[],
    interleaved: false,
    window: Window::Unknown,
    has_experts: false,
    adapt: keys::nothing,
    ..LLAMA
};
