//! The lists that kernels prepare for a step: where each lies, and upper bounds of their lengths.

use millrace_backend::StepSize;

/// Where each list starts, in words of 32 bits.
#[derive(Debug, Clone, Copy)]
pub(super) struct PreparedLayout {
    pub(super) query_start: usize,
    pub(super) context: usize,
    pub(super) prefix: usize,
    pub(super) tables: usize,
    pub(super) tokens: usize,
    pub(super) positions: usize,
    pub(super) axes: usize,
    pub(super) slots: usize,
    pub(super) outputs: usize,
    pub(super) output_slots: usize,
    pub(super) output_at: usize,
    pub(super) counts: usize,
    /// Length of all lists together.
    pub(super) end: usize,
}

impl PreparedLayout {
    pub(super) fn of(size: &StepSize<'_>) -> PreparedLayout {
        let &StepSize { tokens, rows, .. } = size;
        let mut end = 0;
        let mut list = |len: usize| {
            let at = end;
            end = usize::saturating_add(end, len);
            at
        };
        PreparedLayout {
            query_start: list(rows.saturating_add(1)),
            context: list(rows),
            prefix: list(rows),
            tables: list(rows.saturating_mul(size.table_blocks())),
            tokens: list(tokens),
            positions: list(tokens),
            axes: list(tokens.saturating_mul(2)),
            slots: list(tokens),
            outputs: list(tokens.max(rows)),
            output_slots: list(rows),
            output_at: list(rows),
            counts: list(2),
            end: list(0),
        }
    }
}

/// Upper bounds of a step, which determine the sizes of launches. The kernels read the exact
/// numbers on the device, so that a graph can compute steps with fewer rows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepBounds {
    pub(super) tokens: usize,
    pub(super) rows: usize,
    pub(super) outputs: usize,
    /// Tokens of the longest row.
    pub(super) max_queries: usize,
    /// Keys of the longest sequence.
    pub(super) max_context: usize,
}
