//! Recurrent layers with the shape of Qwen3.5 0.8B: prompts, and steps of many sequences.

use millrace_backend::{
    Activation, Convolution, KeySharing, ModelLoading, Recurrence, RecurrenceRule, RecurrentHeads,
    RecurrentOps, StateSpec, WeightLoading,
};
use millrace_cpu::Cpu;
use millrace_cpu::limits::{self, Instruction};
use millrace_numbers::{DType, HostTensor, Part};

use crate::harness::{activations, bytes, opened, queue, time, values};

const HEADS: RecurrentHeads =
    RecurrentHeads { key_heads: 16, heads: 16, key_dim: 128, value_dim: 128, sharing: KeySharing::Neighbors };
const TAPS: usize = 4;

/// Measures both parts of a layer: the operations of the recurrence per second, eight for each
/// element of a state and token, and the bytes of states read and written.
pub(crate) fn recurrent(cpu: &Cpu) {
    for (sequences, tokens) in [(1, 512), (4, 128), (1, 1), (16, 1), (64, 1)] {
        one(cpu, sequences, tokens);
    }
}

fn one(cpu: &Cpu, sequences: usize, tokens: usize) {
    let (n, channels) = (sequences * tokens, HEADS.cols());
    let spec = StateSpec { slots: sequences, checkpoints: 0, channels, taps: TAPS, heads: Some(HEADS) };
    let layers = (200 << 20) / spec.bytes() + 1; // far more than any cache
    let mut states: Vec<_> = (0..layers).map(|_| cpu.states(spec).unwrap()).collect();
    let rows: Vec<(usize, usize, &[u32])> = (0..sequences).map(|_| (1, tokens, [].as_slice())).collect();
    let mut queue = queue(cpu, n, sequences);
    let step = opened(cpu, &mut queue, &vec![0; n], &rows);
    let (x, rates) = (activations(cpu, n, channels), activations(cpu, n, 2 * HEADS.heads));
    let vector = |len: usize| {
        let tensor = HostTensor::dense(DType::F32, 1, len, bytes(&values(len)).into());
        cpu.vector(&[Part::whole(tensor)]).unwrap()
    };
    let (of_heads, weight) = (vector(HEADS.heads), vector(TAPS * channels));
    let convolution = Convolution { weight: &weight, bias: None, act: Some(Activation::Silu), gated: false };
    let rule = RecurrenceRule::Delta;
    let recurrence = Recurrence { heads: HEADS, rule, decay_log: &of_heads, step_bias: &of_heads };
    let (mut mixed, mut out) = (cpu.buf(n, channels).unwrap(), cpu.buf(n, HEADS.value_cols()).unwrap());
    let convolved = time(cpu.threads(), |i| {
        cpu.convolve(&step, &x, &convolution, &mut states[i % layers], &mut mixed).unwrap();
    });
    let recurred = time(cpu.threads(), |i| {
        cpu.recur(&step, (&mixed, &rates), &recurrence, &mut states[i % layers], &mut out).unwrap();
    });
    let (peak, bandwidth) = (
        limits::peak(cpu.threads(), Instruction::of(cpu.isa(), DType::F32)),
        limits::bandwidth(cpu.threads(), cpu.isa()),
    );
    let elements = HEADS.heads * HEADS.key_dim * HEADS.value_dim;
    let gflops = 8e-9 * (n * elements) as f64 / recurred;
    let gbs = 8e-9 * (sequences * elements) as f64 / recurred;
    println!(
        "recurrent {sequences:3} x {tokens:3} convolution {:7.3} ms, recurrence {:7.3} ms  {gflops:6.1} GFLOP/s ({:3.0}% of {peak:.0})  {gbs:5.1} GB/s ({:3.0}% of {bandwidth:.1})",
        1e3 * convolved,
        1e3 * recurred,
        100.0 * gflops / peak,
        100.0 * gbs / bandwidth
    );
}
