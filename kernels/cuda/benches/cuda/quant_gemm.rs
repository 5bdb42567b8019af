//! Products with weights of 4 and 8 bits: few rows at the speed of memory, many on tensor cores.

use millrace_cuda::Elem;
use millrace_cuda::ops::quant::{QuantGemmPath, quant_gemm};
use millrace_cuda::weights::{PackedFormat, QuantizedWeight};

use crate::cost;
use crate::harness::{Bench, Result};
use crate::products::{Room, WEIGHTS, few_rows, sized};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    for (name, inputs, outputs) in WEIGHTS {
        let (inputs, outputs) = sized(bench.is_simulated(), inputs, outputs);
        for (format, group) in
            [(PackedFormat::Int4, 128), (PackedFormat::Int8, 1 << 20), (PackedFormat::Fp8, 1 << 20)]
        {
            let (depth, padded) = (inputs.next_multiple_of(64), outputs.next_multiple_of(16));
            let data = bench.device.allocate(Elem::U8, padded * depth * format.bits() / 8)?;
            let scales = bench.device.allocate(Elem::U32, padded * depth.div_ceil(group))?;
            bench.device.fill(data.view(Elem::U8), 0)?;
            bench.device.fill(scales.view(Elem::U8), 0)?;
            let (data, scales) = (data.view(Elem::U8), scales.view(Elem::U32));
            let weight = QuantizedWeight { format, depth, group, data, scales, columns: None };
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
