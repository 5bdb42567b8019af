//! The shapes and the memory that the benchmarks of products share.

use millrace_cuda::ops::product::{ProductOperands, ProductWorkspace, counters, partials};
use millrace_cuda::{Device, Elem, Memory};

use crate::harness::Result;

/// Weights of well-known models: name, inputs, outputs.
pub(crate) const WEIGHTS: [(&str, usize, usize); 10] = [
    ("Llama 8B qkv", 4096, 6144),
    ("Llama 8B o", 4096, 4096),
    ("Llama 8B gate, up", 4096, 28672),
    ("Llama 8B down", 14336, 4096),
    ("Llama 70B/TP8 qkv", 8192, 1280),
    ("Llama 70B/TP8 down", 3584, 8192),
    ("Qwen3 8B down", 12288, 4096),
    ("Qwen3 0.6B gate, up", 1024, 6144),
    ("ChatGLM3 qkv", 4096, 4608),
    ("ChatGLM3 gate, up", 4096, 27392),
];

/// Rows of the products for few rows.
pub(crate) fn few_rows(simulated: bool) -> &'static [usize] {
    if simulated { &[1] } else { &[1, 4, 8, 16] }
}

/// A shape that is small enough for a simulation.
pub(crate) fn sized(simulated: bool, inputs: usize, outputs: usize) -> (usize, usize) {
    if simulated { (inputs / 16, outputs / 32) } else { (inputs, outputs) }
}

/// Activations in bf16 and a workspace.
pub(crate) struct Room {
    rows: usize,
    inputs: usize,
    outputs: usize,
    x: Memory,
    out: Memory,
    partials: Memory,
    counters: Memory,
}

impl Room {
    pub(crate) fn new(device: &Device, rows: usize, inputs: usize, outputs: usize) -> Result<Room> {
        let counters = device.allocate(Elem::U32, counters(rows, inputs, outputs))?;
        device.fill(counters.view(Elem::U8), 0)?;
        let x = device.allocate(Elem::BF16, rows * inputs)?;
        device.fill(x.view(Elem::U8), 0)?;
        let out = device.allocate(Elem::BF16, rows * outputs)?;
        let partials = device.allocate(Elem::F32, partials(rows, inputs, outputs))?;
        Ok(Room { rows, inputs, outputs, x, out, partials, counters })
    }

    pub(crate) fn product(&self) -> ProductOperands<'_> {
        ProductOperands {
            rows: self.rows,
            inputs: self.inputs,
            outputs: self.outputs,
            x: self.x.view(Elem::BF16),
            bias: None,
            out: self.out.view(Elem::BF16),
            out_stride: self.outputs,
        }
    }

    pub(crate) fn workspace(&self) -> ProductWorkspace<'_> {
        ProductWorkspace { partials: self.partials.view(Elem::F32), counters: self.counters.view(Elem::U32) }
    }
}
