//! The weights of a decoder in a checkpoint: the one reader of all families.

use std::collections::HashSet;

use millrace_kernels::Part;

use super::names::Names;
use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::model::{DecoderSpec, Slot, WeightSource};

/// Weights as `names` finds them in a checkpoint.
pub(super) struct StoredWeights {
    checkpoint: Checkpoint,
    spec: DecoderSpec,
    names: &'static Names,
}

impl StoredWeights {
    /// Checks that every weight of `spec` is there with its shape, and that none is there which would be left out.
    pub(super) fn new(
        checkpoint: Checkpoint,
        spec: DecoderSpec,
        names: &'static Names,
    ) -> Result<Self, Error> {
        let weights = StoredWeights { checkpoint, spec, names };
        let mut used = HashSet::new();
        for slot in weights.spec.slots() {
            for piece in names.pieces(&weights.spec, slot) {
                weights.checkpoint.tensor(&piece.tensor, &piece.shape)?;
                used.insert(piece.tensor);
            }
        }
        weights.check_unused(&used)?;
        Ok(weights)
    }

    /// A tensor of a layer, or a bias of a used weight, that nothing asks for belongs to a model that this
    /// configuration does not describe.
    fn check_unused(&self, used: &HashSet<String>) -> Result<(), Error> {
        let mut ignored = Vec::new();
        for tensor in self.checkpoint.tensors() {
            let name = tensor.name;
            // Constants that old versions stored with the weights; a tied head is sometimes stored as well.
            if used.contains(&name)
                || name.ends_with("rotary_emb.inv_freq")
                || name.ends_with("rotary_pos_emb.inv_freq")
                || name == self.names.head_weight()
            {
                continue;
            }
            let of_layer = name.starts_with(self.names.layers);
            let of_used =
                name.strip_suffix(".bias").is_some_and(|base| used.contains(&format!("{base}.weight")));
            if (of_layer || of_used)
                && let Some(error) = self.checkpoint.unused(&name)
            {
                return Err(error.into());
            }
            ignored.push(name);
        }
        if let Some(first) = ignored.first() {
            tracing::warn!(count = ignored.len(), first, "tensors of the checkpoint are not used");
        }
        Ok(())
    }
}

impl WeightSource for StoredWeights {
    fn parts(&self, slot: Slot) -> Result<Vec<Part<'_>>, Error> {
        // A file that was cut reads as zeros; the rest of it is not worth the time.
        self.checkpoint.check_readable()?;
        let pieces = self.names.pieces(&self.spec, slot);
        let part = |piece: super::names::Piece| {
            let tensor = self.checkpoint.tensor(&piece.tensor, &piece.shape)?;
            // A vector is one row; its elements are the output features.
            let (rows, cols) =
                if slot.is_vector() { (0..1, piece.rows) } else { (piece.rows, 0..tensor.cols) };
            Ok(Part { tensor, rows, cols })
        };
        pieces.into_iter().map(part).collect()
    }

    fn will_need(&self, part: &Part<'_>) {
        self.checkpoint.will_need(part);
    }

    fn identity(&self) -> String {
        self.checkpoint.identity().to_owned()
    }

    fn verify(&self) -> Result<(), Error> {
        Ok(self.checkpoint.verify()?)
    }
}
