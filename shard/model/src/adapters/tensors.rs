//! The tensors of an adapter: two matrices for each module that it changes.

use std::collections::BTreeMap;
use std::path::Path;

use millrace_formats::{Checkpoint, DType, Source, TensorInfo};
use millrace_numbers::Part;

use super::error::AdapterError;
use crate::families::host_tensor;

pub(super) const SAFETENSORS: &str = "adapter_model.safetensors";
pub(super) const PYTORCH: &str = "adapter_model.bin";
/// The prefix that PEFT puts before the names of the model's modules.
const PREFIX: &str = "base_model.model.";

/// The two matrices of a module's product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// `[rank, inputs]`.
    Down,
    /// `[outputs, rank]`.
    Up,
}

/// The names of the tensors of a module's product.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProductTensors {
    pub(super) down: String,
    pub(super) up: String,
}

/// The file with the tensors of an adapter.
#[derive(Debug)]
pub(super) struct AdapterTensors {
    checkpoint: Checkpoint,
    /// The tensors by the names of the modules, as the model that was trained has them.
    pub(super) modules: BTreeMap<String, ProductTensors>,
}

impl AdapterTensors {
    /// Maps the file in `folder`. Every tensor in it must belong to a product.
    pub(super) fn open(folder: &Path) -> Result<Self, AdapterError> {
        let source = Source::Directory(folder.to_owned());
        let Some(checkpoint) = Checkpoint::open_only(&source, &[SAFETENSORS, PYTORCH])? else {
            return Err(missing(folder));
        };
        let mut sides: BTreeMap<String, [Option<String>; 2]> = BTreeMap::new();
        let error = |tensor: &TensorInfo, reason: String| AdapterError::Tensor {
            file: source.path(&tensor.file),
            tensor: tensor.name.clone(),
            reason,
        };
        for tensor in checkpoint.tensors() {
            let (module, side) = parse(&tensor.name).map_err(|reason| error(&tensor, reason.to_owned()))?;
            if !matches!(tensor.dtype, DType::F32 | DType::F16 | DType::BF16) {
                let reason =
                    format!("has element type {}, but adapters must be F32, F16 or BF16", tensor.dtype);
                return Err(error(&tensor, reason));
            }
            if tensor.shape.len() != 2 {
                let reason = format!("has shape {:?}, but is no matrix", tensor.shape);
                return Err(error(&tensor, reason));
            }
            let place = &mut sides.entry(module.to_owned()).or_default()[side as usize];
            if let Some(other) = place {
                return Err(error(&tensor, format!("is for the same module as {other}")));
            }
            *place = Some(tensor.name);
        }
        if sides.is_empty() {
            let file =
                checkpoint.files().next().map_or_else(|| source.place(), |(name, _)| source.path(name));
            return Err(AdapterError::Empty { file });
        }
        let mut modules = BTreeMap::new();
        for (module, sides) in sides {
            let (tensor, missing) = match sides {
                [Some(down), Some(up)] => {
                    modules.insert(module, ProductTensors { down, up });
                    continue;
                }
                [Some(tensor), None] => (tensor, "lora_B"),
                [None, Some(tensor)] => (tensor, "lora_A"),
                [None, None] => continue,
            };
            let file = checkpoint.path_of(&tensor).unwrap_or_default().to_owned();
            let reason = format!("has no {missing}; the file is incomplete");
            return Err(AdapterError::Tensor { file, tensor, reason });
        }
        Ok(AdapterTensors { checkpoint, modules })
    }

    /// Checks that a tensor has this shape.
    pub(super) fn check_shape(&self, tensor: &str, expected: [usize; 2]) -> Result<(), AdapterError> {
        Ok(self.checkpoint.tensor(tensor, &expected).map(|_| ())?)
    }

    /// Returns the shape of a tensor, which is a matrix.
    pub(super) fn shape(&self, tensor: &str) -> [usize; 2] {
        let found = self.checkpoint.find(tensor);
        found.and_then(|tensor| tensor.shape.try_into().ok()).unwrap_or_default()
    }

    /// Returns the numbers of a tensor, row by row.
    ///
    /// # Errors
    /// If a number is infinite or NaN, or the file has been changed since it was opened.
    pub(super) fn numbers(&self, name: &str) -> Result<Vec<f32>, AdapterError> {
        let tensor = self.checkpoint.find(name).and_then(|tensor| host_tensor(&tensor));
        let Some(tensor) = tensor else {
            return Err(self.fault(name, "has no numbers that can be read"));
        };
        let (rows, cols) = (tensor.rows, tensor.cols);
        let (part, mut numbers) = (Part::whole(tensor), vec![0.0; rows * cols]);
        for (index, row) in numbers.chunks_exact_mut(cols.max(1)).enumerate() {
            part.read_row(index, row);
        }
        // A truncated file reads as zeros, and all ranks must read the same.
        self.checkpoint.verify()?;
        if !numbers.iter().all(|number| number.is_finite()) {
            return Err(self.fault(name, "has a number that is infinite or NaN"));
        }
        Ok(numbers)
    }

    /// Returns the error of a tensor. The reason continues a sentence after the file.
    pub(super) fn fault(&self, tensor: &str, reason: impl Into<String>) -> AdapterError {
        let file = self.checkpoint.path_of(tensor).unwrap_or_default().to_owned();
        AdapterError::Tensor { file, tensor: tensor.to_owned(), reason: reason.into() }
    }
}

/// Splits the name of a tensor into the name of the module and the side. An error continues a
/// sentence after the file.
fn parse(name: &str) -> Result<(&str, Side), &'static str> {
    let module = name.strip_prefix(PREFIX).unwrap_or(name);
    for (mark, side) in [(".lora_A.", Side::Down), (".lora_B.", Side::Up)] {
        let Some((module, rest)) = module.rsplit_once(mark) else { continue };
        // PEFT leaves out the name of the adapter, and other tools do not.
        let is_weight = rest == "weight"
            || rest
                .strip_suffix(".weight")
                .is_some_and(|adapter| !adapter.is_empty() && !adapter.contains('.'));
        if is_weight && !module.is_empty() {
            return Ok((module, side));
        }
    }
    let is_of = |part: &str| name.contains(part);
    Err(match () {
        () if is_of("lora_embedding_") => "changes an embedding, which is not supported",
        () if is_of("lora_magnitude_vector") => "is a part of DoRA, which is not supported",
        () if is_of(".lora_") && name.ends_with(".bias") => "is a bias of a product, which is not supported",
        () if is_of("modules_to_save") => "replaces a module of the model, which is not supported",
        () => "is not a matrix of LoRA; it would be ignored, and results would be wrong",
    })
}

/// Explains why a folder has no tensors.
fn missing(folder: &Path) -> AdapterError {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut others: Vec<String> = names
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| is_other(name))
        .collect();
    others.sort();
    let advice = match others.first() {
        Some(other) => format!("it has {other}, but only {SAFETENSORS} and {PYTORCH} are read"),
        None => format!("download the weights of the adapter ({PYTORCH} is read as well)"),
    };
    AdapterError::MissingFile { folder: folder.to_owned(), name: SAFETENSORS, advice }
}

fn is_other(name: &str) -> bool {
    [".gguf", ".bin", ".pt", ".pth", ".safetensors"].iter().any(|end| name.ends_with(end))
}
