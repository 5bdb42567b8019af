//! Choosing a token from one row of logits: host code that the CPU devices share.
//!
//! A log-probability is that of the raw logits unless the warped distribution is asked for. The raw ones are therefore
//! measured first, and what the penalties overwrite is remembered.

mod draw;
mod exp;
mod filter;
mod penalty;
mod philox;
pub mod watermark;

use crate::sampling::{SampleRow, Sampled, SamplingParams, ScoreRow, Scored};

/// A token and its logit, or the logit's warped successor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    id: u32,
    logit: f32,
}

impl Candidate {
    /// Most likely first, then lower id first. Logits are never NaN here, and the two zeros are one (`total_cmp` would
    /// part them).
    fn order(&self, other: &Candidate) -> std::cmp::Ordering {
        let by_logit = other.logit.partial_cmp(&self.logit).unwrap_or(std::cmp::Ordering::Equal);
        by_logit.then(self.id.cmp(&other.id))
    }
}

/// A discrete distribution's maximum and the logarithm of its sum of exponentials.
#[derive(Debug, Clone, Copy)]
struct Mass {
    max: f32,
    /// `ln sum exp(logit - max)`.
    log_sum: f64,
}

impl Mass {
    /// `None` if no logit is finite.
    fn of(logits: impl Iterator<Item = f32> + Clone) -> Option<Mass> {
        let max = logits.clone().fold(f32::NEG_INFINITY, f32::max);
        max.is_finite().then(|| Mass { max, log_sum: exp::sum_exp(logits, max).ln() })
    }

    fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.max) - self.log_sum) as f32
    }
}

/// Chooses a token as `row` asks. `logits`, `[vocab]`, are overwritten.
///
/// The log-probability is NaN if the model's logits hold a NaN or plus infinity, or if no token is possible.
pub(crate) fn choose(logits: &mut [f32], row: &SampleRow<'_>) -> Sampled {
    let params = row.params;
    if is_broken(logits) {
        return nothing(row);
    }
    if !params.do_sample || !params.warped_logprobs {
        return choose_unwarped(logits, row);
    }
    penalty::apply(logits, row);
    sanitize(logits);
    let Some(kept) = filter::warp(logits, params) else { return nothing(row) };
    // The filters leave at least one token with a finite logit.
    let Some(mass) = Mass::of(kept.iter().map(|c| c.logit)) else { return nothing(row) };
    let token = draw::gumbel_max(kept.iter().copied(), params.seed, position(row));
    let logit = kept.iter().find(|c| c.id == token).map_or(f32::NEG_INFINITY, |c| c.logit);
    let top = top(kept.iter().copied(), params.top_n as usize, &mass);
    Sampled { token, logprob: mass.logprob(logit), top }
}

/// What `logits`, `[vocab]`, make of a token. The log-probability is NaN if they hold a NaN or plus infinity, or nothing finite.
pub(crate) fn score(logits: &mut [f32], row: &ScoreRow) -> Scored {
    if is_broken(logits) {
        return Scored { logprob: f32::NAN, rank: 1, top: Vec::new() };
    }
    let logit = logits[row.token as usize];
    let rank = 1 + logits.iter().filter(|other| **other > logit).count() as u32;
    match Mass::of(logits.iter().copied()) {
        Some(mass) => {
            let top = top(candidates(logits), row.top_n as usize, &mass);
            Scored { logprob: mass.logprob(logit), rank, top }
        }
        None => Scored { logprob: f32::NAN, rank, top: Vec::new() },
    }
}

/// Greedy rows of either kind of log-probability, and drawn rows that report the model's own.
fn choose_unwarped(logits: &mut [f32], row: &SampleRow<'_>) -> Sampled {
    let params = row.params;
    if params.warped_logprobs {
        penalty::apply(logits, row);
        sanitize(logits);
        let Some(mass) = Mass::of(logits.iter().copied()) else { return nothing(row) };
        let token = argmax(logits);
        let top = top(candidates(logits), params.top_n as usize, &mass);
        return Sampled { token, logprob: mass.logprob(logits[token as usize]), top };
    }
    let Some(mass) = Mass::of(logits.iter().copied()) else { return nothing(row) };
    let top = top(candidates(logits), params.top_n as usize, &mass);
    // A watermark changes so many that it is simpler to keep all.
    let unmarked = params.watermark.map(|_| logits.to_vec());
    let overwritten = penalty::apply(logits, row);
    sanitize(logits);
    let token = if params.do_sample {
        let drawn = if filter::is_needed(params) {
            filter::warp(logits, params)
                .map(|kept| draw::gumbel_max(kept.into_iter(), params.seed, position(row)))
        } else {
            warped(logits, params).map(|all| draw::gumbel_max(all, params.seed, position(row)))
        };
        let Some(token) = drawn else { return nothing(row) };
        token
    } else if logits.iter().any(|l| l.is_finite()) {
        argmax(logits)
    } else {
        return nothing(row);
    };
    let raw = match unmarked {
        Some(all) => all[token as usize],
        None => overwritten.iter().find(|c| c.id == token).map_or(logits[token as usize], |c| c.logit),
    };
    Sampled { token, logprob: mass.logprob(raw), top }
}

/// Whether a model's logits hold a NaN or plus infinity. Minus infinity is a token that the model rules out.
fn is_broken(logits: &[f32]) -> bool {
    // Without a branch per logit, so that compilers vectorise it.
    logits.iter().fold(false, |broken, &l| broken | l.is_nan() | (l == f32::INFINITY))
}

/// The answer for a row whose logits are broken or leave no token possible: the first token that it allows.
fn nothing(row: &SampleRow<'_>) -> Sampled {
    let words = row.allowed.unwrap_or_default().iter().zip(0..);
    let first =
        words.filter(|(word, _)| **word != 0).map(|(word, at)| 32 * at + word.trailing_zeros()).next();
    Sampled { token: first.unwrap_or(0), logprob: f32::NAN, top: Vec::new() }
}

fn position(row: &SampleRow<'_>) -> u32 {
    row.tokens.len() as u32
}

/// Makes numbers of what penalties and biases have made of finite logits: NaN becomes impossible; infinities become the largest number
/// as long as there is something finite to compare with.
fn sanitize(logits: &mut [f32]) {
    let mut finite = false;
    for l in logits.iter_mut() {
        *l = if l.is_nan() { f32::NEG_INFINITY } else { *l };
        finite |= l.is_finite();
    }
    for l in logits.iter_mut() {
        if *l == f32::INFINITY {
            *l = if finite { f32::MAX } else { f32::NEG_INFINITY };
        }
    }
}

fn candidates(logits: &[f32]) -> impl Iterator<Item = Candidate> + Clone + '_ {
    logits.iter().zip(0..).map(|(&logit, id)| Candidate { id, logit })
}

/// All tokens with their logits under the temperature, the greatest at 0: so no temperature overflows it.
fn warped<'a>(
    logits: &'a [f32],
    params: &SamplingParams,
) -> Option<impl Iterator<Item = Candidate> + Clone + 'a> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let temperature = params.temperature;
    max.is_finite().then(|| {
        candidates(logits).map(move |c| Candidate { id: c.id, logit: heat(c.logit - max, temperature) })
    })
}

/// `delta / temperature` for a logit `delta` below the greatest one. 0 stays 0 at any temperature.
fn heat(delta: f32, temperature: f32) -> f32 {
    if delta == 0.0 { 0.0 } else { delta / temperature }
}

/// The largest logit's index, the lowest on a tie.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = Candidate { id: 0, logit: f32::NEG_INFINITY };
    for c in candidates(logits) {
        if c.logit > best.logit {
            best = c;
        }
    }
    best.id
}

/// The `n` most likely possible tokens with their log-probabilities.
fn top(all: impl Iterator<Item = Candidate>, n: usize, mass: &Mass) -> Vec<(u32, f32)> {
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
