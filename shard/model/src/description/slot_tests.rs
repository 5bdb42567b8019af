//! Tests of the table of weights.

use super::blocks::FeatureBlock;
use super::recurrent::RecurrentSlot;
use super::slots::{LayerSlot, WeightKind, WeightSlot};

#[test]
fn the_list_of_slots_is_complete_and_in_order() {
    for (index, slot) in LayerSlot::ALL.into_iter().enumerate() {
        assert_eq!(slot as usize, index, "{slot:?}");
    }
    assert_eq!(LayerSlot::ALL.last(), Some(&LayerSlot::Scalar), "the last variant is in the list");
    for (index, slot) in RecurrentSlot::ALL.into_iter().enumerate() {
        assert_eq!(slot as usize, index, "{slot:?}");
    }
    assert_eq!(RecurrentSlot::ALL.last(), Some(&RecurrentSlot::OutBias), "the last variant is in the list");
}

/// Whatever stores a weight must hold each of its blocks once.
#[test]
fn the_usual_tensors_hold_every_block_once() {
    let whole = [
        WeightSlot::Embedding,
        WeightSlot::EmbeddingProjection,
        WeightSlot::EmbeddingNorm,
        WeightSlot::EmbeddingNormBias,
        WeightSlot::Positions,
        WeightSlot::PerLayerEmbedding,
        WeightSlot::PerLayerProjection,
        WeightSlot::PerLayerProjectionNorm,
        WeightSlot::FinalNorm,
        WeightSlot::FinalNormBias,
        WeightSlot::HeadProjection,
        WeightSlot::Head,
        WeightSlot::HeadBias,
    ];
    let of_layer = LayerSlot::ALL.map(|slot| WeightSlot::Layer(0, slot));
    let recurrent = RecurrentSlot::ALL.map(|slot| WeightSlot::Recurrent(0, slot));
    for slot in whole.into_iter().chain(of_layer).chain(recurrent) {
        let info = slot.info();
        let stored: Vec<FeatureBlock> =
            info.usual_tensors.iter().flat_map(|(_, blocks)| *blocks).copied().collect();
        assert_eq!(stored.len(), info.outputs.len(), "{slot:?}");
        assert!(info.outputs.iter().all(|block| stored.contains(block)), "{slot:?}: {stored:?}");
        assert_eq!(info.inputs.is_some(), matches!(info.kind, WeightKind::Matrix { .. }), "{slot:?}");
    }
}
