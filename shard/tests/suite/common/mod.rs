//! Small random models, and steps run by hand.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of this")]
#![allow(clippy::unwrap_used, reason = "a test's helpers fail as tests do")]

pub mod naive;
#[cfg(unix)]
pub mod router;
mod specs;

pub use specs::*;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use millrace_backend::{Backend, KvFormat, OpenStep, SamplingParams, SeqRow, SequencePrefix, StepInput};
use millrace_model::split::Split;
use millrace_model::step_sizes::tuned_products;
use millrace_model::{
    AdapterLimits, DecoderSpec, ShardLimits, WeightError, WeightKind, WeightSlot, WeightSource, WeightStorage,
};
use millrace_numbers::{DType, HostTensor, Part};
use millrace_shard::HostCollectives;
use millrace_shard::collective::{self, Transport};
use millrace_shard::decoder::{Collective, Decoder, ModelPart, Weights};
use millrace_test_patience::patience;

/// The root of the repository: at the working directory of a test program that was brought to a
/// machine where it cannot be built, otherwise where it was built.
pub fn repository() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    if folder.exists() { folder.join("..") } else { PathBuf::from(".") }
}

/// Limits for [`SMALL_PROMPT`] in one step.
pub const SMALL_LIMITS: ShardLimits = ShardLimits {
    max_step_tokens: 16,
    max_sequences: 16,
    max_sequence_tokens: 16,
    block_size: 16,
    state_checkpoints: 0,
    max_drafts: 0,
    adapters: AdapterLimits::NONE,
    num_blocks: 1,
    kv_format: KvFormat::Dense(DType::F32),
};

/// Tokens of the tiny vocabularies that tests use.
pub const SMALL_PROMPT: [u32; 9] = [3, 14, 15, 9, 26, 5, 35, 58, 9];

/// A deadline for what always happens: only a test that would wait forever reaches it.
pub fn long() -> Duration {
    patience(Duration::from_secs(300))
}

/// Runs `compute` on each of two ranks that form a group, and returns the results by rank.
pub fn on_two_ranks<T: Send>(compute: impl Fn(Split, HostCollectives) -> T + Sync) -> Vec<T> {
    let world_size = 2;
    let lead = collective::lead(Transport::Shm, world_size, long()).unwrap();
    let address = lead.address();
    let mut lead = Some(lead);
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let (address, lead, compute) = (&address, lead.take(), &compute);
                scope.spawn(move || {
                    let group = match lead {
                        Some(lead) => lead.wait(),
                        None => collective::join(address, rank, world_size, long()),
                    };
                    compute(Split { rank, world_size }, HostCollectives::new(group.unwrap()))
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// SplitMix64. The tests need the same random numbers on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Returns a number in [-1, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }
}

/// Weights in memory, in single precision.
#[derive(Default)]
pub struct MemoryWeights(HashMap<WeightSlot, (usize, usize, Vec<u8>)>);

impl MemoryWeights {
    pub fn random(spec: &DecoderSpec, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut of_slot = |slot: WeightSlot| {
            let (rows, cols) = spec.shape(slot);
            let norm = slot.info().kind == WeightKind::NormScale;
            let scale = if slot.is_vector() { 0.5 } else { (3.0 / cols as f64).sqrt() };
            let shift = if norm { 1.0 } else { 0.0 };
            let values = (0..rows * cols).map(|_| (random.unit() * scale + shift) as f32);
            (slot, (rows, cols, values.flat_map(f32::to_le_bytes).collect()))
        };
        MemoryWeights(spec.slots().into_iter().map(&mut of_slot).collect())
    }

    pub fn set(&mut self, slot: WeightSlot, rows: usize, cols: usize, values: &[f32]) {
        assert_eq!(values.len(), rows * cols, "{slot:?}");
        self.0.insert(slot, (rows, cols, values.iter().flat_map(|v| v.to_le_bytes()).collect()));
    }

    /// Returns all elements in row-major order.
    pub fn values(&self, slot: WeightSlot) -> Vec<f64> {
        let bytes = &self.0[&slot].2;
        bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
    }
}

impl WeightSource for MemoryWeights {
    fn parts(&self, slot: WeightSlot) -> Result<Vec<Part>, WeightError> {
        let (rows, cols, bytes) = &self.0[&slot];
        let tensor = HostTensor::dense(DType::F32, *rows, *cols, bytes.clone().into());
        Ok(vec![Part::whole(tensor)])
    }
}

/// Returns limits that are large enough for all small tests.
pub fn limits(kv_format: impl Into<KvFormat>) -> ShardLimits {
    ShardLimits {
        max_step_tokens: 160,
        max_sequences: 160,
        max_sequence_tokens: POSITIONS,
        block_size: 16,
        state_checkpoints: 0,
        max_drafts: 0,
        adapters: AdapterLimits::NONE,
        num_blocks: 24,
        kv_format: kv_format.into(),
    }
}

/// The part of a step that belongs to one sequence.
pub struct Chunk<'a> {
    pub tokens: &'a [u32],
    pub start: usize,
    /// The first block is also the number of the sequence's slot.
    pub blocks: &'a [u32],
}

/// A decoder with its device.
pub struct Harness<'b, B: Backend> {
    backend: &'b B,
    pub decoder: Decoder<B>,
    queue: B::Queue,
    block_size: usize,
    vocab: usize,
    /// The prefix of each sequence, by its first block.
    prefixes: HashMap<u32, SequencePrefix>,
    /// The adapter of each sequence that has one, by its first block.
    pub adapters: HashMap<u32, usize>,
    /// For each slot the position from which on tokens have the second type.
    second_type_starts: HashMap<u32, usize>,
}

impl<'b, B: Backend> Harness<'b, B> {
    pub fn new(
        backend: &'b B,
        spec: &DecoderSpec,
        source: &dyn WeightSource,
        storage: impl Into<WeightStorage>,
        limits: &ShardLimits,
    ) -> Self {
        Harness::among(backend, spec, source, storage, limits, None)
    }

    /// Creates one of several ranks. `spec` and `source` are its share.
    pub fn among(
        backend: &'b B,
        spec: &DecoderSpec,
        source: &dyn WeightSource,
        storage: impl Into<WeightStorage>,
        limits: &ShardLimits,
        ranks: Option<Box<dyn Collective<B>>>,
    ) -> Self {
        let mut ignore = |_| Ok(());
        let (positions, storage) = (limits.max_sequence_tokens, storage.into());
        if storage.quantization().is_some() {
            // GPUs choose a kernel for each product with packed weights.
            backend.tune(&tuned_products(spec, &storage, limits)).unwrap();
        }
        let weights = Weights::load(backend, spec, source, storage, positions, &mut ignore).unwrap();
        let decoder = Decoder::new(backend, spec.clone(), weights, limits, ranks).unwrap();
        Harness::of(backend, decoder, limits)
    }

    /// Creates a harness of a decoder that is alone or a rank of a group.
    pub fn of(backend: &'b B, decoder: Decoder<B>, limits: &ShardLimits) -> Self {
        let queue = decoder.queue(backend, limits).unwrap();
        let (block_size, vocab) = (limits.block_size, decoder.spec().vocab);
        Harness {
            backend,
            decoder,
            queue,
            block_size,
            vocab,
            prefixes: HashMap::new(),
            adapters: HashMap::new(),
            second_type_starts: HashMap::new(),
        }
    }

    /// Creates one rank of a pipeline, with the layers of `part`, in single precision.
    pub fn in_pipeline(
        backend: &'b B,
        part: ModelPart<'_>,
        source: &dyn WeightSource,
        limits: &ShardLimits,
        ranks: Box<dyn Collective<B>>,
    ) -> Self {
        let (mut ignore, positions, spec) = (|_| Ok(()), limits.max_sequence_tokens, part.spec);
        let weights = Weights::load(backend, part, source, DType::F32, positions, &mut ignore).unwrap();
        let decoder = Decoder::in_pipeline(backend, spec.clone(), weights, limits, ranks).unwrap();
        Harness::of(backend, decoder, limits)
    }

    /// Gives a slot to a sequence with these tokens. The first block of a [`Chunk`] is also its
    /// slot.
    pub fn admit(&mut self, slot: u32, tokens: &[u32]) {
        let Harness { backend, queue, .. } = self;
        backend.admit(queue, slot as usize, tokens, &SamplingParams::default()).unwrap();
    }

    /// Sets the position from which on the sequence in `slot` has tokens of the second type.
    pub fn set_second_type_start(&mut self, slot: u32, start: Option<usize>) {
        match start {
            Some(start) => self.second_type_starts.insert(slot, start),
            None => self.second_type_starts.remove(&slot),
        };
    }

    /// Runs a step and returns the logits of all its tokens.
    pub fn step(&mut self, chunks: &[Chunk<'_>]) -> Vec<Vec<f32>> {
        let n = chunks.iter().map(|chunk| chunk.tokens.len()).sum::<usize>();
        self.forward(chunks, &(0..n as u32).collect::<Vec<_>>());
        let logits = self.decoder.logits(self.backend, n).unwrap();
        logits.chunks_exact(self.vocab).map(<[f32]>::to_vec).collect()
    }

    /// Runs the forward pass of a step.
    pub fn forward(&mut self, chunks: &[Chunk<'_>], outputs: &[u32]) {
        self.forward_with(chunks, outputs, |_, _, _| ());
    }

    /// Runs the forward pass of a step, and calls `then` with the open step.
    pub fn forward_with<T>(
        &mut self,
        chunks: &[Chunk<'_>],
        outputs: &[u32],
        then: impl FnOnce(&B, &mut Decoder<B>, OpenStep<'_, B::Queue>) -> T,
    ) -> T {
        let tokens: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.tokens).copied().collect();
        let spec = self.decoder.spec();
        // The first chunk of a sequence has its whole prompt, if that has a prefix.
        for chunk in chunks.iter().filter(|chunk| chunk.start == 0 && spec.is_bidirectional()) {
            self.prefixes.insert(chunk.blocks[0], spec.prefix.of(chunk.tokens));
        }
        let rows: Vec<SeqRow<'_>> = chunks
            .iter()
            .map(|chunk| {
                let (start, count, slot) = (chunk.start, chunk.tokens.len(), chunk.blocks[0] as usize);
                let blocks = &chunk.blocks[..(start + count).div_ceil(self.block_size)];
                let prefix = self.prefixes.get(&blocks[0]).copied().unwrap_or_default();
                let adapter = self.adapters.get(&blocks[0]).copied();
                let second_type_start = self.second_type_starts.get(&blocks[0]).copied();
                SeqRow::prefill(slot, start..start + count, blocks)
                    .with_prefix(prefix)
                    .with_adapter(adapter)
                    .with_second_type_start(second_type_start)
            })
            .collect();
        let input = StepInput { tokens: &tokens, rows: &rows, outputs, samples: &[], ..StepInput::EMPTY };
        let step = self.decoder.compute(self.backend, &mut self.queue, &input).unwrap();
        then(self.backend, &mut self.decoder, step)
    }

    /// Returns the states of the last step's tokens after the final norm.
    pub fn states(&self, n: usize) -> Vec<f32> {
        self.decoder.states(self.backend, n).unwrap()
    }
}

/// Returns the largest difference between two rows, relative to the largest element of the second.
pub fn row_error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0f64, |m, e| m.max(e.abs()));
    let difference = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).abs());
    // Unlike `f64::max`, this keeps a NaN.
    difference.fold(0f64, |m, d| if d > m || d.is_nan() { d } else { m }) / largest
}
