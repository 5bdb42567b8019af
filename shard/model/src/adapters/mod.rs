//! Adapters of LoRA (Hu et al., 2021) in the folders of PEFT, matched to the weights of a model.
//!
//! An adapter has two small matrices for each module that it changes, `lora_A` and `lora_B`: the
//! module's result grows by `lora_B · lora_A · x`, times a scale. The decoder stacks modules in one
//! matrix and cuts it over ranks, and [`Adapter::weights`] stacks and cuts `lora_B` and `lora_A` in
//! the same way. Whatever of a folder is not understood is refused by name.

mod config;
mod error;
mod patterns;
mod tensors;
#[cfg(test)]
mod tests;
mod weights;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use millrace_backend::{AdapterWeights, LowRankProduct};
use millrace_formats::{Source, identity_of};

pub use self::error::AdapterError;

use self::config::AdapterConfig;
use self::tensors::AdapterTensors;
use self::weights::{SlotModule, SlotModules};
use crate::description::{DecoderSpec, WeightKind, WeightSlot};
use crate::families::{ModulePiece, Modules, Overrides, modules};
use crate::split::Split;

/// An adapter of one model.
#[derive(Debug)]
pub struct Adapter {
    tensors: AdapterTensors,
    modules: Modules,
    /// The modules that the adapter changes, by the matrix that they are a part of.
    slots: BTreeMap<WeightSlot, SlotModules>,
    max_rank: usize,
    folder: PathBuf,
    identity: String,
}

impl Adapter {
    /// Opens the adapter in `folder`, which PEFT has written, and matches it to the model in
    /// `base`. The numbers themselves are read when they are needed.
    ///
    /// # Errors
    /// If the folder is incomplete or damaged, has another kind of adapter, or changes anything
    /// that is not in [`adaptable`].
    pub fn open(base: &Source, overrides: &Overrides, folder: &Path) -> Result<Adapter, AdapterError> {
        if !folder.is_dir() {
            return Err(AdapterError::NoFolder { folder: folder.to_owned() });
        }
        let identity = identity_of(
            &[config::NAME, tensors::SAFETENSORS, tensors::PYTORCH].map(|file| folder.join(file)),
        );
        let config = AdapterConfig::read(folder)?;
        let tensors = AdapterTensors::open(folder)?;
        let modules = modules(base, overrides)?;
        if modules.has_factors() {
            let reason = "its converter has multiplied factors into the weights";
            return Err(AdapterError::Converted { place: base.place(), reason });
        }
        let (mut slots, mut used, mut max_rank) = (BTreeMap::new(), HashSet::new(), 0);
        for slot in adaptable(modules.spec()) {
            let pieces = modules.pieces(slot);
            let Some(found) = match_slot(&modules, &pieces, &tensors, &config)? else { continue };
            max_rank = found.modules.iter().map(|module| module.rank).fold(max_rank, usize::max);
            used.extend(found.modules.iter().map(|module| module.name.clone()));
            slots.insert(slot, found);
        }
        let folder = folder.to_owned();
        let adapter = Adapter { tensors, modules, slots, max_rank, folder, identity };
        adapter.check_unused(used)?;
        Ok(adapter)
    }

    /// Returns the folder of the adapter.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the files of the adapter with their sizes and times before they were read, as one
    /// text (see [`identity_of`]).
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the largest rank of a product.
    pub fn max_rank(&self) -> usize {
        self.max_rank
    }

    /// Returns the sum of the ranks of all products in the matrix for `slot`, which is 0 if the
    /// adapter does not change the matrix.
    #[cfg(test)]
    fn rank(&self, slot: WeightSlot) -> usize {
        self.slots.get(&slot).map_or(0, |slot| slot.modules.iter().map(|module| module.rank).sum())
    }

    /// Returns what the adapter adds to the matrix for `slot` of the whole model, cut to the share
    /// of a rank. Returns `None` if it does not change this share.
    ///
    /// # Errors
    /// If a number is infinite or NaN, or the file has been changed since it was opened.
    pub fn weights(&self, slot: WeightSlot, split: Split) -> Result<Option<AdapterWeights>, AdapterError> {
        let Some(found) = self.slots.get(&slot) else { return Ok(None) };
        let cut = split.cut(self.modules.spec(), slot);
        let rows = found.take(cut.rows.into_iter().flatten(), self.modules.row_order(slot).as_deref());
        let order = self.modules.col_order(slot);
        let cols = cut.cols.unwrap_or_default().map(|col| order.as_ref().map_or(col, |order| order[col]));
        let cols: Vec<usize> = cols.collect();
        let mut products = Vec::new();
        for (module, taken) in found.modules.iter().zip(rows) {
            if taken.from.is_empty() {
                continue;
            }
            let down = self.tensors.numbers(&module.tensors.down)?;
            let width = down.len() / module.rank;
            let down = down.chunks_exact(width).flat_map(|row| cols.iter().map(|&col| row[col])).collect();
            let whole = self.tensors.numbers(&module.tensors.up)?;
            let mut up = Vec::with_capacity(taken.from.len() * module.rank);
            for row in taken.from {
                let row = &whole[row * module.rank..(row + 1) * module.rank];
                up.extend(row.iter().map(|number| (f64::from(*number) * module.scale) as f32));
            }
            if !up.iter().all(|number| number.is_finite()) {
                let reason = format!("has numbers too large for the scale of {}", module.scale);
                return Err(self.tensors.fault(&module.tensors.up, reason));
            }
            products.push(LowRankProduct { rank: module.rank, down, up, rows: taken.to });
        }
        Ok((!products.is_empty()).then_some(AdapterWeights { products }))
    }

    /// Refuses modules that no matrix is made of.
    fn check_unused(&self, mut used: HashSet<String>) -> Result<(), AdapterError> {
        let all = &self.tensors.modules;
        let exists = |module: &str| all.contains_key(module);
        used.extend(self.modules.unread().iter().map(|module| self.modules.resolve(module, exists)));
        let Some((module, tensors)) = all.iter().find(|(module, _)| !used.contains(*module)) else {
            return Ok(());
        };
        Err(self.tensors.fault(&tensors.down, format!("changes {}", self.describe(module))))
    }

    /// Says what an unused module is.
    fn describe(&self, module: &str) -> &'static str {
        let spec = self.modules.spec();
        let is_of = |slot: &WeightSlot| {
            let exists = |name: &str| name == module;
            let mut pieces = self.modules.pieces(*slot).into_iter();
            pieces.any(|piece| self.modules.resolve(&piece.module, exists) == module)
        };
        match spec.slots().into_iter().filter(|slot| !slot.is_vector()).find(is_of) {
            Some(WeightSlot::Embedding | WeightSlot::Positions) => {
                "an embedding, and adapters of embeddings are not supported"
            }
            Some(WeightSlot::Head) => "the head, and adapters of the head are not supported",
            Some(slot) if slot.info().per_expert => "an expert, and adapters of experts are not supported",
            Some(_) => "a matrix that adapters are not supported for, because it is kept in full precision",
            None if module.contains(".experts") => "experts, and adapters of experts are not supported",
            None if ["lm_head", "embed_out", "score"].iter().any(|end| module.ends_with(end)) => {
                "the head, and adapters of the head are not supported"
            }
            None => "a module that the model does not have; the adapter belongs to another model",
        }
    }
}

/// Returns the modules of a matrix that the adapter changes, if there are any.
fn match_slot(
    modules: &Modules,
    pieces: &[ModulePiece],
    tensors: &AdapterTensors,
    config: &AdapterConfig,
) -> Result<Option<SlotModules>, AdapterError> {
    let mut found = SlotModules::default();
    let mut indices: HashMap<String, Option<usize>> = HashMap::new();
    for piece in pieces {
        let index = match indices.get(&piece.module) {
            Some(index) => *index,
            None => {
                let index = match_module(modules, piece, tensors, config)?.map(|module| {
                    found.modules.push(module);
                    found.modules.len() - 1
                });
                indices.insert(piece.module.clone(), index);
                index
            }
        };
        found.pieces.push((index, piece.rows.clone()));
    }
    Ok((!found.modules.is_empty()).then_some(found))
}

/// Returns the module of a piece, if the adapter changes it.
fn match_module(
    modules: &Modules,
    piece: &ModulePiece,
    tensors: &AdapterTensors,
    config: &AdapterConfig,
) -> Result<Option<SlotModule>, AdapterError> {
    let name = modules.resolve(&piece.module, |module| tensors.modules.contains_key(module));
    let Some(product) = tensors.modules.get(&name) else { return Ok(None) };
    let wanted = config.of_module(&name);
    let [rank, _] = tensors.shape(&product.down);
    if rank != wanted.rank {
        let reason = format!("has rank {rank}, but by {} its rank is {}", config::NAME, wanted.rank);
        return Err(tensors.fault(&product.down, reason));
    }
    tensors.check_shape(&product.down, [rank, piece.inputs])?;
    tensors.check_shape(&product.up, [piece.outputs, rank])?;
    Ok(Some(SlotModule { name, tensors: product.clone(), rank, scale: wanted.scale }))
}

/// Returns the matrices of a model that adapters can change: those of layers that may be quantized,
/// except the matrices of all experts.
pub fn adaptable(spec: &DecoderSpec) -> Vec<WeightSlot> {
    let is_adaptable = |slot: &WeightSlot| {
        let info = slot.info();
        let may_quantize = matches!(info.kind, WeightKind::Matrix { may_quantize: true });
        may_quantize && !info.per_expert && slot.layer().is_some()
    };
    spec.slots().into_iter().filter(is_adaptable).collect()
}
