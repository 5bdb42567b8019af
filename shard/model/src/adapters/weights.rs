//! The modules of one matrix that an adapter changes, and their rows in a rank's share.

use std::ops::Range;

use super::tensors::ProductTensors;

/// A module that an adapter changes.
#[derive(Debug)]
pub(super) struct SlotModule {
    pub(super) name: String,
    pub(super) tensors: ProductTensors,
    pub(super) rank: usize,
    pub(super) scale: f64,
}

/// The modules of one matrix that an adapter changes.
#[derive(Debug, Default)]
pub(super) struct SlotModules {
    pub(super) modules: Vec<SlotModule>,
    /// The parts of the matrix in the order of transformers: the rows of a module, which is an
    /// index into `modules`, or rows that do not change.
    pub(super) pieces: Vec<(Option<usize>, Range<usize>)>,
}

/// The rows of one module in a rank's share of a matrix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// The rows of the module, in the order of the share.
    pub(super) from: Vec<usize>,
    /// The rows of the share.
    pub(super) to: Vec<Range<usize>>,
}

impl SlotModules {
    /// Returns for each module its rows among `wanted`, which are rows of the matrix in the order
    /// of the decoder. `order` has the row in the order of transformers for each of them.
    pub(super) fn take(&self, wanted: impl Iterator<Item = usize>, order: Option<&[usize]>) -> Vec<Taken> {
        let mut rows: Vec<Option<(usize, usize)>> = Vec::new();
        for (module, range) in &self.pieces {
            rows.extend(range.clone().map(|row| module.map(|module| (module, row))));
        }
        let mut taken = vec![Taken::default(); self.modules.len()];
        for (to, row) in wanted.enumerate() {
            let Some((module, from)) = rows[order.map_or(row, |order| order[row])] else { continue };
            let taken = &mut taken[module];
            taken.from.push(from);
            match taken.to.last_mut() {
                Some(last) if last.end == to => last.end += 1,
                _ => taken.to.push(to..to + 1),
            }
        }
        taken
    }
}
