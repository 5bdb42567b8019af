//! Memory of answers that are made of a text, not of generated tokens, and that their readers have not taken yet.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that all large answers together may take.
const LARGE: usize = 96 << 20;
/// Bytes that all small answers together may take. They have a share of their own, so that a few readers of large answers
/// who take their time do not keep others from counting the tokens of a message.
const SMALL: usize = 32 << 20;
/// Bytes of text of a small answer.
const SMALL_TEXT: usize = 16 << 10;
/// Bytes that a token takes in an answer that waits: its id, and where it begins and ends.
const TOKEN: usize = 12;
/// Bytes that are counted as one.
const UNIT: usize = 1 << 10;

/// Says how much memory such answers may take.
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

/// Memory that is held until this is dropped.
#[derive(Debug)]
pub(crate) struct Reservation {
    permit: OwnedSemaphorePermit,
    text: usize,
}

impl AnswerBudget {
    /// Memory for a text and as many tokens as it has bytes, which are the most that it can have. An answer that is larger
    /// than all of the memory is let in when there is no other.
    pub(super) fn reserve(&self, text: usize) -> Option<Reservation> {
        let (pool, all) = if text <= SMALL_TEXT { (&self.small, SMALL) } else { (&self.large, LARGE) };
        let permit = pool.clone().try_acquire_many_owned(units(text, text).min((all / UNIT) as u32)).ok()?;
        Some(Reservation { permit, text })
    }
}

impl Reservation {
    /// Gives back what is not needed, now that the number of tokens is known.
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
    fn slow_readers_hold_a_bounded_amount_and_only_of_their_kind() {
        let budget = AnswerBudget::default();
        let mut held: Vec<Reservation> = std::iter::from_fn(|| budget.reserve(2_000_000)).collect();
        assert_eq!(held.len(), 3);
        assert!(budget.reserve(100).is_some(), "small answers have a share of their own");
        // A text of words has a token for four bytes.
        held.iter_mut().for_each(|reservation| reservation.shrink(500_000));
        assert!(budget.reserve(2_000_000).is_some());
        drop(held);
        let small: Vec<Reservation> = std::iter::from_fn(|| budget.reserve(SMALL_TEXT)).collect();
        assert!(small.len() > 100 && small.len() < 200, "{}", small.len());
        assert!(budget.reserve(LARGE).is_some(), "the largest answer is let in alone");
        assert!(budget.reserve(2_000_000).is_some());
    }
}
