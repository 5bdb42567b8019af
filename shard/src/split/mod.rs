//! One rank's share of a model, cut as in Megatron-LM (Shoeybi et al.).
//!
//! Query, key and value heads, and the features of gate and up, are shared out among the ranks: their projections are
//! cut by output. The attention's output and the down projection are cut by input to match, so each rank has a summand
//! of their result, and one all-reduce after each makes it whole. Embedding and head are cut by vocabulary. With fewer
//! key/value heads than ranks, neighbouring ranks hold the same one.

mod weights;

use std::ops::Range;

use crate::model::{DecoderSpec, LayerSlot, LayerSpec, Slot};

pub use weights::SplitWeights;

/// A rank of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Its number, from 0.
    pub rank: usize,
    /// Ranks in the group.
    pub world_size: usize,
}

/// Why a model cannot be cut into so many shares.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--num-shard {world_size} does not fit this model: {what}. Sizes that work: {}", list(.works))]
pub struct Indivisible {
    /// Ranks asked for.
    pub world_size: usize,
    /// What cannot be shared.
    pub what: String,
    /// Group sizes that the model can be cut for.
    pub works: Vec<usize>,
}

fn list(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// What a rank takes of a whole weight.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cut {
    /// Output features (or elements of a vector), in the order in which they are stacked.
    rows: Vec<Range<usize>>,
    /// Input features; all of a vector's single column.
    cols: Option<Range<usize>>,
    /// Rows of zeros after them.
    padding: usize,
}

impl Split {
    /// The only rank there is.
    pub const WHOLE: Split = Split { rank: 0, world_size: 1 };

    /// What this rank's decoder computes.
    ///
    /// # Errors
    /// If heads or features cannot be shared evenly.
    pub fn spec(self, whole: &DecoderSpec) -> Result<DecoderSpec, Indivisible> {
        let Split { rank, world_size } = self;
        if let Some(what) = hindrance(whole, world_size) {
            return Err(Indivisible { world_size, what, works: sizes(whole) });
        }
        let mut spec = whole.clone();
        spec.vocab_rows = self.vocab_rows(whole);
        for layer in &mut spec.layers {
            layer.qkv.heads /= world_size;
            layer.qkv.kv_heads = self.kv_heads(layer).len();
            layer.mlp.width /= world_size;
            // Added once, to the sum.
            layer.out_bias &= rank == 0;
            layer.mlp.down_bias &= rank == 0;
        }
        Ok(spec)
    }

    /// The key/value heads of this rank in a layer of the whole model.
    fn kv_heads(self, layer: &LayerSpec) -> Range<usize> {
        let all = layer.qkv.kv_heads;
        if all >= self.world_size {
            self.share(all)
        } else {
            let head = self.rank * all / self.world_size;
            head..head + 1
        }
    }

    /// An equal share of `count`, which the ranks divide.
    fn share(self, count: usize) -> Range<usize> {
        let share = count / self.world_size;
        self.rank * share..(self.rank + 1) * share
    }

    fn vocab_rows(self, whole: &DecoderSpec) -> Range<usize> {
        let share = whole.vocab.div_ceil(self.world_size);
        self.rank * share..(self.rank + 1) * share
    }

    /// What this rank takes of the whole weight for `slot`.
    fn cut(self, whole: &DecoderSpec, slot: Slot) -> Cut {
        let all = || {
            let (rows, cols) = whole.shape(slot);
            0..if slot.is_vector() { cols } else { rows }
        };
        let by_output = |rows| Cut { rows, cols: None, padding: 0 };
        let (index, of_layer) = match slot {
            Slot::Embedding | Slot::Head => {
                let Range { start, end } = self.vocab_rows(whole);
                let held = start.min(whole.vocab)..end.min(whole.vocab);
                let padding = end - start - held.len();
                return Cut { rows: vec![held], cols: None, padding };
            }
            Slot::FinalNorm => return by_output(vec![all()]),
            Slot::Layer(index, of_layer) => (index, of_layer),
        };
        let layer = &whole.layers[index];
        let dim = layer.qkv.head_dim;
        let features =
            |heads: Range<usize>, after: usize| (after + heads.start) * dim..(after + heads.end) * dim;
        match of_layer {
            LayerSlot::Qkv | LayerSlot::QkvBias => {
                let (heads, kv_heads) = (layer.qkv.heads, layer.qkv.kv_heads);
                let kv = self.kv_heads(layer);
                by_output(vec![
                    features(self.share(heads), 0),
                    features(kv.clone(), heads),
                    features(kv, heads + kv_heads),
                ])
            }
            LayerSlot::GateUp | LayerSlot::GateUpBias => {
                let width = layer.mlp.width;
                let gate = self.share(width);
                let up = width + gate.start..width + gate.end;
                by_output(vec![gate, up])
            }
            LayerSlot::Out => {
                let cols = Some(features(self.share(layer.qkv.heads), 0));
                Cut { rows: vec![all()], cols, padding: 0 }
            }
            LayerSlot::Down => Cut { rows: vec![all()], cols: Some(self.share(layer.mlp.width)), padding: 0 },
            LayerSlot::AttentionNorm
            | LayerSlot::QNorm
            | LayerSlot::KNorm
            | LayerSlot::OutBias
            | LayerSlot::MlpNorm
            | LayerSlot::DownBias => by_output(vec![all()]),
        }
    }
}

/// The group sizes that a model can be cut for, ascending.
pub fn sizes(whole: &DecoderSpec) -> Vec<usize> {
    let most = whole.layers.iter().map(|layer| layer.qkv.heads).max().unwrap_or(1);
    (1..=most).filter(|&size| hindrance(whole, size).is_none()).collect()
}

/// What stands against sharing the model among so many.
fn hindrance(whole: &DecoderSpec, world_size: usize) -> Option<String> {
    let shared = |count: usize| count.is_multiple_of(world_size);
    whole.layers.iter().find_map(|layer| {
        let (heads, kv_heads, width) = (layer.qkv.heads, layer.qkv.kv_heads, layer.mlp.width);
        if !shared(heads) {
            Some(format!("its {heads} attention heads cannot be shared evenly"))
        } else if !shared(kv_heads) && !world_size.is_multiple_of(kv_heads) {
            Some(format!("its {kv_heads} key/value heads can be neither shared nor repeated evenly"))
        } else if !shared(width) {
            Some(format!("the {width} features of its MLP cannot be shared evenly"))
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests;
