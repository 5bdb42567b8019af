use millrace_backend::{Activation, MlpKind, RouterScores, RouterSpec};

use super::*;
use crate::description::test_spec::spec;
use crate::description::{
    DecoderSpec, ExpertsSpec, HeadNormPlan, LayerSlot, LearnedPositions, Mlp, NormKind, SharedExpert,
    WeightSlot,
};

/// Heads and features that 4 ranks can share.
fn whole(heads: usize, kv_heads: usize, vocab: usize) -> DecoderSpec {
    let mut spec = spec();
    (spec.vocab, spec.vocab_rows) = (vocab, 0..vocab);
    spec.norm.kind = NormKind::Layer { eps: 1e-5, bias: true };
    spec.embedding.positions = Some(LearnedPositions { rows: 9, first: 2 });
    spec.head.bias = true;
    for layer in &mut spec.layers {
        let attention = layer.attention.heads_mut().unwrap();
        (attention.layout.heads, attention.layout.kv_heads) = (heads, kv_heads);
        (attention.qkv_bias, attention.out_bias, attention.sinks) = (true, true, true);
        attention.head_norm = HeadNormPlan::PerHead;
        let mlp = layer.mlp.dense_mut().unwrap();
        (mlp.width, mlp.up_bias, mlp.down_bias) = (24, true, true);
    }
    let router = RouterSpec {
        experts: 3,
        top_k: 2,
        scores: RouterScores::Sigmoid,
        normalize: true,
        factor: 1.0,
        weighs_inputs: false,
        groups: None,
    };
    let shared = Some(SharedExpert { width: 12, gated: true });
    spec.layers[1].mlp = Mlp::Experts(ExpertsSpec {
        router,
        router_bias: true,
        choice_bias: true,
        width: 8,
        kind: MlpKind::Gated(Activation::Silu.into()),
        up_bias: true,
        down_bias: true,
        shared,
        scales: true,
        own_norms: true,
    });
    spec
}

/// Counts how many ranks take each element of the whole weight.
fn taken(whole: &DecoderSpec, slot: WeightSlot, world_size: usize) -> Vec<usize> {
    let (rows, cols) = match (slot.is_vector(), whole.shape(slot)) {
        (true, (_, len)) => (len, 1),
        (false, shape) => shape,
    };
    let mut counts = vec![0; rows * cols];
    for rank in 0..world_size {
        let split = Split { rank, world_size };
        let cut = split.cut(whole, slot);
        let cut_cols = cut.cols.unwrap_or(0..cols);
        let held: usize = cut.rows.iter().map(ExactSizeIterator::len).sum();
        let (want_rows, want_cols) = split.spec(whole).unwrap().shape(slot);
        let found = (held + cut.padding, cut_cols.len());
        assert_eq!(found, if slot.is_vector() { (want_cols, 1) } else { (want_rows, want_cols) }, "{slot:?}");
        for row in cut.rows.into_iter().flatten() {
            cut_cols.clone().for_each(|col| counts[row * cols + col] += 1);
        }
    }
    counts
}

#[test]
fn what_is_cut_is_taken_once_and_the_rest_by_everyone() {
    for (kv_heads, vocab) in [(8, 97), (4, 100), (2, 98), (1, 99)] {
        let whole = whole(8, kv_heads, vocab);
        for world_size in [1, 2, 4] {
            for slot in whole.slots() {
                let counts = taken(&whole, slot, world_size);
                let repeated = world_size.div_ceil(kv_heads);
                for (element, &count) in counts.iter().enumerate() {
                    let cut = match slot {
                        WeightSlot::Embedding | WeightSlot::Head | WeightSlot::HeadBias => 1,
                        WeightSlot::Layer(_, LayerSlot::QHeadsNorm | LayerSlot::Sinks) => 1,
                        WeightSlot::Layer(_, LayerSlot::KHeadsNorm) => repeated,
                        WeightSlot::Layer(_, LayerSlot::Qkv | LayerSlot::QkvBias) => {
                            let cols =
                                counts.len() / whole.layers[0].attention.heads().unwrap().layout.cols();
                            let is_query = element / cols
                                < 8 * whole.layers[0].attention.heads().unwrap().layout.head_dim;
                            if is_query { 1 } else { repeated }
                        }
                        WeightSlot::Layer(
                            _,
                            LayerSlot::Out
                            | LayerSlot::GateUp
                            | LayerSlot::GateUpBias
                            | LayerSlot::Down
                            | LayerSlot::ExpertGateUp
                            | LayerSlot::ExpertGateUpBias
                            | LayerSlot::ExpertDown
                            | LayerSlot::SharedGateUp
                            | LayerSlot::SharedDown,
                        ) => 1,
                        _ => world_size,
                    };
                    assert_eq!(count, cut, "{slot:?}, element {element}, {world_size} ranks");
                }
            }
        }
    }
}

#[test]
fn biases_after_a_sum_are_added_once() {
    let whole = whole(8, 4, 10);
    let biases = |rank| {
        let spec = Split { rank, world_size: 2 }.spec(&whole).unwrap();
        let layer = &spec.layers[0];
        let (heads, mlp) = (layer.attention.heads().unwrap(), layer.mlp.dense().unwrap());
        let experts = spec.layers[1].mlp.experts().unwrap();
        let of_experts = [experts.router_bias, experts.up_bias, experts.down_bias];
        ([heads.qkv_bias, mlp.up_bias, heads.out_bias, mlp.down_bias], of_experts)
    };
    assert_eq!(biases(0), ([true; 4], [true; 3]));
    assert_eq!(biases(1), ([true, true, false, false], [true, true, false]));
}
