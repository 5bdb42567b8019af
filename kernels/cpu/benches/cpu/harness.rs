//! The shapes, inputs and clock that all parts of the benchmark share.

use std::time::Instant;

use bytes::Bytes;
use millrace_backend::{
    DeviceTypes, ForwardOps, ModelLoading, OpenStep, Segment, SeqRow, StepInput, StepQueue, StepSize,
    WeightLoading,
};
use millrace_cpu::{Cpu, limits};
use millrace_numbers::{DType, HostTensor, Part};

/// Inputs and outputs of the products of one layer.
pub(crate) const SHAPES: [(&str, usize, usize); 4] =
    [("qkv", 2048, 2560), ("out", 2048, 2048), ("gate/up", 2048, 11264), ("down", 5632, 2048)];

/// The median time of a call in seconds. With several threads it is wall time, which includes other
/// processes.
pub(crate) fn time(threads: usize, mut call: impl FnMut(usize)) -> f64 {
    call(0);
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 5 || (begin.elapsed().as_secs_f64() < 0.6 && times.len() < 400) {
        let start = limits::clock(threads);
        call(times.len() + 1);
        times.push(limits::clock(threads) - start);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Numbers in [-1, 1), always the same.
pub(crate) fn values(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(n).collect()
}

/// The bytes of numbers as a checkpoint stores them.
pub(crate) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A matrix of the numbers in `bytes`, `[rows, cols]`, in f32.
pub(crate) fn matrix(
    cpu: &Cpu,
    bytes: &Bytes,
    rows: usize,
    cols: usize,
    dtype: DType,
) -> <Cpu as DeviceTypes>::Matrix {
    let parts = [Part::whole(HostTensor::dense(DType::F32, rows, cols, bytes.clone()))];
    cpu.matrix(&[Segment::new(&parts, dtype)]).unwrap()
}

/// A queue for a step of `tokens` tokens in `rows` rows.
pub(crate) fn queue(cpu: &Cpu, tokens: usize, rows: usize) -> <Cpu as DeviceTypes>::Queue {
    let size = StepSize {
        tokens,
        rows,
        sequence_tokens: 1,
        blocks: 0,
        block_size: 16,
        kv_format: DType::F32.into(),
        vocab: 1,
        attention: &[],
    };
    cpu.queue(&size).unwrap()
}

/// Opens a step of these tokens in rows of (start, count, blocks).
pub(crate) fn opened<'q>(
    cpu: &Cpu,
    queue: &'q mut <Cpu as DeviceTypes>::Queue,
    tokens: &[u32],
    rows: &[(usize, usize, &[u32])],
) -> OpenStep<'q, <Cpu as DeviceTypes>::Queue> {
    let rows: Vec<SeqRow<'_>> = (0..)
        .zip(rows)
        .map(|(slot, &(start, count, blocks))| SeqRow::prefill(slot, start..start + count, blocks))
        .collect();
    let input = StepInput { tokens, rows: &rows, outputs: &[], samples: &[], ..StepInput::EMPTY };
    cpu.prepare(cpu.begin(queue, &input).unwrap()).unwrap()
}

/// Activations that hold random rows.
pub(crate) fn activations(cpu: &Cpu, n: usize, cols: usize) -> <Cpu as DeviceTypes>::Buf {
    let table = matrix(cpu, &bytes(&values(16 * cols)).into(), 16, cols, DType::F32);
    let tokens: Vec<u32> = (0..n as u32).map(|t| t % 16).collect();
    let mut queue = queue(cpu, n, 1);
    let blocks = vec![0; n];
    let step = opened(cpu, &mut queue, &tokens, &[(0, n, &blocks)]);
    let mut buf = cpu.buf(n, cols).unwrap();
    cpu.embed(&step, &table, 0, 1.0, &mut buf).unwrap();
    buf
}
