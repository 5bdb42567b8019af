//! Quantization of activations to FP8, and their products with FP8 weights if the device's library
//! has them.

use millrace_cuda::Elem;
use millrace_cuda::ops::fp8::{QuantizeRows, ScaledMatmul, quantize_rows, scaled_matmul};
use millrace_cuda::weights::{CodeTable, PackedFormat, QuantizedWeight};

use crate::cost;
use crate::harness::{Bench, Result};
use crate::products::{WEIGHTS, sized};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let multiplies = bench.device.multiplies_fp8();
    let rows: &[usize] = if bench.is_simulated() { &[2] } else { &[64, 512, 4096] };
    for (name, inputs, outputs) in WEIGHTS {
        let (inputs, outputs) = sized(bench.is_simulated(), inputs, outputs);
        let (depth, outputs) = (inputs.next_multiple_of(64), outputs.next_multiple_of(16));
        let data = bench.device.allocate(Elem::U8, outputs * depth)?;
        let factors = bench.device.allocate(Elem::U32, outputs)?;
        bench.device.fill(data.view(Elem::U8), 0)?;
        bench.device.fill(factors.view(Elem::U32), 0)?;
        let (group, data, scales) = (1 << 20, data.view(Elem::U8), factors.view(Elem::U32));
        let (format, columns, table) = (PackedFormat::Fp8, None, CodeTable::default());
        let weight = QuantizedWeight { format, depth, group, data, scales, columns, table };
        for &rows in rows {
            let x = bench.device.allocate(Elem::BF16, rows * depth)?;
            let bytes = bench.device.allocate(Elem::E4M3, rows * depth)?;
            let scales = bench.device.allocate(Elem::F32, rows)?;
            let out = bench.device.allocate(Elem::BF16, rows * outputs)?;
            bench.device.fill(x.view(Elem::BF16), 0)?;
            let (x, bytes, scales) = (x.view(Elem::BF16), bytes.view(Elem::E4M3), scales.view(Elem::F32));
            let quantized = QuantizeRows { rows, cols: depth, depth, x, out: bytes, scales };
            let of_rows = cost::quantize(Elem::BF16, rows, depth);
            bench.measure(&format!("quantize_rows {rows} x {depth}, {name}"), of_rows, |device| {
                quantize_rows(device, &quantized)
            })?;
            if multiplies {
                let scaled =
                    ScaledMatmul { rows, outputs, x: bytes, scales, weight, out: out.view(Elem::BF16) };
                let cost = cost::packed(PackedFormat::Fp8, Elem::BF16, rows, depth, outputs, group);
                bench.measure(&format!("E4M3 by E4M3 {rows} x {name}"), cost, |device| {
                    scaled_matmul(device, &scaled, None)
                })?;
            }
        }
    }
    Ok(())
}
