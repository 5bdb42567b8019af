//! How prompts share the tokens of a step that the decode rows leave.
//!
//! The first prompt in order gets half of the tokens, or all of them if it is alone, so it always
//! progresses and no prompt starves. The other half goes to the other prompts, shortest first, so a
//! short prompt never waits behind long ones. If several tenants share the steps, the prompts of
//! the tenant with the fewest tokens come before those of the others. Tokens that are left go to
//! the first prompt again.
//!
//! A prompt may have a least number of tokens: all of its tokens, if it cannot be divided. The
//! first prompt gets them even if they exceed the budget. Another prompt gets them or nothing.

/// Inverse of the largest part of the budget that a prompt other than the first counts for when
/// [`has_room`] decides whether another prompt may join. So a few long prompts do not keep short
/// ones from being admitted.
const MAX_SHARE_DIVISOR: usize = 16;

/// The needs of a prompt in the next step.
#[derive(Debug, Clone, Copy)]
pub(super) struct PromptNeed {
    /// Number of tokens left to run.
    pub(super) remaining: usize,
    /// Minimum number of tokens of the next row: 1 for a prompt that can be divided.
    pub(super) least: usize,
    /// Number of tokens left to run of all prompts of the tenant, if several tenants share the
    /// steps. It is 0 for a prompt that has just been admitted, which has a row in any case.
    pub(super) tenant_tokens: usize,
}

/// Splits `budget` tokens over prompts, first prompt first. The shares exceed the budget only if
/// the first prompt needs more.
pub(super) fn share(prompts: &[PromptNeed], budget: usize) -> Vec<usize> {
    let mut shares = vec![0; prompts.len()];
    let Some(first) = prompts.first() else { return shares };
    // A budget of 0 means that nothing can be computed, not that little time is left.
    let mut left = if budget > 0 { budget.max(first.least) } else { 0 };
    let mut give = |to: usize, at_most: usize| {
        let PromptNeed { remaining, least, .. } = prompts[to];
        let tokens = (remaining - shares[to]).min(at_most).min(left);
        if shares[to] + tokens >= least.min(remaining) {
            shares[to] += tokens;
            left -= tokens;
        }
    };
    give(0, first.remaining.min(budget.div_ceil(2).max(first.least)));
    let mut others: Vec<usize> = (1..prompts.len()).collect();
    others.sort_by_key(|&i| (prompts[i].tenant_tokens, prompts[i].remaining));
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

/// Whether prompts that cannot be divided leave a part of `budget` to another prompt. One that is
/// admitted too early would hold blocks without using them.
pub(super) fn has_room_for_whole(remaining: &[usize], budget: usize) -> bool {
    remaining.iter().sum::<usize>() < budget
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
            let shares = share(&divisible(&remaining), budget);
            prop_assert!(shares.iter().zip(&remaining).all(|(share, rest)| share <= rest));
            prop_assert_eq!(shares.iter().sum::<usize>(), budget.min(remaining.iter().sum()));
            if let Some(&oldest) = remaining.first() {
                prop_assert!(shares[0] >= oldest.min(budget.div_ceil(2)));
            }
        }

        #[test]
        fn whole_prompts_get_all_or_nothing(
            lengths in prop::collection::vec((1usize..500, 0usize..30), 1..20),
            budget in 1usize..1000,
        ) {
            let prompts: Vec<PromptNeed> = lengths
                .iter()
                .map(|&(least, more)| PromptNeed { remaining: least + more, least, tenant_tokens: 0 })
                .collect();
            let shares = share(&prompts, budget);
            prop_assert!(shares[0] >= prompts[0].least);
            prop_assert!(shares.iter().sum::<usize>() <= budget.max(prompts[0].least));
            for (&share, prompt) in shares.iter().zip(&prompts) {
                prop_assert!(share == 0 || (prompt.least..=prompt.remaining).contains(&share));
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
                for (&i, tokens) in open.iter().zip(share(&divisible(&prompts), budget)) {
                    remaining[i] -= tokens;
                }
            }
        }
    }

    fn divisible(remaining: &[usize]) -> Vec<PromptNeed> {
        remaining.iter().map(|&remaining| PromptNeed { remaining, least: 1, tenant_tokens: 0 }).collect()
    }

    #[test]
    fn a_short_prompt_passes_long_ones() {
        assert_eq!(share(&divisible(&[100_000, 50_000, 30]), 512), [256, 226, 30]);
        assert_eq!(share(&divisible(&[100, 30]), 512), [100, 30]);
        assert!(has_room(&[100_000, 50_000, 50_000], 512));
        assert!(!has_room(&[100_000, 32, 32, 32, 32, 32, 32, 32, 32], 512));
    }
}
