//! The parts that a text is divided into.

/// A part of a normalized text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) start: usize,
    pub(super) end: usize,
    /// The index of the piece; `None` if no piece covers the part.
    pub(super) piece: Option<u32>,
}
