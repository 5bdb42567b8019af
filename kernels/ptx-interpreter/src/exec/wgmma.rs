//! `wgmma`: products of a warpgroup, which run beside the instructions that follow.
//!
//! Each warp computes its own 16 rows when it executes the instruction. That later instructions may
//! not see the result yet, and that the operands must stay as they are, is checked: registers of a
//! product belong to it until the warp waits, and so does the shared memory that it reads.

use super::alu::Lanes;
use super::descriptor::{MatrixRead, SUM_BYTES};
use super::shared::Shared;
use super::warp::Warp;
use crate::error::Trap;
use crate::float::bits32;
use crate::hopper::{Descriptor, Product, ProductOperand};
use crate::operand::{Register, Source};

/// All lanes of a warp.
const ALL: u32 = u32::MAX;
/// Rows of a product that one warp computes.
const ROWS: usize = 16;
/// The most groups of products of a warp that are in flight.
const MAX_GROUPS: usize = 4096;

impl Warp {
    pub(super) fn begin_product(&mut self, product: &Product, shared: &mut Shared<'_>) -> Result<(), Trap> {
        self.products.begin(product)?;
        let b_bits = self.uniform64(product.b, shared)?;
        let b = Descriptor::parse(b_bits)?;
        let viewer = self.viewer(0);
        let mut chunks = Vec::new();
        let row = self.index as usize % 4 * ROWS;
        let (a, a_bits) = match &product.a {
            ProductOperand::Registers(registers) => (self.register_rows(product, *registers, shared), 0),
            ProductOperand::Descriptor(source) => {
                let bits = self.uniform64(*source, shared)?;
                let read = MatrixRead {
                    descriptor: Descriptor::parse(bits)?,
                    first_row: row,
                    rows: ROWS,
                    element: product.element,
                    transposed: product.transposes_a,
                };
                (read.read(&mut shared.memory, viewer, &mut chunks)?, bits)
            }
        };
        let read = MatrixRead {
            descriptor: b,
            first_row: 0,
            rows: product.n,
            element: product.element,
            transposed: product.transposes_b,
        };
        let b = read.read(&mut shared.memory, viewer, &mut chunks)?;
        shared.warpgroups.join(self.index, self.current_instruction(), [a_bits, b_bits])?;
        shared.effects += 1;
        self.products.open.chunks.append(&mut chunks);
        self.store_product(product, &a, &b, shared);
        Ok(())
    }

    /// Operand A in registers, as `[k, 16]`.
    fn register_rows(&self, product: &Product, registers: [Register; 4], shared: &Shared<'_>) -> Vec<f64> {
        let element = product.element;
        let per_register = 4 / element.bytes();
        let mut a = vec![0.0; SUM_BYTES / element.bytes() * ROWS];
        for (r, register) in registers.iter().enumerate() {
            let values = self.value(Source::Register(*register), shared);
            for (lane, value) in values.iter().enumerate() {
                let row = lane / 4 + 8 * (r % 2);
                for i in 0..per_register {
                    let k = per_register * (lane % 4 + 4 * (r / 2)) + i;
                    let bits = (value >> (8 * element.bytes() * i)) as u32;
                    a[k * ROWS + row] = element.widen(bits);
                }
            }
        }
        a
    }

    /// Sums in f64, rounded once. A GPU rounds more often, so that results agree up to rounding.
    fn store_product(&mut self, product: &Product, a: &[f64], b: &[f64], shared: &Shared<'_>) {
        let n = product.n;
        let sign = if product.negates_a != product.negates_b { -1.0 } else { 1.0 };
        let adds = self.value(product.adds, shared)[0] != 0;
        let mut sums = vec![0.0; ROWS * n];
        for (a, b) in a.chunks_exact(ROWS).zip(b.chunks_exact(n)) {
            for (sums, a) in sums.chunks_exact_mut(n).zip(a) {
                let a = a * sign;
                sums.iter_mut().zip(b).for_each(|(sum, b)| *sum += a * b);
            }
        }
        for (i, d) in product.d.iter().enumerate() {
            let before = if adds { self.value(Source::Register(*d), shared) } else { [0; 32] };
            let after: Lanes = std::array::from_fn(|lane| {
                let (row, column) = (lane / 4 + 8 * (i / 2 % 2), 8 * (i / 4) + lane % 4 * 2 + i % 2);
                bits32((f64::from(f32::from_bits(before[lane] as u32)) + sums[row * n + column]) as f32)
            });
            self.set(*d, &after, ALL);
        }
    }

    pub(super) fn commit_products(&mut self, shared: &mut Shared<'_>) -> Result<(), Trap> {
        shared.warpgroups.join(self.index, self.current_instruction(), [0; 2])?;
        if self.products.groups.len() >= MAX_GROUPS {
            return Err(Trap::new(format!("more than {MAX_GROUPS} groups of products are in flight")));
        }
        self.products.groups.push_back(std::mem::take(&mut self.products.open));
        Ok(())
    }

    pub(super) fn wait_products(&mut self, pending: usize, shared: &mut Shared<'_>) -> Result<(), Trap> {
        shared.warpgroups.join(self.index, self.current_instruction(), [0; 2])?;
        let part = self.index as u16;
        let ended = self.products.end(pending);
        shared.memory.end_product_reads(&ended, part, self.clock.get(part));
        // Chunks that later groups read too are still in use.
        for group in self.products.groups.iter().chain([&self.products.open]) {
            shared.memory.hold_product_reads(&group.chunks, part);
        }
        self.clock.tick(part);
        Ok(())
    }

    pub(super) fn fence_products(&mut self, shared: &mut Shared<'_>) -> Result<(), Trap> {
        shared.warpgroups.join(self.index, self.current_instruction(), [0; 2])?;
        self.products.fence();
        Ok(())
    }
}
