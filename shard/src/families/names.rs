//! Where a family's checkpoints keep each weight, as a table.

use std::ops::Range;

use crate::model::{DecoderSpec, LayerSlot, LayerSpec, Slot};

/// A run of rows of a weight that is stored in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    Query,
    Key,
    Value,
    Gate,
    Up,
}

impl Block {
    fn rows(self, layer: &LayerSpec) -> usize {
        match self {
            Block::Query => layer.qkv.heads * layer.qkv.head_dim,
            Block::Key | Block::Value => layer.qkv.kv_heads * layer.qkv.head_dim,
            Block::Gate | Block::Up => layer.mlp.width,
        }
    }
}

/// A stored projection: its name, and the blocks stacked in it, first to last.
pub(super) type Projection = (&'static str, &'static [Block]);

/// The names of a family's tensors, without `.weight` and `.bias`. Names of a layer's tensors follow `layers` and the number
/// of the layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    pub(super) embedding: &'static str,
    pub(super) layers: &'static str,
    pub(super) attention_norm: &'static str,
    /// Together they hold query, key and value.
    pub(super) qkv: &'static [Projection],
    pub(super) q_norm: &'static str,
    pub(super) k_norm: &'static str,
    pub(super) out: &'static str,
    pub(super) mlp_norm: &'static str,
    /// Together they hold gate and up.
    pub(super) gate_up: &'static [Projection],
    pub(super) down: &'static str,
    pub(super) final_norm: &'static str,
    pub(super) head: &'static str,
}

/// Query, key and value in a tensor each.
pub(super) const SEPARATE_QKV: &[Projection] = &[
    ("self_attn.q_proj", &[Block::Query]),
    ("self_attn.k_proj", &[Block::Key]),
    ("self_attn.v_proj", &[Block::Value]),
];

/// The names of Llama, which most families took over.
pub(super) const LLAMA: Names = Names {
    embedding: "model.embed_tokens",
    layers: "model.layers.",
    attention_norm: "input_layernorm",
    qkv: SEPARATE_QKV,
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    out: "self_attn.o_proj",
    mlp_norm: "post_attention_layernorm",
    gate_up: &[("mlp.gate_proj", &[Block::Gate]), ("mlp.up_proj", &[Block::Up])],
    down: "mlp.down_proj",
    final_norm: "model.norm",
    head: "lm_head",
};

/// A piece of a weight: the stored tensor with the shape it must have, and the rows of it to take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) tensor: String,
    /// `[rows, cols]`, or `[rows]` for a vector.
    pub(super) shape: Vec<usize>,
    pub(super) rows: Range<usize>,
}

impl Names {
    /// The pieces that, stacked, are the weight for `slot`.
    pub(super) fn pieces(&self, spec: &DecoderSpec, slot: Slot) -> Vec<Piece> {
        let whole = |name: String| {
            let (rows, cols) = spec.shape(slot);
            let (shape, rows) = if slot.is_vector() { (vec![cols], cols) } else { (vec![rows, cols], rows) };
            vec![Piece { tensor: name, shape, rows: 0..rows }]
        };
        let (index, of_layer) = match slot {
            Slot::Embedding => return whole(format!("{}.weight", self.embedding)),
            Slot::FinalNorm => return whole(format!("{}.weight", self.final_norm)),
            Slot::Head => return whole(self.head_weight()),
            Slot::Layer(index, of_layer) => (index, of_layer),
        };
        let layer = &spec.layers[index];
        let at = |name: &str, kind: &str| format!("{}{index}.{name}.{kind}", self.layers);
        let stacked = |blocks: &[Block], stored: &[Projection], kind: &str| {
            let cols = (!slot.is_vector()).then_some(spec.hidden);
            let mut pieces: Vec<Piece> = Vec::new();
            for &block in blocks {
                for &(name, held) in stored {
                    let Some(place) = held.iter().position(|&other| other == block) else { continue };
                    let rows = |blocks: &[Block]| blocks.iter().map(|block| block.rows(layer)).sum::<usize>();
                    let shape = [rows(held)].into_iter().chain(cols).collect();
                    let (start, tensor) = (rows(&held[..place]), at(name, kind));
                    let range = start..start + block.rows(layer);
                    match pieces.last_mut() {
                        // Blocks that follow each other in storage as in the weight are taken in one piece.
                        Some(last) if last.tensor == tensor && last.rows.end == start => {
                            last.rows.end = range.end
                        }
                        _ => pieces.push(Piece { tensor, shape, rows: range }),
                    }
                }
            }
            pieces
        };
        let qkv = [Block::Query, Block::Key, Block::Value];
        let gate_up = [Block::Gate, Block::Up];
        match of_layer {
            LayerSlot::AttentionNorm => whole(at(self.attention_norm, "weight")),
            LayerSlot::Qkv => stacked(&qkv, self.qkv, "weight"),
            LayerSlot::QkvBias => stacked(&qkv, self.qkv, "bias"),
            LayerSlot::QNorm => whole(at(self.q_norm, "weight")),
            LayerSlot::KNorm => whole(at(self.k_norm, "weight")),
            LayerSlot::Out => whole(at(self.out, "weight")),
            LayerSlot::OutBias => whole(at(self.out, "bias")),
            LayerSlot::MlpNorm => whole(at(self.mlp_norm, "weight")),
            LayerSlot::GateUp => stacked(&gate_up, self.gate_up, "weight"),
            LayerSlot::GateUpBias => stacked(&gate_up, self.gate_up, "bias"),
            LayerSlot::Down => whole(at(self.down, "weight")),
            LayerSlot::DownBias => whole(at(self.down, "bias")),
        }
    }

    /// The stored head, if it is not the embedding.
    pub(super) fn head_weight(&self) -> String {
        format!("{}.weight", self.head)
    }
}
