//! One product per expert, with evenly spread rows: Qwen3 30B-A3B and Mixtral 8x7B.

use millrace_cuda::Elem;
use millrace_cuda::ops::grouped::{ExpertWeights, GroupedGemm, RowOrder, grouped_gemm};

use crate::cost;
use crate::harness::{Bench, Result};
use crate::quant_gemm::{FORMATS, zeros};

/// Name, experts, choices, inputs, outputs, order of x: the first product of an expert reads rows,
/// the second one the results of the first.
const LAYERS: [(&str, usize, usize, usize, usize, RowOrder); 4] = [
    ("Qwen3 30B-A3B gate, up", 128, 8, 2048, 1536, RowOrder::Pairs),
    ("Qwen3 30B-A3B down", 128, 8, 768, 2048, RowOrder::Sorted),
    ("Mixtral gate, up", 8, 2, 4096, 28672, RowOrder::Pairs),
    ("Mixtral down", 8, 2, 14336, 4096, RowOrder::Sorted),
];

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let rows: &[usize] = if bench.is_simulated() { &[4] } else { &[1, 32, 256, 4096] };
    for (name, experts, top_k, inputs, outputs, x_order) in LAYERS {
        let (inputs, outputs) =
            if bench.is_simulated() { (inputs / 32, outputs / 32) } else { (inputs, outputs) };
        let elem = Elem::BF16;
        let dense = bench.device.allocate(elem, experts * outputs * inputs)?;
        bench.device.fill(dense.view(Elem::U8), 0)?;
        // Outputs are a multiple of 16, so that an expert ends with a tile.
        let packed = FORMATS.map(|(format, group)| {
            Ok((format, group, zeros(&bench.device, format, group, inputs, experts * outputs)?))
        });
        let packed: Vec<_> = packed.into_iter().collect::<Result<_>>()?;
        for &rows in rows {
            let pairs = rows * top_k;
            // Pair p goes to expert p modulo the number of experts.
            let counts = (0..experts).map(|e| (pairs + experts - 1 - e) / experts);
            let mut offsets = vec![0i32];
            counts.for_each(|n| offsets.push(offsets[offsets.len() - 1] + n as i32));
            let sorted = (0..experts).flat_map(|e| (e..pairs).step_by(experts)).map(|pair| pair as i32);
            let upload = |words: &mut dyn Iterator<Item = i32>| {
                bench.device.upload(&words.flat_map(i32::to_le_bytes).collect::<Vec<u8>>())
            };
            let (offsets, sorted) = (upload(&mut offsets.into_iter())?, upload(&mut { sorted })?);
            let rows_of_x = if x_order == RowOrder::Sorted { pairs } else { rows };
            let x = bench.device.allocate(elem, rows_of_x * inputs)?;
            let out = bench.device.allocate(elem, pairs * outputs)?;
            bench.device.fill(x.view(Elem::U8), 0)?;
            let grouped = GroupedGemm {
                rows,
                top_k,
                experts,
                inputs,
                outputs,
                bias: None,
                expert_offsets: offsets.view(Elem::I32),
                sorted_rows: sorted.view(Elem::I32),
                x_order,
                x: x.view(elem),
                out_order: if x_order == RowOrder::Sorted { RowOrder::Pairs } else { RowOrder::Sorted },
                out: out.view(elem),
            };
            let used = pairs.min(experts);
            let name = format!("{rows} x {name}");
            bench.measure(&format!("grouped {name}"), cost::grouped(&grouped, 16.0, used), |device| {
                grouped_gemm(device, ExpertWeights::Stored(dense.view(elem)), &grouped)
            })?;
            for (format, group, weights) in &packed {
                let bits = format.bits() as f64 + 32.0 / *group as f64;
                let cost = cost::grouped(&grouped, bits, used);
                bench.measure(&format!("grouped {format:?}/{group} {name}"), cost, |device| {
                    grouped_gemm(device, ExpertWeights::Packed(weights.weight()), &grouped)
                })?;
            }
        }
    }
    Ok(())
}
