//! Dummy weights of quantized checkpoints: the tensors that a `quantization_config` announces, cut
//! from small buffers, and read as those of files are.

use bytes::Bytes;
use millrace_numbers::experts::ExpertRows;
use millrace_numbers::formats::{Element, ModuleError, Scheme, StoredModule, StoredTensor, WrittenTensor};
use millrace_numbers::{DType, HostTensor, Part};
use regex::Regex;

use super::config::Config;
use super::error::ConfigError;
use super::names::{Names, Piece, StoredOrder};
use crate::description::{DecoderSpec, WeightError, WeightKind, WeightSlot};

/// Bytes of each buffer. It bounds the tensors of a part, of which a matrix has as many as it
/// needs.
const POOL: usize = 8 << 20;
/// Rows of the smallest part: whole words of codes.
const MIN_ROWS: usize = 32;
/// The least scale.
const SCALE: f32 = 0.002;
/// The exponent of all powers of two, which scale the numbers of MXFP4.
const EXPONENT: u8 = 127 - 6;
/// The keys of `quantization_config` with the modules that are left dense.
const DENSE_KEYS: [&str; 4] = ["modules_to_not_convert", "ignore", "ignored_layers", "llm_int8_skip_modules"];

/// The quantized weights of a model without files.
pub(super) struct DummyQuantized {
    scheme: Scheme,
    names: Names,
    dense: DenseModules,
    codes: Bytes,
    exponents: Bytes,
    f16: Bytes,
    f32: Bytes,
}

/// The modules that are not quantized: parts of names, and expressions.
#[derive(Debug, Default)]
pub(super) struct DenseModules {
    names: Vec<String>,
    expressions: Vec<Regex>,
}

impl DenseModules {
    /// Reads the lists of `config`, whose `quantization_config` may be absent.
    ///
    /// # Errors
    /// If a list is not one of texts, or an expression cannot be read.
    pub(super) fn read(config: &Config) -> Result<Self, ConfigError> {
        let mut dense = DenseModules::default();
        let Some(config) = config.object("quantization_config")? else { return Ok(dense) };
        for key in DENSE_KEYS {
            for name in config.optional::<Vec<String>>(key)?.unwrap_or_default() {
                match name.strip_prefix("re:") {
                    None => dense.names.push(name),
                    Some(expression) => dense.add(&config, key, expression)?,
                }
            }
        }
        if let Some(dynamic) = config.object("dynamic")? {
            for expression in dynamic.keys().filter_map(|key| key.strip_prefix("-:")) {
                dense.add(&config, "dynamic", expression)?;
            }
        }
        Ok(dense)
    }

    fn add(&mut self, config: &Config, key: &str, expression: &str) -> Result<(), ConfigError> {
        // Python's `match` begins at the beginning of a name.
        let expression = Regex::new(&format!("^(?:{expression})")).map_err(|error| {
            config.invalid(key, format!("has an expression that cannot be read: {error}"))
        })?;
        self.expressions.push(expression);
        Ok(())
    }

    fn contain(&self, module: &str) -> bool {
        self.names.iter().any(|name| module.contains(name.as_str()))
            || self.expressions.iter().any(|expression| expression.is_match(module))
    }
}

impl DummyQuantized {
    pub(super) fn new(scheme: Scheme, names: Names, dense: DenseModules) -> Self {
        // Without this bit, no byte is a NaN of e4m3.
        let codes = (0..POOL as u64 / 8).flat_map(|index| mix(index).to_le_bytes());
        let codes: Vec<u8> = codes.map(|byte| byte & 0xbf).collect();
        let numbers = |dtype: DType| {
            let mut bytes = Vec::with_capacity(POOL);
            // Scales that are all the same could be taken for one.
            let scale = |index: usize| SCALE * (1.0 + (index % 7) as f32 / 16.0);
            (0..POOL / dtype.size()).for_each(|index| dtype.push(scale(index), &mut bytes));
            Bytes::from(bytes)
        };
        DummyQuantized {
            scheme,
            names,
            dense,
            codes: codes.into(),
            exponents: vec![EXPONENT; POOL].into(),
            f16: numbers(DType::F16),
            f32: numbers(DType::F32),
        }
    }

    /// Returns the parts of a weight, or `None` if it is dense. `dense` makes a dense matrix.
    ///
    /// # Errors
    /// If a matrix cannot be quantized as the configuration says.
    pub(super) fn parts(
        &self,
        spec: &DecoderSpec,
        slot: WeightSlot,
        dense: impl Fn(usize, usize) -> Vec<Part>,
    ) -> Result<Option<Vec<Part>>, WeightError> {
        if !matches!(slot.info().kind, WeightKind::Matrix { may_quantize: true }) {
            return Ok(None);
        }
        let mut parts = Vec::new();
        let mut is_quantized = false;
        for piece in self.names.pieces(spec, slot) {
            let (rows, order) = (piece.rows.len(), piece.order);
            let cols = piece.shape.last().copied().unwrap_or_default();
            let quantized = match (order, &piece.shape[..]) {
                _ if self.dense.contain(piece.module().unwrap_or(&piece.tensor)) => None,
                (StoredOrder::Experts(order), &[experts, of_expert, cols]) => {
                    self.experts(&piece, (experts * of_expert, cols), order)?
                }
                (_, [_, _]) => self.module(&piece, rows, cols)?,
                _ => None,
            };
            is_quantized |= quantized.is_some();
            parts.extend(quantized.unwrap_or_else(|| dense(rows, cols)));
        }
        Ok(is_quantized.then_some(parts))
    }

    /// Returns the matrix of a module in parts whose tensors fit the buffers.
    fn module(&self, piece: &Piece, rows: usize, cols: usize) -> Result<Option<Vec<Part>>, WeightError> {
        if self.scheme.layout(rows, cols).is_empty() {
            return Ok(None);
        }
        let fits = |rows: usize| self.scheme.layout(rows, cols).iter().all(|tensor| bytes(tensor) <= POOL);
        let mut of_part = rows;
        while !fits(of_part) && of_part > MIN_ROWS {
            of_part = (of_part / 2).next_multiple_of(MIN_ROWS);
        }
        if !fits(of_part) {
            return Err(error(piece, "has too many scales for dummy weights".to_owned()));
        }
        let mut parts = Vec::new();
        for first in (0..rows).step_by(of_part.max(1)) {
            let layout = self.scheme.layout(of_part.min(rows - first), cols);
            let module = |find: &dyn Fn(&str) -> Option<StoredTensor>| {
                self.scheme.read(&StoredModule { rows: of_part.min(rows - first), cols, find })
            };
            parts.push(self.read(piece, &layout, module)?);
        }
        Ok(Some(parts))
    }

    /// Returns the matrices of all experts, or `None` if the format has no tensors for them. They
    /// are one tensor, because experts share it.
    fn experts(
        &self,
        piece: &Piece,
        (rows, cols): (usize, usize),
        order: ExpertRows,
    ) -> Result<Option<Vec<Part>>, WeightError> {
        // Experts whose tensors fit the buffers are read together.
        let of_expert = order.rows.max(1);
        let fits = |experts: usize| {
            self.scheme.expert_layout(experts * of_expert, cols, order).iter().all(|t| bytes(t) <= POOL)
        };
        let mut together = rows / of_expert;
        while !fits(together) && together > 1 {
            together = together.div_ceil(2);
        }
        if self.scheme.expert_layout(of_expert, cols, order).is_empty() {
            return Ok(None);
        }
        if !fits(together) {
            return Err(error(piece, "is too large for dummy weights".to_owned()));
        }
        let mut parts = Vec::new();
        for first in (0..rows / of_expert).step_by(together.max(1)) {
            let rows = of_expert * together.min(rows / of_expert - first);
            let layout = self.scheme.expert_layout(rows, cols, order);
            let experts = |find: &dyn Fn(&str) -> Option<StoredTensor>| {
                self.scheme.read_experts(&StoredModule { rows, cols, find }, order)
            };
            parts.push(self.read(piece, &layout, experts)?);
        }
        Ok(Some(parts))
    }

    /// Reads a matrix with the tensors of `layout`.
    fn read(
        &self,
        piece: &Piece,
        layout: &[WrittenTensor],
        read: impl Fn(&dyn Fn(&str) -> Option<StoredTensor>) -> Result<Option<HostTensor>, ModuleError>,
    ) -> Result<Part, WeightError> {
        let find =
            |name: &str| layout.iter().find(|tensor| tensor.name == name).map(|tensor| self.tensor(tensor));
        match read(&find) {
            Ok(Some(matrix)) => Ok(Part::whole(matrix)),
            Ok(None) => Err(error(piece, "has no tensors in this format".to_owned())),
            Err(fault) => {
                Err(error(piece, format!("cannot be quantized as quantization_config says: {fault}")))
            }
        }
    }

    fn tensor(&self, tensor: &WrittenTensor) -> StoredTensor {
        let pool = match tensor.element {
            Element::F32 => &self.f32,
            Element::F16 | Element::BF16 => &self.f16,
            Element::U8 if tensor.name.ends_with("_scales") => &self.exponents,
            _ => &self.codes,
        };
        let bytes = match &tensor.constant {
            Some(bytes) => bytes.clone().into(),
            None => pool.slice(..bytes(tensor)),
        };
        StoredTensor { element: Some(tensor.element), shape: tensor.shape.clone(), bytes }
    }
}

/// Returns the length of a tensor in bytes.
fn bytes(tensor: &WrittenTensor) -> usize {
    let size = match tensor.element {
        Element::F32 | Element::I32 => 4,
        Element::F16 | Element::BF16 => 2,
        Element::I64 => 8,
        Element::F8_E4M3 | Element::F8_E8M0 | Element::I8 | Element::U8 => 1,
    };
    tensor.shape.iter().fold(size, |all, &len| all.saturating_mul(len))
}

fn error(piece: &Piece, reason: String) -> WeightError {
    WeightError::Quantized { file: "config.json".to_owned(), tensor: piece.tensor.clone(), reason }
}

/// Mixes the bits of a number. This is the finalizer of SplitMix64 (Steele et al., "Fast splittable
/// pseudorandom number generators").
pub(super) fn mix(index: u64) -> u64 {
    let mut z = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
