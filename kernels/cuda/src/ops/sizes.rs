//! Limits of the sizes that kernels take.

use millrace_backend::{Error, Result};

/// The most blocks of a grid along y, and along z.
pub(super) const MAX_BLOCKS: usize = 65535;

/// Refuses sizes that the kernels cannot count in `int`.
///
/// # Errors
/// [`Error::Shape`] for a size above `i32::MAX`.
pub(super) fn countable(sizes: &[usize]) -> Result<()> {
    match sizes.iter().find(|&&n| i32::try_from(n).is_err()) {
        Some(n) => Err(Error::Shape(format!("{n} is more than a kernel can count"))),
        None => Ok(()),
    }
}

/// A size as kernels take it.
///
/// # Panics
/// If [`countable`] refuses the size, which every operation asks before.
pub(super) fn int(size: usize) -> i32 {
    i32::try_from(size).expect("the operations refuse sizes beyond i32")
}
