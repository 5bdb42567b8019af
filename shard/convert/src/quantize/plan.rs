//! The decision which tensors are quantized, and which are copied.

use std::collections::BTreeMap;

use millrace_formats::{Checkpoint, Source, TensorInfo};
use millrace_model::families::{self, MatrixNames};
use millrace_numbers::DType;
use millrace_numbers::formats::Target;

use super::error::QuantizeError;
use super::report::DenseMatrix;

/// The tensors of a checkpoint, and their future.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) checkpoint: Checkpoint,
    pub(super) target: Target,
    /// Element type of the dense weights.
    pub(super) dtype: DType,
    /// All tensors, in the order of their names, and whether they are quantized.
    pub(super) tensors: Vec<(TensorInfo, bool)>,
    /// The tensors of the embedding.
    embedding: Vec<String>,
    /// Matrices of layers that are copied.
    pub(super) dense: Vec<DenseMatrix>,
}

impl Plan {
    /// Reads the names and shapes of a checkpoint.
    ///
    /// # Errors
    /// If it cannot be loaded, if it is quantized, or if no matrix fits the format.
    pub(super) fn new(source: &Source, target: Target) -> Result<Plan, QuantizeError> {
        if let Source::File(_) = source {
            return Err(QuantizeError::ModelFile { place: source.place() });
        }
        let model = families::load(source, &families::Overrides::default())?;
        if let Some(found) = model.quantized {
            return Err(QuantizeError::AlreadyQuantized { place: source.place(), found });
        }
        let MatrixNames { layers, embedding, .. } = families::matrix_names(source)?;
        let checkpoint = Checkpoint::open(source)?;
        let infos: BTreeMap<String, TensorInfo> =
            checkpoint.tensors().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let mut dense = Vec::new();
        let mut quantized = Vec::new();
        for names in layers {
            // Programs that fuse matrices need them in one format.
            let tensors: Vec<&TensorInfo> = names.iter().filter_map(|name| infos.get(name)).collect();
            let shapes = tensors.iter().map(|tensor| matrix_shape(tensor));
            match shapes.clone().find_map(|(rows, cols)| target.misfit(rows, cols)) {
                None => quantized.extend(names),
                Some(reason) => {
                    dense.extend(tensors.iter().zip(shapes).map(|(tensor, (rows, cols))| DenseMatrix {
                        tensor: tensor.name.clone(),
                        rows,
                        cols,
                        reason: reason.clone(),
                    }));
                }
            }
        }
        if quantized.is_empty() {
            let reason = dense.first().map_or("it has no layers".to_owned(), |matrix| matrix.reason.clone());
            return Err(QuantizeError::NothingFits { place: source.place(), format: target.name(), reason });
        }
        quantized.sort_unstable();
        let is_quantized = |name: &String| quantized.binary_search(name).is_ok();
        let tensors = infos.into_values().map(|tensor| {
            let quantized = is_quantized(&tensor.name);
            (tensor, quantized)
        });
        Ok(Plan { tensors: tensors.collect(), checkpoint, target, dtype: model.dtype, embedding, dense })
    }

    /// Returns the names of the linear modules whose matrix is copied, and `lm_head`, which a
    /// checkpoint with a tied head lacks.
    pub(super) fn dense_modules(&self) -> Vec<String> {
        let is_dense = |(tensor, quantized): &&(TensorInfo, bool)| {
            !quantized && tensor.shape.len() == 2 && !self.embedding.contains(&tensor.name)
        };
        let modules = self
            .tensors
            .iter()
            .filter(is_dense)
            .filter_map(|(tensor, _)| tensor.name.strip_suffix(".weight"));
        let mut modules: Vec<String> = modules.map(str::to_owned).chain(["lm_head".to_owned()]).collect();
        modules.sort();
        modules.dedup();
        modules
    }
}

/// Returns the rows and columns of a tensor that the family says to be a matrix.
pub(super) fn matrix_shape(tensor: &TensorInfo) -> (usize, usize) {
    match *tensor.shape {
        [rows, cols] => (rows, cols),
        _ => (1, tensor.shape.iter().product()),
    }
}
