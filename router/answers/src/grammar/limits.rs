//! Limits that several modules apply.

/// The maximum count of one repetition: characters of a string, items of a list, `{n}` in an
/// expression.
pub(super) const MAX_REPETITIONS: u64 = 10_000;
