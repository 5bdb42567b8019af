use super::*;
use crate::plan::tests::spec;

/// Heads and features that 4 ranks can share.
fn whole(heads: usize, kv_heads: usize, vocab: usize) -> DecoderSpec {
    let mut spec = spec();
    (spec.vocab, spec.vocab_rows) = (vocab, 0..vocab);
    for layer in &mut spec.layers {
        (layer.qkv.heads, layer.qkv.kv_heads, layer.mlp.width) = (heads, kv_heads, 24);
        (layer.qkv_bias, layer.out_bias, layer.mlp.up_bias, layer.mlp.down_bias) = (true, true, true, true);
    }
    spec
}

/// How often the ranks together take each element of the whole weight.
fn taken(whole: &DecoderSpec, slot: Slot, world_size: usize) -> Vec<usize> {
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
                        Slot::FinalNorm => world_size,
                        Slot::Embedding | Slot::Head => 1,
                        Slot::Layer(_, LayerSlot::Qkv | LayerSlot::QkvBias) => {
                            let cols = counts.len() / whole.layers[0].qkv.cols();
                            let is_query = element / cols < 8 * whole.layers[0].qkv.head_dim;
                            if is_query { 1 } else { repeated }
                        }
                        Slot::Layer(
                            _,
                            LayerSlot::Out | LayerSlot::GateUp | LayerSlot::GateUpBias | LayerSlot::Down,
                        ) => 1,
                        Slot::Layer(..) => world_size,
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
        (layer.qkv_bias, layer.mlp.up_bias, layer.out_bias, layer.mlp.down_bias)
    };
    assert_eq!([biases(0), biases(1)], [(true, true, true, true), (true, true, false, false)]);
}
