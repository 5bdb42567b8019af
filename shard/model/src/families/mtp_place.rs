//! The places and names of heads that predict the token after the next one.

use crate::description::WeightSlot;

/// The prefix of the names of tensors in a module for the prediction of further tokens.
pub(super) const MODULE: &str = "mtp.";

/// The place of the head in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MtpPlace {
    /// A module of its own (Qwen3-Next, Qwen3.5).
    Module,
    /// The layer after the last one (DeepSeek-V3, GLM-4.5).
    LaterLayer,
}

/// Returns the name in a module of a weight that belongs to no layer; `usual` if it has no other.
pub(super) fn name_in_module(slot: WeightSlot, usual: &str) -> &str {
    match slot {
        WeightSlot::TokenNorm => "pre_fc_norm_embedding",
        WeightSlot::StateNorm => "pre_fc_norm_hidden",
        WeightSlot::TokenProjection | WeightSlot::StateProjection => "fc",
        WeightSlot::FinalNorm => "norm",
        _ => usual,
    }
}

/// Returns the name in a later layer of a weight that belongs to no layer; `usual` if it has no
/// other.
pub(super) fn name_in_layer(slot: WeightSlot, usual: &str) -> &str {
    if slot == WeightSlot::FinalNorm { "shared_head.norm" } else { usual }
}
