//! The tensors of a quantized module in a checkpoint, as the formats read them.

use millrace_formats::{Checkpoint, DType as StoredDType};
use millrace_numbers::HostTensor;
use millrace_numbers::experts::ExpertRows;
use millrace_numbers::formats::{ModuleError, Scheme, StoredModule, StoredTensor};

use crate::description::WeightError;

/// The tensors of a module in a quantized checkpoint.
pub(in super::super) struct ModuleTensors<'a> {
    pub(in super::super) checkpoint: &'a Checkpoint,
    /// The beginning of the tensors' names: the name of the module and a dot, or that of a weight
    /// of experts.
    pub(in super::super) prefix: &'a str,
    /// Output features.
    pub(in super::super) rows: usize,
    /// Input features.
    pub(in super::super) cols: usize,
}

impl ModuleTensors<'_> {
    /// Returns the module's weight, or `None` if the module is not quantized.
    pub(in super::super) fn read(&self, scheme: &Scheme) -> Result<Option<HostTensor>, WeightError> {
        self.with_module(|module| scheme.read(module))
    }

    /// Returns the matrices of all experts, or `None` if they are stored in another way.
    pub(in super::super) fn read_experts(
        &self,
        scheme: &Scheme,
        order: ExpertRows,
    ) -> Result<Option<HostTensor>, WeightError> {
        self.with_module(|experts| scheme.read_experts(experts, order))
    }

    fn with_module(
        &self,
        read: impl Fn(&StoredModule<'_>) -> Result<Option<HostTensor>, ModuleError>,
    ) -> Result<Option<HostTensor>, WeightError> {
        let find = |end: &str| {
            let tensor = self.checkpoint.find(&self.full(end))?;
            let (element, shape) = (tensor.dtype.element(), tensor.shape.to_vec());
            Some(StoredTensor { element, shape, bytes: tensor.shared_bytes() })
        };
        let module = StoredModule { rows: self.rows, cols: self.cols, find: &find };
        read(&module).map_err(|error| self.error(error))
    }

    fn full(&self, end: &str) -> String {
        format!("{}{end}", self.prefix)
    }

    /// Names the tensor and its file in an error.
    fn error(&self, error: ModuleError) -> WeightError {
        let (tensor, reason) = match error {
            ModuleError::Content { tensor, reason } => (self.full(tensor), reason),
            ModuleError::Tensor { tensor, shape, element } => {
                let tensor = self.full(tensor);
                // The checkpoint knows what else may be wrong with its tensors.
                let found = match self.checkpoint.tensor(&tensor, &shape) {
                    Ok(found) => found.dtype,
                    Err(error) => return error.into(),
                };
                let reason = match element.map(StoredDType::from) {
                    Some(element) => format!("has element type {found} instead of {element}"),
                    None => format!("has element type {found}, but scales must be F32, F16 or BF16"),
                };
                (tensor, reason)
            }
        };
        let file = self.checkpoint.path_of(&tensor).unwrap_or_default().to_owned();
        WeightError::Quantized { file, tensor, reason }
    }
}
