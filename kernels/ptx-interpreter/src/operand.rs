//! Operands of decoded instructions.

/// The index of a register. All lanes of a warp have one value each.
pub(crate) type Register = u16;

/// A source operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    Register(Register),
    Immediate(u64),
    Special(Special),
}

/// A special register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    /// Along x, y or z (0 to 2).
    Thread(u8),
    ThreadCount(u8),
    Block(u8),
    BlockCount(u8),
    Lane,
    Warp,
    GlobalTimer,
    /// A block is the only one of its cluster: these are the same everywhere.
    Constant(u32),
}

/// An address operand: a base and a constant offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) base: Source,
    pub(crate) offset: i64,
}
