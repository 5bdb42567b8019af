//! Reads the tensors of a model row by row, in another order and another type.

use half::f16;
use millrace_formats::Tensor;
use millrace_model::families::host_tensor;
use millrace_numbers::integers::IntFormat;
use millrace_numbers::{DType, HostTensor, Part};

use super::error::ConvertError;

/// Columns of a block of 8 bits.
pub(super) const BLOCK: usize = 32;

/// Bytes that are written at once.
pub(super) const CHUNK: usize = 16 << 20;

/// The order of the rows of query and key: halves of a head, or pairs that are rotated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadOrder {
    pub(super) head_dim: usize,
    /// Whether halves become pairs. Otherwise pairs become halves.
    pub(super) to_pairs: bool,
}

impl HeadOrder {
    /// Returns the stored row that becomes this row.
    pub(super) fn stored_row(self, row: usize) -> usize {
        let (head, row, half) = (row / self.head_dim, row % self.head_dim, self.head_dim / 2);
        let stored = match self.to_pairs {
            true => row % 2 * half + row / 2,
            false => row % half * 2 + row / half,
        };
        head * self.head_dim + stored
    }
}

/// The rows of a converted tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows<'a> {
    /// All, in their order.
    All,
    /// All, in another order within each head.
    Heads(HeadOrder),
    /// These only.
    Kept(&'a [u32]),
}

impl Rows<'_> {
    /// Returns the number of rows of a tensor that has `stored` rows.
    fn count(self, stored: usize) -> usize {
        match self {
            Rows::All | Rows::Heads(_) => stored,
            Rows::Kept(rows) => rows.len(),
        }
    }

    /// Returns the stored row that becomes this row.
    fn stored_row(self, row: usize) -> usize {
        match self {
            Rows::All => row,
            Rows::Heads(order) => order.stored_row(row),
            Rows::Kept(rows) => rows[row] as usize,
        }
    }
}

/// The type of a converted tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowType {
    /// The bytes of rows stay as they are.
    Stored,
    Dense(DType),
    Q8_0,
}

/// Gives the converted bytes of a tensor to `write`, in order.
pub(super) fn convert(
    name: &str,
    tensor: &Tensor<'_>,
    order: Rows<'_>,
    to: RowType,
    write: &mut dyn FnMut(&[u8]) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let error = |source| ConvertError::Weights { tensor: name.to_owned(), source };
    let rows = match (order, tensor.shape) {
        (Rows::Heads(_) | Rows::Kept(_), [rows, ..]) => *rows,
        (Rows::All, [.., _]) if to != RowType::Stored => host_tensor(tensor).map_or(1, |tensor| tensor.rows),
        _ => 1,
    };
    if rows == 0 || tensor.bytes.is_empty() {
        return Ok(());
    }
    if to == RowType::Stored {
        if order == Rows::All {
            return tensor.bytes.chunks(CHUNK).try_for_each(write);
        }
        let size = tensor.bytes.len() / rows;
        return (0..order.count(rows)).try_for_each(|row| {
            let start = order.stored_row(row) * size;
            write(&tensor.bytes[start..start + size])
        });
    }
    let (count, mut done, mut bytes) = (order.count(rows), 0, Vec::new());
    numbers(name, tensor, order, &mut |row| {
        encode(row, to, &mut bytes).map_err(error)?;
        done += 1;
        if bytes.len() >= CHUNK || done == count {
            write(&bytes)?;
            bytes.clear();
        }
        Ok(())
    })
}

/// Gives each row of a tensor to `each`, in single precision.
pub(super) fn numbers(
    name: &str,
    tensor: &Tensor<'_>,
    order: Rows<'_>,
    each: &mut dyn FnMut(&[f32]) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let Some(mut host) = host_tensor(tensor) else {
        let source = millrace_numbers::Error::Unsupported(format!("weights of the type {}", tensor.dtype));
        return Err(ConvertError::Weights { tensor: name.to_owned(), source });
    };
    let rows = match (order, tensor.shape) {
        (Rows::Heads(_) | Rows::Kept(_), [rows, ..]) => *rows,
        _ => host.rows,
    };
    if rows == 0 || tensor.bytes.is_empty() {
        return Ok(());
    }
    // The elements of a bias are rows.
    host = HostTensor { cols: host.rows * host.cols / rows, rows, ..host };
    let part = Part::whole(host);
    let mut numbers = vec![0.0; part.cols.len()];
    for row in 0..order.count(rows) {
        part.read_row(order.stored_row(row), &mut numbers);
        each(&numbers)?;
    }
    Ok(())
}

pub(super) fn encode(
    numbers: &[f32],
    to: RowType,
    bytes: &mut Vec<u8>,
) -> Result<(), millrace_numbers::Error> {
    match to {
        RowType::Dense(dtype) => numbers.iter().for_each(|&number| dtype.push(number, bytes)),
        RowType::Q8_0 => {
            let mut codes = [0; BLOCK];
            for block in numbers.chunks_exact(BLOCK) {
                let group = IntFormat::Q8_0.quantize(block, &mut codes)?;
                bytes.extend(f16::from_f32(group.scale).to_le_bytes());
                // Signed numbers are stored.
                bytes.extend(codes.iter().map(|code| code ^ 0x80));
            }
        }
        RowType::Stored => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_inverse_to_each_other() {
        let rows: Vec<usize> = (0..12).collect();
        let reorder = |rows: &[usize], to_pairs| -> Vec<usize> {
            let order = HeadOrder { head_dim: 6, to_pairs };
            (0..rows.len()).map(|row| rows[order.stored_row(row)]).collect()
        };
        let pairs = reorder(&rows, true);
        assert_eq!(pairs[..6], [0, 3, 1, 4, 2, 5]);
        assert_eq!(pairs[6..], [6, 9, 7, 10, 8, 11]);
        assert_eq!(reorder(&pairs, false), rows);
    }
}
