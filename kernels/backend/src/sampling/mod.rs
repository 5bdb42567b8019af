//! Sampling: the parameters of a sequence, and the host code that chooses a token from one row of
//! logits.
//!
//! A log-probability is that of the raw logits, unless the warped distribution is asked for.
//! Therefore the raw logits are measured first, and the values that penalties overwrite are saved.

mod candidate;
mod draw;
mod exp;
mod filter;
mod params;
mod passes;
mod penalty;
mod philox;
pub mod watermark;

pub use params::{MAX_BIASES, MAX_TOP_N, SampleRow, Sampled, SamplingParams, ScoreRow, Scored, Watermark};
pub use passes::{Pass, Passes, Plain};

use candidate::{Candidate, candidates, warped};
use passes::{ArgMax, Greatest, IsBroken, Sanitize, SumExp};

/// The maximum of a row of logits and the logarithm of its sum of exponentials.
#[derive(Debug, Clone, Copy)]
struct LogNormalizer {
    max: f32,
    /// `ln sum exp(logit - max)`.
    log_sum: f64,
}

impl LogNormalizer {
    /// Returns `None` if no logit is finite.
    fn of(logits: &[f32], passes: &impl Passes) -> Option<LogNormalizer> {
        let max = passes.run(Greatest(logits));
        max.is_finite().then(|| LogNormalizer { max, log_sum: passes.run(SumExp { xs: logits, max }).ln() })
    }

    /// The same for the logits of some tokens.
    fn of_candidates(kept: &[Candidate]) -> Option<LogNormalizer> {
        let logits = kept.iter().map(|c| c.logit);
        let max = logits.clone().fold(f32::NEG_INFINITY, f32::max);
        max.is_finite().then(|| LogNormalizer { max, log_sum: exp::sum_exp(logits, max).ln() })
    }

    fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.max) - self.log_sum) as f32
    }
}

/// Chooses a token as `row` asks. Overwrites `logits`, `[vocab]`. The result does not depend on
/// `passes`.
///
/// The log-probability is NaN if the model's logits contain NaN or plus infinity, or if no token is
/// possible.
pub fn choose(logits: &mut [f32], row: &SampleRow<'_>, passes: &impl Passes) -> Sampled {
    let params = row.params;
    if passes.run(IsBroken(logits)) {
        return no_token(row);
    }
    if !params.do_sample || !params.warped_logprobs {
        return choose_unwarped(logits, row, passes);
    }
    penalty::apply(logits, row);
    passes.run(Sanitize(logits));
    let Some(kept) = filter::warp(logits, params) else { return no_token(row) };
    // The filters keep at least one token with a finite logit.
    let Some(mass) = LogNormalizer::of_candidates(&kept) else { return no_token(row) };
    let token = draw::gumbel_max(kept.iter().copied(), params.seed, position(row));
    let logit = kept.iter().find(|c| c.id == token).map_or(f32::NEG_INFINITY, |c| c.logit);
    let top = top(kept.iter().copied(), params.top_n as usize, &mass);
    Sampled { token, logprob: mass.logprob(logit), top }
}

/// Scores a given token by `logits`, `[vocab]`. The log-probability is NaN if they contain NaN or
/// plus infinity, or no finite value.
pub fn score(logits: &mut [f32], row: &ScoreRow, passes: &impl Passes) -> Scored {
    if passes.run(IsBroken(logits)) {
        return Scored { logprob: f32::NAN, rank: 1, top: Vec::new() };
    }
    let logit = logits[row.token as usize];
    let rank = 1 + logits.iter().filter(|other| **other > logit).count() as u32;
    match LogNormalizer::of(logits, passes) {
        Some(mass) => {
            let top = top(candidates(logits), row.top_n as usize, &mass);
            Scored { logprob: mass.logprob(logit), rank, top }
        }
        None => Scored { logprob: f32::NAN, rank, top: Vec::new() },
    }
}

/// Handles greedy rows, and drawn rows that report the model's own log-probabilities.
fn choose_unwarped(logits: &mut [f32], row: &SampleRow<'_>, passes: &impl Passes) -> Sampled {
    let params = row.params;
    if params.warped_logprobs {
        penalty::apply(logits, row);
        passes.run(Sanitize(logits));
        let Some(mass) = LogNormalizer::of(logits, passes) else { return no_token(row) };
        let token = passes.run(ArgMax(logits));
        let top = top(candidates(logits), params.top_n as usize, &mass);
        return Sampled { token, logprob: mass.logprob(logits[token as usize]), top };
    }
    let Some(mass) = LogNormalizer::of(logits, passes) else { return no_token(row) };
    let top = top(candidates(logits), params.top_n as usize, &mass);
    // A watermark changes so many logits that a copy of all is simpler.
    let unwatermarked = params.watermark.map(|_| logits.to_vec());
    let overwritten = penalty::apply(logits, row);
    passes.run(Sanitize(logits));
    let token = if params.do_sample {
        let drawn = if filter::is_needed(params) {
            filter::warp(logits, params)
                .map(|kept| draw::gumbel_max(kept.into_iter(), params.seed, position(row)))
        } else {
            warped(logits, params).map(|all| draw::gumbel_max(all, params.seed, position(row)))
        };
        let Some(token) = drawn else { return no_token(row) };
        token
    } else if logits.iter().any(|l| l.is_finite()) {
        passes.run(ArgMax(logits))
    } else {
        return no_token(row);
    };
    let raw = match unwatermarked {
        Some(all) => all[token as usize],
        None => overwritten.iter().find(|c| c.id == token).map_or(logits[token as usize], |c| c.logit),
    };
    Sampled { token, logprob: mass.logprob(raw), top }
}

/// The result for a row whose logits are broken or leave no token possible: the first token that
/// the row allows.
fn no_token(row: &SampleRow<'_>) -> Sampled {
    let words = row.allowed.unwrap_or_default().iter().zip(0..);
    let first =
        words.filter(|(word, _)| **word != 0).map(|(word, at)| 32 * at + word.trailing_zeros()).next();
    Sampled { token: first.unwrap_or(0), logprob: f32::NAN, top: Vec::new() }
}

fn position(row: &SampleRow<'_>) -> u32 {
    row.tokens.len() as u32
}

/// The `n` most likely possible tokens with their log-probabilities.
fn top(all: impl Iterator<Item = Candidate>, n: usize, mass: &LogNormalizer) -> Vec<(u32, f32)> {
    let mut best: Vec<Candidate> = Vec::new();
    if n == 0 {
        return Vec::new();
    }
    for c in all {
        if c.logit == f32::NEG_INFINITY || (best.len() == n && c.order(&best[n - 1]).is_gt()) {
            continue;
        }
        let at = best.partition_point(|b| b.order(&c).is_lt());
        best.truncate(n - 1);
        best.insert(at.min(best.len()), c);
    }
    best.into_iter().map(|c| (c.id, mass.logprob(c.logit))).collect()
}
