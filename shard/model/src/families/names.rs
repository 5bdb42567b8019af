//! The names under which a family's checkpoints store each weight.

use std::ops::Range;

use millrace_numbers::experts::ExpertRows;

use super::config::Config;
use super::error::ConfigError;
use super::mtp_place::{self, MtpPlace};
use crate::description::{
    DecoderSpec, FeatureBlock, LayerSlot, NormPlace, RecurrentSlot, StoredTensors, WeightKind, WeightSlot,
};

/// The names of a family's tensors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names {
    /// The prefix of the names of a layer's tensors. The number of the layer follows.
    pub(super) layers: &'static str,
    /// Returns the tensors that store a weight. Scales of norms without a tensor are 1.
    pub(super) tensors: fn(WeightSlot) -> StoredTensors,
    /// The tensors of models whose norms follow the sums, if they are others.
    pub(super) tensors_after_sums: Option<fn(WeightSlot) -> StoredTensors>,
    /// Whether a tensor with queries, keys and values has them group by group: for each key head,
    /// the query heads that share it, the key head and the value head.
    pub(super) grouped_qkv: bool,
    /// Whether a projection to several blocks of a recurrent layer has them group by group: for
    /// each key head, its share of every block.
    pub(super) grouped_recurrent: bool,
    /// Whether the matrices of layers are stored as `[inputs, outputs]`.
    pub(super) transposed: bool,
    /// The way in which tensors with the weights of all experts store them.
    pub(super) experts: StackedExperts,
    /// Parts of names, and what some checkpoints have instead.
    pub(super) aliases: &'static [(&'static str, &'static str)],
    /// The table of token types, without `.weight`, if the checkpoints have one.
    pub(super) token_types: Option<&'static str>,
    /// Whether layers after the last one are ignored. They predict several tokens at once.
    pub(super) has_later_layers: bool,
    /// Parts of the names of tensors of layers that the decoder does not use. A warning names them.
    pub(super) left_out: &'static [&'static str],
    /// The place of the head that predicts the token after the next one, if checkpoints may have
    /// one.
    pub(super) mtp: Option<MtpPlace>,
    /// The number of the first layer of such a head, if these are the names of one.
    pub(super) mtp_layer: Option<usize>,
}

/// The way in which a tensor with the weights of all experts stores them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StackedExperts {
    /// `[experts, outputs, inputs]`, with the features of gate before those of up.
    ByOutput,
    /// The same, and the names have no suffix (Gemma 4).
    ByOutputWithoutSuffix,
    /// `[experts, inputs, outputs]`, with the features of gate before those of up, unless the shape
    /// is that of [`StackedExperts::ByOutput`]: transformers writes either. The names have no
    /// suffix (Qwen3-VL).
    ByInput,
    /// `[experts, inputs, outputs]`, with the features of gate and up in turns. The names have no
    /// suffix (gpt-oss).
    InTurns,
}

impl StackedExperts {
    /// Returns whether the names have no suffix.
    fn lacks_suffix(self) -> bool {
        self != StackedExperts::ByOutput
    }

    /// Returns whether the features of the input come before those of the output.
    fn is_by_input(self) -> bool {
        matches!(self, StackedExperts::ByInput | StackedExperts::InTurns)
    }
}

/// The names of Llama, which most families use.
pub(super) const LLAMA: Names = Names {
    layers: "model.layers.",
    tensors: WeightSlot::usual_tensors,
    tensors_after_sums: None,
    grouped_qkv: false,
    grouped_recurrent: false,
    transposed: false,
    experts: StackedExperts::ByOutput,
    aliases: &[],
    token_types: None,
    has_later_layers: false,
    left_out: &[],
    mtp: None,
    mtp_layer: None,
};

/// Beginnings of names, and what checkpoints have instead whose decoder is a part of a model with
/// images, or that were written without the head.
const PREFIXES: &[(&str, &str)] = &[
    ("model.", "model.language_model."),
    ("model.", "language_model.model."),
    ("model.", "language_model."),
    ("lm_head.", "language_model.lm_head."),
    ("model.", ""),
    ("transformer.", ""),
];

/// The blocks of a tensor that has a query and its gate for each head.
pub(super) const QUERY_WITH_GATE: &[FeatureBlock] = &[FeatureBlock::Query, FeatureBlock::QueryGate];

/// The part of a tensor's name that stands for the number of an expert or of a head.
const NUMBER: &str = "*";

/// A piece of a weight: a stored tensor with the shape that it must have, and the rows to take from
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) tensor: String,
    /// `[rows, cols]` of a matrix, `[experts, rows, cols]` of the matrices of all experts, or
    /// `[rows]` of a vector.
    pub(super) shape: Vec<usize>,
    /// The rows, counted through all experts.
    pub(super) rows: Range<usize>,
    /// The order of the tensor's numbers.
    pub(super) order: StoredOrder,
}

/// The order of the numbers of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredOrder {
    /// As the piece's shape says.
    RowMajor,
    /// A matrix is stored as `[cols, rows]`.
    Transposed,
    /// The weights of all experts, by input feature.
    Experts(ExpertRows),
    /// The piece is one head's share of a tensor `[heads, cols, rows]`.
    TransposedHead(usize),
}

impl Piece {
    /// Returns the name of the module, if the piece is a module's weight.
    pub(super) fn module(&self) -> Option<&str> {
        self.tensor.strip_suffix(".weight")
    }
}

impl Names {
    /// Returns the names with the order in which a converter has stored the weights, and with the
    /// place of heads that predict further tokens. The readers of model files say both in an object
    /// of its own.
    pub(super) fn converted(self, config: &Config) -> Result<Names, ConfigError> {
        let Some(changes) = config.object("millrace")? else { return Ok(self) };
        let names = self.in_order(changes.flag("stacked_qkv", false)?, changes.flag("by_output", false)?);
        if !changes.flag("later_layers", false)? {
            return Ok(names);
        }
        let mtp = names.mtp.map(|_| MtpPlace::LaterLayer);
        Ok(Names { has_later_layers: true, mtp, ..names })
    }

    /// Returns the names for a model with norms at this place.
    pub(super) fn with_norms(self, place: NormPlace) -> Names {
        let after_sums = self.tensors_after_sums.filter(|_| place.is_of_sums());
        Names { tensors: after_sums.unwrap_or(self.tensors), ..self }
    }

    /// Returns the names for weights in another order: all queries before all keys and values in a
    /// tensor with all three, or matrices by output feature.
    pub(super) fn in_order(self, stacked_qkv: bool, by_output: bool) -> Names {
        Names {
            grouped_qkv: self.grouped_qkv && !stacked_qkv,
            transposed: self.transposed && !by_output,
            ..self
        }
    }

    /// Returns the pieces that, stacked, are the weight for `slot`.
    pub(super) fn pieces(&self, spec: &DecoderSpec, slot: WeightSlot) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        // A layer may lack a block: experts their gates, and a layer that reads the cache of
        // another one keys and values.
        let has_features = |block: &FeatureBlock| spec.block_len(slot, *block) > 0;
        for expert in 0..spec.stacked_experts(slot) {
            for &block in slot.info().outputs.iter().filter(|&block| has_features(block)) {
                self.push_block(spec, slot, (expert, block), &mut pieces);
            }
        }
        pieces
    }

    /// Returns the pieces of a weight in checkpoints that store it in the usual tensors, although
    /// the family's have all experts in one tensor, query, key and value, gate and up, or all
    /// inputs of a recurrence, in two tensors for keys and values from latents, or a tensor for the
    /// norm of each head. GGUF files are read so. There are none for other weights.
    pub(super) fn usual_pieces(&self, spec: &DecoderSpec, slot: WeightSlot) -> Vec<Piece> {
        let may_be_fused = matches!(
            slot,
            WeightSlot::Recurrent(_, RecurrentSlot::In)
                | WeightSlot::Layer(_, LayerSlot::Qkv | LayerSlot::QkvBias | LayerSlot::LatentUp)
                | WeightSlot::Layer(_, LayerSlot::GateUp | LayerSlot::SharedGateUp)
                | WeightSlot::Layer(_, LayerSlot::QHeadsNorm | LayerSlot::KHeadsNorm)
        );
        if !slot.info().per_expert && !may_be_fused {
            return Vec::new();
        }
        if let WeightSlot::Layer(index, LayerSlot::LatentUp) = slot {
            return self.latent_pieces(spec, index);
        }
        let names = Names {
            tensors: WeightSlot::usual_tensors,
            experts: StackedExperts::ByOutput,
            grouped_qkv: false,
            grouped_recurrent: false,
            ..*self
        };
        names.pieces(spec, slot)
    }

    /// Returns the pieces of the projection of latents to keys and values in checkpoints that store
    /// a tensor for keys, with the features of a head as columns, and one for values.
    fn latent_pieces(&self, spec: &DecoderSpec, layer: usize) -> Vec<Piece> {
        let heads = spec.layers[layer].attention.heads();
        let Some((heads, latent)) =
            heads.and_then(|heads| Some((heads.layout.heads, heads.latent.as_ref()?)))
        else {
            return Vec::new();
        };
        let prefix = self.layer_prefix(layer);
        let name = |part: &str| format!("{prefix}self_attn.{part}_b_proj.weight");
        let pieces = (0..heads).flat_map(|head| {
            let keys = Piece {
                tensor: name("k"),
                shape: vec![heads, latent.rank, latent.plain_dim],
                rows: 0..latent.plain_dim,
                order: StoredOrder::TransposedHead(head),
            };
            let values = Piece {
                tensor: name("v"),
                shape: vec![heads, latent.value_dim, latent.rank],
                rows: head * latent.value_dim..(head + 1) * latent.value_dim,
                order: StoredOrder::RowMajor,
            };
            [keys, values]
        });
        pieces.collect()
    }

    /// Appends the pieces that hold a block of an expert, or of a weight that is not of experts.
    fn push_block(
        &self,
        spec: &DecoderSpec,
        slot: WeightSlot,
        (expert, block): (usize, FeatureBlock),
        pieces: &mut Vec<Piece>,
    ) {
        let info = slot.info();
        let (_, parts) = slot.part_of_row();
        let cols = info.inputs.map(|block| parts * spec.block_len(slot, block));
        let len = |blocks: &[FeatureBlock]| -> usize {
            blocks.iter().map(|&block| spec.block_len(slot, block)).sum()
        };
        let wanted = self.stored_block(spec, (slot, block));
        for &(name, stored) in (self.tensors)(slot) {
            let Some(place) = stored.iter().position(|&other| other == wanted) else { continue };
            if name.contains(NUMBER) && !info.per_expert {
                pieces.extend(self.pieces_of_heads(spec, slot, (name, block)));
                continue;
            }
            let (mut tensor, mut start) = (self.full_name(slot, name), 0);
            let mut shape: Vec<usize> = [len(stored)].into_iter().chain(cols).collect();
            let mut order = match self.transposed && slot.layer().is_some() && shape.len() == 2 {
                true => StoredOrder::Transposed,
                false => StoredOrder::RowMajor,
            };
            if name.contains(NUMBER) {
                tensor = tensor.replace(NUMBER, &expert.to_string());
            } else if info.per_expert {
                start += expert * len(stored);
                match cols {
                    Some(_) => shape.insert(0, spec.stacked_experts(slot)),
                    None => shape[0] *= spec.stacked_experts(slot),
                }
                if self.experts.is_by_input() {
                    let paired = self.experts == StackedExperts::InTurns && stored.len() == 2;
                    order = StoredOrder::Experts(ExpertRows { rows: len(stored), paired });
                }
            }
            // Groups of a tensor follow each other, each with its share of every block.
            let groups = self.groups(spec, (slot, block), stored);
            let (of_group, own) = (len(stored) / groups, len(&[block]) / groups);
            let first = start + len(&stored[..place]) / groups;
            let ranges = (0..groups).map(|group| first + group * of_group).map(|start| start..start + own);
            for Range { start, end } in ranges {
                match pieces.last_mut() {
                    // Blocks that follow each other in the tensor as in the weight are taken as one
                    // piece.
                    Some(last) if last.tensor == tensor && last.rows.end == start => last.rows.end = end,
                    _ => pieces.push(Piece {
                        tensor: tensor.clone(),
                        shape: shape.clone(),
                        rows: start..end,
                        order,
                    }),
                }
            }
        }
    }

    /// Returns the pieces of a weight that has a tensor of its own for each head.
    fn pieces_of_heads(
        &self,
        spec: &DecoderSpec,
        slot: WeightSlot,
        (name, block): (&str, FeatureBlock),
    ) -> impl Iterator<Item = Piece> {
        let head_dim = spec.block_len(slot, FeatureBlock::HeadDim);
        let heads = spec.block_len(slot, block) / head_dim;
        let name = self.full_name(slot, name);
        (0..heads).map(move |head| Piece {
            tensor: name.replace(NUMBER, &head.to_string()),
            shape: vec![head_dim],
            rows: 0..head_dim,
            order: StoredOrder::RowMajor,
        })
    }

    /// Returns the block whose tensor has the numbers of `block`: that of keys may be used for
    /// values too.
    fn stored_block(&self, spec: &DecoderSpec, (slot, block): (WeightSlot, FeatureBlock)) -> FeatureBlock {
        let heads = slot.layer().and_then(|index| spec.layers[index].attention.heads());
        match heads {
            Some(heads) if block == FeatureBlock::Value && heads.values_are_keys => FeatureBlock::Key,
            _ => block,
        }
    }

    /// Returns the number of groups of a tensor with the blocks `stored`, one of which is `block`.
    fn groups(
        &self,
        spec: &DecoderSpec,
        (slot, block): (WeightSlot, FeatureBlock),
        stored: &[FeatureBlock],
    ) -> usize {
        let Some(layer) = slot.layer().map(|index| &spec.layers[index]).filter(|_| stored.len() > 1) else {
            return 1;
        };
        let of_recurrence = matches!(slot, WeightSlot::Recurrent(..));
        match (layer.attention.recurrent(), layer.attention.heads(), slot) {
            (Some(layer), _, WeightSlot::Recurrent(_, RecurrentSlot::In | RecurrentSlot::Rates))
                if self.grouped_recurrent =>
            {
                layer.heads.key_heads
            }
            (_, Some(heads), _) if stored == QUERY_WITH_GATE && !of_recurrence => heads.layout.heads,
            (_, Some(heads), _) if self.grouped_qkv && block.is_of_heads() && !of_recurrence => {
                heads.layout.kv_heads
            }
            _ => 1,
        }
    }

    /// Returns the piece that is the weight for `slot` in checkpoints that store the weights of all
    /// experts in one tensor, as newer versions of transformers do.
    pub(super) fn stacked_piece(&self, spec: &DecoderSpec, slot: WeightSlot) -> Option<Piece> {
        let (index, name) = match slot {
            _ if self.experts.lacks_suffix() => return None,
            WeightSlot::Layer(index, LayerSlot::ExpertGateUp) => (index, "gate_up_proj"),
            WeightSlot::Layer(index, LayerSlot::ExpertDown) => (index, "down_proj"),
            _ => return None,
        };
        let ((rows, cols), experts) = (spec.shape(slot), spec.stacked_experts(slot));
        Some(Piece {
            tensor: format!("{}mlp.experts.{name}", self.layer_prefix(index)),
            shape: vec![experts, rows / experts, cols],
            rows: 0..rows,
            order: StoredOrder::RowMajor,
        })
    }

    /// Returns the names of the tensors of a layer's keys and values alone, which a layer that
    /// reads the cache of another one does not use.
    pub(super) fn keys_and_values(&self, layer: usize) -> Vec<String> {
        let is_of_cache = |block: &FeatureBlock| matches!(block, FeatureBlock::Key | FeatureBlock::Value);
        let mut names: Vec<String> = Vec::new();
        for slot in [LayerSlot::Qkv, LayerSlot::QkvBias].map(|slot| WeightSlot::Layer(layer, slot)) {
            let stored = (self.tensors)(slot).iter().filter(|(_, blocks)| blocks.iter().all(is_of_cache));
            names.extend(stored.map(|(name, _)| self.full_name(slot, name)));
        }
        let slot = WeightSlot::Layer(layer, LayerSlot::KNorm);
        names.extend((self.tensors)(slot).iter().map(|(name, _)| self.full_name(slot, name)));
        names
    }

    /// Returns the piece with the table of token types, if the model has one.
    pub(super) fn token_types(&self, spec: &DecoderSpec) -> Option<Piece> {
        let (name, types) = self.token_types.zip(spec.embedding.token_types)?;
        let (tensor, shape) = (format!("{name}.weight"), vec![types, spec.hidden]);
        Some(Piece { tensor, shape, rows: 0..types, order: StoredOrder::RowMajor })
    }

    /// Returns the name under which a checkpoint has the tensor `name`.
    pub(super) fn resolve(&self, name: &str, exists: impl Fn(&str) -> bool) -> String {
        if exists(name) {
            return name.to_owned();
        }
        let renamed = |name: &str| -> Vec<String> {
            self.aliases.iter().map(|(usual, other)| name.replace(usual, other)).collect()
        };
        // Two parts of a name may have others.
        let once = renamed(name);
        let twice: Vec<String> = once.iter().flat_map(|name| renamed(name)).collect();
        let renamed = PREFIXES
            .iter()
            .filter_map(|(usual, other)| name.strip_prefix(usual).map(|rest| format!("{other}{rest}")))
            .chain(once)
            .chain(twice);
        renamed.into_iter().find(|name| exists(name)).unwrap_or_else(|| name.to_owned())
    }

    /// Returns the full name of a tensor.
    fn full_name(&self, slot: WeightSlot, name: &str) -> String {
        let info = slot.info();
        let suffix = match info.kind {
            _ if info.per_expert && self.experts.lacks_suffix() => "",
            WeightKind::Matrix { .. } | WeightKind::NormScale => ".weight",
            WeightKind::Bias => ".bias",
            WeightKind::Parameter => "",
        };
        match (slot.layer(), self.mtp.zip(self.mtp_layer)) {
            (Some(index), _) => format!("{}{name}{suffix}", self.layer_prefix(index)),
            (None, Some((MtpPlace::Module, _))) => {
                format!("{}{}{suffix}", mtp_place::MODULE, mtp_place::name_in_module(slot, name))
            }
            (None, Some((MtpPlace::LaterLayer, _))) => {
                format!("{}{}{suffix}", self.layer_prefix(0), mtp_place::name_in_layer(slot, name))
            }
            (None, None) => format!("{name}{suffix}"),
        }
    }

    /// Returns the prefix of the names of a layer's tensors.
    fn layer_prefix(&self, index: usize) -> String {
        format!("{}{}.", self.layers, self.mtp_layer.unwrap_or(0) + index)
    }

    /// Returns whether a tensor belongs to a module for the prediction of further tokens.
    pub(super) fn is_of_mtp_module(&self, name: &str) -> bool {
        self.mtp == Some(MtpPlace::Module) && name.starts_with(mtp_place::MODULE)
    }

    /// Returns the name of the tensor that stores the head, which a checkpoint with a tied head may
    /// lack.
    pub(super) fn head(&self) -> String {
        self.first_tensor(WeightSlot::Head)
    }

    /// Returns the name of the tensor that stores the embedding.
    pub(super) fn embedding(&self) -> String {
        self.first_tensor(WeightSlot::Embedding)
    }

    fn first_tensor(&self, slot: WeightSlot) -> String {
        let tensors = (self.tensors)(slot);
        tensors.first().map(|(name, _)| self.full_name(slot, name)).unwrap_or_default()
    }
}
