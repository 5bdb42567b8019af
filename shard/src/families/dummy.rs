//! Weights out of nothing, to try a model's size and speed with its `config.json` alone.

use millrace_kernels::{DType, HostTensor, Part};

use crate::Error;
use crate::model::{DecoderSpec, LayerSlot, Slot, WeightSource};

/// Elements of the buffer that all weights are cut from.
const POOL: usize = 1 << 21;
/// Places where a cut may begin, so that cuts differ; less than the pool.
const STARTS: usize = 1 << 16;
/// Standard deviation of matrices and biases.
const SCALE: f32 = 0.03;

/// Deterministic weights: norms are 1, all else is about normal with a standard deviation of 0.03.
///
/// They are cuts of one pseudo-random buffer of a few megabytes, however large the model is.
pub(super) struct DummyWeights {
    spec: DecoderSpec,
    dtype: DType,
    pool: Vec<u8>,
    ones: Vec<u8>,
}

impl DummyWeights {
    pub(super) fn new(spec: DecoderSpec, dtype: DType) -> Self {
        let mut pool = Vec::with_capacity(POOL * dtype.size());
        for index in 0..POOL as u64 {
            push(&mut pool, dtype, normal(index) * SCALE);
        }
        let mut ones = Vec::new();
        let longest = spec.layers.iter().map(|layer| layer.qkv.head_dim).fold(spec.hidden, usize::max);
        (0..longest).for_each(|_| push(&mut ones, dtype, 1.0));
        DummyWeights { spec, dtype, pool, ones }
    }
}

impl WeightSource for DummyWeights {
    fn parts(&self, slot: Slot) -> Result<Vec<Part<'_>>, Error> {
        let (rows, cols) = self.spec.shape(slot);
        let size = self.dtype.size();
        let part = |bytes, rows, cols| Part::whole(HostTensor { dtype: self.dtype, rows, cols, bytes });
        if is_norm(slot) {
            return Ok(vec![part(&self.ones[..cols * size], 1, cols)]);
        }
        // A vector is cut like a matrix of one column. Rows are at most 2^20 wide, so that at least one fits.
        let (rows, cols) = if slot.is_vector() { (cols, 1) } else { (rows, cols) };
        let most = (POOL - STARTS) / cols;
        let mut parts = Vec::with_capacity(rows.div_ceil(most));
        for first in (0..rows).step_by(most) {
            let count = most.min(rows - first);
            let start = mix(seed(slot) ^ first as u64) as usize % STARTS;
            let bytes = &self.pool[start * size..(start + count * cols) * size];
            parts.push(if slot.is_vector() { part(bytes, 1, count) } else { part(bytes, count, cols) });
        }
        Ok(parts)
    }
}

fn is_norm(slot: Slot) -> bool {
    use LayerSlot::{AttentionNorm, KNorm, MlpNorm, QNorm};
    matches!(slot, Slot::FinalNorm | Slot::Layer(_, AttentionNorm | MlpNorm | QNorm | KNorm))
}

/// A number for each slot, far from that of others.
fn seed(slot: Slot) -> u64 {
    mix(match slot {
        Slot::Embedding => 1,
        Slot::FinalNorm => 2,
        Slot::Head => 3,
        Slot::Layer(index, slot) => 16 * (index as u64 + 1) + slot as u64,
    })
}

fn push(bytes: &mut Vec<u8>, dtype: DType, value: f32) {
    match dtype {
        DType::F32 => bytes.extend(value.to_le_bytes()),
        DType::F16 => bytes.extend(half::f16::from_f32(value).to_le_bytes()),
        DType::BF16 => bytes.extend(half::bf16::from_f32(value).to_le_bytes()),
    }
}

/// The finaliser of SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators").
fn mix(index: u64) -> u64 {
    let mut z = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Four uniform numbers make nearly a normal one, of variance 1.
fn normal(index: u64) -> f32 {
    let bits = mix(index);
    let sum: f32 = (0..4).map(|i| ((bits >> (16 * i)) & 0xffff) as f32 / 65_536.0 - 0.5).sum();
    sum * 3f32.sqrt()
}
