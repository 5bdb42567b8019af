//! Random draws.
//!
//! Gumbel-max: with independent `g_i = -ln(E_i)`, `E_i` exponential of rate 1, the index of the greatest `logit_i + g_i`
//! is distributed as softmax of the logits. There is no sum in it, so the draw depends neither on an order of summation nor
//! on how a vocabulary is divided among threads or ranks, and every device can repeat it.
//!
//! Token `i` at position `t` of a sequence with seed `s` uses word `i % 4` of Philox under the key `(s low, s high)` at the
//! counter `(i / 4, t, 0, 0)`. The word `w` stands for `x = (w + 1/2) / 2^32`, and `E = -ln(1 - x)`.

use super::Candidate;
use super::philox::philox;

/// The drawn token among `kept`, ids ascending or not; impossible ones are never drawn.
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

/// Not less than `gumbel(word)`, without a logarithm: most tokens cannot win and need no more than this.
///
/// `E > x` and `x > 2^-(z + 1)`, z being the leading zeros of the word, hence `g < (z + 1) ln 2`.
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
