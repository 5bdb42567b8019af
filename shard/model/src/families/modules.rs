//! The modules of transformers whose outputs make up the weights of a decoder. Files that are
//! stored by module, such as adapters, are matched to weights by them.

use std::ops::Range;

use millrace_backend::{KeySharing, QkvLayout, RecurrentHeads};
use millrace_formats::Source;

use super::error::LoadError;
use super::load::{self, Description};
use super::names::Names;
use super::overrides::Overrides;
use crate::description::{DecoderSpec, FeatureBlock, LayerSlot, RecurrentBlock, RecurrentSlot, WeightSlot};

/// A part of a weight: rows of the matrix of one module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModulePiece {
    /// The name of the module in the family's checkpoints.
    pub(crate) module: String,
    /// Number of output features of the module.
    pub(crate) outputs: usize,
    /// Number of input features of the module.
    pub(crate) inputs: usize,
    /// The output features that are a part of the weight.
    pub(crate) rows: Range<usize>,
}

/// The modules of a model.
#[derive(Debug)]
pub(crate) struct Modules {
    spec: DecoderSpec,
    names: Names,
    /// Whether a converter has reordered queries and keys so that neighbors are rotated.
    interleaved: bool,
    /// Whether a converter has multiplied factors of activations into the weights.
    has_factors: bool,
}

/// Reads the modules of the model in `source`. Only its configuration is read.
///
/// # Errors
/// If the model is not supported.
pub(crate) fn modules(source: &Source, overrides: &Overrides) -> Result<Modules, LoadError> {
    let Description { config, family, spec, .. } = load::read(source, overrides)?;
    let interleaved: Option<bool> = match config.object("millrace")? {
        Some(changes) => changes.optional("rope_interleaved")?,
        None => None,
    };
    if interleaved == Some(false) {
        let reason = "adapters have the features of heads in another order than this file";
        return Err(config.unsupported("millrace", reason).into());
    }
    let interleaved = interleaved == Some(true);
    // Adapters have the layout of transformers, whatever a converter has done to the weights.
    let has_factors = matches!(source, Source::File(_)) && family.model_type == "falcon_h1";
    Ok(Modules { spec, names: family.names, interleaved, has_factors })
}

impl Modules {
    /// Returns the description of the whole model.
    pub(crate) fn spec(&self) -> &DecoderSpec {
        &self.spec
    }

    /// Returns whether the weights contain factors that belong to activations, so that changes of
    /// the weights would need them too. The converter of Falcon-H1 to GGUF does so.
    pub(crate) fn has_factors(&self) -> bool {
        self.has_factors
    }

    /// Returns the parts that, stacked, are the matrix for `slot` in the order of transformers.
    /// Parameters that are no module's weight have none.
    pub(crate) fn pieces(&self, slot: WeightSlot) -> Vec<ModulePiece> {
        let pieces = self.names.pieces(&self.spec, slot).into_iter();
        let of_module = |piece: super::names::Piece| {
            let module = piece.module()?.to_owned();
            let &[outputs, inputs] = &piece.shape[..] else { return None };
            Some(ModulePiece { module, outputs, inputs, rows: piece.rows })
        };
        pieces.filter_map(of_module).collect()
    }

    /// Returns the name that stands for `module` among names of which `exists` holds. The part of a
    /// model that computes text may have another name than the family.
    pub(crate) fn resolve(&self, module: &str, exists: impl Fn(&str) -> bool) -> String {
        let weight = |name: &str| name.strip_suffix(".weight").is_some_and(&exists);
        let found = self.names.resolve(&format!("{module}.weight"), weight);
        found.strip_suffix(".weight").unwrap_or(module).to_owned()
    }

    /// Returns the modules for keys and values of layers that read the cache of another layer.
    /// transformers has them, and nothing reads their results.
    pub(crate) fn unread(&self) -> Vec<String> {
        let layers = self.spec.layers.iter().enumerate();
        let readers = layers
            .filter(|(_, layer)| layer.attention.heads().is_some_and(|heads| heads.kv_source.is_some()));
        let names = readers.flat_map(|(index, _)| self.names.keys_and_values(index));
        names.filter_map(|name| Some(name.strip_suffix(".weight")?.to_owned())).collect()
    }

    /// Returns for each row of the decoder's matrix for `slot` the row in the order of
    /// transformers, if a converter has reordered rows.
    pub(crate) fn row_order(&self, slot: WeightSlot) -> Option<Vec<usize>> {
        let layer = &self.spec.layers[slot.layer()?];
        let rows = self.spec.shape(slot).0;
        match slot {
            WeightSlot::Layer(_, LayerSlot::Qkv) if self.interleaved => {
                let QkvLayout { heads, kv_heads, head_dim } = layer.attention.heads()?.layout;
                let rotated = (heads + kv_heads) * head_dim;
                Some(
                    (0..rows)
                        .map(|row| if row < rotated { halves_row(row, head_dim) } else { row })
                        .collect(),
                )
            }
            WeightSlot::Recurrent(_, RecurrentSlot::In) => {
                let heads = strided(&layer.attention.recurrent()?.heads)?;
                let mut order: Vec<usize> = Vec::with_capacity(rows);
                for &block in slot.info().outputs {
                    let (first, len) = (order.len(), self.spec.block_len(slot, block));
                    let is_of_values = matches!(
                        block,
                        FeatureBlock::Recurrent(RecurrentBlock::Value | RecurrentBlock::Gate)
                    );
                    order.extend(
                        (0..len)
                            .map(|row| first + if is_of_values { neighbors_row(row, heads) } else { row }),
                    );
                }
                Some(order)
            }
            _ => None,
        }
    }

    /// Returns for each column of the decoder's matrix for `slot` the column in the order of
    /// transformers, if a converter has reordered columns.
    pub(crate) fn col_order(&self, slot: WeightSlot) -> Option<Vec<usize>> {
        let WeightSlot::Recurrent(layer, RecurrentSlot::Out) = slot else { return None };
        let heads = strided(&self.spec.layers[layer].attention.recurrent()?.heads)?;
        Some((0..self.spec.shape(slot).1).map(|col| neighbors_row(col, heads)).collect())
    }
}

/// Returns the heads, if every `key_heads`-th value head has the same key head.
fn strided(heads: &RecurrentHeads) -> Option<&RecurrentHeads> {
    (heads.sharing == KeySharing::Strided).then_some(heads)
}

/// Returns the row of a head whose halves are rotated with each other, for a row of a head whose
/// neighbors are.
fn halves_row(row: usize, head_dim: usize) -> usize {
    let (head, feature) = (row / head_dim, row % head_dim);
    head * head_dim + feature % 2 * (head_dim / 2) + feature / 2
}

/// Returns the feature of values whose heads with the same key head follow each other, for a
/// feature of strided heads.
fn neighbors_row(row: usize, heads: &RecurrentHeads) -> usize {
    let (head, feature) = (row / heads.value_dim, row % heads.value_dim);
    let (key_head, place) = (head % heads.key_heads, head / heads.key_heads);
    (key_head * (heads.heads / heads.key_heads) + place) * heads.value_dim + feature
}
