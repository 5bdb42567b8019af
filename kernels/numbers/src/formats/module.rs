//! The tensors of a quantized module, as a checkpoint has them.

use std::fmt::{self, Debug, Formatter};

use bytes::Bytes;

use crate::scales::{NumberType, Numbers, Sharing};
use crate::{DType, Result};

/// An element type of the tensors of quantized modules. The names are those of safetensors files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say everything")]
#[allow(non_camel_case_types, reason = "the names are those of the files")]
pub enum Element {
    F32,
    F16,
    BF16,
    F8_E4M3,
    F8_E8M0,
    I8,
    U8,
    I32,
    I64,
}

impl Element {
    /// All types.
    pub const ALL: [Element; 9] = [
        Element::F32,
        Element::F16,
        Element::BF16,
        Element::F8_E4M3,
        Element::F8_E8M0,
        Element::I8,
        Element::U8,
        Element::I32,
        Element::I64,
    ];
}

/// A tensor of a quantized module.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// The element type, if it is one that a format has.
    pub element: Option<Element>,
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// The elements, row-major and little-endian.
    pub bytes: Bytes,
}

/// A module of a quantized checkpoint: the shape of its matrix, and its tensors.
#[derive(Clone, Copy)]
pub struct StoredModule<'a> {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Returns a tensor by the end of its name, after the name of the module.
    pub find: &'a dyn Fn(&str) -> Option<StoredTensor>,
}

/// The reason why the matrix of a module cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// A tensor is missing, or it has another shape or element type.
    #[error("{tensor} is missing, or is not {element:?} {shape:?}")]
    Tensor {
        /// The end of the tensor's name.
        tensor: &'static str,
        /// The expected length of each axis.
        shape: Vec<usize>,
        /// The expected element type. Scales have none: they may be F32, F16, BF16 or F8_E8M0.
        element: Option<Element>,
    },
    /// The content of a tensor contradicts the configuration or the module's other tensors.
    #[error("{tensor} {reason}")]
    Content {
        /// The end of the tensor's name.
        tensor: &'static str,
        /// The fault. Its text continues the sentence after the name.
        reason: String,
    },
}

impl StoredModule<'_> {
    pub(super) fn find(&self, tensor: &str) -> Option<StoredTensor> {
        (self.find)(tensor)
    }

    pub(super) fn has(&self, tensor: &str) -> bool {
        self.find(tensor).is_some()
    }

    /// Tells whether a tensor has this element type.
    pub(super) fn is(&self, tensor: &str, element: Element) -> bool {
        self.find(tensor).is_some_and(|tensor| tensor.element == Some(element))
    }

    /// Returns the bytes of a tensor whose shape and element type are known.
    pub(super) fn bytes(
        &self,
        tensor: &'static str,
        shape: &[usize],
        element: Element,
    ) -> Result<Bytes, ModuleError> {
        match self.find(tensor) {
            Some(found) if found.shape == shape && found.element == Some(element) => Ok(found.bytes),
            _ => Err(ModuleError::Tensor { tensor, shape: shape.to_vec(), element: Some(element) }),
        }
    }

    /// Returns the bytes of a tensor as [`StoredModule::bytes`] does, if it is stored.
    pub(super) fn optional_bytes(
        &self,
        tensor: &'static str,
        shape: &[usize],
        element: Element,
    ) -> Result<Option<Bytes>, ModuleError> {
        if self.has(tensor) { self.bytes(tensor, shape, element).map(Some) } else { Ok(None) }
    }

    /// Returns scales, which may have any floating-point type.
    pub(super) fn numbers(&self, tensor: &'static str, shape: &[usize]) -> Result<Numbers, ModuleError> {
        let error = || ModuleError::Tensor { tensor, shape: shape.to_vec(), element: None };
        let found = self.find(tensor).filter(|found| found.shape == shape).ok_or_else(error)?;
        let kind = match found.element {
            Some(Element::F32) => NumberType::Dense(DType::F32),
            Some(Element::F16) => NumberType::Dense(DType::F16),
            Some(Element::BF16) => NumberType::Dense(DType::BF16),
            Some(Element::F8_E8M0) => NumberType::PowerOfTwo,
            _ => return Err(error()),
        };
        self.built(tensor, Numbers::new(kind, found.bytes))
    }

    /// Returns scales that `sharing` weights share.
    pub(super) fn scales(&self, tensor: &'static str, sharing: Sharing) -> Result<Numbers, ModuleError> {
        let shapes = sharing.shapes(self.rows, self.cols);
        let found = self.find(tensor).map_or(Vec::new(), |tensor| tensor.shape);
        let shape = shapes.iter().find(|shape| found == **shape).unwrap_or(&shapes[0]);
        self.numbers(tensor, shape)
    }

    /// Names a tensor in the error of building a matrix.
    pub(super) fn built<T>(&self, tensor: &'static str, built: Result<T>) -> Result<T, ModuleError> {
        built.map_err(|error| ModuleError::Content { tensor, reason: format!("cannot be used: {error}") })
    }
}

impl Debug for StoredModule<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let StoredModule { rows, cols, find: _ } = self;
        f.debug_struct("StoredModule").field("rows", rows).field("cols", cols).finish_non_exhaustive()
    }
}
