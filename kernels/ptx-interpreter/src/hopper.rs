//! Decoded instructions that only Hopper has.

use crate::memory::Swizzle;
use crate::operand::{Address, Register, Source};

/// An operation of Hopper.
#[derive(Debug)]
pub(crate) enum HopperOp {
    Mbarrier(MbarrierOp),
    CopyTensor(TensorCopy),
    CopyBulk(BulkCopy),
    /// Makes this thread's accesses to shared memory visible in the async proxy.
    ProxyFence,
    /// `wgmma.fence`
    ProductFence,
    Product(Product),
    ProductCommit,
    /// The groups that may stay in flight.
    ProductWait(usize),
    SetRegisters {
        count: u32,
        increases: bool,
    },
    /// Chooses one lane of the mask.
    Elect {
        d: Option<Register>,
        p: Register,
        mask: Source,
    },
    /// The address of a shared variable in a block of the cluster.
    MapToBlock {
        d: Register,
        a: Source,
        rank: Source,
    },
}

impl HopperOp {
    /// Whether all lanes of a warp execute the operation together.
    pub(crate) fn is_aligned(&self) -> bool {
        matches!(
            self,
            HopperOp::ProductFence
                | HopperOp::Product(_)
                | HopperOp::ProductCommit
                | HopperOp::ProductWait(_)
                | HopperOp::SetRegisters { .. }
        )
    }
}

/// An operation on an mbarrier.
#[derive(Debug)]
pub(crate) struct MbarrierOp {
    pub(crate) kind: MbarrierKind,
    pub(crate) address: Address,
    /// Whether the operation orders other accesses: it is not `.relaxed`.
    pub(crate) orders: bool,
}

#[derive(Debug)]
pub(crate) enum MbarrierKind {
    Init {
        count: Source,
    },
    Invalidate,
    Arrive {
        /// The target of the state before the arrival.
        state: Option<Register>,
        count: Source,
        /// Bytes that are expected first.
        expects: Option<Source>,
        /// Whether later phases expect as many arrivals fewer.
        drops: bool,
        /// Whether the arrival must not complete the phase.
        must_not_complete: bool,
    },
    Expect {
        bytes: Source,
    },
    Complete {
        bytes: Source,
    },
    Test {
        p: Register,
        phase: PhaseOperand,
    },
}

/// The phase whose end a wait asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PhaseOperand {
    State(Source),
    Parity(Source),
}

/// `cp.async.bulk.tensor` from global to shared memory
#[derive(Debug)]
pub(crate) struct TensorCopy {
    pub(crate) to: Address,
    pub(crate) map: Address,
    /// The first element of the box, neighbors in memory first.
    pub(crate) at: Box<[Source]>,
    pub(crate) barrier: Address,
}

/// `cp.async.bulk` from global to shared memory
#[derive(Debug)]
pub(crate) struct BulkCopy {
    pub(crate) to: Address,
    pub(crate) from: Address,
    pub(crate) bytes: Source,
    pub(crate) barrier: Address,
}

/// `wgmma.mma_async` with sums in f32: [64, k] times [k, n], where k elements have 32 bytes
#[derive(Debug)]
pub(crate) struct Product {
    pub(crate) element: ProductElement,
    pub(crate) n: usize,
    pub(crate) d: Box<[Register]>,
    pub(crate) a: ProductOperand,
    pub(crate) b: Source,
    /// Whether the product is added to D.
    pub(crate) adds: Source,
    pub(crate) negates_a: bool,
    pub(crate) negates_b: bool,
    /// Whether A, in shared memory, and B have their rows across the sum.
    pub(crate) transposes_a: bool,
    pub(crate) transposes_b: bool,
}

/// The first operand of a product.
#[derive(Debug)]
pub(crate) enum ProductOperand {
    Descriptor(Source),
    Registers([Register; 4]),
}

/// The type of the elements that a product multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProductElement {
    F16,
    BF16,
    TF32,
    E4M3,
    E5M2,
}

impl ProductElement {
    pub(crate) fn bytes(self) -> usize {
        match self {
            ProductElement::E4M3 | ProductElement::E5M2 => 1,
            ProductElement::F16 | ProductElement::BF16 => 2,
            ProductElement::TF32 => 4,
        }
    }

    /// The element in the low bits of a word.
    pub(crate) fn widen(self, bits: u32) -> f64 {
        match self {
            ProductElement::F16 => crate::float::f16_to_f64(bits as u16),
            ProductElement::BF16 => crate::float::bf16_to_f64(bits as u16),
            ProductElement::TF32 => f64::from(f32::from_bits(bits & !0x1fff)),
            ProductElement::E4M3 => crate::float::e4m3_to_f64(bits as u8),
            // The high byte of an f16.
            ProductElement::E5M2 => crate::float::f16_to_f64((bits as u16 & 0xff) << 8),
        }
    }
}

/// A matrix in shared memory, as the 64 bits of a descriptor say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) start: u64,
    /// Bytes between groups of columns or rows; the meaning depends on the layout.
    pub(crate) leading: u64,
    pub(crate) stride: u64,
    pub(crate) swizzle: Swizzle,
}
