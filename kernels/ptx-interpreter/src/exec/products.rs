//! The products of a warp that are in flight, and the registers and the shared memory that they
//! use.

use std::collections::VecDeque;

use crate::error::Trap;
use crate::hopper::{Product, ProductOperand};
use crate::instruction::{Instruction, Op};
use crate::operand::Register;

/// The use of a register by products in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    None,
    /// A product reads it.
    Operand,
    /// A product of this many columns adds to it.
    Sum(u16),
}

/// The registers and chunks of shared memory of a group of products.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) registers: Vec<Register>,
    pub(super) chunks: Vec<u32>,
}

/// The products of a warp that are in flight.
#[derive(Debug, Default)]
pub(super) struct Products {
    /// Counts the fences.
    epoch: u32,
    /// The epoch of the last access of an ordinary instruction, by register.
    touched: Vec<u32>,
    uses: Vec<Use>,
    /// The products in flight that use a register.
    counts: Vec<u32>,
    pub(super) open: Group,
    /// The oldest first.
    pub(super) groups: VecDeque<Group>,
}

impl Products {
    /// No products, for a warp with this many registers.
    pub(super) fn new(registers: usize) -> Products {
        Products {
            touched: vec![0; registers],
            uses: vec![Use::None; registers],
            counts: vec![0; registers],
            ..Products::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.registers.is_empty() && self.groups.iter().all(|group| group.registers.is_empty())
    }

    pub(super) fn fence(&mut self) {
        self.epoch += 1;
    }

    /// Notes that an ordinary instruction accesses its registers.
    pub(super) fn touch(&mut self, instruction: &Instruction) -> Result<(), Trap> {
        if matches!(&instruction.op, Op::Hopper(op) if matches!(op, crate::hopper::HopperOp::Product(_))) {
            return Ok(());
        }
        for register in &instruction.registers {
            let index = usize::from(*register);
            if self.uses[index] != Use::None {
                return Err(Trap::new("accesses a register of a product in flight before wgmma.wait_group"));
            }
            self.touched[index] = self.epoch;
        }
        Ok(())
    }

    fn check_fenced(&self, register: Register) -> Result<(), Trap> {
        if self.touched[usize::from(register)] == self.epoch {
            return Err(Trap::new(
                "a product uses a register that another instruction accessed after the last wgmma.fence",
            ));
        }
        Ok(())
    }

    /// Notes that a product begins, which owns its registers until it ends.
    pub(super) fn begin(&mut self, product: &Product) -> Result<(), Trap> {
        if self.epoch == 0 {
            return Err(Trap::new("a product without a wgmma.fence before it"));
        }
        let sum = Use::Sum(product.n as u16);
        if let ProductOperand::Registers(a) = &product.a {
            for register in a {
                self.check_fenced(*register)?;
                let found = &mut self.uses[usize::from(*register)];
                if matches!(found, Use::Sum(_)) {
                    return Err(Trap::new("a product reads the sum of a product in flight"));
                }
                *found = Use::Operand;
            }
        }
        for register in &product.d {
            self.check_fenced(*register)?;
            let found = &mut self.uses[usize::from(*register)];
            if *found != Use::None && *found != sum {
                return Err(Trap::new(
                    "a product adds to a register of a product of another shape in flight",
                ));
            }
            *found = sum;
        }
        let operands = match &product.a {
            ProductOperand::Registers(a) => &a[..],
            ProductOperand::Descriptor(_) => &[],
        };
        for register in operands.iter().chain(&product.d) {
            self.counts[usize::from(*register)] += 1;
            self.open.registers.push(*register);
        }
        Ok(())
    }

    /// Ends the oldest groups but `pending`, and returns the chunks that they read.
    pub(super) fn end(&mut self, pending: usize) -> Vec<u32> {
        let done = self.groups.len().saturating_sub(pending);
        let mut chunks = Vec::new();
        for mut group in self.groups.drain(..done) {
            chunks.append(&mut group.chunks);
            for register in group.registers {
                let index = usize::from(register);
                self.counts[index] -= 1;
                if self.counts[index] == 0 {
                    self.uses[index] = Use::None;
                }
            }
        }
        chunks
    }
}
