//! Errors of parsing, of memory and of launches.

use std::fmt;

/// A text that the interpreter does not accept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The line of the text, from 1.
    pub line: u32,
    /// The reason.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for ParseError {}

/// The reason why a launch ended early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kernel's name.
    pub kernel: String,
    /// The block's coordinates, if the fault belongs to one.
    pub block: Option<[u32; 3]>,
    /// The thread's number in its block, if the fault belongs to one: x varies fastest.
    pub thread: Option<u32>,
    /// The line of the PTX text, from 1, if the fault belongs to one.
    pub line: Option<u32>,
    /// The reason.
    pub message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kernel)?;
        if let Some([x, y, z]) = self.block {
            write!(f, ", block ({x}, {y}, {z})")?;
        }
        if let Some(thread) = self.thread {
            write!(f, ", thread {thread}")?;
        }
        if let Some(line) = self.line {
            write!(f, ", PTX line {line}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for Fault {}

/// An access to device memory from the host that is not possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryError {
    /// There is less memory left than an allocation asks for.
    OutOfMemory {
        /// Bytes that were asked for.
        asked: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// The range does not lie in one allocation.
    OutOfRange {
        /// The first address.
        address: u64,
        /// Bytes of the range.
        bytes: usize,
    },
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryError::OutOfMemory { asked, left } => {
                write!(f, "out of device memory: {asked} bytes asked for, {left} left")
            }
            MemoryError::OutOfRange { address, bytes } => {
                write!(f, "{bytes} bytes at {address:#x} do not lie in one allocation")
            }
        }
    }
}

impl std::error::Error for MemoryError {}

/// The reason why an instruction cannot be executed.
#[derive(Debug)]
pub(crate) struct Trap {
    /// The lane that is at fault, if it is one.
    pub(crate) lane: Option<u32>,
    pub(crate) message: String,
}

impl Trap {
    pub(crate) fn new(message: impl Into<String>) -> Trap {
        Trap { lane: None, message: message.into() }
    }

    pub(crate) fn lane(lane: u32, message: impl Into<String>) -> Trap {
        Trap { lane: Some(lane), message: message.into() }
    }

    pub(crate) fn at_lane(mut self, lane: u32) -> Trap {
        self.lane.get_or_insert(lane);
        self
    }
}
