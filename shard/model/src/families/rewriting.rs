//! A model whose weights are written again, under the names of another file format.
//!
//! The tables that weights are read with say where each row of a new tensor comes from: the stored
//! tensors and the new ones are pieces of the same weights. So a tensor with the matrices of all
//! experts, or with query, key and value, becomes whatever the other format has.

use std::ops::Range;

use millrace_formats::{GgufOrder, Source};
use millrace_numbers::Part;

use super::error::LoadError;
use super::load;
use super::names::{Names, Piece, StoredOrder};
use super::overrides::Overrides;
use super::stored::StoredWeights;
use crate::description::{DecoderSpec, LayerSlot, RecurrentSlot, WeightError, WeightSlot};

/// A model with its weights as they are stored.
pub struct StoredModel {
    spec: DecoderSpec,
    names: Names,
    weights: StoredWeights,
}

/// The numbers that rows of a new tensor are made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RowSource {
    /// A weight.
    Weight(WeightSlot),
    /// The table of token types.
    TokenTypes,
}

/// Rows of a new tensor, and the rows of a weight that they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewRows {
    /// The name of the tensor in Hugging Face layout.
    pub tensor: String,
    /// The length of each axis of the tensor.
    pub shape: Vec<usize>,
    /// The rows of the tensor, or the elements of a vector.
    pub rows: Range<usize>,
    /// The weight.
    pub source: RowSource,
    /// The first of the rows of the weight.
    pub first: usize,
    /// The head whose share of a tensor `[heads, cols, rows]` these rows are, as its columns.
    pub transposed_head: Option<usize>,
}

impl StoredModel {
    /// Reads the configuration of a model and maps its weights.
    ///
    /// # Errors
    /// If the model is not supported, or its files are incomplete, damaged or contradict each
    /// other.
    pub fn open(source: &Source) -> Result<StoredModel, LoadError> {
        let (found, weights) = load::open(source, &Overrides::default())?;
        Ok(StoredModel { names: found.family.names, spec: found.spec, weights })
    }

    /// Returns the specification of the decoder.
    pub fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Returns the parts of a weight as they are stored, in the order in which they are stacked.
    ///
    /// # Errors
    /// If the weight cannot be read.
    pub fn parts(&self, source: RowSource) -> Result<Vec<Part>, WeightError> {
        match source {
            RowSource::Weight(slot) => self.weights.stored_parts(slot),
            RowSource::TokenTypes => Ok(self.weights.token_type_part()?.into_iter().collect()),
        }
    }

    /// Returns the rows of all tensors of a file that has the model's tensors under those of its
    /// names for which `is_known` returns true. Where the family and the usual layout have
    /// different tensors, one of them must be known. `order` is the order of the new file.
    ///
    /// # Errors
    /// Returns the name of a tensor that is not known.
    pub fn rows(&self, order: GgufOrder, is_known: &dyn Fn(&str) -> bool) -> Result<Vec<NewRows>, String> {
        let names = self.names.in_order(order.stacked_qkv, order.by_output);
        let mut all = Vec::new();
        // The second type is a part of the table of token types.
        for slot in self.spec.slots().into_iter().filter(|slot| *slot != WeightSlot::SecondType) {
            let mut first = 0;
            for piece in self.pieces(&names, slot, is_known)? {
                let count = piece.rows.len();
                all.push(new_rows(piece, RowSource::Weight(slot), first));
                first += count;
            }
        }
        if let Some(mut types) = names.token_types(&self.spec) {
            types.tensor = names.resolve(&types.tensor, is_known);
            match is_known(&types.tensor) {
                true => all.push(new_rows(types, RowSource::TokenTypes, 0)),
                false => return Err(types.tensor),
            }
        }
        Ok(all)
    }

    /// Returns the pieces of a weight in the new file.
    fn pieces(
        &self,
        names: &Names,
        slot: WeightSlot,
        is_known: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<Piece>, String> {
        let own = names.pieces(&self.spec, slot);
        let usual = names.usual_pieces(&self.spec, slot);
        let is_split = matches!(
            slot,
            WeightSlot::Layer(_, LayerSlot::LatentUp) | WeightSlot::Recurrent(_, RecurrentSlot::In)
        );
        // A file that has names for both has the tensors of newer converters, which are split.
        let [first, second] = if is_split { [usual, own] } else { [own, usual] };
        let choices = [first, second];
        let mut unknown = None;
        for mut pieces in choices.into_iter().filter(|pieces| !pieces.is_empty()) {
            for piece in &mut pieces {
                piece.tensor = names.resolve(&piece.tensor, is_known);
            }
            let fits = |piece: &&Piece| {
                matches!(piece.order, StoredOrder::RowMajor | StoredOrder::TransposedHead(_))
                    && is_known(&piece.tensor)
            };
            match pieces.iter().find(|piece| !fits(piece)) {
                None => return Ok(pieces),
                Some(piece) => unknown.get_or_insert_with(|| piece.tensor.clone()),
            };
        }
        Err(unknown.unwrap_or_default())
    }
}

fn new_rows(piece: Piece, source: RowSource, first: usize) -> NewRows {
    let Piece { tensor, shape, rows, order } = piece;
    let transposed_head = match order {
        StoredOrder::TransposedHead(head) => Some(head),
        _ => None,
    };
    NewRows { tensor, shape, rows, source, first, transposed_head }
}
