//! Recurrent layers at the shapes of Qwen3-Next 80B, Granite 4 and LFM2: decode rows of many
//! sequences, and a prompt.

use millrace_backend::{KeySharing, RecurrentHeads, StateSpec};
use millrace_cuda::ops::activation::ActivationKind;
use millrace_cuda::ops::recurrent::{
    Convolve, GateKind, GatedRows, KernelVersion, Recur, RecurRule, SlotStates, StateRows, convolve,
    multiply_gates, recur,
};
use millrace_cuda::{Elem, Memory};

use crate::cost;
use crate::harness::{Bench, Result};

/// The rows of a step, of `count` tokens each.
struct Rows {
    rows: usize,
    count: usize,
    records: Memory,
    query_start: Memory,
}

impl Rows {
    fn new(bench: &Bench, rows: usize, count: usize) -> Result<Rows> {
        let words = |words: Vec<usize>| -> Vec<u8> {
            words.into_iter().flat_map(|word| (word as u32).to_le_bytes()).collect()
        };
        let records = words((0..rows).flat_map(|row| [row, 1, count, 1]).collect());
        let starts = words((0..=rows).map(|row| row * count).collect());
        let (records, query_start) = (bench.device.upload(&records)?, bench.device.upload(&starts)?);
        Ok(Rows { rows, count, records, query_start })
    }

    fn of_step(&self) -> StateRows<'_> {
        StateRows {
            rows: self.rows,
            tokens: self.rows * self.count,
            max_tokens: self.count,
            records: self.records.view(Elem::I32),
            query_start: self.query_start.view(Elem::I32),
        }
    }

    fn name(&self) -> String {
        format!("{} x {}", self.rows, self.count)
    }
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let steps: &[(usize, usize)] =
        if bench.is_simulated() { &[(2, 1), (1, 3)] } else { &[(1, 1), (32, 1), (256, 1), (1, 2048)] };
    for &(rows, count) in steps {
        let rows = Rows::new(bench, rows, count)?;
        let sharing = KeySharing::Neighbors;
        let qwen = RecurrentHeads { key_heads: 16, heads: 32, key_dim: 128, value_dim: 128, sharing };
        recurrence(bench, &rows, "Qwen3-Next", qwen, true)?;
        let granite = RecurrentHeads { key_heads: 1, heads: 128, key_dim: 128, value_dim: 64, sharing };
        recurrence(bench, &rows, "Granite 4", granite, false)?;
        convolution(bench, &rows, "Qwen3-Next", (8192, 4), false)?;
        convolution(bench, &rows, "LFM2", (2048, 3), true)?;
        gates(bench, rows.rows * rows.count)?;
    }
    Ok(())
}

/// Allocates zeros.
fn zeros(bench: &Bench, elem: Elem, len: usize) -> Result<Memory> {
    let memory = bench.device.allocate(elem, len)?;
    bench.device.fill(memory.view(elem), 0)?;
    Ok(memory)
}

fn recurrence(
    bench: &mut Bench,
    rows: &Rows,
    model: &str,
    heads: RecurrentHeads,
    is_delta: bool,
) -> Result<()> {
    let tokens = rows.rows * rows.count;
    let spec =
        StateSpec { slots: rows.rows, checkpoints: 0, channels: heads.cols(), taps: 4, heads: Some(heads) };
    let states = zeros(bench, Elem::F32, spec.slots * spec.slot_elements())?;
    let x = zeros(bench, Elem::BF16, tokens * heads.cols())?;
    let rates = zeros(bench, Elem::BF16, tokens * 2 * heads.heads)?;
    let of_heads = zeros(bench, Elem::F32, heads.heads)?;
    let out = zeros(bench, Elem::BF16, tokens * heads.value_cols())?;
    let numbers = of_heads.view(Elem::F32);
    let state_space = RecurRule::StateSpace { skip: numbers, limits: (0.0, f32::INFINITY) };
    let of_step = Recur {
        rows: rows.of_step(),
        heads,
        states: SlotStates { spec, data: states.view(Elem::F32) },
        x: x.view(Elem::BF16),
        rates: rates.view(Elem::BF16),
        rule: if is_delta { RecurRule::Delta } else { state_space },
        decay_log: numbers,
        step_bias: numbers,
        out: out.view(Elem::BF16),
    };
    let rule = if is_delta { "delta rule" } else { "state space" };
    bench.measure(&format!("{rule} {}, {model}", rows.name()), cost::recur(&of_step), |device| {
        recur(device, KernelVersion::Fast, &of_step)
    })
}

fn convolution(
    bench: &mut Bench,
    rows: &Rows,
    model: &str,
    (channels, taps): (usize, usize),
    gated: bool,
) -> Result<()> {
    let (tokens, cols) = (rows.rows * rows.count, channels * if gated { 3 } else { 1 });
    let spec = StateSpec { slots: rows.rows, checkpoints: 0, channels, taps, heads: None };
    let states = zeros(bench, Elem::F32, spec.slots * spec.slot_elements())?;
    let weight = zeros(bench, Elem::F32, taps * channels)?;
    let x = zeros(bench, Elem::BF16, tokens * cols)?;
    let out = zeros(bench, Elem::BF16, tokens * channels)?;
    let of_step = Convolve {
        rows: rows.of_step(),
        states: SlotStates { spec, data: states.view(Elem::F32) },
        cols,
        x: x.view(Elem::BF16),
        weight: weight.view(Elem::F32),
        bias: None,
        act: (!gated).then_some(ActivationKind::Silu),
        gated,
        out: out.view(Elem::BF16),
    };
    bench.measure(&format!("convolution {}, {model}", rows.name()), cost::convolve(&of_step), |device| {
        convolve(device, KernelVersion::Fast, &of_step)
    })
}

fn gates(bench: &mut Bench, rows: usize) -> Result<()> {
    let (cols, gate_cols, first) = (4096, 12288, 8192);
    let x = zeros(bench, Elem::BF16, rows * cols)?;
    let gates = zeros(bench, Elem::BF16, rows * gate_cols)?;
    let of_rows = GatedRows {
        rows,
        cols,
        x: x.view(Elem::BF16),
        gate_cols,
        first,
        gates: gates.view(Elem::BF16),
        kind: GateKind::SiluGate,
    };
    bench.measure(&format!("multiply_gates {rows} x {cols}"), cost::multiply_gates(&of_rows), |device| {
        multiply_gates(device, KernelVersion::Fast, &of_rows)
    })
}
