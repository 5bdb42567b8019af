//! What the tests of all devices share: inputs, uploads through the public operations, and comparisons.

use std::sync::LazyLock;

use millrace_kernels::cpu::{Cpu, CpuOptions, Isa};
use millrace_kernels::{
    Backend, DType, HostTensor, MatrixFormat, Part, SamplingParams, SeqRow, StepInput, StepSize,
};

/// One backend of one and one of several threads for every instruction set of this machine.
pub(crate) static CPUS: LazyLock<Vec<Cpu>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for isa in Isa::available() {
        for threads in [1, 3] {
            all.push(Cpu::new(CpuOptions { threads: Some(threads), isa: Some(isa) }).unwrap());
        }
    }
    all
});

/// SplitMix64 (Steele, Lea and Flood), for inputs only.
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

    /// Uniform in [-1, 1).
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

pub(crate) fn tensor(bytes: &[u8], rows: usize, cols: usize) -> HostTensor<'_> {
    HostTensor { dtype: DType::F32, rows, cols, bytes }
}

/// A matrix of `values`, `[len / cols, cols]`.
pub(crate) fn matrix<B: Backend>(
    device: &B,
    values: &[f32],
    cols: usize,
    format: impl Into<MatrixFormat>,
) -> B::Matrix {
    let bytes = bytes(values);
    device.matrix(&[Part::whole(tensor(&bytes, values.len() / cols, cols))], format.into()).unwrap()
}

pub(crate) fn vector<B: Backend>(device: &B, values: &[f32]) -> B::Vector {
    device.vector(&[Part::whole(tensor(&bytes(values), 1, values.len()))]).unwrap()
}

/// The sizes of steps of this many tokens and rows in single precision, with tables for `positions` positions.
pub(crate) fn step_size(tokens: usize, rows: usize, positions: usize) -> StepSize<'static> {
    StepSize {
        tokens,
        rows,
        sequence_tokens: positions,
        blocks: positions.div_ceil(16),
        block_size: 16,
        kv_dtype: DType::F32,
        vocab: 1,
        attention: &[],
    }
}

/// A step of one sequence of these tokens, whose blocks are all the first one.
pub(crate) fn begun<B: Backend>(device: &B, tokens: &[u32], outputs: &[u32]) -> B::Step {
    let (n, blocks) = (tokens.len(), vec![0; tokens.len().div_ceil(16)]);
    let mut step = device.step(&step_size(n, 1, n)).unwrap();
    device.admit(&mut step, 0, tokens, &SamplingParams::default()).unwrap();
    let rows = [SeqRow { slot: 0, start: 0, count: n, decodes: false, blocks: &blocks }];
    device.begin(&mut step, &StepInput { tokens, rows: &rows, outputs, samples: &[] }).unwrap();
    device.prepare(&mut step).unwrap();
    step
}

/// Activations that hold `values`: the rows of an embedding.
pub(crate) fn upload<B: Backend>(device: &B, values: &[f32], cols: usize) -> B::Buf {
    let n = values.len() / cols;
    let table = matrix(device, values, cols, DType::F32);
    let tokens: Vec<u32> = (0..n as u32).collect();
    let step = begun(device, &tokens, &[]);
    let mut buf = device.buf(n, cols).unwrap();
    device.embed(&step, &table, 0, &mut buf).unwrap();
    buf
}

/// The largest difference must stay below `tolerance` times the largest magnitude of `want` (at least 1e-3).
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
