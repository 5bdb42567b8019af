//! Step preparation: decode rows at 2,048 tokens of context.

use millrace_cuda::Elem;
use millrace_cuda::ops::step::{PreparedStep, SlotState, StepRows, append, prepare};

use crate::cost;
use crate::harness::{Bench, Result};

const CONTEXT: usize = 2048;
const BLOCK: usize = 16;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let sizes: &[usize] = if bench.is_simulated() { &[3] } else { &[1, 64, 256, 1024] };
    for &n in sizes {
        let device = bench.device.clone();
        let stride = CONTEXT / BLOCK;
        let words = |len: usize| -> millrace_backend::Result<_> { device.upload(&vec![0; len * 4]) };
        let (history, tables) = (words(n * CONTEXT)?, words(n * stride)?);
        let slots = SlotState {
            slots: n,
            history: history.view(Elem::I32),
            history_stride: CONTEXT,
            tables: tables.view(Elem::I32),
            table_stride: stride,
        };
        let rows: Vec<u8> =
            (0..n).flat_map(|r| [r as i32, CONTEXT as i32 - 2, 1, 1]).flat_map(i32::to_le_bytes).collect();
        let (rows, count) = (device.upload(&rows)?, device.upload(&(n as i32).to_le_bytes())?);
        let prefixes = words(2 * n)?;
        device.fill(prefixes.view(Elem::I32), 0)?;
        let rows = StepRows {
            most: n,
            count: count.view(Elem::I32),
            rows: rows.view(Elem::I32),
            prefixes: prefixes.view(Elem::I32),
        };
        let (out_tables, per_row, counts) = (words(n * stride)?, words(12 * (n + 1))?, words(2)?);
        let part = |i: usize| per_row.view(Elem::I32).slice(i * (n + 1)..(i + 1) * (n + 1));
        let prepared = PreparedStep {
            max_tokens: n,
            query_start: part(0),
            context: part(1),
            prefix: part(9),
            tables: out_tables.view(Elem::I32),
            tokens: part(2),
            positions: part(3),
            axes: per_row.view(Elem::I32).slice(10 * (n + 1)..12 * (n + 1)),
            slots: part(4),
            outputs: part(5),
            output_slots: part(6),
            output_at: part(7),
            counts: counts.view(Elem::I32),
        };
        let cost = cost::prepare(n, n, stride);
        bench.measure(&format!("step preparation {n} rows at {CONTEXT}"), cost, |device| {
            prepare(device, &slots, &rows, BLOCK, &prepared)?;
            append(device, &slots, &prepared, n, part(8))
        })?;
    }
    Ok(())
}
