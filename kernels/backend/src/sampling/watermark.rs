//! The watermark of Kirchenbauer et al., "A Watermark for Large Language Models" (2023).
//!
//! Each token makes a part of the vocabulary green for the token after it, and green tokens are
//! made more likely. Anybody who knows the key can count the green tokens of a text: of `n` tokens
//! written without the watermark about `gamma * n` are green. [`z_score`] returns how far a text
//! deviates from that.
//!
//! The paper draws a green list of exact size with a generator that the previous token seeds. Here
//! each token is green independently with probability `gamma`, so that no list has to be permuted
//! and every device finds the same tokens: a token is green if word `id % 4` of Philox with the key
//! (`KEY`, previous token) and the counter `(id / 4, 0, 0, 0)` is below `gamma * 2^32`.

use super::philox::philox;
use crate::sampling::Watermark;

/// The multiplier of the seed in the paper's code and in TGI.
const KEY: u32 = 15_485_863;

/// Adds `delta` to the logits of the tokens that are green after `previous`.
pub(super) fn bias(logits: &mut [f32], previous: u32, watermark: &Watermark) {
    for (four, at) in logits.chunks_mut(4).zip(0..) {
        let words = philox([at, 0, 0, 0], [KEY, previous]);
        for (logit, word) in four.iter_mut().zip(words) {
            if below(word, watermark.gamma) {
                *logit += watermark.delta;
            }
        }
    }
}

/// Whether `token` is green after `previous`.
pub fn is_green(previous: u32, token: u32, gamma: f32) -> bool {
    below(philox([token / 4, 0, 0, 0], [KEY, previous])[token as usize % 4], gamma)
}

/// Returns by how many standard deviations the number of green tokens exceeds the expected one. The
/// first token only serves as a predecessor. From about 4 on a watermark is nearly certain.
pub fn z_score(tokens: &[u32], gamma: f32) -> f64 {
    let pairs = tokens.windows(2);
    let (n, gamma_) = (pairs.len() as f64, f64::from(gamma));
    let green = pairs.filter(|pair| is_green(pair[0], pair[1], gamma)).count() as f64;
    (green - gamma_ * n) / (n * gamma_ * (1.0 - gamma_)).sqrt()
}

fn below(word: u32, gamma: f32) -> bool {
    f64::from(word) < f64::from(gamma) * 2f64.powi(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_green_tokens_is_gamma_and_differs_per_predecessor() {
        for gamma in [0.1f32, 0.5, 0.9] {
            let green = |previous| (0..40_000).filter(move |&token| is_green(previous, token, gamma));
            for previous in [0, 1, 77_777] {
                let share = green(previous).count() as f32 / 40_000.0;
                assert!((share - gamma).abs() < 0.01, "{share} of {gamma}");
            }
            let both = green(5).filter(|&token| is_green(6, token, gamma)).count() as f32 / 40_000.0;
            assert!((both - gamma * gamma).abs() < 0.01, "{both}");
        }
    }

    #[test]
    fn only_green_tokens_are_biased() {
        let mut logits = vec![1.0; 103];
        bias(&mut logits, 9, &Watermark { gamma: 0.25, delta: 3.0 });
        for (token, logit) in (0..).zip(logits) {
            assert_eq!(logit, if is_green(9, token, 0.25) { 4.0 } else { 1.0 });
        }
    }
}
