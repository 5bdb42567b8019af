//! Products with weights of 4 and 8 bits: few rows at the speed of memory, many on tensor cores.

use millrace_cuda::ops::quant::{QuantGemmPath, quant_gemm};
use millrace_cuda::weights::{CodeTable, PackedFormat, QuantizedWeight};
use millrace_cuda::{Device, Elem, Memory};

use crate::cost;
use crate::harness::{Bench, Result};
use crate::products::{Room, WEIGHTS, few_rows, sized};

/// Formats, and the columns that share a scale.
pub(crate) const FORMATS: [(PackedFormat, usize); 8] = [
    (PackedFormat::Int4, 128),
    (PackedFormat::Int8, 32),
    (PackedFormat::Int8, 1 << 20),
    (PackedFormat::Fp8, 1 << 20),
    (PackedFormat::Codes4, 32),
    (PackedFormat::Q4K, 32),
    (PackedFormat::Q5K, 32),
    (PackedFormat::Q6K, 32),
];

/// A packed weight on the device.
#[derive(Debug)]
pub(crate) struct Packed {
    format: PackedFormat,
    group: usize,
    depth: usize,
    data: Memory,
    scales: Memory,
}

/// Allocates a weight of zeros. `outputs` is a multiple of 16, or rounded up to one.
pub(crate) fn zeros(
    device: &Device,
    format: PackedFormat,
    group: usize,
    inputs: usize,
    outputs: usize,
) -> Result<Packed> {
    let (depth, padded) = (inputs.next_multiple_of(64), outputs.next_multiple_of(16));
    let data = device.allocate(Elem::U8, padded * depth * format.bits() / 8)?;
    let scales = device.allocate(Elem::U32, padded * depth.div_ceil(group))?;
    device.fill(data.view(Elem::U8), 0)?;
    device.fill(scales.view(Elem::U8), 0)?;
    Ok(Packed { format, group, depth, data, scales })
}

impl Packed {
    pub(crate) fn weight(&self) -> QuantizedWeight<'_> {
        let &Packed { format, group, depth, .. } = self;
        let (data, scales) = (self.data.view(Elem::U8), self.scales.view(Elem::U32));
        QuantizedWeight { format, depth, group, data, scales, columns: None, table: CodeTable::default() }
    }
}

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    for (name, inputs, outputs) in WEIGHTS {
        let (inputs, outputs) = sized(bench.is_simulated(), inputs, outputs);
        for (format, group) in FORMATS {
            let stored = zeros(&bench.device, format, group, inputs, outputs)?;
            let weight = stored.weight();
            let many: &[usize] = if bench.is_simulated() { &[128] } else { &[64, 512, 4096] };
            let few = few_rows(bench.is_simulated()).iter().map(|&rows| (rows, QuantGemmPath::Few));
            for (rows, path) in few.chain(many.iter().map(|&rows| (rows, QuantGemmPath::Many))) {
                let room = Room::new(&bench.device, rows, inputs, outputs)?;
                let cost = cost::packed(format, Elem::BF16, rows, inputs, outputs, group);
                let name = format!("{path:?} {format:?}/{group} {rows} x {name}");
                bench.measure(&name, cost, |device| {
                    quant_gemm(device, path, &weight, &room.product(), &room.workspace(), None)
                })?;
            }
        }
    }
    Ok(())
}
