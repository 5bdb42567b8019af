//! The products that a step asks its device for.

use millrace_kernels::ProductShape;

use crate::Limits;
use crate::model::{DecoderSpec, Slot, Storage};

/// Every product of a step of `spec` with these limits once, in ascending order.
pub(crate) fn products(spec: &DecoderSpec, storage: Storage, limits: &Limits) -> Vec<ProductShape> {
    let head = if spec.tied_head { Slot::Embedding } else { Slot::Head };
    let mut all: Vec<ProductShape> = spec
        .slots()
        .into_iter()
        .filter(|&slot| !slot.is_vector() && (slot == head || slot != Slot::Embedding))
        .map(|slot| {
            let ((outputs, inputs), logits) = (spec.shape(slot), slot == head);
            let rows = if logits { limits.max_sequences } else { limits.max_step_tokens };
            ProductShape { inputs, outputs, format: storage.matrix(slot), logits, rows }
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use millrace_kernels::DType;

    use super::*;
    use crate::plan::tests::spec;

    #[test]
    fn every_shape_is_there_once() {
        let limits = Limits {
            max_step_tokens: 8,
            max_sequences: 4,
            max_sequence_tokens: 100,
            block_size: 16,
            num_blocks: 9,
            kv_dtype: DType::F16,
        };
        let found = |tied_head| {
            let products = products(&DecoderSpec { tied_head, ..spec() }, DType::F16.into(), &limits);
            products.iter().map(|p| (p.inputs, p.outputs, p.logits, p.rows)).collect::<Vec<_>>()
        };
        let layers = [(16, 16, false, 8), (16, 32, false, 8), (16, 64, false, 8)];
        let want = [layers.as_slice(), &[(16, 100, true, 4), (32, 16, false, 8)]].concat();
        assert_eq!(found(true), want);
        assert_eq!(found(false), want);
    }
}
