//! The fixed text around the part of an input that grows.

use super::alphabets::Alphabet;

/// The position of the growing part in a larger text, and the alphabet of that part.
#[derive(Debug, Clone, Copy)]
pub(super) struct InputFrame {
    pub(super) before: &'static str,
    /// The text between two repetitions.
    pub(super) between: &'static str,
    pub(super) after: &'static str,
    pub(super) alphabet: &'static Alphabet,
}
