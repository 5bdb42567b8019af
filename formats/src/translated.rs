//! A model in another layout than that of Hugging Face, translated to it.

use std::ops::Range;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::dtype::DType;
use crate::header::Entry;
use crate::mapped_file::MappedFile;

/// A model in one file, or in several of one format.
#[derive(Debug)]
pub(crate) struct ModelFile {
    /// The configuration, with the keys of `config.json`.
    pub(crate) config: Map<String, Value>,
    /// The files.
    pub(crate) files: Vec<Arc<MappedFile>>,
    /// The tensors, each with the index of its file.
    pub(crate) tensors: Vec<(usize, Entry)>,
    /// The tensors that are made from the bytes of a file.
    pub(crate) derived: Vec<DerivedTensor>,
}

impl ModelFile {
    /// Creates a model without tensors.
    pub(crate) fn new(config: Map<String, Value>, files: Vec<Arc<MappedFile>>) -> Self {
        ModelFile { config, files, tensors: Vec::new(), derived: Vec::new() }
    }
}

/// A tensor whose bytes are made from those of a file when it is first used.
#[derive(Debug)]
pub(crate) struct DerivedTensor {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// Index of the file.
    pub(crate) file: usize,
    /// Place of the bytes in the file.
    pub(crate) range: Range<usize>,
    pub(crate) derivation: Derivation,
}

/// The way in which the bytes of a tensor follow from those of a file.
#[derive(Debug)]
pub(crate) enum Derivation {
    /// They are the same.
    Same,
    /// They are these.
    Bytes(Vec<u8>),
    /// The halves of each byte change their places.
    SwappedNibbles,
    /// Numbers in single precision, each less 1.
    LessOne,
    /// Numbers in single precision: the logarithm of each number without its sign, which is minus.
    LogOfNegated,
    /// Numbers in single precision: codes less a zero point, times a scale. Codes of four bits have
    /// the even element in the upper half of a byte.
    Codes {
        cols: usize,
        bits: usize,
        /// Columns that share a scale.
        group: usize,
        scales: Vec<f32>,
        zero_points: Vec<u8>,
    },
}

impl Derivation {
    /// Returns the length of the tensor that is made from this many bytes.
    pub(crate) fn bytes(&self, stored: usize) -> usize {
        match self {
            Derivation::Same
            | Derivation::SwappedNibbles
            | Derivation::LessOne
            | Derivation::LogOfNegated => stored,
            Derivation::Bytes(bytes) => bytes.len(),
            Derivation::Codes { cols, scales, group, .. } => {
                scales.len() / cols.div_ceil(*group).max(1) * cols * size_of::<f32>()
            }
        }
    }

    /// Makes the tensor.
    pub(crate) fn derive(&self, stored: &[u8]) -> Vec<u8> {
        match self {
            Derivation::Same => stored.to_vec(),
            Derivation::Bytes(bytes) => bytes.clone(),
            Derivation::SwappedNibbles => stored.iter().map(|byte| byte.rotate_left(4)).collect(),
            Derivation::LessOne => each_number(stored, |x| x - 1.0),
            // The logarithm in single precision would lose digits of speeds near 1.
            Derivation::LogOfNegated => each_number(stored, |x| f64::from(-x).ln() as f32),
            Derivation::Codes { cols, bits, group, scales, zero_points } => {
                let groups = cols.div_ceil(*group).max(1);
                let mut bytes = Vec::with_capacity(self.bytes(stored.len()));
                for element in 0..scales.len() / groups * cols {
                    let (row, col) = (element / cols, element % cols);
                    let code = match bits {
                        8 => stored[element],
                        _ if element % 2 == 0 => stored[element / 2] >> 4,
                        _ => stored[element / 2] & 15,
                    };
                    let place = row * groups + col / group;
                    let number = (f32::from(code) - f32::from(zero_points[place])) * scales[place];
                    bytes.extend(number.to_le_bytes());
                }
                bytes
            }
        }
    }
}

impl Derivation {
    /// Undoes the change of a number in single precision: returns what is stored for it.
    pub(crate) fn undo(&self, number: f32) -> f32 {
        match self {
            Derivation::LessOne => number + 1.0,
            // The exponential in single precision would differ from the one of others.
            Derivation::LogOfNegated => -(f64::from(number).exp() as f32),
            Derivation::Same
            | Derivation::Bytes(_)
            | Derivation::SwappedNibbles
            | Derivation::Codes { .. } => number,
        }
    }
}

/// Applies `change` to each number in single precision.
fn each_number(stored: &[u8], change: impl Fn(f32) -> f32) -> Vec<u8> {
    let numbers = stored.as_chunks().0.iter().map(|bytes| change(f32::from_le_bytes(*bytes)));
    numbers.flat_map(f32::to_le_bytes).collect()
}
