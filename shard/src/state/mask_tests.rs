use millrace_proto::RowMask;
use proptest::prelude::*;

use super::tests::{Fixture, LIMITS, admission, row};
use super::*;

/// A row whose mask follows.
fn late(slot: u32, start: u32, new_blocks: &[u32]) -> Row {
    Row { mask_follows: true, ..row(slot, start, 1, new_blocks, true) }
}

fn mask(slot: u32, allowed: &[u32]) -> RowMask {
    RowMask { slot, allowed: allowed.to_vec() }
}

/// A table whose slots 0 and 1 have sampled one token each, at positions 5 and 2.
fn sampled() -> Fixture {
    let mut f = Fixture::new();
    f.rows(vec![row(0, 0, 5, &[0, 1], true), row(1, 0, 2, &[2], true)]).unwrap();
    f.sample(9);
    f
}

fn starts(f: &Fixture) -> Vec<usize> {
    f.table.seq_rows(&f.batch).map(|row| row.start).collect()
}

#[test]
fn a_row_without_its_mask_is_deferred_and_runs_again() {
    let mut f = sampled();
    f.rows(vec![late(0, 5, &[]), late(1, 2, &[])]).unwrap();
    assert!(f.batch.awaits_masks());
    assert_eq!((starts(&f), f.batch.tokens.clone()), (vec![5, 2], vec![9, 9]));
    f.table.set_masks(&[mask(1, &[0b110])], &mut f.batch).unwrap();
    let allowed: Vec<_> = f.table.sample_rows(&f.batch).map(|row| row.allowed.map(<[u32]>::to_vec)).collect();
    assert_eq!(allowed, [None, Some(vec![0b110])]);
    f.sample(2);
    assert_eq!(f.batch.kept_tokens().collect::<Vec<_>>(), [(0, false), (1, true)]);
    assert_eq!((f.table.sequence(0).0.len(), f.table.sequence(1).0), (6, &[6, 7, 9, 2][..]));

    // The router sent this step before it knew that a row is deferred.
    f.rows(vec![late(0, 6, &[]), late(1, 3, &[])]).unwrap();
    assert_eq!(starts(&f), [5, 3]);
    f.table.set_masks(&[mask(0, &[1]), mask(1, &[1])], &mut f.batch).unwrap();
    f.sample(0);
    assert_eq!(f.table.sequence(0).0, [1, 2, 3, 4, 5, 9, 0]);
    // Now it knows.
    f.rows(vec![late(0, 6, &[])]).unwrap();
    assert_eq!(starts(&f), [6]);
}

#[test]
fn an_empty_mask_allows_every_token() {
    let mut f = sampled();
    f.rows(vec![late(0, 5, &[]), late(1, 2, &[])]).unwrap();
    f.table.set_masks(&[mask(0, &[]), mask(1, &[0b110])], &mut f.batch).unwrap();
    let allowed: Vec<_> = f.table.sample_rows(&f.batch).map(|row| row.allowed.map(<[u32]>::to_vec)).collect();
    assert_eq!(allowed, [None, Some(vec![0b110])]);
    f.sample(2);
    assert_eq!(f.batch.kept_tokens().collect::<Vec<_>>(), [(0, true), (1, true)]);
}

#[test]
fn only_the_last_token_of_a_sequence_can_wait_for_its_mask() {
    let wrong = |row: Row| {
        let error = sampled().rows(vec![row]).unwrap_err();
        assert!(matches!(error, StepError::LateMask { slot: 0, last: 5, .. }), "{error}");
    };
    wrong(late(0, 4, &[]));
    // No row of the sequence was deferred.
    wrong(late(0, 6, &[]));
    wrong(Row { sample: false, ..late(0, 5, &[]) });
    wrong(Row { count: 2, ..late(0, 5, &[]) });
    wrong(Row { allowed: vec![1], ..late(0, 5, &[]) });
    wrong(Row { score: Some(0), ..late(0, 5, &[]) });
    let error = Fixture::new().rows(vec![late(1, 1, &[2])]).unwrap_err();
    assert_eq!(error, StepError::LateMask { slot: 1, start: 1, last: 1 }, "a prompt");
}

#[test]
fn a_mask_is_for_a_row_that_waits_for_it() {
    let error = |masks: &[RowMask]| {
        let mut f = sampled();
        f.rows(vec![late(0, 5, &[]), row(1, 2, 1, &[], true)]).unwrap();
        f.table.set_masks(masks, &mut f.batch).unwrap_err()
    };
    assert_eq!(error(&[mask(1, &[1])]), StepError::StrayMask { slot: 1 });
    assert_eq!(error(&[mask(0, &[1]), mask(0, &[1])]), StepError::StrayMask { slot: 0 });
    assert_eq!(error(&[mask(2, &[1])]), StepError::FreeSlot { slot: 2 });
    assert!(!StepError::StrayMask { slot: 0 }.is_refusal());
}

#[test]
fn a_sequence_with_an_invalid_mask_is_refused() {
    let mut f = sampled();
    f.rows(vec![late(0, 5, &[]), late(1, 2, &[])]).unwrap();
    f.table.set_masks(&[mask(0, &[0]), mask(1, &[1])], &mut f.batch).unwrap();
    let refused: Vec<_> = f.batch.refused().map(|(slot, error)| (slot, error.clone())).collect();
    assert_eq!(refused, [(0, StepError::Mask { slot: 0, words: 1, vocab: 20 })]);
    f.sample(0);
    assert_eq!(f.batch.kept_tokens().collect::<Vec<_>>(), [(0, false), (1, true)]);
    // Its next row is not computed, and its mask is ignored.
    f.rows(vec![late(0, 6, &[]), late(1, 3, &[])]).unwrap();
    assert_eq!(starts(&f), [3]);
    f.table.set_masks(&[mask(0, &[1])], &mut f.batch).unwrap();
    assert_eq!(f.batch.refused().count(), 1);
}

proptest! {
    /// However often rows are deferred, and however late the router knows it, a sequence gets its
    /// tokens in order and runs each position after the one before it.
    #[test]
    fn deferrals_lose_no_token(in_time in prop::collection::vec(any::<bool>(), 1..40), known: bool) {
        let mut f = Fixture::new();
        f.admit(vec![admission(2, &[1])]).unwrap();
        f.rows(vec![row(2, 0, 1, &[3], true)]).unwrap();
        f.sample(7);
        // The position that the router plans next: at once, or as if the last row had its mask.
        let (mut tokens, mut unknown) = (2, 0);
        for in_time in in_time {
            if tokens == LIMITS.max_sequence_tokens {
                break;
            }
            let start = tokens - 1 + if known { 0 } else { unknown };
            let held = f.table.slots[2].blocks.len();
            let needed = (start + 1).div_ceil(LIMITS.block_size);
            let blocks: Vec<u32> = (held as u32..needed as u32).map(|block| 3 + block).collect();
            if start >= LIMITS.max_sequence_tokens || needed > LIMITS.table_blocks() {
                break;
            }
            f.rows(vec![late(2, start as u32, &blocks)]).unwrap();
            prop_assert_eq!(starts(&f), [tokens - 1]);
            let masks = if in_time { vec![mask(2, &[1 << 8])] } else { vec![] };
            f.table.set_masks(&masks, &mut f.batch).unwrap();
            f.sample(8);
            tokens += usize::from(in_time);
            unknown = usize::from(!in_time);
            prop_assert_eq!(f.table.sequence(2).0.len(), tokens);
        }
        let (first, rest) = f.table.sequence(2).0.split_at(2);
        prop_assert_eq!(first, [1, 7]);
        prop_assert!(rest.iter().all(|&token| token == 8));
    }
}
