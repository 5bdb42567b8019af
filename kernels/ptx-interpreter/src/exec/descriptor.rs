//! Matrices in shared memory that the tensor cores read by themselves, and their descriptors.

use crate::error::Trap;
use crate::hopper::{Descriptor, ProductElement};
use crate::memory::{CHUNK, SharedMemory, Swizzle, Viewer};

/// Bits of a descriptor that belong to no field.
const UNUSED_BITS: u64 = 0x3ff1_c000_c000_c000;
/// The base offset, which is 0 if a swizzle's pattern begins at a multiple of its size.
const BASE_OFFSET: u64 = 0b111 << 49;
/// Bytes along the sum that one product takes.
pub(super) const SUM_BYTES: usize = 32;

impl Descriptor {
    pub(crate) fn parse(bits: u64) -> Result<Descriptor, Trap> {
        if bits & UNUSED_BITS != 0 {
            return Err(Trap::new(format!("the descriptor {bits:#x} has bits outside of its fields")));
        }
        if bits & BASE_OFFSET != 0 {
            return Err(Trap::new(format!(
                "the descriptor {bits:#x} has a base offset, which is not supported"
            )));
        }
        let field = |at: u32| (bits >> at & 0x3fff) << 4;
        let swizzle = match bits >> 62 {
            0 => Swizzle::None,
            1 => Swizzle::Bytes128,
            2 => Swizzle::Bytes64,
            _ => Swizzle::Bytes32,
        };
        Ok(Descriptor { start: field(0), leading: field(16), stride: field(32), swizzle })
    }

    /// The address of the 16 bytes that begin with this element, a multiple of 16 bytes from its
    /// row's start. Rows lie along the sum, or across it if the matrix is transposed. The canonical
    /// layouts are those of the section on matrix descriptors in the PTX ISA.
    fn address(&self, row: usize, k: usize, element_bytes: usize, transposed: bool) -> u64 {
        let (row, k, bytes) = (row as u64, k as u64, element_bytes as u64);
        let (leading, stride) = (self.leading, self.stride);
        let offset = match (transposed, self.swizzle.span()) {
            (false, Some(span)) => row / 8 * stride + row % 8 * span + k * bytes,
            (false, None) => row / 8 * stride + row % 8 * 16 + k * bytes / 16 * leading,
            (true, Some(span)) => {
                row * bytes / span * leading + row * bytes % span + k % 8 * span + k / 8 * stride
            }
            (true, None) => row * bytes / 16 * stride + k % 8 * 16 + k / 8 * leading,
        };
        self.swizzle.apply(self.start + offset)
    }
}

/// A matrix that a product reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct MatrixRead {
    pub(super) descriptor: Descriptor,
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) element: ProductElement,
    pub(super) transposed: bool,
}

impl MatrixRead {
    /// Reads the matrix as `[k, rows]` and notes the chunks that it reads.
    pub(super) fn read(
        &self,
        memory: &mut SharedMemory,
        viewer: Viewer<'_>,
        chunks: &mut Vec<u32>,
    ) -> Result<Vec<f64>, Trap> {
        let bytes = self.element.bytes();
        let (sum, per_chunk) = (SUM_BYTES / bytes, CHUNK / bytes);
        let mut out = vec![0.0; sum * self.rows];
        let mut chunk = |row: usize, k: usize| {
            let address = self.descriptor.address(self.first_row + row, k, bytes, self.transposed);
            chunks.push(address as u32);
            let read = memory.read_for_product(address, viewer)?;
            Ok::<[f64; CHUNK], Trap>(self.widen(&read))
        };
        if self.transposed {
            for k in 0..sum {
                for row in (0..self.rows).step_by(per_chunk) {
                    let values = chunk(row, k)?;
                    let count = per_chunk.min(self.rows - row);
                    out[k * self.rows + row..][..count].copy_from_slice(&values[..count]);
                }
            }
        } else {
            for row in 0..self.rows {
                for k in (0..sum).step_by(per_chunk) {
                    let values = chunk(row, k)?;
                    for (i, value) in values[..per_chunk].iter().enumerate() {
                        out[(k + i) * self.rows + row] = *value;
                    }
                }
            }
        }
        Ok(out)
    }

    /// The elements of a chunk; those behind them are zero.
    fn widen(&self, chunk: &[u8; CHUNK]) -> [f64; CHUNK] {
        let mut out = [0.0; CHUNK];
        for (out, bytes) in out.iter_mut().zip(chunk.chunks_exact(self.element.bytes())) {
            let bits = bytes.iter().rev().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
            *out = self.element.widen(bits);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_descriptor() {
        let bits = 0x400 >> 4 | 1 << 16 | (1024 >> 4) << 32 | 1 << 62;
        let descriptor = Descriptor::parse(bits).expect("the bits lie in fields");
        let expected = Descriptor { start: 0x400, leading: 16, stride: 1024, swizzle: Swizzle::Bytes128 };
        assert_eq!(descriptor, expected);
        // Row 3, element 8 of 16 bits: 0x590 before the swizzle.
        assert_eq!(descriptor.address(3, 8, 2, false), 0x5a0);
        for bit in [14, 15, 30, 31, 46, 47, 48, 52, 61] {
            assert!(Descriptor::parse(bits | 1 << bit).is_err(), "bit {bit}");
        }
        let refused = Descriptor::parse(bits | 1 << 49).expect_err("a base offset");
        assert!(refused.message.contains("base offset"));
    }

    /// Each layout gives every chunk of a matrix of 64 rows a place of its own.
    #[test]
    fn layouts_are_one_to_one() {
        for (swizzle, span) in
            [(Swizzle::None, 16), (Swizzle::Bytes32, 32), (Swizzle::Bytes64, 64), (Swizzle::Bytes128, 128)]
        {
            let is_plain = swizzle == Swizzle::None;
            let rows = Descriptor {
                start: 0,
                leading: if is_plain { 128 } else { 16 },
                stride: if is_plain { 256 } else { 8 * span },
                swizzle,
            };
            let mut places: Vec<u64> =
                (0..64).flat_map(|row| [0, 8].map(|k| rows.address(row, k, 2, false))).collect();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), 128, "{swizzle:?}");
            let columns = Descriptor {
                start: 0,
                leading: if is_plain { 128 * 8 } else { 16 * span },
                stride: if is_plain { 128 } else { 8 * span },
                swizzle,
            };
            let mut places: Vec<u64> = (0..16)
                .flat_map(|k| (0..64).step_by(8).map(move |row| columns.address(row, k, 2, true)))
                .collect();
            places.sort_unstable();
            places.dedup();
            assert_eq!(places.len(), 128, "{swizzle:?} transposed");
            assert_eq!(places.last(), Some(&(64 * 16 * 2 - 16)), "{swizzle:?} transposed");
        }
    }
}
