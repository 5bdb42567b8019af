//! Matrices that the lanes of a warp hold together: `ldmatrix`, `movmatrix` and `mma`.
//!
//! Lane l holds row l / 4 of an 8x8 matrix of 16-bit elements, columns l % 4 · 2 and the next.

use super::shared::Shared;
use super::warp::Warp;
use crate::error::Trap;
use crate::float::{bf16_to_f64, bits32, e4m3_to_f64, f16_to_f64};
use crate::instruction::{Element, Mma};
use crate::operand::{Address, Register, Source};

/// All lanes.
const ALL: u32 = u32::MAX;

impl Warp {
    pub(super) fn load_matrices(
        &mut self,
        d: &[Register],
        address: Address,
        transposed: bool,
        shared: &Shared<'_>,
    ) -> Result<(), Trap> {
        let addresses = self.addresses(address, shared);
        for (i, d) in d.iter().enumerate() {
            let mut matrix = [[0u16; 8]; 8];
            for (row, elements) in matrix.iter_mut().enumerate() {
                let lane = i * 8 + row;
                if !addresses[lane].is_multiple_of(16) {
                    let message = format!("the row of a matrix at {:#x} is not aligned", addresses[lane]);
                    return Err(Trap::lane(lane as u32, message));
                }
                let bytes = shared.memory.read(addresses[lane], 16, u64::MAX, self.viewer(lane));
                let bytes = bytes.map_err(|trap| trap.at_lane(lane as u32))?;
                for (element, bytes) in elements.iter_mut().zip(bytes.chunks_exact(2)) {
                    *element = u16::from_le_bytes([bytes[0], bytes[1]]);
                }
            }
            let at = |row: usize, column: usize| {
                u64::from(if transposed { matrix[column][row] } else { matrix[row][column] })
            };
            let values = std::array::from_fn(|lane| {
                let (row, column) = (lane / 4, lane % 4 * 2);
                at(row, column) | at(row, column + 1) << 16
            });
            self.set(*d, &values, ALL);
        }
        Ok(())
    }

    pub(super) fn transpose_matrix(&mut self, d: Register, a: Source, shared: &Shared<'_>) {
        let a = self.value(a, shared);
        let at = |row: usize, column: usize| a[row * 4 + column / 2] >> (column % 2 * 16) & 0xffff;
        let values = std::array::from_fn(|lane| {
            let (row, column) = (lane / 4, lane % 4 * 2);
            at(column, row) | at(column + 1, row) << 16
        });
        self.set(d, &values, ALL);
    }

    /// Sums in f64, rounded once. A GPU rounds more often, so that results agree up to rounding.
    pub(super) fn multiply(&mut self, mma: &Mma, shared: &Shared<'_>) {
        let a = mma.a.map(|source| self.value(source, shared));
        let b = mma.b.map(|source| self.value(source, shared));
        let c = mma.c.map(|source| self.value(source, shared));
        let mut sums = [[0u64; 32]; 4];
        let per_register = if mma.element == Element::E4M3 { 4 } else { 2 };
        let k = 8 * per_register;
        let (mut rows, mut columns) = ([[0f64; 32]; 16], [[0f64; 32]; 8]);
        for lane in 0..32 {
            let (group, t) = (lane / 4, lane % 4);
            for i in 0..per_register {
                for r in 0..4 {
                    let column = per_register * (t + 4 * (r / 2)) + i;
                    rows[group + 8 * (r % 2)][column] = element(mma.element, a[r][lane], i);
                }
                for (r, b) in b.iter().enumerate() {
                    columns[group][per_register * (t + 4 * r) + i] = element(mma.element, b[lane], i);
                }
            }
        }
        for lane in 0..32 {
            for (i, sum) in sums.iter_mut().enumerate() {
                let (row, column) = (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2);
                let products = rows[row][..k].iter().zip(&columns[column][..k]).map(|(a, b)| a * b);
                let addend = f64::from(f32::from_bits(c[i][lane] as u32));
                sum[lane] = bits32((addend + products.sum::<f64>()) as f32);
            }
        }
        for (d, sums) in mma.d.iter().zip(&sums) {
            self.set(*d, sums, ALL);
        }
    }
}

/// Element `i` of a register.
fn element(element: Element, register: u64, i: usize) -> f64 {
    match element {
        Element::F16 => f16_to_f64((register >> (16 * i)) as u16),
        Element::BF16 => bf16_to_f64((register >> (16 * i)) as u16),
        Element::E4M3 => e4m3_to_f64((register >> (8 * i)) as u8),
    }
}
