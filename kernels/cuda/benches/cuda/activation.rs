//! Activations of Llama 8B and 70B (a rank of eight), Qwen3 8B and ChatGLM-6B, and the soft cap of
//! logits.

use millrace_cuda::Elem;
use millrace_cuda::ops::activation::{
    ActivationKind, ActivationRows, KernelVersion, ScaledSum, SoftCapRows, activate, gate, scaled_sum,
    soft_cap,
};

use crate::cost;
use crate::harness::{Bench, Result};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let sizes: &[usize] = if bench.is_simulated() { &[2] } else { &[1, 64, 8192] };
    let elem = Elem::BF16;
    let gates = [
        ("silu_gate Llama 8B", ActivationKind::Silu, 14336, true),
        ("silu_gate Llama 70B/8", ActivationKind::Silu, 3584, true),
        ("silu_gate Qwen3 8B", ActivationKind::Silu, 12288, true),
        ("gelu_tanh_gate Llama 8B", ActivationKind::GeluTanh, 14336, true),
        ("gelu ChatGLM-6B", ActivationKind::Gelu, 16384, false),
    ];
    for (name, act, cols, gated) in gates {
        for &rows in sizes {
            let x = bench.device.allocate(elem, rows * cols * 2)?;
            let out = bench.device.allocate(elem, rows * cols)?;
            let cost = cost::activation(elem, rows, cols, gated);
            let run = if gated { gate } else { activate };
            bench.measure(&format!("{name} {rows} x {cols}"), cost, |device| {
                let operands = ActivationRows { rows, cols, x: x.view(elem), out: out.view(elem) };
                run(device, KernelVersion::Fast, act, &operands)
            })?;
        }
    }
    for &rows in sizes {
        let cols = 4096;
        let (x, y) = (bench.device.allocate(elem, rows * cols)?, bench.device.allocate(elem, rows * cols)?);
        let sum =
            ScaledSum { rows, cols, x: (1.0, x.view(elem)), y: Some((1.0, y.view(elem))), out: x.view(elem) };
        let cost = cost::elementwise(elem, rows, cols, 2);
        bench.measure(&format!("residual addition {rows} x {cols}"), cost, |device| {
            scaled_sum(device, KernelVersion::Fast, &sum)
        })?;
    }
    let (rows, cols) = if bench.is_simulated() { (1, 4096) } else { (64, 128_256) };
    let logits = bench.device.allocate(Elem::F32, rows * cols)?;
    let cost = cost::elementwise(Elem::F32, rows, cols, 1);
    bench.measure(&format!("soft cap of logits {rows} x {cols}"), cost, |device| {
        let operands = SoftCapRows { rows, cols, x: logits.view(Elem::F32), cap: 30.0 };
        soft_cap(device, KernelVersion::Fast, &operands)
    })
}
