//! The objects of the reference, in plain vectors.

use crate::sampling::Sampled;
use crate::{KvFormat, KvSpec, SequencePrefix, kv_int8};

/// Activations of [`Reference`](super::Reference).
#[derive(Debug, Clone)]
pub struct Buf {
    pub(super) cols: usize,
    pub(super) data: Vec<f32>, // [rows, cols]
}

impl Buf {
    pub(super) fn row(&self, t: usize) -> &[f32] {
        &self.data[t * self.cols..(t + 1) * self.cols]
    }

    pub(super) fn row_mut(&mut self, t: usize) -> &mut [f32] {
        &mut self.data[t * self.cols..(t + 1) * self.cols]
    }
}

/// A weight matrix of [`Reference`](super::Reference).
#[derive(Debug, Clone)]
pub struct Matrix {
    pub(super) out: usize,
    pub(super) cols: usize,
    pub(super) data: Vec<f32>, // [out, cols]
}

impl Matrix {
    pub(super) fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.cols..(index + 1) * self.cols]
    }
}

/// One layer's KV cache of [`Reference`](super::Reference).
#[derive(Debug, Clone)]
pub struct Kv {
    pub(super) spec: KvSpec,
    pub(super) k: Vec<f32>, // [blocks, block_size, heads, key_dim]
    pub(super) v: Vec<f32>, // [blocks, block_size, heads, value_dim]
}

impl Kv {
    pub(super) fn new(spec: KvSpec) -> Kv {
        Kv { spec, k: vec![0.0; spec.key_elements()], v: vec![0.0; spec.value_elements()] }
    }

    /// Returns the index of feature 0 of the key of `head` at `position` of a sequence with this
    /// block table.
    pub(super) fn key_at(&self, blocks: &[u32], position: usize, head: usize) -> usize {
        self.head_at(blocks, position, head) * self.spec.key_dim
    }

    /// Returns the index of feature 0 of the value of `head` at `position` of a sequence with this
    /// block table.
    pub(super) fn value_at(&self, blocks: &[u32], position: usize, head: usize) -> usize {
        self.head_at(blocks, position, head) * self.spec.value_dim
    }

    fn head_at(&self, blocks: &[u32], position: usize, head: usize) -> usize {
        let KvSpec { block_size, heads, .. } = self.spec;
        let slot = blocks[position / block_size] as usize * block_size + position % block_size;
        slot * heads + head
    }
}

/// Writes the numbers of a key or a value to `to`, rounded to the format of the cache.
pub(super) fn round(numbers: &[f32], format: KvFormat, to: &mut [f32]) {
    match format {
        KvFormat::Dense(dtype) => to.iter_mut().zip(numbers).for_each(|(to, x)| *to = dtype.round(*x)),
        KvFormat::Int8 => kv_int8::round(numbers, to),
    }
}

/// The step queue of [`Reference`](super::Reference): the current step's geometry and its tokens.
#[derive(Debug, Clone, Default)]
pub struct Queue {
    pub(super) tokens: Vec<u32>,
    pub(super) outputs: Vec<u32>,
    /// For each token of the step its position and the index of its sequence in `tables`.
    pub(super) places: Vec<(usize, usize)>,
    pub(super) tables: Vec<Vec<u32>>,
    /// The slot of each sequence in `tables`.
    pub(super) slots: Vec<usize>,
    /// The prefix of each sequence in `tables`.
    pub(super) prefixes: Vec<SequencePrefix>,
    /// The adapter of each sequence in `tables`.
    pub(super) adapters: Vec<Option<usize>>,
    pub(super) sampled: Vec<Sampled>,
}
