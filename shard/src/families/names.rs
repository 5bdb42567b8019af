//! The names under which a family's checkpoints store each weight.

use std::ops::Range;

use crate::model::{DecoderSpec, FeatureBlock, StoredTensors, WeightKind, WeightSlot};

/// The names of a family's tensors.
#[derive(Clone, Copy)]
pub(super) struct Names {
    /// The prefix of the names of a layer's tensors. The number of the layer follows.
    pub(super) layers: &'static str,
    /// Returns the tensors that store a weight.
    pub(super) tensors: fn(WeightSlot) -> StoredTensors,
}

/// The names of Llama, which most families use.
pub(super) const LLAMA: Names = Names { layers: "model.layers.", tensors: WeightSlot::usual_tensors };

/// A piece of a weight: a stored tensor with the shape that it must have, and the rows to take from
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) tensor: String,
    /// `[rows, cols]` of a matrix, or `[rows]` of a vector.
    pub(super) shape: Vec<usize>,
    pub(super) rows: Range<usize>,
}

impl Piece {
    /// Returns the name of the module, if the piece is a module's weight.
    pub(super) fn module(&self) -> Option<&str> {
        self.tensor.strip_suffix(".weight")
    }
}

impl Names {
    /// Returns the pieces that, stacked, are the weight for `slot`.
    pub(super) fn pieces(&self, spec: &DecoderSpec, slot: WeightSlot) -> Vec<Piece> {
        let info = slot.info();
        let cols = info.inputs.map(|block| spec.block_len(slot, block));
        let len = |blocks: &[FeatureBlock]| -> usize {
            blocks.iter().map(|&block| spec.block_len(slot, block)).sum()
        };
        let mut pieces: Vec<Piece> = Vec::new();
        for &block in info.outputs {
            for &(name, stored) in (self.tensors)(slot) {
                let Some(place) = stored.iter().position(|&other| other == block) else { continue };
                let tensor = self.full_name(slot, name);
                let start = len(&stored[..place]);
                let end = start + len(&[block]);
                match pieces.last_mut() {
                    // Blocks that follow each other in the tensor as in the weight are taken as one
                    // piece.
                    Some(last) if last.tensor == tensor && last.rows.end == start => last.rows.end = end,
                    _ => {
                        let shape = [len(stored)].into_iter().chain(cols).collect();
                        pieces.push(Piece { tensor, shape, rows: start..end });
                    }
                }
            }
        }
        pieces
    }

    /// Returns the full name of a tensor.
    fn full_name(&self, slot: WeightSlot, name: &str) -> String {
        let suffix = match slot.info().kind {
            WeightKind::Matrix { .. } | WeightKind::NormScale => ".weight",
            WeightKind::Bias => ".bias",
            WeightKind::Parameter => "",
        };
        match slot.layer() {
            Some(index) => format!("{}{index}.{name}{suffix}", self.layers),
            None => format!("{name}{suffix}"),
        }
    }

    /// Returns the name of the tensor that stores the head, which a checkpoint with a tied head may
    /// lack.
    pub(super) fn head(&self) -> String {
        let tensors = (self.tensors)(WeightSlot::Head);
        tensors.first().map(|(name, _)| self.full_name(WeightSlot::Head, name)).unwrap_or_default()
    }
}
