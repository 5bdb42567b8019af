//! Decoded instructions. Registers are indices, labels are indices of instructions, and the
//! addresses of variables are numbers.

use crate::exec::alu::{Fn1, Fn2, Fn3};
use crate::hopper::HopperOp;
use crate::operand::{Address, Register, Source};
use crate::types::{Space, Type};

/// An instruction with its guard.
#[derive(Debug)]
pub(crate) struct Instruction {
    pub(crate) line: u32,
    /// A predicate, and whether it is negated.
    pub(crate) guard: Option<(Register, bool)>,
    pub(crate) op: Op,
    /// All registers that the instruction names, with its guard.
    pub(crate) registers: Box<[Register]>,
}

/// An operation.
#[derive(Debug)]
pub(crate) enum Op {
    Unary {
        f: Fn1,
        d: Register,
        a: Source,
    },
    Binary {
        f: Fn2,
        d: Register,
        a: Source,
        b: Source,
        divides: Option<Type>,
    },
    Ternary {
        f: Fn3,
        d: Register,
        a: Source,
        b: Source,
        c: Source,
    },
    BitFieldInsert {
        d: Register,
        operands: [Source; 4],
    },
    Convert {
        conversion: Conversion,
        d: Register,
        d_bits: u32,
        a: Source,
    },
    /// Joins values of `bits` bits each, the lowest first.
    Pack {
        d: Register,
        parts: Box<[Source]>,
        bits: u32,
    },
    Unpack {
        parts: Box<[Option<Register>]>,
        a: Source,
        bits: u32,
    },
    /// From a generic address to an address of a space.
    ToSpace {
        space: Space,
        d: Register,
        a: Source,
    },
    Load(Load),
    Store {
        space: Space,
        ty: Type,
        address: Address,
        values: Box<[Source]>,
    },
    Atomic {
        space: Space,
        ty: Type,
        f: AtomicOp,
        d: Register,
        address: Address,
        value: Source,
    },
    Branch {
        target: usize,
    },
    Exit,
    Trap,
    /// Fences that need no action, and hints.
    Nothing,
    Shuffle(Shuffle),
    Vote {
        mode: VoteMode,
        d: Register,
        p: Source,
        mask: Source,
    },
    WarpBarrier {
        mask: Source,
    },
    Barrier {
        id: Source,
        threads: Option<Source>,
        arrive_only: bool,
    },
    BarrierReduce {
        any: bool,
        d: Register,
        id: Source,
        p: Source,
    },
    CopyAsync {
        bytes: usize,
        to: Address,
        from: Address,
        source_bytes: Source,
    },
    CopyCommit,
    /// The groups that may stay in flight.
    CopyWait(usize),
    LoadMatrices {
        d: Box<[Register]>,
        address: Address,
        transposed: bool,
    },
    TransposeMatrix {
        d: Register,
        a: Source,
    },
    Mma(Mma),
    GridWait,
    Hopper(HopperOp),
}

/// A load.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) space: Space,
    pub(crate) ty: Type,
    /// Registers and their bits.
    pub(crate) d: Box<[Option<(Register, u32)>]>,
    pub(crate) address: Address,
    /// The bytes of the load that count.
    pub(crate) used_bytes: u64,
    /// Whether the memory may be read before the previous grid has ended (`.nc`).
    pub(crate) read_only: bool,
}

/// A conversion of `cvt`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conversion {
    pub(crate) to: Type,
    pub(crate) from: Type,
    pub(crate) rounding: Rounding,
    pub(crate) saturate: bool,
}

/// A rounding modifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    None,
    Nearest,
    NearestInteger,
    ZeroInteger,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtomicOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VoteMode {
    All,
    Any,
    Ballot,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShuffleMode {
    Up,
    Down,
    Butterfly,
    Index,
}

/// `shfl.sync`
#[derive(Debug)]
pub(crate) struct Shuffle {
    pub(crate) mode: ShuffleMode,
    pub(crate) d: Register,
    /// Set where the source lane is in range.
    pub(crate) in_range: Option<Register>,
    pub(crate) a: Source,
    pub(crate) lane: Source,
    pub(crate) clamp: Source,
    pub(crate) mask: Source,
}

/// The type of the elements that are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    F16,
    BF16,
    E4M3,
}

/// `mma.sync` with sums in f32: [16, k] times [k, 8], where a row of k elements has 32 bytes.
#[derive(Debug)]
pub(crate) struct Mma {
    pub(crate) element: Element,
    pub(crate) d: [Register; 4],
    pub(crate) a: [Source; 4],
    pub(crate) b: [Source; 2],
    pub(crate) c: [Source; 4],
}

/// A kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) name: String,
    pub(crate) instructions: Vec<Instruction>,
    /// Registers of a lane.
    pub(crate) registers: usize,
    pub(crate) param_bytes: usize,
    /// Bytes of the shared variables of fixed size. Dynamic shared memory begins there.
    pub(crate) shared_bytes: usize,
    /// The most threads of a block along x, y and z, if there is a limit.
    pub(crate) max_threads: Option<[u32; 3]>,
    /// Whether instructions wait for the previous grid.
    pub(crate) waits_for_grid: bool,
    /// Whether products of warpgroups occur, whose registers other instructions must leave alone.
    pub(crate) has_products: bool,
}
