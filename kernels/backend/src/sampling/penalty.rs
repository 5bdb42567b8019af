//! Penalties on tokens that occurred before, biases, and tokens that are ruled out.

use std::cell::RefCell;

use super::candidate::Candidate;
use super::watermark;
use crate::sampling::SampleRow;

/// Applies the watermark, the repetition, frequency and presence penalties, the biases, and finally
/// rules out tokens that are not allowed. Returns the logits that were overwritten after the
/// watermark, except those of tokens that were ruled out.
pub(super) fn apply(logits: &mut [f32], row: &SampleRow<'_>) -> Vec<Candidate> {
    let p = row.params;
    if let (Some(watermark), Some(&previous)) = (&p.watermark, row.tokens.last()) {
        watermark::bias(logits, previous, watermark);
    }
    let mut overwritten = Vec::new();
    let mut save = |logits: &[f32], id: u32| {
        overwritten.push(Candidate { id, logit: logits[id as usize] });
    };

    let generated = &row.tokens[row.prompt_len.min(row.tokens.len())..];
    if p.repetition_penalty != 1.0 {
        for_distinct(row.tokens, logits.len(), |id, _| {
            save(logits, id);
            let l = &mut logits[id as usize];
            *l = if *l > 0.0 { *l / p.repetition_penalty } else { *l * p.repetition_penalty };
        });
    }
    if p.frequency_penalty != 0.0 || p.presence_penalty != 0.0 {
        for_distinct(generated, logits.len(), |id, count| {
            save(logits, id);
            logits[id as usize] -= p.frequency_penalty * count as f32 + p.presence_penalty;
        });
    }
    for &(id, bias) in &p.logit_bias {
        if (id as usize) < logits.len() {
            save(logits, id);
            logits[id as usize] += bias;
        }
    }
    if generated.len() < p.min_new_tokens as usize {
        for &id in &p.end_tokens {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
    if let Some(allowed) = row.allowed {
        forbid(logits, allowed);
    }
    overwritten
}

/// Rules out every token whose bit is not set.
fn forbid(logits: &mut [f32], allowed: &[u32]) {
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    for (logits, word) in logits.chunks_mut(32).zip(words) {
        match word {
            u32::MAX => {}
            0 => logits.fill(f32::NEG_INFINITY),
            _ => {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

/// Calls `each` with every distinct token below `vocab` and how often it occurs, in the order in
/// which the tokens first occur.
fn for_distinct(tokens: &[u32], vocab: usize, mut each: impl FnMut(u32, u32)) {
    thread_local! {
        /// How often each token occurs. All counts are 0 between calls, so that a call costs time
        /// for its own tokens only.
        static COUNTS: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    }
    COUNTS.with_borrow_mut(|counts| {
        if counts.len() < vocab {
            counts.resize(vocab, 0);
        }
        let counts = &mut counts[..vocab];
        for &id in tokens {
            if let Some(count) = counts.get_mut(id as usize) {
                *count += 1;
            }
        }
        for &id in tokens {
            // The first occurrence takes the count, so that the others find 0.
            let count = counts.get_mut(id as usize).map_or(0, std::mem::take);
            if count > 0 {
                each(id, count);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::for_distinct;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tokens_are_counted(
            calls in prop::collection::vec((prop::collection::vec(0u32..40, 0..100), 1usize..50), 1..4),
        ) {
            for (tokens, vocab) in calls {
                let mut found = Vec::new();
                for_distinct(&tokens, vocab, |id, count| found.push((id, count)));
                found.sort_unstable();
                let count = |id: u32| tokens.iter().filter(|t| **t == id).count() as u32;
                let expected: Vec<_> =
                    (0..vocab as u32).map(|id| (id, count(id))).filter(|(_, count)| *count > 0).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }
}
