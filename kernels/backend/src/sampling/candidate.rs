//! The tokens that sampling chooses from.

use crate::sampling::SamplingParams;

/// A token and its logit, raw or warped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

impl Candidate {
    /// Orders the most likely token first and equal ones by id. Logits are never NaN here.
    /// `total_cmp` is not used because it would distinguish the two zeros.
    pub(super) fn order(&self, other: &Candidate) -> std::cmp::Ordering {
        let by_logit = other.logit.partial_cmp(&self.logit).unwrap_or(std::cmp::Ordering::Equal);
        by_logit.then(self.id.cmp(&other.id))
    }
}

/// All tokens with their logits.
pub(super) fn candidates(logits: &[f32]) -> impl Iterator<Item = Candidate> + Clone + '_ {
    logits.iter().zip(0..).map(|(&logit, id)| Candidate { id, logit })
}

/// All tokens with their logits divided by the temperature. The greatest is shifted to 0 first, so
/// that no temperature overflows it.
pub(super) fn warped<'a>(
    logits: &'a [f32],
    params: &SamplingParams,
) -> Option<impl Iterator<Item = Candidate> + Clone + 'a> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let temperature = params.temperature;
    max.is_finite().then(|| {
        candidates(logits)
            .map(move |c| Candidate { id: c.id, logit: scale_by_temperature(c.logit - max, temperature) })
    })
}

/// Returns `delta / temperature` for a logit `delta` below the greatest one. 0 stays 0 at any
/// temperature.
fn scale_by_temperature(delta: f32, temperature: f32) -> f32 {
    if delta == 0.0 { 0.0 } else { delta / temperature }
}
