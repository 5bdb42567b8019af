//! Experts in MXFP4, as gpt-oss stores them.

use bytes::Bytes;
use millrace_formats::{Checkpoint, DType as StoredDType};
use millrace_numbers::HostTensor;
use millrace_numbers::experts::ExpertRows;
use millrace_numbers::formats::mxfp4::{self, BLOCK};

use crate::description::WeightError;

/// Returns the names of the tensors that store the weight `name` in MXFP4: its codes and its
/// scales.
pub(in super::super) fn tensors(name: &str) -> [String; 2] {
    ["blocks", "scales"].map(|end| format!("{name}_{end}"))
}

/// Returns the matrices `[experts, rows, cols]` of the weight `name`, or `None` if they are stored
/// in another way. Codes are `[experts, rows, cols / 32, 16]`, and scales `[experts, rows, cols /
/// 32]`.
pub(in super::super) fn read(
    checkpoint: &Checkpoint,
    name: &str,
    [experts, rows, cols]: [usize; 3],
    order: ExpertRows,
) -> Result<Option<HostTensor>, WeightError> {
    let [blocks, scales] = tensors(name);
    if !checkpoint.contains(&blocks) {
        return Ok(None);
    }
    let error = |tensor: &str, reason: String| {
        let file = checkpoint.path_of(tensor).unwrap_or_default().to_owned();
        WeightError::Quantized { file, tensor: tensor.to_owned(), reason }
    };
    if !cols.is_multiple_of(BLOCK) {
        let reason = format!("cannot be used: {cols} input features are not a multiple of {BLOCK}");
        return Err(error(&blocks, reason));
    }
    let bytes = |tensor: &str, shape: &[usize]| -> Result<Bytes, WeightError> {
        let stored = checkpoint.tensor(tensor, shape)?;
        if *stored.dtype != StoredDType::U8 {
            return Err(error(tensor, format!("has element type {} instead of U8", stored.dtype)));
        }
        Ok(stored.shared_bytes())
    };
    let shape = [experts, rows, cols / BLOCK, BLOCK / 2];
    let built =
        mxfp4::matrix(experts * rows, cols, order, bytes(&blocks, &shape)?, bytes(&scales, &shape[..3])?);
    built.map(Some).map_err(|source| error(&blocks, format!("cannot be used: {source}")))
}
