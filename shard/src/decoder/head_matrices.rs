//! The memory of matrices of single heads, which latent attention multiplies by.

use millrace_backend::Sizing;
use millrace_numbers::DType;

use crate::model::{DecoderSpec, WeightSlot};

/// Returns the bytes of the matrices of single heads that the weight for `slot` holds.
pub(crate) fn head_matrices_bytes(
    spec: &DecoderSpec,
    slot: WeightSlot,
    dtype: DType,
    device: &impl Sizing,
) -> usize {
    let heads = slot.layer().and_then(|index| spec.layers[index].attention.heads());
    let Some((count, plan)) = heads.and_then(|heads| Some((heads.layout.heads, heads.latent?))) else {
        return 0;
    };
    let keys = device.head_matrices_bytes(count, plan.plain_dim, plan.rank, dtype);
    keys.saturating_add(device.head_matrices_bytes(count, plan.rank, plan.value_dim, dtype))
}
