//! Dummy weights, to measure the memory and speed of a model with only its `config.json`.

use bytes::Bytes;
use millrace_numbers::{DType, HostTensor, Part};

use super::dummy_quantized::{DummyQuantized, mix};
use crate::description::{DecoderSpec, WeightError, WeightKind, WeightSlot, WeightSource};

/// Number of elements of the buffer that all weights are cut from.
const POOL: usize = 1 << 21;
/// Number of places in the buffer where a cut may begin, so that cuts differ. It is less than the
/// buffer's length.
const STARTS: usize = 1 << 16;
/// Standard deviation of matrices and biases.
const SCALE: f32 = 0.03;

/// Deterministic weights: norm scales are 1, and all others are nearly normally distributed with a
/// standard deviation of 0.03.
///
/// They are cuts of one pseudo-random buffer of a few megabytes, however large the model is.
pub(super) struct DummyWeights {
    spec: DecoderSpec,
    dtype: DType,
    pool: Bytes,
    ones: Bytes,
    /// The matrices that a `quantization_config` quantizes.
    quantized: Option<DummyQuantized>,
}

impl DummyWeights {
    pub(super) fn new(spec: DecoderSpec, dtype: DType, quantized: Option<DummyQuantized>) -> Self {
        let mut pool = Vec::with_capacity(POOL * dtype.size());
        for index in 0..POOL as u64 {
            dtype.push(normal(index) * SCALE, &mut pool);
        }
        let mut ones = Vec::new();
        let longest = spec
            .layers
            .iter()
            .map(|layer| {
                let of_heads = layer.attention.heads().map_or(0, |heads| {
                    let query_rank = heads.latent.and_then(|latent| latent.query_rank).unwrap_or(0);
                    query_rank.max(heads.layout.heads * heads.layout.head_dim)
                });
                let of_recurrence = layer.attention.recurrent().map_or(0, |layer| layer.heads.value_cols());
                of_heads.max(of_recurrence)
            })
            .chain(spec.per_layer.map(|table| table.width))
            .fold(spec.hidden, usize::max);
        (0..longest).for_each(|_| dtype.push(1.0, &mut ones));
        DummyWeights { spec, dtype, pool: pool.into(), ones: ones.into(), quantized }
    }
}

impl WeightSource for DummyWeights {
    fn parts(&self, slot: WeightSlot) -> Result<Vec<Part>, WeightError> {
        let (rows, cols) = self.spec.shape(slot);
        let size = self.dtype.size();
        let part = |bytes, rows, cols| Part::whole(HostTensor::dense(self.dtype, rows, cols, bytes));
        if slot.info().kind == WeightKind::NormScale {
            return Ok(vec![part(self.ones.slice(..cols * size), 1, cols)]);
        }
        if let Some(quantized) = &self.quantized {
            let dense = |rows, cols| self.dense_parts(slot, rows, cols);
            if let Some(parts) = quantized.parts(&self.spec, slot, dense)? {
                return Ok(parts);
            }
        }
        Ok(self.dense_parts(slot, rows, cols))
    }
}

impl DummyWeights {
    /// Returns a dense matrix `[rows, cols]`, or a vector, as parts.
    fn dense_parts(&self, slot: WeightSlot, rows: usize, cols: usize) -> Vec<Part> {
        let size = self.dtype.size();
        let part = |bytes, rows, cols| Part::whole(HostTensor::dense(self.dtype, rows, cols, bytes));
        // A vector is cut like a matrix of one column. Rows have at most 2^20 columns, so at least
        // one row fits into the buffer.
        let (rows, cols) = if slot.is_vector() { (cols, 1) } else { (rows, cols) };
        let most = (POOL - STARTS) / cols;
        let mut parts = Vec::with_capacity(rows.div_ceil(most));
        for first in (0..rows).step_by(most) {
            let count = most.min(rows - first);
            let start = mix(seed(slot) ^ first as u64) as usize % STARTS;
            let bytes = self.pool.slice(start * size..(start + count * cols) * size);
            parts.push(if slot.is_vector() { part(bytes, 1, count) } else { part(bytes, count, cols) });
        }
        parts
    }
}

/// Returns a seed for each slot, which differs much from those of other slots.
fn seed(slot: WeightSlot) -> u64 {
    mix(match slot {
        WeightSlot::Embedding => 1,
        WeightSlot::FinalNorm => 2,
        WeightSlot::Head => 3,
        WeightSlot::EmbeddingNorm => 4,
        WeightSlot::EmbeddingNormBias => 5,
        WeightSlot::Positions => 6,
        WeightSlot::FinalNormBias => 7,
        WeightSlot::HeadBias => 8,
        WeightSlot::ClassifierDense => 9,
        WeightSlot::ClassifierDenseBias => 10,
        WeightSlot::ClassifierOut => 11,
        WeightSlot::ClassifierOutBias => 12,
        WeightSlot::ClassifierNorm => 13,
        WeightSlot::ClassifierNormBias => 14,
        WeightSlot::DistanceBias => 15,
        WeightSlot::SecondType => 16,
        WeightSlot::EmbeddingProjection => 17,
        WeightSlot::HeadProjection => 18,
        WeightSlot::TokenNorm => 19,
        WeightSlot::TokenProjection => 20,
        WeightSlot::StateNorm => 21,
        WeightSlot::StateProjection => 22,
        WeightSlot::Layer(index, slot) => 128 * (index as u64 + 1) + slot as u64,
        WeightSlot::PerLayerEmbedding => 13,
        WeightSlot::PerLayerProjection => 14,
        WeightSlot::PerLayerProjectionNorm => 15,
        // There are at most 64 other weights of a layer.
        WeightSlot::Recurrent(index, slot) => 128 * (index as u64 + 1) + 64 + slot as u64,
    })
}

/// Returns a nearly normally distributed number of variance 1: the sum of four uniform numbers.
fn normal(index: u64) -> f32 {
    let bits = mix(index);
    let sum: f32 = (0..4).map(|i| ((bits >> (16 * i)) & 0xffff) as f32 / 65_536.0 - 0.5).sum();
    sum * 3f32.sqrt()
}
