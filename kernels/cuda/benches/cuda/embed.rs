//! Embeddings of Llama 8B and Qwen3 0.6B, and the last tokens before the head.

use millrace_cuda::Elem;
use millrace_cuda::ops::embed::{EmbedTokens, GatherRows, embed, gather_rows};

use crate::cost;
use crate::harness::{Bench, Result};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let (vocab, sizes): (usize, &[usize]) =
        if bench.is_simulated() { (16, &[2]) } else { (32_768, &[1, 64, 8192]) };
    for cols in [4096, 1024] {
        let table = bench.device.allocate(Elem::BF16, vocab * cols)?;
        for &tokens in sizes {
            // The rows lie far from each other.
            let ids: Vec<u8> = (0..tokens).flat_map(|t| ((t * 7919 % vocab) as i32).to_le_bytes()).collect();
            let ids = bench.device.upload(&ids)?;
            let out = bench.device.allocate(Elem::BF16, tokens * cols)?;
            let e = EmbedTokens {
                tokens,
                cols,
                ids: ids.view(Elem::I32),
                table: table.view(Elem::BF16),
                first: 0,
                rows: vocab,
                factor: 1.0,
                out: out.view(Elem::BF16),
            };
            let cost = cost::embed(Elem::BF16, Elem::BF16, tokens, cols);
            bench.measure(&format!("embed {tokens} x {cols}"), cost, |device| embed(device, &e))?;
            let g = GatherRows {
                rows: tokens,
                cols,
                index: ids.view(Elem::I32),
                divisor: 1,
                x: table.view(Elem::BF16),
                out: out.view(Elem::BF16),
            };
            let cost = cost::gather_rows(Elem::BF16, tokens, cols);
            bench.measure(&format!("gather {tokens} x {cols}"), cost, |device| gather_rows(device, &g))?;
        }
    }
    Ok(())
}
