//! Expert routing of Qwen3 30B-A3B (128 experts, 8 of them) and Mixtral 8x7B (8, 2).

use millrace_cuda::Elem;
use millrace_cuda::ops::moe::{
    CombineExperts, RouteTokens, RouterScoreKind, SortPairs, combine, route, sort,
};

use crate::cost;
use crate::harness::{Bench, Result};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let sizes: &[usize] = if bench.is_simulated() { &[2] } else { &[1, 64, 8192] };
    let elem = Elem::BF16;
    for (name, experts, top_k, cols) in [("Qwen3 30B-A3B", 128, 8, 2048), ("Mixtral 8x7B", 8, 2, 4096)] {
        for &tokens in sizes {
            let device = bench.device.clone();
            let pairs = tokens * top_k;
            let logits = device.upload(&vec![0; tokens * experts * 2])?;
            let weights = device.allocate(Elem::F32, pairs)?;
            let [chosen, offsets, rows, places] = [pairs, experts + 1, pairs, pairs].map(|n| vec![0; n * 4]);
            // Every expert has some pairs.
            let spread: Vec<u8> =
                (0..pairs).flat_map(|p| ((p * 37 % experts) as i32).to_le_bytes()).collect();
            let (chosen, spread) = (device.upload(&chosen)?, device.upload(&spread)?);
            let (offsets, rows, places) =
                (device.upload(&offsets)?, device.upload(&rows)?, device.upload(&places)?);
            let r = RouteTokens {
                tokens,
                count: None,
                experts,
                top_k,
                logits: logits.view(elem),
                scores: RouterScoreKind::Softmax,
                bias: None,
                scales: None,
                normalize: true,
                factor: 1.0,
                chosen: chosen.view(Elem::I32),
                weights: weights.view(Elem::F32),
            };
            let cost = cost::route(elem, tokens, experts, top_k);
            bench.measure(&format!("route {name} {tokens} tokens"), cost, |device| route(device, &r))?;
            let s = SortPairs {
                pairs,
                experts,
                chosen: spread.view(Elem::I32),
                expert_offsets: offsets.view(Elem::I32),
                sorted_rows: rows.view(Elem::I32),
                places: places.view(Elem::I32),
            };
            let cost = cost::sort(pairs, experts);
            bench.measure(&format!("sort by expert {name} {tokens} tokens"), cost, |device| {
                sort(device, &s)
            })?;
            let (y, out) = (device.allocate(elem, pairs * cols)?, device.allocate(elem, tokens * cols)?);
            let c = CombineExperts {
                tokens,
                cols,
                top_k,
                y: y.view(elem),
                places: Some(places.view(Elem::I32)),
                weights: weights.view(Elem::F32),
                base: None,
                out: out.view(elem),
            };
            let cost = cost::combine(elem, tokens, cols, top_k, false);
            bench.measure(&format!("combine {name} {tokens} tokens"), cost, |device| combine(device, &c))?;
        }
    }
    Ok(())
}
