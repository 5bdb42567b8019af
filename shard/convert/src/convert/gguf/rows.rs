//! Reads the rows of weights in the order of a new file, and changes their numbers as it has them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use millrace_formats::{GgufArchitecture, GgufOrder, GgufType};
use millrace_model::families::{RowSource, StoredModel};
use millrace_model::{
    DecoderSpec, FeatureBlock, LayerSlot, Positions, RecurrentBlock, RecurrentLayer, RecurrentSlot,
    WeightSlot,
};
use millrace_numbers::{DType, Part};

use super::super::error::ConvertError;
use super::super::tensors::{CHUNK, HeadOrder, RowType, encode};
use super::factors::Factors;
use super::layout::{Planned, Segment, blocks};

/// The weights of a model, in the order of a new file.
pub(super) struct Reordered<'a> {
    pub(super) model: &'a StoredModel,
    pub(super) architecture: GgufArchitecture,
    /// The order of the weights of the model.
    pub(super) stored: GgufOrder,
    /// The factors that the file has in its weights.
    pub(super) factors: Option<Factors>,
}

/// A weight whose rows are read one by one. A vector has one row, whose elements count as rows.
struct Weight {
    parts: Vec<Part>,
    /// The elements of a vector.
    vector: Option<Vec<f32>>,
    /// The order of the rows of each block, with the block's length and factor.
    blocks: Vec<OrderedBlock>,
    columns: RowOrder,
}

struct OrderedBlock {
    len: usize,
    order: RowOrder,
    factor: f32,
}

/// The order of the rows of a block of features.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RowOrder {
    Same,
    /// Heads of this many rows, the first of which are rotated.
    Rotated {
        head_dim: usize,
        order: HeadOrder,
    },
    /// Value heads of `rows` rows, in files as many apart as there are key heads if they share one.
    Strided {
        rows: usize,
        key_heads: usize,
        sharing: usize,
        is_undone: bool,
    },
}

impl RowOrder {
    /// Returns the row of the model that becomes this row.
    fn stored_row(self, row: usize) -> usize {
        match self {
            RowOrder::Same => row,
            RowOrder::Rotated { head_dim, order } => {
                let (head, feature) = (row / head_dim, row % head_dim);
                let is_rotated = feature < order.head_dim;
                head * head_dim + if is_rotated { order.stored_row(feature) } else { feature }
            }
            RowOrder::Strided { rows, key_heads, sharing, is_undone } => {
                let (head, feature) = (row / rows, row % rows);
                let stored = match is_undone {
                    false => head % key_heads * sharing + head / key_heads,
                    true => head % sharing * key_heads + head / sharing,
                };
                stored * rows + feature
            }
        }
    }
}

impl Reordered<'_> {
    /// Gives the bytes of a tensor to `write`, in order.
    pub(super) fn convert(
        &self,
        planned: &Planned,
        write: &mut dyn FnMut(&[u8]) -> Result<(), ConvertError>,
    ) -> Result<(), ConvertError> {
        let mut weights: HashMap<RowSource, Weight> = HashMap::new();
        let to = row_type(planned.new.kind);
        let (mut bytes, mut row) = (Vec::new(), vec![0.0; planned.cols]);
        for segment in &planned.segments {
            let weight = match weights.entry(segment.source) {
                Entry::Occupied(found) => found.into_mut(),
                Entry::Vacant(place) => place.insert(self.weight(segment.source)?),
            };
            let mut give = |numbers: &mut [f32]| -> Result<(), ConvertError> {
                self.architecture.change_numbers(&planned.new.name, numbers);
                let error = |source| ConvertError::Weights { tensor: planned.new.name.clone(), source };
                encode(numbers, to, &mut bytes).map_err(error)?;
                if bytes.len() >= CHUNK {
                    write(&bytes)?;
                    bytes.clear();
                }
                Ok(())
            };
            if planned.is_vector {
                give(&mut weight.elements(segment))?;
            } else if segment.is_transposed {
                weight.transposed(segment, planned.cols).chunks_mut(planned.cols).try_for_each(give)?;
            } else {
                for index in segment.first..segment.first + segment.count {
                    weight.read_row(index, &mut row);
                    give(&mut row)?;
                }
            }
        }
        write(&bytes)
    }

    /// Returns the elements of a vector.
    pub(super) fn vector(&self, slot: WeightSlot) -> Result<Vec<f32>, ConvertError> {
        Ok(self.weight(RowSource::Weight(slot))?.vector.unwrap_or_default())
    }

    fn weight(&self, source: RowSource) -> Result<Weight, ConvertError> {
        let parts = self.model.parts(source).map_err(millrace_model::families::LoadError::from)?;
        let (blocks, columns, is_vector) = match source {
            RowSource::Weight(slot) => (self.ordered(slot), self.columns(slot), slot.is_vector()),
            RowSource::TokenTypes => (Vec::new(), RowOrder::Same, false),
        };
        let vector = is_vector.then(|| parts.iter().flat_map(all_numbers).collect());
        Ok(Weight { parts, vector, blocks, columns })
    }

    /// Returns the order of the rows of a weight. The rows of experts keep theirs.
    fn ordered(&self, slot: WeightSlot) -> Vec<OrderedBlock> {
        let spec = self.model.spec();
        if slot.info().per_expert {
            return Vec::new();
        }
        let factor = |block| self.factors.as_ref().map_or(1.0, |factors| factors.of(slot, block));
        let ordered =
            |(block, len)| OrderedBlock { len, order: self.order(slot, block), factor: factor(block) };
        blocks(spec, slot).into_iter().map(ordered).collect()
    }

    fn order(&self, slot: WeightSlot, block: FeatureBlock) -> RowOrder {
        let spec = self.model.spec();
        let is_rotated = matches!(block, FeatureBlock::Query | FeatureBlock::Key)
            && matches!(slot, WeightSlot::Layer(_, LayerSlot::Qkv | LayerSlot::QkvBias));
        let to_pairs = self.architecture.order().rope_interleaved;
        if is_rotated && to_pairs != self.stored.rope_interleaved {
            return rotated(spec, slot, to_pairs);
        }
        let FeatureBlock::Recurrent(block) = block else { return RowOrder::Same };
        let Some(layer) = slot.layer().and_then(|index| spec.layers[index].attention.recurrent()) else {
            return RowOrder::Same;
        };
        let rows = match block {
            RecurrentBlock::Value | RecurrentBlock::Gate => layer.heads.value_dim,
            RecurrentBlock::ValueTaps => layer.heads.value_dim * layer.taps,
            RecurrentBlock::Strength | RecurrentBlock::Rate => 1,
            _ => return RowOrder::Same,
        };
        self.strided(layer, rows)
    }

    /// Returns the order of the columns of a weight.
    fn columns(&self, slot: WeightSlot) -> RowOrder {
        let spec = self.model.spec();
        match slot {
            WeightSlot::Recurrent(index, RecurrentSlot::Out) => {
                match spec.layers[index].attention.recurrent() {
                    Some(layer) => self.strided(layer, layer.heads.value_dim),
                    None => RowOrder::Same,
                }
            }
            _ => RowOrder::Same,
        }
    }

    fn strided(&self, layer: &RecurrentLayer, rows: usize) -> RowOrder {
        let wanted = self.architecture.order().strided_value_heads;
        if wanted == self.stored.strided_value_heads {
            return RowOrder::Same;
        }
        let key_heads = layer.heads.key_heads;
        RowOrder::Strided { rows, key_heads, sharing: layer.heads.heads / key_heads, is_undone: !wanted }
    }
}

/// Returns the order of the features of query or key heads: halves that become pairs, or the
/// reverse. Layers without positions are reordered too, which changes nothing.
fn rotated(spec: &DecoderSpec, slot: WeightSlot, to_pairs: bool) -> RowOrder {
    let heads = slot.layer().and_then(|index| spec.layers[index].attention.heads());
    let Some(heads) = heads else { return RowOrder::Same };
    let table = match heads.positions {
        Positions::Rotary { table } => spec.ropes.get(table),
        _ => None,
    };
    let head_dim = heads.layout.head_dim;
    let rotary_dim = table.map_or(head_dim, |table| table.rotary_dim);
    RowOrder::Rotated { head_dim, order: HeadOrder { head_dim: rotary_dim, to_pairs } }
}

fn row_type(kind: GgufType) -> RowType {
    match kind {
        GgufType::F32 => RowType::Dense(DType::F32),
        GgufType::F16 => RowType::Dense(DType::F16),
        GgufType::BF16 => RowType::Dense(DType::BF16),
        GgufType::Q8_0 => RowType::Q8_0,
    }
}

fn all_numbers(part: &Part) -> Vec<f32> {
    let mut numbers = vec![0.0; part.cols.len()];
    part.read_row(0, &mut numbers);
    numbers
}

impl Weight {
    /// Returns the row of the model that becomes row `row`, and the factor on it.
    fn stored(&self, row: usize) -> (usize, f32) {
        let mut start = 0;
        for block in &self.blocks {
            if row < start + block.len {
                return (start + block.order.stored_row(row - start), block.factor);
            }
            start += block.len;
        }
        (row, 1.0)
    }

    fn read_row(&self, row: usize, numbers: &mut [f32]) {
        let (mut stored, factor) = self.stored(row);
        let part = self.parts.iter().find(|part| match stored < part.rows.len() {
            true => true,
            false => {
                stored -= part.rows.len();
                false
            }
        });
        let Some(part) = part else { return };
        part.read_row(stored, numbers);
        if self.columns != RowOrder::Same {
            let read = numbers.to_vec();
            numbers
                .iter_mut()
                .enumerate()
                .for_each(|(col, number)| *number = read[self.columns.stored_row(col)]);
        }
        if factor != 1.0 {
            numbers.iter_mut().for_each(|number| *number *= factor);
        }
    }

    /// Returns the elements of a vector.
    fn elements(&self, segment: &Segment) -> Vec<f32> {
        let vector = self.vector.as_deref().unwrap_or_default();
        let element = |row: usize| {
            let (stored, factor) = self.stored(row);
            vector.get(stored).copied().unwrap_or(0.0) * factor
        };
        (segment.first..segment.first + segment.count).map(element).collect()
    }

    /// Returns rows that are the columns of `cols` rows of the weight.
    fn transposed(&self, segment: &Segment, cols: usize) -> Vec<f32> {
        let (mut row, mut numbers) = (vec![0.0; segment.count], vec![0.0; segment.count * cols]);
        for col in 0..cols {
            self.read_row(segment.first + col, &mut row);
            row.iter().enumerate().for_each(|(index, number)| numbers[index * cols + col] = *number);
        }
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_undone() {
        let strided = |is_undone| RowOrder::Strided { rows: 2, key_heads: 3, sharing: 2, is_undone };
        let rotated =
            |to_pairs| RowOrder::Rotated { head_dim: 6, order: HeadOrder { head_dim: 4, to_pairs } };
        for (there, back) in [(strided(false), strided(true)), (rotated(true), rotated(false))] {
            let rows: Vec<usize> = (0..12).collect();
            let new: Vec<usize> = rows.iter().map(|&row| there.stored_row(row)).collect();
            assert_ne!(new, rows, "{there:?}");
            let old: Vec<usize> = rows.iter().map(|&row| new[back.stored_row(row)]).collect();
            assert_eq!(old, rows, "{there:?}");
        }
        let new: Vec<usize> = (0..12).map(|row| strided(false).stored_row(row)).collect();
        assert_eq!(new, [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]);
    }
}
