//! Random draws.
//!
//! Draws use the Gumbel-max method: with independent `g_i = -ln(E_i)`, where `E_i` is exponential
//! with rate 1, the index of the greatest `logit_i + g_i` has the softmax distribution of the
//! logits. The method needs no sum, so a draw depends neither on the order of a summation nor on
//! how the vocabulary is divided among threads or ranks, and every device can repeat it.
//!
//! For token `i` at position `t` of a sequence with seed `s`, the random number is word `i % 4` of
//! Philox with the key `(s low, s high)` and the counter `(i / 4, t, 0, 0)`. The word `w` stands
//! for `x = (w + 1/2) / 2^32`, and `E = -ln(1 - x)`.

use super::candidate::Candidate;
use super::philox::philox;

/// Draws a token from `kept`, whose ids may be in any order. Impossible tokens are never drawn.
pub(super) fn gumbel_max(kept: impl Iterator<Item = Candidate>, seed: u64, position: u32) -> u32 {
    let key = [seed as u32, (seed >> 32) as u32];
    let (mut at, mut words) = (u32::MAX, [0; 4]);
    let mut best: Option<(f64, u32)> = None;
    for Candidate { id, logit } in kept {
        if logit == f32::NEG_INFINITY {
            continue;
        }
        if at != id / 4 {
            at = id / 4;
            words = philox([at, position, 0, 0], key);
        }
        let word = words[(id % 4) as usize];
        let logit = f64::from(logit);
        if best.is_some_and(|(score, _)| logit + gumbel_bound(word) < score) {
            continue;
        }
        let score = logit + gumbel(word);
        if best.is_none_or(|(b, token)| score > b || (score == b && id < token)) {
            best = Some((score, id));
        }
    }
    best.map_or(0, |(_, id)| id)
}

fn gumbel(word: u32) -> f64 {
    let x = (f64::from(word) + 0.5) / 4_294_967_296.0;
    -(-(-x).ln_1p()).ln()
}

/// An upper bound of `gumbel(word)` without a logarithm. For most tokens the bound shows that they
/// cannot win.
///
/// `E > x` and `x > 2^-(z + 1)`, where z is the number of leading zeros of the word; hence `g < (z
/// + 1) ln 2`.
fn gumbel_bound(word: u32) -> f64 {
    f64::from(word.leading_zeros() + 1) * std::f64::consts::LN_2
}

#[cfg(test)]
mod tests {
    use super::{gumbel, gumbel_bound};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bound_holds(word: u32, shift in 0u32..32) {
            let word = word >> shift;
            prop_assert!(gumbel(word) <= gumbel_bound(word));
        }
    }

    #[test]
    fn bound_holds_at_the_ends() {
        for word in [0, 1, 2, 3, u32::MAX - 1, u32::MAX] {
            assert!(gumbel(word).is_finite() && gumbel(word) <= gumbel_bound(word));
        }
    }
}
