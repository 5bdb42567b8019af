//! Penalties on tokens that occurred before, biases, and tokens that are ruled out.

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
        for (id, _) in counts(row.tokens, logits.len()) {
            save(logits, id);
            let l = &mut logits[id as usize];
            *l = if *l > 0.0 { *l / p.repetition_penalty } else { *l * p.repetition_penalty };
        }
    }
    if p.frequency_penalty != 0.0 || p.presence_penalty != 0.0 {
        for (id, count) in counts(generated, logits.len()) {
            save(logits, id);
            logits[id as usize] -= p.frequency_penalty * count as f32 + p.presence_penalty;
        }
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

/// The distinct tokens below `vocab`, and how often each occurs.
fn counts(tokens: &[u32], vocab: usize) -> Vec<(u32, usize)> {
    let mut sorted: Vec<u32> = tokens.iter().copied().filter(|&t| (t as usize) < vocab).collect();
    sorted.sort_unstable();
    sorted.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}
