//! The integers of 4 and 8 bits of the code of ChatGLM, with one scale for each row.

use bytes::Bytes;

use super::compressed_tensors::{ByteTensors, PackedTensors, packed, signed_bytes};
use super::module::{Element, ModuleError, StoredModule};
use super::written::WrittenTensor;
use crate::HostTensor;

/// The ends of the names of a module's tensors.
pub(super) const TENSORS: &[&str] = &["weight", "weight_scale"];

/// A checkpoint that the code of ChatGLM has quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChatGlm {
    /// Bits of a code: 4 or 8.
    pub bits: usize,
}

impl ChatGlm {
    pub(super) fn name(&self) -> &'static str {
        "chatglm"
    }

    /// Returns the tensors of a module with a matrix `[rows, cols]`, as most checkpoints have them.
    pub(super) fn layout(&self, rows: usize, cols: usize) -> Vec<WrittenTensor> {
        let bytes = if self.bits == 8 { cols } else { cols.div_ceil(2) };
        vec![
            WrittenTensor::of_rows("weight", Element::I8, &[rows, bytes]),
            WrittenTensor::of_rows("weight_scale", Element::F16, &[rows]),
        ]
    }

    pub(super) fn read(&self, module: &StoredModule<'_>) -> Result<Option<HostTensor>, ModuleError> {
        if !module.is("weight", Element::I8) {
            return Ok(None);
        }
        let (rows, cols, bits) = (module.rows, module.cols, self.bits);
        let scales = module.numbers("weight_scale", &[rows])?;
        let group_cols = cols.max(1);
        if bits == 8 {
            let weight = module.bytes("weight", &[rows, cols], Element::I8)?;
            let tensors = ByteTensors { weight, scales, zero_points: None, group_cols, divisor: 1.0 };
            return module.built("weight", signed_bytes(rows, cols, tensors)).map(Some);
        }
        let weight = module.bytes("weight", &[rows, cols.div_ceil(2)], Element::I8)?;
        let tensors = PackedTensors {
            bits,
            group_cols,
            weight_packed: words_of_nibbles(&weight, cols),
            weight_scale: scales,
            weight_zero_point: None,
            weight_g_idx: None,
        };
        module.built("weight", packed(rows, cols, tensors)).map(Some)
    }
}

/// Returns the codes of rows of `cols` columns as words of successive columns, lowest bits first,
/// plus 8. ChatGLM stores signed numbers, the even columns in the higher bits of bytes.
fn words_of_nibbles(stored: &[u8], cols: usize) -> Bytes {
    let row = cols.div_ceil(2).max(1);
    let mut words = Vec::with_capacity(stored.len().div_ceil(row) * row.next_multiple_of(4));
    for bytes in stored.chunks(row) {
        words.extend(bytes.iter().map(|byte| byte.rotate_left(4) ^ 0x88));
        words.resize(words.len().next_multiple_of(4), 0);
    }
    words.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Part;
    use crate::formats::StoredTensor;
    use crate::tensor::flatten;

    #[test]
    fn even_columns_are_in_the_higher_bits() {
        let find = |tensor: &str| match tensor {
            "weight" => {
                let codes = vec![0x18, 0x70, 0x0f, 0x20];
                Some(StoredTensor { element: Some(Element::I8), shape: vec![2, 2], bytes: codes.into() })
            }
            "weight_scale" => {
                let scales: Vec<u8> = [1f32, 0.5].iter().flat_map(|scale| scale.to_le_bytes()).collect();
                Some(StoredTensor { element: Some(Element::F32), shape: vec![2], bytes: scales.into() })
            }
            _ => None,
        };
        let read = |cols| ChatGlm { bits: 4 }.read(&StoredModule { rows: 2, cols, find: &find });
        let matrix = read(3).unwrap().unwrap();
        assert_eq!(flatten(&[Part::whole(matrix)]).unwrap(), [1.0, -8.0, 7.0, 0.0, -0.5, 1.0]);
        assert!(read(5).unwrap_err().to_string().starts_with("weight is missing, or is not"));
    }
}
