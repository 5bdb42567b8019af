//! How prompts share the tokens of a step that the decode rows leave.
//!
//! The first prompt in order gets half of the tokens, or all of them if it is alone, so it always
//! progresses and no prompt starves. The other half goes to the other prompts, shortest first, so a
//! short prompt never waits behind long ones. Tokens that are left go to the first prompt again.

/// Inverse of the largest part of the budget that a prompt other than the first counts for when
/// [`has_room`] decides whether another prompt may join. So a few long prompts do not keep short
/// ones from being admitted.
const MAX_SHARE_DIVISOR: usize = 16;

/// Splits `budget` tokens over prompts, first prompt first. Prompt `i` has `remaining[i]` tokens
/// left to run.
pub(super) fn share(remaining: &[usize], budget: usize) -> Vec<usize> {
    let mut shares = vec![0; remaining.len()];
    let Some(&first) = remaining.first() else { return shares };
    let mut left = budget;
    let mut give = |to: usize, at_most: usize| {
        let tokens = (remaining[to] - shares[to]).min(at_most).min(left);
        shares[to] += tokens;
        left -= tokens;
    };
    give(0, first.min(budget.div_ceil(2)));
    let mut others: Vec<usize> = (1..remaining.len()).collect();
    others.sort_by_key(|&i| remaining[i]);
    for i in others {
        give(i, usize::MAX);
    }
    give(0, usize::MAX);
    shares
}

/// Whether prompts with these remaining lengths leave a part of `budget` to another prompt that
/// joins them.
pub(super) fn has_room(remaining: &[usize], budget: usize) -> bool {
    let Some((&first, others)) = remaining.split_first() else { return budget > 0 };
    let others = others.iter().map(|&tokens| tokens.min((budget / MAX_SHARE_DIVISOR).max(1)));
    first.min(budget.div_ceil(2)) + others.sum::<usize>() < budget
}

/// Maximum number of steps until the last of these prompts has been run completely, if each step
/// has at least `budget` tokens and other prompts keep joining behind it: each prompt becomes the
/// first one and gets half of the tokens.
pub(super) fn steps_to_finish(remaining: impl Iterator<Item = usize>, budget: usize) -> usize {
    let half = budget.div_ceil(2).max(1);
    remaining.map(|tokens| tokens.div_ceil(half)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_use_the_budget_up_and_keep_the_oldest_moving(
            remaining in prop::collection::vec(1usize..5000, 0..20),
            budget in 0usize..3000,
        ) {
            let shares = share(&remaining, budget);
            prop_assert!(shares.iter().zip(&remaining).all(|(share, rest)| share <= rest));
            prop_assert_eq!(shares.iter().sum::<usize>(), budget.min(remaining.iter().sum()));
            if let Some(&oldest) = remaining.first() {
                prop_assert!(shares[0] >= oldest.min(budget.div_ceil(2)));
            }
        }

        #[test]
        fn the_bound_on_steps_holds_against_ever_new_short_prompts(
            lengths in prop::collection::vec(1usize..300, 1..8),
            budget in 1usize..100,
        ) {
            let bound = steps_to_finish(lengths.iter().copied(), budget);
            let (watched, mut remaining) = (lengths.len() - 1, lengths);
            for step in 0.. {
                prop_assert!(step <= bound);
                if remaining[watched] == 0 {
                    break;
                }
                let open: Vec<usize> = (0..=watched).filter(|&i| remaining[i] > 0).collect();
                let mut prompts: Vec<usize> = open.iter().map(|&i| remaining[i]).collect();
                prompts.extend(vec![1; budget]);
                for (&i, tokens) in open.iter().zip(share(&prompts, budget)) {
                    remaining[i] -= tokens;
                }
            }
        }
    }

    #[test]
    fn a_short_prompt_passes_long_ones() {
        assert_eq!(share(&[100_000, 50_000, 30], 512), [256, 226, 30]);
        assert_eq!(share(&[100, 30], 512), [100, 30]);
        assert!(has_room(&[100_000, 50_000, 50_000], 512));
        assert!(!has_room(&[100_000, 32, 32, 32, 32, 32, 32, 32, 32], 512));
    }
}
