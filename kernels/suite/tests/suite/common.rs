//! Helpers for the tests of all backends: inputs, uploads through the public operations, and
//! comparisons.

use std::sync::LazyLock;

use bytes::Bytes;
use millrace_backend::{Backend, OpenStep, SamplingParams, Segment, SeqRow, StepInput, StepSize};
use millrace_cpu::{Activations, Cpu, CpuOptions, Isa};
use millrace_numbers::{DType, HostTensor, Part, WeightFormat};
use proptest::prelude::ProptestConfig;

/// CPU backends for every instruction set of this machine, one with a single thread and one with
/// several.
pub(crate) static CPUS: LazyLock<Vec<Cpu>> = LazyLock::new(|| cpus(Activations::Rounded));

/// As [`CPUS`], with inputs of products that are never rounded.
pub(crate) static EXACT_CPUS: LazyLock<Vec<Cpu>> = LazyLock::new(|| cpus(Activations::Exact));

fn cpus(activations: Activations) -> Vec<Cpu> {
    let mut all = Vec::new();
    for isa in Isa::available() {
        for threads in [1, 3] {
            let options = CpuOptions {
                threads: Some(threads),
                isa: Some(isa),
                activations,
                cache: None,
                cores: Vec::new(),
            };
            all.push(Cpu::new(options).unwrap());
        }
    }
    all
}

/// The configuration of a property test with `count` cases. On an emulator, which may be thirty
/// times as slow as a CPU, MILLRACE_TEST_CASES_DIVISOR asks for a part of them.
pub(crate) fn cases(count: u32) -> ProptestConfig {
    let divisor = std::env::var("MILLRACE_TEST_CASES_DIVISOR").map_or(1, |text| text.parse().unwrap());
    ProptestConfig::with_cases(count.div_ceil(divisor))
}

/// Whether this backend rounds inputs of products with these weights to bf16.
pub(crate) fn rounds(cpu: &Cpu, format: impl Into<WeightFormat>) -> bool {
    let in_pairs = matches!(
        format.into(),
        WeightFormat::Dense(DType::BF16) | WeightFormat::Fp8 | WeightFormat::Nf4 | WeightFormat::Codes(_)
    );
    in_pairs
        && matches!(cpu.isa(), Isa::Amx | Isa::Avx512Bf16 | Isa::NeonBf16 | Isa::Portable)
        && cpu.activations() == Activations::Rounded
}

/// The generator SplitMix64 (Steele, Lea and Flood), for inputs only.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A uniform number in [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    pub(crate) fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }
}

pub(crate) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub(crate) fn tensor(bytes: &[u8], rows: usize, cols: usize) -> HostTensor {
    HostTensor::dense(DType::F32, rows, cols, Bytes::copy_from_slice(bytes))
}

/// A matrix of `values`, `[len / cols, cols]`.
pub(crate) fn matrix<B: Backend>(
    device: &B,
    values: &[f32],
    cols: usize,
    format: impl Into<WeightFormat>,
) -> B::Matrix {
    let bytes = bytes(values);
    let parts = [Part::whole(tensor(&bytes, values.len() / cols, cols))];
    device.matrix(&[Segment::new(&parts, format)]).unwrap()
}

pub(crate) fn vector<B: Backend>(device: &B, values: &[f32]) -> B::Vector {
    device.vector(&[Part::whole(tensor(&bytes(values), 1, values.len()))]).unwrap()
}

/// The size of steps with this many tokens and rows in single precision, and block tables for
/// `positions` positions.
pub(crate) fn step_size(tokens: usize, rows: usize, positions: usize) -> StepSize<'static> {
    StepSize {
        tokens,
        rows,
        sequence_tokens: positions,
        blocks: positions.div_ceil(16),
        block_size: 16,
        kv_format: DType::F32.into(),
        vocab: 1,
        attention: &[],
    }
}

/// Creates a queue for steps of one sequence of `tokens` tokens.
pub(crate) fn queue<B: Backend>(device: &B, tokens: usize) -> B::Queue {
    device.queue(&step_size(tokens, 1, tokens)).unwrap()
}

/// Opens a step of one sequence with these tokens. All of its blocks are block 0.
pub(crate) fn opened<'q, B: Backend>(
    device: &B,
    queue: &'q mut B::Queue,
    tokens: &[u32],
    outputs: &[u32],
) -> OpenStep<'q, B::Queue> {
    let (n, blocks) = (tokens.len(), vec![0; tokens.len().div_ceil(16)]);
    device.admit(queue, 0, tokens, &SamplingParams::default()).unwrap();
    let rows = [SeqRow::prefill(0, 0..n, &blocks)];
    open(device, queue, &StepInput { tokens, rows: &rows, outputs, samples: &[], ..StepInput::EMPTY })
}

/// Opens the step that `input` describes.
pub(crate) fn open<'q, B: Backend>(
    device: &B,
    queue: &'q mut B::Queue,
    input: &StepInput<'_>,
) -> OpenStep<'q, B::Queue> {
    device.prepare(device.begin(queue, input).unwrap()).unwrap()
}

/// Activations that hold `values`, made by an embedding.
pub(crate) fn upload<B: Backend>(device: &B, values: &[f32], cols: usize) -> B::Buf {
    let n = values.len() / cols;
    let table = matrix(device, values, cols, DType::F32);
    let tokens: Vec<u32> = (0..n as u32).collect();
    let mut queue = queue(device, n);
    let step = opened(device, &mut queue, &tokens, &[]);
    let mut buf = device.buf(n, cols).unwrap();
    device.embed(&step, &table, 0, 1.0, &mut buf).unwrap();
    buf
}

/// Asserts that all differences are at most `tolerance` times the largest magnitude of `want` (at
/// least 1e-3).
pub(crate) fn assert_close(name: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{name}");
    let size = want.iter().fold(1e-3f32, |m, w| m.max(w.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * size, "{name}: element {i} is {g}, not {w} (size {size})");
    }
}

pub(crate) fn assert_same_bits(name: &str, a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len(), "{name}");
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!(a.to_bits() == b.to_bits(), "{name}: element {i} is {a:e} and {b:e}");
    }
}

pub(crate) const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
