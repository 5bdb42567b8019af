//! The recorded parts of a step.

use millrace_backend::Backend;

/// The recorded parts of a step of decode rows. They are separate because masks may come between
/// them.
pub(super) struct StepGraphs<B: Backend> {
    /// Largest number of rows.
    pub(super) rows: usize,
    pub(super) forward: B::Graph,
    pub(super) sampling: B::Graph,
}
