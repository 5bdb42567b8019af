//! The tensors of a new file, and the rows of weights that each is made of.

use std::collections::HashMap;

use millrace_formats::{GgufArchitecture, GgufTensor, GgufType};
use millrace_model::families::{NewRows, RowSource, StoredModel};
use millrace_model::{
    DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, RecurrentLayer, RecurrentRule, RecurrentSlot,
    WeightSlot,
};
use millrace_numbers::DType;

use super::super::model::GgufKind;
use super::super::tensors::BLOCK;

/// A tensor of the new file.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) new: GgufTensor,
    /// Columns of a row, or elements of a vector.
    pub(super) cols: usize,
    pub(super) is_vector: bool,
    /// The rows, or the elements of a vector, without gaps.
    pub(super) segments: Vec<Segment>,
}

/// Rows of a new tensor that follow each other in a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    /// The first row of the tensor.
    pub(super) start: usize,
    pub(super) count: usize,
    pub(super) source: RowSource,
    /// The first row of the weight.
    pub(super) first: usize,
    /// Whether rows of the tensor are columns of the weight, whose rows from `first` on are as many
    /// as the tensor has columns.
    pub(super) is_transposed: bool,
}

/// Plans all tensors of a file.
///
/// # Errors
/// If a weight has no name in the file, or a tensor would have gaps.
pub(super) fn plan(
    model: &StoredModel,
    architecture: GgufArchitecture,
    kind: GgufKind,
) -> Result<Vec<Planned>, String> {
    let listed = layer_number_slots(architecture);
    let is_known = |name: &str| architecture.place(name).is_some() || listed(name);
    let rows = model
        .rows(architecture.order(), &is_known)
        .map_err(|tensor| format!("it has the tensor {tensor}, which has no name in GGUF"))?;
    let mut planned: Vec<Planned> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for rows in rows.iter().filter(|rows| !listed(&rows.tensor)) {
        let Some(mut place) = architecture.place(&rows.tensor) else { continue };
        if matches!(rows.source, RowSource::Weight(WeightSlot::Layer(_, LayerSlot::Down))) {
            // Granite 4 has one name for the MLP of dense models and for the shared expert.
            place.name = place.name.replace("ffn_down_shexp", "ffn_down");
        }
        let index = *places.entry(place.name.clone()).or_insert_with(|| {
            planned.push(empty(place.name, place.expert.is_some(), rows, model.spec(), kind));
            planned.len() - 1
        });
        add(&mut planned[index], rows, place.expert, model.spec());
    }
    planned.iter_mut().try_for_each(complete)?;
    Ok(planned)
}

/// Returns whether a tensor is a number that the keys of the file have in a list.
fn layer_number_slots(architecture: GgufArchitecture) -> impl Fn(&str) -> bool {
    let patterns: Vec<String> = architecture.layer_numbers().map(|(_, pattern)| pattern).collect();
    move |name| {
        patterns.iter().any(|pattern| {
            let parts = pattern.split_once('*');
            parts.is_some_and(|(before, after)| name.starts_with(before) && name.ends_with(after))
        })
    }
}

/// Returns a tensor without rows.
fn empty(name: String, is_of_experts: bool, rows: &NewRows, spec: &DecoderSpec, kind: GgufKind) -> Planned {
    let mut shape = rows.shape.clone();
    let is_vector = rows.shape.len() == 1;
    let cols = rows.shape.last().copied().unwrap_or(0);
    let mut is_small = is_vector || matches!(rows.source, RowSource::TokenTypes);
    match rows.source {
        RowSource::Weight(slot) => {
            stored_shape(slot, spec, &mut shape);
            is_small |= is_kept_precise(slot);
        }
        RowSource::TokenTypes => {}
    }
    if let (RowSource::Weight(WeightSlot::Positions), Some(table)) = (rows.source, spec.embedding.positions) {
        shape[0] -= table.first;
    }
    if is_of_experts {
        shape.insert(0, 0);
    }
    let kind = match kind {
        _ if is_small => GgufType::F32,
        GgufKind::Q8_0 if cols.is_multiple_of(BLOCK) => GgufType::Q8_0,
        GgufKind::Q8_0 | GgufKind::Dense(DType::F16) => GgufType::F16,
        GgufKind::Dense(DType::F32) => GgufType::F32,
        GgufKind::Dense(DType::BF16) => GgufType::BF16,
    };
    Planned { new: GgufTensor { name, kind, shape }, cols, is_vector, segments: Vec::new() }
}

/// Returns whether a matrix has single precision in every file: those that choose experts, are
/// looked up by position, or have one row.
fn is_kept_precise(slot: WeightSlot) -> bool {
    matches!(slot, WeightSlot::Positions | WeightSlot::Layer(_, LayerSlot::Router | LayerSlot::SharedGate))
}

/// Returns whether each feature of keys decays by itself (Kimi Linear).
fn is_by_channel(layer: &RecurrentLayer) -> bool {
    matches!(layer.rule, RecurrentRule::ChannelDelta { .. })
}

/// Changes the shape of a tensor to the one that files have, with the same elements.
fn stored_shape(slot: WeightSlot, spec: &DecoderSpec, shape: &mut Vec<usize>) {
    let len = shape.iter().product::<usize>();
    let recurrent = slot.layer().and_then(|layer| spec.layers[layer].attention.recurrent());
    let heads = slot.layer().and_then(|layer| spec.layers[layer].attention.heads());
    match (slot, recurrent) {
        (WeightSlot::Layer(_, LayerSlot::QHeadsNorm | LayerSlot::KHeadsNorm), _)
            if heads.is_some_and(|heads| heads.head_norm == HeadNormPlan::PerHead) =>
        {
            let head_dim = heads.map_or(1, |heads| heads.layout.head_dim).max(1);
            *shape = vec![len / head_dim, head_dim];
        }
        (WeightSlot::Layer(_, LayerSlot::SharedGate), _) => *shape = vec![len],
        // Files of Kimi Linear have axes of length 1.
        (WeightSlot::Recurrent(_, RecurrentSlot::Conv), Some(layer)) if is_by_channel(layer) => {
            *shape = vec![1, len / layer.taps.max(1), 1, layer.taps];
        }
        (WeightSlot::Recurrent(_, RecurrentSlot::DecayLog), Some(layer)) if is_by_channel(layer) => {
            *shape = vec![1, 1, len, 1];
        }
        (WeightSlot::Recurrent(_, RecurrentSlot::Conv), Some(layer)) => {
            *shape = vec![len / layer.taps.max(1), layer.taps];
        }
        (WeightSlot::Recurrent(_, RecurrentSlot::DecayLog | RecurrentSlot::Skip), Some(layer))
            if matches!(layer.rule, RecurrentRule::StateSpace { .. }) =>
        {
            *shape = vec![len, 1];
        }
        (WeightSlot::Recurrent(_, RecurrentSlot::Norm), Some(layer)) if layer.result.is_of_groups() => {
            *shape = vec![layer.heads.key_heads, len / layer.heads.key_heads.max(1)];
        }
        _ => {}
    }
}

/// Adds rows to their tensor.
fn add(planned: &mut Planned, rows: &NewRows, expert: Option<usize>, spec: &DecoderSpec) {
    let of_one: usize = match rows.shape.split_last() {
        Some((cols, [])) => *cols,
        Some((_, outer)) => outer.iter().product(),
        None => 0,
    };
    let NewRows { source, mut first, .. } = *rows;
    let (mut start, mut count) = (rows.rows.start, rows.rows.len());
    if let Some(expert) = expert {
        planned.new.shape[0] = planned.new.shape[0].max(expert + 1);
        start += expert * of_one;
    }
    if let Some(head) = rows.transposed_head {
        let cols = rows.shape.get(1).copied().unwrap_or(0);
        (start, count) = (head * cols, cols);
    }
    // Files have no rows before the one of position 0.
    if let (RowSource::Weight(WeightSlot::Positions), Some(table)) = (source, spec.embedding.positions) {
        (first, count) = (first + table.first, count - table.first);
    }
    let is_transposed = rows.transposed_head.is_some();
    planned.segments.push(Segment { start, count, source, first, is_transposed });
}

/// Sorts the rows of a tensor, and drops those that a weight has twice.
fn complete(planned: &mut Planned) -> Result<(), String> {
    planned.segments.sort_by_key(|segment| segment.start);
    let mut end = 0;
    planned.segments.retain(|segment| {
        let is_next = segment.start == end;
        end += if is_next { segment.count } else { 0 };
        is_next
    });
    let elements: usize = planned.new.shape.iter().product();
    let rows = if planned.is_vector { elements } else { elements / planned.cols.max(1) };
    match end == rows {
        true => Ok(()),
        false => Err(format!("the tensor {} would have {end} of {rows} rows", planned.new.name)),
    }
}

/// Returns the blocks of features that are the rows of a weight, each with its length.
pub(super) fn blocks(spec: &DecoderSpec, slot: WeightSlot) -> Vec<(FeatureBlock, usize)> {
    let of_expert = slot.info().outputs.iter().map(|&block| (block, spec.block_len(slot, block)));
    of_expert.filter(|(_, len)| *len > 0).collect()
}
