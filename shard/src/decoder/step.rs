//! The step that stages compute.

use millrace_backend::{Backend, OpenStep, StepInput};

/// A step as a stage sees it.
pub(super) struct StageStep<'a, B: Backend> {
    pub(super) backend: &'a B,
    pub(super) step: &'a OpenStep<'a, B::Queue>,
    /// Number of tokens.
    pub(super) tokens: usize,
    /// What the step was begun with; empty while a graph is recorded.
    pub(super) input: &'a StepInput<'a>,
}
