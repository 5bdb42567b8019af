//! The matrix products of a step.

use millrace_backend::ProductShape;

use crate::ShardLimits;
use crate::description::{DecoderSpec, LayerSlot, RowsInFormat, WeightSlot, WeightStorage};

/// Returns every product of a step of `spec` under these limits once, in ascending order.
pub(crate) fn products(
    spec: &DecoderSpec,
    storage: &WeightStorage,
    limits: &ShardLimits,
) -> Vec<ProductShape> {
    shapes(spec, storage, limits, |_| true)
}

/// Returns the products that a device may choose an algorithm for: all but those of experts, whose
/// numbers of rows are known to the device alone.
pub fn tuned_products(
    spec: &DecoderSpec,
    storage: &WeightStorage,
    limits: &ShardLimits,
) -> Vec<ProductShape> {
    shapes(spec, storage, limits, |slot| !slot.info().per_expert)
}

/// Returns the products of the layers of `spec`, without that of the head.
pub(crate) fn layer_products(
    spec: &DecoderSpec,
    storage: &WeightStorage,
    limits: &ShardLimits,
) -> Vec<ProductShape> {
    shapes(spec, storage, limits, |slot| slot.layer().is_some())
}

/// Returns the products with the weights that `is_wanted` accepts.
fn shapes(
    spec: &DecoderSpec,
    storage: &WeightStorage,
    limits: &ShardLimits,
    is_wanted: fn(WeightSlot) -> bool,
) -> Vec<ProductShape> {
    let head = spec.head_slot();
    let mut all: Vec<ProductShape> = spec
        .slots()
        .into_iter()
        .filter(|&slot| !slot.is_vector() && !spec.is_looked_up(slot) && !slot.is_of_single_heads())
        .filter(|&slot| is_wanted(slot))
        .flat_map(|slot| {
            let (outputs, inputs) = spec.shape(slot);
            // Each expert is a product of its own.
            let outputs = outputs / spec.stacked_experts(slot);
            let logits = Some(slot) == head || matches!(slot, WeightSlot::Layer(_, LayerSlot::Router));
            let of_outputs = Some(slot) == head || slot == WeightSlot::HeadProjection;
            let rows = if of_outputs { limits.max_outputs() } else { limits.max_step_tokens };
            let shape = move |RowsInFormat { rows: outputs, format }| ProductShape {
                inputs,
                outputs,
                format,
                logits,
                rows,
            };
            storage.rows(slot, (outputs, inputs)).into_iter().map(shape)
        })
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use millrace_numbers::DType;

    use super::*;
    use crate::AdapterLimits;
    use crate::description::test_spec::spec;

    #[test]
    fn every_product_shape_is_listed_once() {
        let limits = ShardLimits {
            max_step_tokens: 8,
            max_sequences: 4,
            max_sequence_tokens: 100,
            block_size: 16,
            num_blocks: 9,
            kv_format: DType::F16.into(),
            state_checkpoints: 0,
            max_drafts: 0,
            adapters: AdapterLimits::NONE,
        };
        let found = |tied_head| {
            let products = products(&DecoderSpec { tied_head, ..spec() }, &DType::F16.into(), &limits);
            products.iter().map(|p| (p.inputs, p.outputs, p.logits, p.rows)).collect::<Vec<_>>()
        };
        let layers = [(16, 16, false, 8), (16, 32, false, 8), (16, 64, false, 8)];
        let want = [layers.as_slice(), &[(16, 100, true, 4), (32, 16, false, 8)]].concat();
        assert_eq!(found(true), want);
        assert_eq!(found(false), want);
    }
}
