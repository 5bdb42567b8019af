//! Bounds the memory of answers that are made from a given text instead of generated tokens, such
//! as tokenizations, until their readers have received them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of bytes of all large answers together.
const LARGE: usize = 96 << 20;
/// Maximum number of bytes of all small answers together. Small answers have a budget of their own,
/// so a few slow readers of large answers do not keep other clients from counting the tokens of a
/// message.
const SMALL: usize = 32 << 20;
/// Maximum number of bytes of text of a small answer.
const SMALL_TEXT: usize = 16 << 10;
/// Bytes of a token in a waiting answer: its id, its start and its end.
const TOKEN: usize = 12;
/// Number of bytes per semaphore permit.
const UNIT: usize = 1 << 10;

/// The memory that is left for such answers.
#[derive(Debug)]
pub(super) struct AnswerBudget {
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl Default for AnswerBudget {
    fn default() -> Self {
        let of = |bytes: usize| Arc::new(Semaphore::new(bytes / UNIT));
        AnswerBudget { small: of(SMALL), large: of(LARGE) }
    }
}

/// Reserved memory. Dropping it frees the memory.
#[derive(Debug)]
pub(crate) struct Reservation {
    permit: OwnedSemaphorePermit,
    text: usize,
}

impl AnswerBudget {
    /// Reserves memory for a text and for as many tokens as the text has bytes, which is the
    /// maximum. An answer that is larger than the whole budget is accepted while there is no other.
    pub(super) fn reserve(&self, text: usize) -> Option<Reservation> {
        let (pool, all) = if text <= SMALL_TEXT { (&self.small, SMALL) } else { (&self.large, LARGE) };
        let permit = pool.clone().try_acquire_many_owned(units(text, text).min((all / UNIT) as u32)).ok()?;
        Some(Reservation { permit, text })
    }
}

impl Reservation {
    /// Frees the memory that is not needed, when the number of tokens is known.
    pub(crate) fn shrink(&mut self, tokens: usize) {
        let spare = self.permit.num_permits().saturating_sub(units(self.text, tokens) as usize);
        drop(self.permit.split(spare));
    }
}

fn units(text: usize, tokens: usize) -> u32 {
    let bytes = text.saturating_add(tokens.saturating_mul(TOKEN)) / UNIT + 1;
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_readers_hold_a_bounded_amount_of_their_own_budget() {
        let budget = AnswerBudget::default();
        let mut held: Vec<Reservation> = std::iter::from_fn(|| budget.reserve(2_000_000)).collect();
        assert_eq!(held.len(), 3);
        assert!(budget.reserve(100).is_some(), "small answers have a budget of their own");
        // A text of words has about one token per four bytes.
        held.iter_mut().for_each(|reservation| reservation.shrink(500_000));
        assert!(budget.reserve(2_000_000).is_some());
        drop(held);
        let small: Vec<Reservation> = std::iter::from_fn(|| budget.reserve(SMALL_TEXT)).collect();
        assert!(small.len() > 100 && small.len() < 200, "{}", small.len());
        assert!(budget.reserve(LARGE).is_some(), "the largest answer is accepted alone");
        assert!(budget.reserve(2_000_000).is_some());
    }
}
