//! The modelled time of a step on no device.

use std::time::Duration;

use millrace_proto::{Row, Step};

use crate::options::NullCosts;

/// Returns the time that a device with these costs takes for a step: the cost of a step, of each
/// of its tokens, and of each key that each of its tokens attends to, its own included.
pub(super) fn step_time(costs: &NullCosts, step: &Step) -> Duration {
    let tokens: u64 = step.rows.iter().map(|row| u64::from(row.count)).sum();
    let keys = step.rows.iter().map(attended_keys).fold(0, u64::saturating_add);
    let nanos = |cost: Duration, count: u64| cost.as_nanos().saturating_mul(count.into());
    let sum = nanos(costs.step, 1)
        .saturating_add(nanos(costs.token, tokens))
        .saturating_add(nanos(costs.key, keys));
    Duration::from_nanos(u64::try_from(sum).unwrap_or(u64::MAX))
}

/// Returns the number of keys that the tokens of a row attend to, added up over the tokens.
fn attended_keys(row: &Row) -> u64 {
    let (start, count) = (u64::from(row.start), u64::from(row.count));
    (count * start).saturating_add(count * (count + 1) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(rows: &[(u32, u32)]) -> Step {
        let row = |&(start, count): &(u32, u32)| Row { start, count, ..Row::default() };
        Step { rows: rows.iter().map(row).collect(), ..Step::default() }
    }

    #[test]
    fn a_step_costs_itself_its_tokens_and_their_keys() {
        let costs = NullCosts {
            step: Duration::from_micros(1000),
            token: Duration::from_micros(10),
            key: Duration::from_nanos(100),
        };
        let time = |rows: &[(u32, u32)]| step_time(&costs, &step(rows)).as_nanos();
        assert_eq!(time(&[]), 1_000_000);
        // One token at position 9 attends to 10 keys.
        assert_eq!(time(&[(9, 1)]), 1_000_000 + 10_000 + 1_000);
        // Four tokens at positions 2 to 5 attend to 3 + 4 + 5 + 6 keys.
        assert_eq!(time(&[(9, 1), (2, 4)]), 1_000_000 + 50_000 + 100 * (10 + 18));
        let chunks: u128 = [(0, 300), (300, 212)].iter().map(|&chunk| time(&[chunk]) - 1_000_000).sum();
        assert_eq!(time(&[(0, 512)]) - 1_000_000, chunks, "chunks cost what the whole costs");
    }

    #[test]
    fn the_largest_step_does_not_overflow() {
        let costs = NullCosts { key: Duration::from_secs(3600), ..NullCosts::default() };
        let time = step_time(&costs, &step(&[(u32::MAX, u32::MAX); 3]));
        assert_eq!(time, Duration::from_nanos(u64::MAX));
    }
}
