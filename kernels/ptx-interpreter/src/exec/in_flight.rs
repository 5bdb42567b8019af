//! Asynchronous copies that are in flight.

use std::collections::VecDeque;

use crate::memory::Chunk;

/// A copy of a thread: `cp.async`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copy {
    pub(super) to: u64,
    pub(super) from: u64,
    pub(super) bytes: usize,
    /// Bytes that are read; the rest becomes zero.
    pub(super) source_bytes: usize,
}

/// The copies of a thread.
#[derive(Debug, Default)]
pub(super) struct LaneCopies {
    pub(super) open: Vec<Copy>,
    /// The oldest first.
    pub(super) groups: VecDeque<Vec<Copy>>,
}

impl LaneCopies {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.groups.iter().all(Vec::is_empty)
    }

    pub(super) fn commit(&mut self) {
        self.groups.push_back(std::mem::take(&mut self.open));
    }
}

/// A copy of the copy engine.
#[derive(Debug)]
pub(super) struct EngineCopy {
    pub(super) chunks: Vec<Chunk>,
    pub(super) fill: u8,
    pub(super) bytes: u64,
    pub(super) barrier: u64,
    /// The lane and instruction that issued it.
    pub(super) issued: Issued,
}

/// A place in a kernel's execution.
#[derive(Debug, Clone, Copy)]
pub(super) struct Issued {
    pub(super) warp: u32,
    pub(super) lane: u32,
    pub(super) instruction: usize,
}
