//! The share of a rank: its specification, and its part of each weight.

use std::ops::Range;

use millrace_backend::QkvLayout;

use crate::description::{
    AttentionHeads, DecoderSpec, FeatureBlock, HeadNormPlan, LayerSpec, Mlp, Positions, RecurrentBlock,
    RecurrentLayer, SharedExpert, WeightSlot,
};

/// A rank of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Number of the rank, from 0.
    pub rank: usize,
    /// Number of ranks in the group.
    pub world_size: usize,
}

/// The reason why a model cannot be cut into equal shares.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--num-shard {world_size} does not fit this model: {reason}. Sizes that work: {}", list(.works))]
pub struct Indivisible {
    /// Number of ranks that was asked for.
    pub world_size: usize,
    /// The part of the model that cannot be shared.
    pub reason: String,
    /// Group sizes that the model can be cut for.
    pub works: Vec<usize>,
}

fn list(sizes: &[usize]) -> String {
    sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

/// The part of a weight that a rank takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cut {
    /// Output features, or elements of a vector, in the order in which they are stacked.
    pub(crate) rows: Vec<Range<usize>>,
    /// Input features. A vector has none.
    pub(crate) cols: Option<Range<usize>>,
    /// Number of rows of zeros that follow.
    pub(crate) padding: usize,
}

impl Split {
    /// The only rank of a model that is not split.
    pub const WHOLE: Split = Split { rank: 0, world_size: 1 };

    /// Returns the specification of this rank's decoder.
    ///
    /// # Errors
    /// If heads or features cannot be shared evenly.
    pub fn spec(self, whole: &DecoderSpec) -> Result<DecoderSpec, Indivisible> {
        let Split { rank, world_size } = self;
        if let Some(reason) = obstacle(whole, world_size) {
            return Err(Indivisible { world_size, reason, works: sizes(whole) });
        }
        let mut spec = whole.clone();
        spec.vocab_rows = self.vocab_rows(whole);
        for layer in &mut spec.layers {
            if let Some(heads) = layer.attention.heads_mut() {
                heads.layout.kv_heads = self.kv_heads(heads.layout).len();
                heads.layout.heads /= world_size;
                // These biases are added to a sum over all ranks, so only one rank adds them.
                heads.out_bias &= rank == 0;
                if let Positions::Linear(slopes) = &mut heads.positions {
                    slopes.first = rank * heads.layout.heads;
                }
                if let Positions::Distance(biased) = &mut heads.positions {
                    biased.first = rank * heads.layout.heads;
                }
            }
            if let Some(recurrent) = layer.attention.recurrent_mut() {
                recurrent.heads.key_heads /= world_size;
                recurrent.heads.heads /= world_size;
                recurrent.out_bias &= rank == 0;
            }
            match &mut layer.mlp {
                Mlp::Gated(mlp) | Mlp::Plain(mlp) => {
                    mlp.width /= world_size;
                    mlp.down_bias &= rank == 0;
                }
                Mlp::Experts(experts) => {
                    experts.width /= world_size;
                    experts.down_bias &= rank == 0;
                    experts.shared.iter_mut().for_each(|shared| shared.width /= world_size);
                }
                Mlp::None => {}
            }
        }
        Ok(spec)
    }

    /// Returns the key/value heads of this rank in a layer of the whole model.
    fn kv_heads(self, whole: QkvLayout) -> Range<usize> {
        let all = whole.kv_heads;
        if all >= self.world_size {
            self.share(all)
        } else {
            let head = self.rank * all / self.world_size;
            head..head + 1
        }
    }

    /// Returns this rank's equal share of `count`, which is a multiple of the world size.
    fn share(self, count: usize) -> Range<usize> {
        let share = count / self.world_size;
        self.rank * share..(self.rank + 1) * share
    }

    fn vocab_rows(self, whole: &DecoderSpec) -> Range<usize> {
        let share = whole.vocab.div_ceil(self.world_size);
        self.rank * share..(self.rank + 1) * share
    }

    /// Returns the part of a block of the weight for `slot` that this rank takes.
    fn cut_block(self, whole: &DecoderSpec, slot: WeightSlot, block: FeatureBlock) -> Range<usize> {
        let len = whole.block_len(slot, block);
        match block {
            FeatureBlock::Hidden
            | FeatureBlock::Embedding
            | FeatureBlock::HeadDim
            | FeatureBlock::PerLayerVocabulary
            | FeatureBlock::PerLayer
            | FeatureBlock::AllLayers
            | FeatureBlock::Positions
            | FeatureBlock::Experts
            | FeatureBlock::QueryRank
            | FeatureBlock::SharedKey
            | FeatureBlock::Latent
            | FeatureBlock::DistanceBuckets
            | FeatureBlock::AllHeads
            | FeatureBlock::One
            | FeatureBlock::Classes
            | FeatureBlock::Recurrent(RecurrentBlock::ValueDim | RecurrentBlock::Rank) => 0..len,
            FeatureBlock::Vocabulary => {
                let Range { start, end } = self.vocab_rows(whole);
                start.min(len)..end.min(len)
            }
            FeatureBlock::Heads
            | FeatureBlock::Query
            | FeatureBlock::HeadQueries
            | FeatureBlock::HeadKeysValues
            | FeatureBlock::QueryGate
            | FeatureBlock::Recurrent(_)
            | FeatureBlock::Gate
            | FeatureBlock::Up => self.share(len),
            FeatureBlock::Key | FeatureBlock::Value => {
                let layer = &whole.layers[slot.layer().expect("only layers have key and value heads")];
                let Some(AttentionHeads { layout, .. }) = layer.attention.cached_heads() else {
                    return 0..0;
                };
                let heads = self.kv_heads(*layout);
                heads.start * layout.head_dim..heads.end * layout.head_dim
            }
        }
    }

    /// Returns the part of the weight for `slot` that this rank takes.
    pub(crate) fn cut(self, whole: &DecoderSpec, slot: WeightSlot) -> Cut {
        let info = slot.info();
        let experts = whole.stacked_experts(slot);
        let mut rows = Vec::with_capacity(experts * info.outputs.len());
        let (mut offset, mut padding) = (0, 0);
        for &block in std::iter::repeat_n(info.outputs, experts).flatten() {
            let cut = self.cut_block(whole, slot, block);
            if block == FeatureBlock::Vocabulary {
                padding = self.vocab_rows(whole).len() - cut.len();
            }
            rows.push(offset + cut.start..offset + cut.end);
            offset += whole.block_len(slot, block);
        }
        let cols = info.inputs.map(|block| self.cut_block(whole, slot, block));
        Cut { rows, cols, padding }
    }
}

/// Returns the group sizes that a model can be cut for, ascending.
pub fn sizes(whole: &DecoderSpec) -> Vec<usize> {
    let heads = whole.layers.iter().flat_map(|LayerSpec { attention, .. }| {
        let of_heads = attention.heads().map(|heads| heads.layout.heads);
        of_heads.into_iter().chain(attention.recurrent().map(|layer| layer.heads.key_heads))
    });
    let most = heads.max().unwrap_or(1);
    (1..=most).filter(|&size| obstacle(whole, size).is_none()).collect()
}

/// Returns the reason why the model cannot be cut for this many ranks, if there is one.
fn obstacle(whole: &DecoderSpec, world_size: usize) -> Option<String> {
    let is_shared = |count: usize| count.is_multiple_of(world_size);
    whole.layers.iter().find_map(|layer| {
        let of_heads = layer.attention.heads().and_then(|heads| heads_obstacle(heads, world_size));
        let of_recurrence = || recurrent_obstacle(layer.attention.recurrent()?, world_size);
        of_heads.or_else(of_recurrence).or_else(|| {
            let mut widths = widths(&layer.mlp).into_iter().flatten();
            let (owner, width) = widths.find(|(_, width)| !is_shared(*width))?;
            Some(format!("the {width} features of its {owner} cannot be shared evenly"))
        })
    })
}

/// Returns the reason why the heads of a layer cannot be cut for this many ranks, if there is one.
fn heads_obstacle(of_layer: &AttentionHeads, world_size: usize) -> Option<String> {
    let QkvLayout { heads, kv_heads, .. } = of_layer.layout;
    if world_size > 1 && of_layer.head_norm == HeadNormPlan::AllHeads {
        Some("its norms of all query heads together cannot be shared".to_owned())
    } else if !heads.is_multiple_of(world_size) {
        Some(format!("its {heads} attention heads cannot be shared evenly"))
    } else if !kv_heads.is_multiple_of(world_size) && !world_size.is_multiple_of(kv_heads) {
        Some(format!("its {kv_heads} key/value heads can be neither shared nor repeated evenly"))
    } else {
        None
    }
}

/// Returns the reason why a recurrent layer cannot be cut for this many ranks, if there is one. A
/// rank takes key heads with all of their value heads.
fn recurrent_obstacle(of_layer: &RecurrentLayer, world_size: usize) -> Option<String> {
    let heads = of_layer.heads.key_heads;
    if world_size > 1 && of_layer.heads.neighbors() < of_layer.heads.heads / heads {
        let reason = "the value heads of its recurrent layers are in the order of GGUF files, in which those of \
                      a key head do not follow each other; take the model in Hugging Face layout instead";
        return Some(reason.to_owned());
    }
    let name =
        if of_layer.is_convolution() { "channels of convolutions" } else { "key heads of recurrent layers" };
    (!heads.is_multiple_of(world_size)).then(|| format!("its {heads} {name} cannot be shared evenly"))
}

/// Returns the names and widths of the MLPs of a layer.
fn widths(mlp: &Mlp) -> [Option<(&'static str, usize)>; 2] {
    match mlp {
        Mlp::Gated(mlp) | Mlp::Plain(mlp) => [Some(("MLP", mlp.width)), None],
        Mlp::Experts(experts) => {
            let shared = experts.shared.map(|SharedExpert { width, .. }| ("shared expert", width));
            [Some(("experts", experts.width)), shared]
        }
        Mlp::None => [None, None],
    }
}
