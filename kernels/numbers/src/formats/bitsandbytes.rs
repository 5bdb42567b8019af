//! The codes of four bits of bitsandbytes, nf4 and fp4 (Dettmers et al., "QLoRA"). Its integers of
//! eight bits (Dettmers et al., "LLM.int8()") are signed bytes as those of
//! [`super::compressed_tensors`].

use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::compressed_tensors::{ByteTensors, signed_bytes};
use super::module::{Element, ModuleError, StoredModule};
use super::nf4;
use super::written::{EncodedRows, WrittenTensor};
use crate::codes::{CodeRow, CodeType, CodedWeights};
use crate::scales::Numbers;
use crate::{DType, Encoding, Error, HostTensor, Result};

/// The description of a matrix of four bits, which is JSON in a tensor.
#[derive(Debug, Deserialize)]
struct QuantState {
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

/// The tensors of a module's [`QuantState`], one for each table.
const STATES: [&str; 2] = ["weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4"];

/// The ends of the names of a module's tensors.
pub(super) const TENSORS: &[&str] = &[
    "weight",
    "SCB",
    "weight_format",
    "weight.absmax",
    "weight.quant_map",
    "weight.nested_absmax",
    "weight.nested_quant_map",
    STATES[0],
    STATES[1],
];

/// Weights of a block, unless a tensor says another number.
const BLOCK: usize = 64;

/// A checkpoint of bitsandbytes. Its tensors describe themselves; the configuration says only what
/// most modules are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bitsandbytes {
    /// 8-bit integers.
    Int8,
    /// 4-bit codes for normally distributed numbers.
    Nf4,
    /// 4-bit floating-point numbers.
    Fp4,
}

impl Bitsandbytes {
    /// All variants.
    pub const ALL: [Bitsandbytes; 3] = [Bitsandbytes::Int8, Bitsandbytes::Nf4, Bitsandbytes::Fp4];

    /// Returns the name of the format.
    pub const fn name(&self) -> &'static str {
        match self {
            Bitsandbytes::Int8 => "bitsandbytes",
            Bitsandbytes::Nf4 => "bitsandbytes-nf4",
            Bitsandbytes::Fp4 => "bitsandbytes-fp4",
        }
    }

    /// Returns the tensors of a module with a matrix `[rows, cols]`, as most checkpoints have them.
    pub(super) fn layout(&self, rows: usize, cols: usize) -> Vec<WrittenTensor> {
        let table = match self {
            Bitsandbytes::Int8 => {
                return vec![
                    WrittenTensor::of_rows("weight", Element::I8, &[rows, cols]),
                    WrittenTensor::of_rows("SCB", Element::F32, &[rows]),
                ];
            }
            Bitsandbytes::Nf4 => STATES[0],
            Bitsandbytes::Fp4 => STATES[1],
        };
        let all = rows * cols;
        let state = json!({"blocksize": BLOCK, "shape": [rows, cols]}).to_string().into_bytes();
        vec![
            WrittenTensor::of_rows("weight", Element::U8, &[all.div_ceil(2), 1]),
            WrittenTensor::of_rows("weight.absmax", Element::F32, &[all.div_ceil(BLOCK)]),
            WrittenTensor::of_rows("weight.quant_map", Element::F32, &[16]),
            WrittenTensor::constant(table, Element::U8, state.len(), state),
        ]
    }

    pub(super) fn read(&self, module: &StoredModule<'_>) -> Result<Option<HostTensor>, ModuleError> {
        for tensor in STATES {
            if let Some(state) = module.find(tensor) {
                let state = serde_json::from_slice(&state.bytes).map_err(|error| ModuleError::Content {
                    tensor,
                    reason: format!("cannot be used: {error}"),
                })?;
                return four_bits(module, tensor, &state).map(Some);
            }
        }
        if !module.is("weight", Element::I8) {
            return Ok(None);
        }
        let (rows, cols, tensor) = (module.rows, module.cols, "weight_format");
        if module.find(tensor).is_some_and(|format| format.bytes.iter().any(|&byte| byte != 0)) {
            let reason = "says that the weight has the order of a GPU; only rows can be read".to_owned();
            return Err(ModuleError::Content { tensor, reason });
        }
        let tensors = ByteTensors {
            weight: module.bytes("weight", &[rows, cols], Element::I8)?,
            scales: module.numbers("SCB", &[rows])?,
            zero_points: None,
            group_cols: cols.max(1),
            divisor: 127.0,
        };
        module.built("weight", signed_bytes(rows, cols, tensors)).map(Some)
    }
}

/// Reads a matrix of four bits that the tensor `tensor` describes.
fn four_bits(
    module: &StoredModule<'_>,
    tensor: &'static str,
    state: &QuantState,
) -> Result<HostTensor, ModuleError> {
    let (rows, cols) = (module.rows, module.cols);
    if state.shape != [rows, cols] {
        let reason = format!("describes a matrix {:?} instead of [{rows}, {cols}]", state.shape);
        return Err(ModuleError::Content { tensor, reason });
    }
    let all = rows * cols;
    let Some(blocks) = (state.blocksize > 0).then(|| all.div_ceil(state.blocksize)) else {
        return Err(ModuleError::Content { tensor, reason: "has blocks of no weights".to_owned() });
    };
    let scales = match (state.nested_blocksize, state.nested_offset) {
        (Some(block), Some(offset)) if block > 0 => BlockScales::Nested {
            codes: module.bytes("weight.absmax", &[blocks], Element::U8)?,
            table: module.numbers("weight.nested_quant_map", &[256])?,
            block,
            scales: module.numbers("weight.nested_absmax", &[blocks.div_ceil(block)])?,
            offset,
        },
        _ => BlockScales::Numbers(module.numbers("weight.absmax", &[blocks])?),
    };
    let map = module.numbers("weight.quant_map", &[16])?;
    let codes =
        TableCodes { table: std::array::from_fn(|code| map.get(code)), block: state.blocksize, scales };
    let bytes = module.bytes("weight", &[all.div_ceil(2), 1], Element::U8)?;
    module.built("weight", HostTensor::new(Encoding::codes(codes), rows, cols, bytes))
}

/// Weights as codes of four bits that index a table, times the scale of their block. The weights of
/// all rows are one sequence, in which a block may span rows. Two codes are a byte of the
/// [`HostTensor`](crate::HostTensor), the first one in the higher half.
#[derive(Debug, Clone, PartialEq)]
pub struct TableCodes {
    /// The value of each code.
    pub table: [f32; 16],
    /// Weights of a block.
    pub block: usize,
    /// The scale of each block.
    pub scales: BlockScales,
}

/// The scales of blocks.
#[derive(Debug, Clone, PartialEq)]
pub enum BlockScales {
    /// A number for each block.
    Numbers(Numbers),
    /// The scales are quantized themselves ("nested" or double quantization). A scale is
    /// `table[code] * scale + offset`.
    Nested {
        /// The code of each block's scale.
        codes: Bytes,
        /// The value of each code.
        table: Numbers,
        /// Codes that share a scale.
        block: usize,
        /// The scales of the scales.
        scales: Numbers,
        /// The mean of the scales.
        offset: f32,
    },
}

impl BlockScales {
    /// Returns the scale of a block.
    pub fn get(&self, index: usize) -> f32 {
        match self {
            BlockScales::Numbers(numbers) => numbers.get(index),
            BlockScales::Nested { codes, table, block, scales, offset } => {
                table.get(usize::from(codes[index])) * scales.get(index / block) + offset
            }
        }
    }

    fn hold(&self, blocks: usize) -> bool {
        match self {
            BlockScales::Numbers(numbers) => numbers.len() == blocks,
            BlockScales::Nested { codes, table, block, scales, .. } => {
                let needed = if *block == 0 { usize::MAX } else { blocks.div_ceil(*block) };
                codes.len() == blocks && table.len() == 256 && scales.len() == needed
            }
        }
    }
}

impl CodedWeights for TableCodes {
    fn check(&self, rows: usize, cols: usize, bytes: usize) -> Result<()> {
        let all = rows.saturating_mul(cols);
        if bytes != all.div_ceil(2) || self.block == 0 || !self.scales.hold(all.div_ceil(self.block)) {
            return Err(Error::Shape(format!(
                "codes and scales of a matrix of {rows} x {cols} in blocks of {} have other lengths",
                self.block
            )));
        }
        Ok(())
    }

    fn code_type(&self) -> CodeType {
        CodeType::FourBits
    }

    fn values(&self) -> &[f32] {
        &self.table
    }

    fn read_codes(&self, row: CodeRow<'_>, cols: Range<usize>, out: &mut [u8]) {
        let first = row.row * row.stored;
        for (index, code) in (first + cols.start..first + cols.end).zip(out) {
            let byte = row.bytes[index / 2];
            *code = if index.is_multiple_of(2) { byte >> 4 } else { byte & 15 };
        }
    }

    fn block(&self, row: CodeRow<'_>, col: usize) -> (f32, usize) {
        let first = row.row * row.stored;
        let index = (first + col) / self.block;
        (self.scales.get(index), (index + 1).saturating_mul(self.block) - first)
    }

    fn has_groups_of(&self, group: usize, stored: usize, cols: &Range<usize>) -> bool {
        // Blocks are cut from the sequence of all rows.
        [self.block, stored, cols.start].into_iter().all(|size| size.is_multiple_of(group))
    }
}

/// Returns the tensors of a matrix in NF4.
pub(super) fn nf4_tensors(rows: usize, cols: usize, dtype: DType) -> Vec<WrittenTensor> {
    let all = rows * cols;
    let map = nf4::TABLE.iter().flat_map(|value| value.to_le_bytes()).collect();
    let state = json!({
        "quant_type": "nf4", "blocksize": nf4::GROUP, "dtype": dtype.name(), "shape": [rows, cols],
    });
    let state = state.to_string().into_bytes();
    vec![
        WrittenTensor::of_rows("weight", Element::U8, &[all.div_ceil(2), 1]),
        WrittenTensor::of_rows("weight.absmax", Element::F32, &[all.div_ceil(nf4::GROUP)]),
        WrittenTensor::constant("weight.quant_map", Element::F32, nf4::TABLE.len(), map),
        WrittenTensor::constant(STATES[0], Element::U8, state.len(), state),
    ]
}

/// Encodes weights in NF4. The weights of all rows are one sequence, in which a group may span
/// rows.
pub(super) fn encode_nf4(weights: &[f32], rows: &mut EncodedRows) -> Result<()> {
    for weights in weights.chunks(nf4::GROUP) {
        let mut codes = [0; nf4::GROUP];
        let codes = &mut codes[..weights.len()];
        let factor = nf4::quantize(weights, codes)?;
        rows.compare(weights, codes.iter().map(|&code| nf4::TABLE[usize::from(code)] * factor));
        // The first of two codes is in the higher half.
        rows.weights.extend(codes.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0)));
        rows.scales.extend(factor.to_le_bytes());
    }
    Ok(())
}
