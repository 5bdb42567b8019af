//! The step that stages compute.

use millrace_backend::{Backend, OpenStep};

/// A step as a stage sees it.
pub(super) struct StageStep<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) step: &'a OpenStep<'a, B::Queue>,
    /// Number of tokens.
    pub(super) tokens: usize,
}
