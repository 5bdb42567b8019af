//! The tensors of a quantized module.

use bytes::Bytes;
use millrace_formats::{Checkpoint, DType as StoredDType, Tensor};
use millrace_numbers::formats::awq::{self, AwqTensors};
use millrace_numbers::formats::bitsandbytes::{BlockScales, TableCodes};
use millrace_numbers::formats::compressed_tensors::{ByteTensors, PackedTensors, packed, signed_bytes};
use millrace_numbers::formats::fp8;
use millrace_numbers::formats::gptq::{self, GptqTensors};
use millrace_numbers::scales::{NumberType, Numbers};
use millrace_numbers::{DType, Encoding, HostTensor};
use serde::Deserialize;

use super::compressed::{CompressedGroup, CompressedKind, Strategy};
use super::scheme::Scheme;
use crate::description::WeightError;

/// The ends of the names of a quantized module's tensors. Scales of activations
/// are not needed: activations are quantized with scales of their own.
pub(in super::super) const SUFFIXES: [&str; 25] = [
    "weight",
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
    "activation_scale",
    "SCB",
    "weight_format",
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4",
];

/// The tensors of a module in a quantized checkpoint.
pub(in super::super) struct ModuleTensors<'a> {
    pub(in super::super) checkpoint: &'a Checkpoint,
    /// Name of the module.
    pub(in super::super) name: &'a str,
    /// Output features.
    pub(in super::super) rows: usize,
    /// Input features.
    pub(in super::super) cols: usize,
}

impl ModuleTensors<'_> {
    /// Returns the module's weight, or `None` if the module is not quantized.
    pub(in super::super) fn read(&self, scheme: &Scheme) -> Result<Option<HostTensor>, WeightError> {
        match scheme {
            Scheme::Gptq { bits, group, plus_one } => self.gptq(*bits, *group, *plus_one),
            Scheme::Awq { group, gemv } => self.awq(*group, *gemv),
            Scheme::Compressed(groups) => self.compressed(groups),
            Scheme::Bitsandbytes(_) => self.bitsandbytes(),
            Scheme::Fp8 { block } => self.fp8(*block),
            Scheme::ChatGlm { bits } => self.chatglm(*bits),
            // Modules are dense: see `super::read_mxfp4`.
            Scheme::Mxfp4 => Ok(None),
        }
    }

    fn gptq(
        &self,
        bits: usize,
        group: Option<usize>,
        plus_one: bool,
    ) -> Result<Option<HostTensor>, WeightError> {
        if !self.has("qweight") {
            return Ok(None);
        }
        let (rows, cols) = (self.rows, self.cols);
        let group_cols = group.unwrap_or(cols).max(1);
        let groups = cols.div_ceil(group_cols);
        let tensors = GptqTensors {
            bits,
            group_cols,
            plus_one,
            qweight: self.bytes("qweight", &[(cols * bits).div_ceil(32), rows], &StoredDType::I32)?,
            qzeros: self.bytes("qzeros", &[groups, (rows * bits).div_ceil(32)], &StoredDType::I32)?,
            scales: self.numbers("scales", &[groups, rows])?,
            g_idx: self.optional_bytes("g_idx", &[cols], &StoredDType::I32)?,
        };
        self.built("g_idx", gptq::matrix(rows, cols, tensors)).map(Some)
    }

    fn awq(&self, group: Option<usize>, gemv: bool) -> Result<Option<HostTensor>, WeightError> {
        if !self.has("qweight") {
            return Ok(None);
        }
        let (rows, cols) = (self.rows, self.cols);
        let group_cols = group.unwrap_or(cols).max(1);
        let groups = cols.div_ceil(group_cols);
        let int = &StoredDType::I32;
        let (qweight, qzeros, scales) = if gemv {
            // Groups are padded, to a number that depends on the version.
            let (zeros, scales) =
                (self.padded("qzeros", groups.div_ceil(8))?, self.padded("scales", groups)?);
            (
                self.bytes("qweight", &[rows, cols.div_ceil(8)], int)?,
                self.bytes("qzeros", &zeros, int)?,
                self.numbers("scales", &scales)?,
            )
        } else {
            (
                self.bytes("qweight", &[cols, rows.div_ceil(8)], int)?,
                self.bytes("qzeros", &[groups, rows.div_ceil(8)], int)?,
                self.numbers("scales", &[groups, rows])?,
            )
        };
        let tensors = AwqTensors { group_cols, gemv, qweight, qzeros, scales };
        self.built("qweight", awq::matrix(rows, cols, tensors)).map(Some)
    }

    /// Returns the shape of a tensor with a row for each output feature and at least `least`
    /// columns.
    fn padded(&self, suffix: &str, least: usize) -> Result<[usize; 2], WeightError> {
        let shape = [self.rows, least];
        match self.find(suffix).map(|tensor| tensor.shape) {
            Some(&[rows, cols]) if rows == self.rows && cols >= least => Ok([rows, cols]),
            // The error says which shape was expected.
            _ => self.tensor(suffix, &shape).map(|_| shape),
        }
    }

    fn compressed(&self, groups: &[CompressedGroup]) -> Result<Option<HostTensor>, WeightError> {
        let (kind, codes) = if self.has("weight_packed") {
            (CompressedKind::Packed, "weight_packed")
        } else {
            match self.find("weight").map(|tensor| tensor.dtype.clone()) {
                Some(StoredDType::I8) => (CompressedKind::Bytes, "weight"),
                Some(StoredDType::F8_E4M3) => (CompressedKind::Float8, "weight"),
                _ => return Ok(None),
            }
        };
        let of_kind = || groups.iter().filter(|group| group.kind == kind);
        // The group with the most tensors of the right shape, or the first one, whose error says
        // what is wrong.
        let fits = |group: &&CompressedGroup| {
            let shape = |suffix: &str| self.find(suffix).map_or(&[][..], |tensor| tensor.shape);
            (kind != CompressedKind::Packed || shape(codes) == self.packed_shape(group.bits))
                && self.scale_shapes(group.strategy).iter().any(|wanted| shape("weight_scale") == &wanted[..])
                && (group.symmetric || self.has("weight_zero_point"))
        };
        let Some(group) = of_kind().find(fits).or_else(|| of_kind().next()) else {
            let reason = "no group of quantization_config.config_groups has weights of this type".to_owned();
            return Err(self.error(codes, reason));
        };
        self.check_shape()?;
        self.of_group(group).map(Some)
    }

    fn packed_shape(&self, bits: usize) -> [usize; 2] {
        [self.rows, (self.cols * bits).div_ceil(32)]
    }

    /// Returns the shapes that the scales may have.
    fn scale_shapes(&self, strategy: Strategy) -> Vec<Vec<usize>> {
        let (rows, cols) = (self.rows, self.cols);
        match strategy {
            Strategy::Tensor => vec![vec![1], vec![], vec![1, 1]],
            Strategy::Row => vec![vec![rows, 1], vec![rows]],
            Strategy::Group(group) => vec![vec![rows, cols.div_ceil(group)]],
            Strategy::Block([down, across]) => vec![vec![rows.div_ceil(down), cols.div_ceil(across)]],
        }
    }

    fn of_group(&self, group: &CompressedGroup) -> Result<HostTensor, WeightError> {
        let (rows, cols, bits) = (self.rows, self.cols, group.bits);
        let group_cols = group.strategy.group_cols(cols).max(1);
        let groups = cols.div_ceil(group_cols);
        let scales = self.scales("weight_scale", group.strategy)?;
        let zero_points = |shape: &[usize], dtype: &StoredDType| {
            if group.symmetric { Ok(None) } else { self.bytes("weight_zero_point", shape, dtype).map(Some) }
        };
        let built = match group.kind {
            CompressedKind::Packed => {
                let int = &StoredDType::I32;
                let tensors = PackedTensors {
                    bits,
                    group_cols,
                    weight_packed: self.bytes("weight_packed", &self.packed_shape(bits), int)?,
                    weight_scale: scales,
                    weight_zero_point: zero_points(&[(rows * bits).div_ceil(32), groups], int)?,
                    weight_g_idx: self.optional_bytes("weight_g_idx", &[cols], int)?,
                };
                packed(rows, cols, tensors)
            }
            CompressedKind::Bytes => {
                let weight = self.bytes("weight", &[rows, cols], &StoredDType::I8)?;
                let zero_points = zero_points(&[rows, groups], &StoredDType::I8)?;
                let tensors = ByteTensors { weight, scales, zero_points, group_cols, divisor: 1.0 };
                signed_bytes(rows, cols, tensors)
            }
            CompressedKind::Float8 => {
                let bytes = self.bytes("weight", &[rows, cols], &StoredDType::F8_E4M3)?;
                fp8::matrix(rows, cols, bytes, scales, self.block(group.strategy))
            }
        };
        let suffix = if group.kind == CompressedKind::Packed { "weight_packed" } else { "weight" };
        self.built(suffix, built)
    }

    /// Returns the rows and columns that share a scale.
    fn block(&self, strategy: Strategy) -> [usize; 2] {
        match strategy {
            Strategy::Tensor => [self.rows.max(1), self.cols.max(1)],
            Strategy::Row => [1, self.cols.max(1)],
            Strategy::Group(group) => [1, group],
            Strategy::Block(block) => block,
        }
    }

    /// Checks `weight_shape`, where it is stored.
    fn check_shape(&self) -> Result<(), WeightError> {
        let Some(bytes) = self.optional_bytes("weight_shape", &[2], &StoredDType::I64)? else {
            return Ok(());
        };
        let shape: Vec<u64> =
            bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        if shape != [self.rows as u64, self.cols as u64] {
            let (rows, cols) = (self.rows, self.cols);
            return Err(self.error("weight_shape", format!("holds {shape:?} instead of [{rows}, {cols}]")));
        }
        Ok(())
    }

    fn fp8(&self, block: Option<[usize; 2]>) -> Result<Option<HostTensor>, WeightError> {
        if self.find("weight").is_none_or(|tensor| *tensor.dtype != StoredDType::F8_E4M3) {
            return Ok(None);
        }
        let (rows, cols) = (self.rows, self.cols);
        let suffix = if self.has("weight_scale_inv") { "weight_scale_inv" } else { "weight_scale" };
        let of_rows = self.find(suffix).is_some_and(|tensor| tensor.shape.first() == Some(&rows) && rows > 1);
        let strategy = match block {
            Some(block) => Strategy::Block(block),
            None if of_rows => Strategy::Row,
            None => Strategy::Tensor,
        };
        let scales = self.scales(suffix, strategy)?;
        let bytes = self.bytes("weight", &[rows, cols], &StoredDType::F8_E4M3)?;
        self.built("weight", fp8::matrix(rows, cols, bytes, scales, self.block(strategy))).map(Some)
    }

    fn bitsandbytes(&self) -> Result<Option<HostTensor>, WeightError> {
        for suffix in ["weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"] {
            if let Some(state) = self.find(suffix) {
                let state = serde_json::from_slice(state.bytes)
                    .map_err(|error| self.error(suffix, format!("cannot be used: {error}")))?;
                return self.four_bits(suffix, &state).map(Some);
            }
        }
        if self.find("weight").is_none_or(|tensor| *tensor.dtype != StoredDType::I8) {
            return Ok(None);
        }
        let (rows, cols) = (self.rows, self.cols);
        if let Some(format) = self.find("weight_format")
            && format.bytes.iter().any(|&byte| byte != 0)
        {
            let reason = "says that the weight has the order of a GPU; only rows can be read".to_owned();
            return Err(self.error("weight_format", reason));
        }
        let tensors = ByteTensors {
            weight: self.bytes("weight", &[rows, cols], &StoredDType::I8)?,
            scales: self.numbers("SCB", &[rows])?,
            zero_points: None,
            group_cols: cols.max(1),
            divisor: 127.0,
        };
        self.built("weight", signed_bytes(rows, cols, tensors)).map(Some)
    }

    fn chatglm(&self, bits: usize) -> Result<Option<HostTensor>, WeightError> {
        if self.find("weight").is_none_or(|tensor| *tensor.dtype != StoredDType::I8) {
            return Ok(None);
        }
        let (rows, cols) = (self.rows, self.cols);
        let scales = self.numbers("weight_scale", &[rows])?;
        let group_cols = cols.max(1);
        if bits == 8 {
            let weight = self.bytes("weight", &[rows, cols], &StoredDType::I8)?;
            let tensors = ByteTensors { weight, scales, zero_points: None, group_cols, divisor: 1.0 };
            return self.built("weight", signed_bytes(rows, cols, tensors)).map(Some);
        }
        let weight = self.bytes("weight", &[rows, cols.div_ceil(2)], &StoredDType::I8)?;
        let tensors = PackedTensors {
            bits,
            group_cols,
            weight_packed: packed_nibbles(&weight, cols),
            weight_scale: scales,
            weight_zero_point: None,
            weight_g_idx: None,
        };
        self.built("weight", packed(rows, cols, tensors)).map(Some)
    }

    fn four_bits(&self, suffix: &str, state: &QuantState) -> Result<HostTensor, WeightError> {
        let (rows, cols) = (self.rows, self.cols);
        if state.shape != [rows, cols] {
            let found = &state.shape;
            return Err(
                self.error(suffix, format!("describes a matrix {found:?} instead of [{rows}, {cols}]"))
            );
        }
        let all = rows * cols;
        let Some(blocks) = (state.blocksize > 0).then(|| all.div_ceil(state.blocksize)) else {
            return Err(self.error(suffix, "has blocks of no weights".to_owned()));
        };
        let scales = match (state.nested_blocksize, state.nested_offset) {
            (Some(block), Some(offset)) if block > 0 => BlockScales::Nested {
                codes: self.bytes("weight.absmax", &[blocks], &StoredDType::U8)?,
                table: self.numbers("weight.nested_quant_map", &[256])?,
                block,
                scales: self.numbers("weight.nested_absmax", &[blocks.div_ceil(block)])?,
                offset,
            },
            _ => BlockScales::Numbers(self.numbers("weight.absmax", &[blocks])?),
        };
        let map = self.numbers("weight.quant_map", &[16])?;
        let codes =
            TableCodes { table: std::array::from_fn(|code| map.get(code)), block: state.blocksize, scales };
        let bytes = self.bytes("weight", &[all.div_ceil(2), 1], &StoredDType::U8)?;
        self.built("weight", HostTensor::new(Encoding::codes(codes), rows, cols, bytes))
    }

    fn full(&self, suffix: &str) -> String {
        format!("{}.{suffix}", self.name)
    }

    fn has(&self, suffix: &str) -> bool {
        self.checkpoint.contains(&self.full(suffix))
    }

    fn find(&self, suffix: &str) -> Option<Tensor<'_>> {
        self.checkpoint.find(&self.full(suffix))
    }

    fn tensor(&self, suffix: &str, shape: &[usize]) -> Result<Tensor<'_>, WeightError> {
        Ok(self.checkpoint.tensor(&self.full(suffix), shape)?)
    }

    fn bytes(&self, suffix: &str, shape: &[usize], dtype: &StoredDType) -> Result<Bytes, WeightError> {
        let tensor = self.tensor(suffix, shape)?;
        if tensor.dtype != dtype {
            return Err(self.error(suffix, format!("has element type {} instead of {dtype}", tensor.dtype)));
        }
        Ok(tensor.shared_bytes())
    }

    fn optional_bytes(
        &self,
        suffix: &str,
        shape: &[usize],
        dtype: &StoredDType,
    ) -> Result<Option<Bytes>, WeightError> {
        if self.has(suffix) { self.bytes(suffix, shape, dtype).map(Some) } else { Ok(None) }
    }

    fn scales(&self, suffix: &str, strategy: Strategy) -> Result<Numbers, WeightError> {
        let shapes = self.scale_shapes(strategy);
        let found = self.find(suffix).map_or(&[][..], |tensor| tensor.shape);
        let shape = shapes.iter().find(|shape| found == &shape[..]).unwrap_or(&shapes[0]);
        self.numbers(suffix, shape)
    }

    fn numbers(&self, suffix: &str, shape: &[usize]) -> Result<Numbers, WeightError> {
        let tensor = self.tensor(suffix, shape)?;
        let kind = match tensor.dtype {
            dtype if *dtype == StoredDType::F32 => NumberType::Dense(DType::F32),
            dtype if *dtype == StoredDType::F16 => NumberType::Dense(DType::F16),
            dtype if *dtype == StoredDType::BF16 => NumberType::Dense(DType::BF16),
            dtype if *dtype == StoredDType::F8_E8M0 => NumberType::PowerOfTwo,
            dtype => {
                let reason = format!("has element type {dtype}, but scales must be F32, F16 or BF16");
                return Err(self.error(suffix, reason));
            }
        };
        self.built(suffix, Numbers::new(kind, tensor.shared_bytes()))
    }

    /// Names the tensor `suffix` in the error of building a matrix.
    fn built<T>(&self, suffix: &str, built: millrace_numbers::Result<T>) -> Result<T, WeightError> {
        built.map_err(|error| self.error(suffix, format!("cannot be used: {error}")))
    }

    fn error(&self, suffix: &str, reason: String) -> WeightError {
        let tensor = self.full(suffix);
        let file = self.checkpoint.path_of(&tensor).unwrap_or_default().to_owned();
        WeightError::Quantized { file, tensor, reason }
    }
}

/// Returns the codes of rows of `cols` columns as words of successive columns, lowest bits first,
/// plus 8. The code of ChatGLM stores signed numbers, the even columns in the higher bits of bytes.
fn packed_nibbles(stored: &[u8], cols: usize) -> Bytes {
    let row = cols.div_ceil(2).max(1);
    let mut words = Vec::with_capacity(stored.len().div_ceil(row) * row.next_multiple_of(4));
    for bytes in stored.chunks(row) {
        words.extend(bytes.iter().map(|byte| byte.rotate_left(4) ^ 0x88));
        words.resize(words.len().next_multiple_of(4), 0);
    }
    words.into()
}

/// The description of a matrix of four bits that bitsandbytes stores as JSON.
#[derive(Debug, Deserialize)]
struct QuantState {
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}
