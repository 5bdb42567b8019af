//! The factor by which tests stretch their time limits.
//!
//! A test may not fail because its process did not get a CPU for some seconds. Where a limit cannot
//! be replaced by a counted event, a paused clock or CPU time, it is stretched by
//! `MILLRACE_TEST_PATIENCE`: 1 by default, and 4 in CI.

use std::sync::LazyLock;
use std::time::Duration;

/// The variable that holds the factor.
const VARIABLE: &str = "MILLRACE_TEST_PATIENCE";

static FACTOR: LazyLock<u32> = LazyLock::new(|| factor(std::env::var(VARIABLE).ok().as_deref()));

/// Returns `limit` times the factor of `MILLRACE_TEST_PATIENCE`.
///
/// # Panics
/// If the variable is not an integer from 1 to 1000.
pub fn patience(limit: Duration) -> Duration {
    limit.saturating_mul(*FACTOR)
}

fn factor(value: Option<&str>) -> u32 {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return 1 };
    let factor = value.parse().ok().filter(|factor| (1..=1000).contains(factor));
    factor.unwrap_or_else(|| panic!("{VARIABLE}={value}: not an integer from 1 to 1000"))
}

#[cfg(test)]
mod tests {
    use super::factor;

    #[test]
    fn the_factor_is_1_unless_the_variable_says_otherwise() {
        assert_eq!([None, Some(""), Some("1"), Some("4"), Some("1000")].map(factor), [1, 1, 1, 4, 1000]);
        for wrong in ["0", "1001", "-1", "many", "1.5"] {
            assert!(std::panic::catch_unwind(|| factor(Some(wrong))).is_err(), "{wrong}");
        }
    }
}
