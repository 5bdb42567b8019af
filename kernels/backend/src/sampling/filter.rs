//! The sampling filters. Each filters what the previous one kept.

use super::candidate::{Candidate, warped};
use crate::sampling::SamplingParams;

/// Whether any filter is on.
pub(super) fn is_needed(p: &SamplingParams) -> bool {
    p.top_k > 0 || p.top_p < 1.0 || p.min_p > 0.0 || p.typical_p < 1.0
}

/// Applies temperature, top-k, top-p, min-p and typical-p. Returns the remaining tokens with warped
/// logits, or `None` if no logit is finite.
///
/// The result is never empty and in no particular order.
pub(super) fn warp(logits: &[f32], p: &SamplingParams) -> Option<Vec<Candidate>> {
    let mut kept: Vec<Candidate> = warped(logits, p)?.filter(|c| c.logit > f32::NEG_INFINITY).collect();
    if p.top_k > 0 && (p.top_k as usize) < kept.len() {
        kept.select_nth_unstable_by(p.top_k as usize - 1, Candidate::order);
        kept.truncate(p.top_k as usize);
    }
    if p.top_p < 1.0 {
        nucleus(&mut kept, p.top_p);
    }
    if p.min_p > 0.0 {
        // The greatest logit is 0, and no filter drops it.
        let floor = p.min_p.min(1.0).ln();
        kept.retain(|c| c.logit >= floor);
    }
    if p.typical_p < 1.0 {
        typical(&mut kept, p.typical_p);
    }
    Some(kept)
}

/// Keeps the most likely tokens up to the probability `top_p` (Holtzman et al., "The Curious Case
/// of Neural Text Degeneration").
fn nucleus(kept: &mut Vec<Candidate>, top_p: f32) {
    kept.sort_unstable_by_key(|c| c.id);
    let goal = f64::from(top_p) * kept.iter().map(weight).sum::<f64>();
    let mut sorted = 0; // The first `sorted` are the most likely, in order.
    let mut mass = 0.0;
    while sorted < kept.len() {
        // A few tokens usually hold most of the mass, so the list is sorted in growing steps.
        let end = (sorted + 64.max(7 * sorted)).min(kept.len());
        let rest = &mut kept[sorted..];
        if end - sorted < rest.len() {
            rest.select_nth_unstable_by(end - sorted, Candidate::order);
        }
        rest[..end - sorted].sort_unstable_by(Candidate::order);
        for i in sorted..end {
            mass += weight(&kept[i]);
            if mass >= goal {
                kept.truncate(i + 1);
                return;
            }
        }
        sorted = end;
    }
}

/// Keeps the tokens whose information is nearest to the entropy, up to the probability `typical_p`
/// (Meister et al., "Locally Typical Sampling").
fn typical(kept: &mut Vec<Candidate>, typical_p: f32) {
    kept.sort_unstable_by_key(|c| c.id);
    let total: f64 = kept.iter().map(weight).sum();
    let information = |c: &Candidate| total.ln() - f64::from(c.logit);
    let entropy: f64 = kept.iter().map(|c| weight(c) / total * information(c)).sum();
    let distance = |c: &Candidate| (information(c) - entropy).abs();
    kept.sort_unstable_by(|a, b| distance(a).total_cmp(&distance(b)).then(a.id.cmp(&b.id)));
    let goal = f64::from(typical_p) * total;
    let mut mass = 0.0;
    let enough = kept.iter().position(|c| {
        mass += weight(c);
        mass >= goal
    });
    if let Some(last) = enough {
        kept.truncate(last + 1);
    }
}

/// The token's probability relative to the most likely token, whose weight is 1.
fn weight(c: &Candidate) -> f64 {
    f64::from(c.logit).exp()
}
