//! The rules of recurrences: the numbers of a token with which a head's matrix changes, and is
//! read.

use millrace_backend::{ChannelRecurrence, Recurrence};

use super::super::Buf;
use super::super::simd::Simd;

/// Added to the square of the length of queries and keys.
const LENGTH_EPS: f32 = 1e-6;

/// Limits of steps that change none: no step is negative.
const NO_LIMITS: (f32, f32) = (0.0, f32::INFINITY);

/// How a token changes a head's matrix `S` and reads it. With the sums `seen = Sᵀ key` and `read =
/// Sᵀ query` of the matrix before the token, whose rows are multiplied by their decays first if
/// they have decays of their own,
///
/// - `change = of_value * value - of_seen * seen`,
/// - `y = of_read * read + overlap * change + skip * value`,
/// - `S = decay * S + key ⊗ change`.
///
/// So a token needs its sums once, before the matrix changes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Factors {
    pub(super) decay: f32,
    pub(super) of_value: f32,
    pub(super) of_seen: f32,
    pub(super) of_read: f32,
    pub(super) overlap: f32,
    pub(super) skip: f32,
}

/// The vectors of a token and a head that the sums are over, and the decays of the matrix's rows.
pub(super) struct RowFactors<'a> {
    pub(super) keys: &'a mut [f32],
    pub(super) queries: &'a mut [f32],
    pub(super) decays: &'a mut [f32],
}

/// A rule of a recurrence.
pub(super) trait Rule: Copy + Sync {
    /// Whether the change depends on what the matrix has under the key.
    const SEES: bool;
    /// Whether the rows of the matrix have decays of their own. Sums are then over
    /// [`RowFactors`].
    const DECAYS: bool;

    /// Returns the factors of a token of the step for a head with this query and key.
    ///
    /// # Safety
    /// The machine has the instruction set. Query and key have the same length.
    unsafe fn factors<S: Simd>(&self, head: usize, token: usize, query: &[f32], key: &[f32]) -> Factors;

    /// Writes the vectors of the sums and the decays of the rows, if rows have decays.
    fn of_rows(&self, _head: usize, _token: usize, _query: &[f32], _key: &[f32], _to: RowFactors<'_>) {}
}

/// [`RecurrenceRule::Delta`](millrace_backend::RecurrenceRule).
#[derive(Clone, Copy)]
pub(super) struct Delta<'a> {
    pub(super) recurrence: &'a Recurrence<'a, Vec<f32>>,
    /// `[tokens, 2 * heads]`
    pub(super) rates: &'a [f32],
}

impl Rule for Delta<'_> {
    const SEES: bool = true;
    const DECAYS: bool = false;

    #[inline(always)]
    unsafe fn factors<S: Simd>(&self, head: usize, token: usize, query: &[f32], key: &[f32]) -> Factors {
        let count = self.recurrence.heads.heads;
        let rates = &self.rates[token * 2 * count..][..2 * count];
        let (_, decay) = step_and_decay(self.recurrence, head, rates[count + head], NO_LIMITS);
        // SAFETY: the caller guarantees it.
        let factors = unsafe { delta_factors::<S>(rates[head], query, key) };
        Factors { decay, of_seen: factors.of_seen * decay, of_read: factors.of_read * decay, ..factors }
    }
}

/// [`RecurrenceRule::StateSpace`](millrace_backend::RecurrenceRule).
#[derive(Clone, Copy)]
pub(super) struct StateSpace<'a> {
    pub(super) recurrence: &'a Recurrence<'a, Vec<f32>>,
    pub(super) skip: &'a [f32],
    pub(super) limits: (f32, f32),
    /// `[tokens, heads]`
    pub(super) rates: &'a [f32],
}

impl Rule for StateSpace<'_> {
    const SEES: bool = false;
    const DECAYS: bool = false;

    #[inline(always)]
    unsafe fn factors<S: Simd>(&self, head: usize, token: usize, query: &[f32], key: &[f32]) -> Factors {
        let rate = self.rates[token * self.recurrence.heads.heads + head];
        let (step, decay) = step_and_decay(self.recurrence, head, rate, self.limits);
        // SAFETY: the caller guarantees it.
        let [_, _, overlap] = unsafe { products::<S>(query, key) };
        Factors { decay, of_value: step, of_seen: 0.0, of_read: decay, overlap, skip: self.skip[head] }
    }
}

/// The rule of [`ChannelRecurrence`].
#[derive(Clone, Copy)]
pub(super) struct ChannelDelta<'a> {
    pub(super) recurrence: &'a ChannelRecurrence<'a, Vec<f32>, Buf>,
    /// `[tokens, heads]`
    pub(super) strengths: &'a [f32],
    /// `[tokens, heads * key_dim]`
    pub(super) rates: &'a [f32],
}

impl Rule for ChannelDelta<'_> {
    const SEES: bool = true;
    const DECAYS: bool = true;

    #[inline(always)]
    unsafe fn factors<S: Simd>(&self, head: usize, token: usize, query: &[f32], key: &[f32]) -> Factors {
        let strength = self.strengths[token * self.recurrence.heads.heads + head];
        // SAFETY: the caller guarantees it.
        unsafe { delta_factors::<S>(strength, query, key) }
    }

    #[inline(always)]
    fn of_rows(&self, head: usize, token: usize, query: &[f32], key: &[f32], to: RowFactors<'_>) {
        let (cols, key_dim) = (self.recurrence.rate_cols(), key.len());
        let rates = &self.rates[token * cols + head * key_dim..][..key_dim];
        let biases = &self.recurrence.step_bias[head * key_dim..][..key_dim];
        let speed = self.recurrence.decay_log[head].exp();
        for (index, (rate, bias)) in rates.iter().zip(biases).enumerate() {
            let decay = (-speed * softplus(rate + bias)).exp();
            to.decays[index] = decay;
            to.keys[index] = decay * key[index];
            to.queries[index] = decay * query[index];
        }
    }
}

/// Returns the step of a token for a head, and the decay of the head's matrix.
#[inline(always)]
fn step_and_decay(
    recurrence: &Recurrence<'_, Vec<f32>>,
    head: usize,
    rate: f32,
    (least, most): (f32, f32),
) -> (f32, f32) {
    let step = softplus(rate + recurrence.step_bias[head]).clamp(least, most);
    (step, (-recurrence.decay_log[head].exp() * step).exp())
}

/// Returns the factors of the delta rule, without a decay of the whole matrix.
///
/// # Safety
/// As [`Rule::factors`] says.
#[inline(always)]
unsafe fn delta_factors<S: Simd>(strength: f32, query: &[f32], key: &[f32]) -> Factors {
    // SAFETY: the caller guarantees it.
    let [of_query, of_key, overlap] = unsafe { products::<S>(query, key) };
    let of_query = 1.0 / ((of_query + LENGTH_EPS).sqrt() * (key.len() as f32).sqrt());
    let of_key = 1.0 / (of_key + LENGTH_EPS).sqrt();
    let of_value = of_key / (1.0 + (-strength).exp());
    Factors {
        decay: 1.0,
        of_value,
        of_seen: of_value * of_key,
        of_read: of_query,
        overlap: overlap * of_query,
        skip: 0.0,
    }
}

/// Returns the products of a query with itself, of a key with itself, and of both.
///
/// # Safety
/// As [`Rule::factors`] says.
#[inline(always)]
unsafe fn products<S: Simd>(query: &[f32], key: &[f32]) -> [f32; 3] {
    let len = query.len().min(key.len());
    // SAFETY: the caller guarantees the instruction set, and all numbers are inside the slices.
    unsafe {
        let mut sums = [S::splat(0.0); 3];
        for at in (0..len).step_by(S::LANES) {
            let query = S::load_up_to(query.as_ptr().add(at), len - at);
            let key = S::load_up_to(key.as_ptr().add(at), len - at);
            sums[0] = S::fma(query, query, sums[0]);
            sums[1] = S::fma(key, key, sums[1]);
            sums[2] = S::fma(query, key, sums[2]);
        }
        [S::sum(sums[0]), S::sum(sums[1]), S::sum(sums[2])]
    }
}

/// Returns `ln(1 + e^x)`.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}
