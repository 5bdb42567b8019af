//! Norms at the widths of Llama 8B and 70B.

use millrace_cuda::Elem;
use millrace_cuda::ops::norm::{NormKind, NormRows, norm};

use crate::cost;
use crate::harness::{Bench, Result};

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let rows: &[usize] = if bench.is_simulated() { &[2] } else { &[1, 32, 256, 8192] };
    for cols in [4096, 8192] {
        for &rows in rows {
            for with_residual in [false, true] {
                let x = bench.device.allocate(Elem::BF16, rows * cols)?;
                let residual = bench.device.allocate(Elem::BF16, rows * cols)?;
                let weight = bench.device.allocate(Elem::F32, cols)?;
                let which = NormKind::Rms { weight: weight.view(Elem::F32) };
                let rows_of = NormRows {
                    rows,
                    cols,
                    eps: 1e-5,
                    x: x.view(Elem::BF16),
                    residual: with_residual.then(|| residual.view(Elem::BF16)),
                    out: x.view(Elem::BF16),
                };
                let name = format!("{}rms_norm {rows} x {cols}", if with_residual { "add_" } else { "" });
                let cost = cost::norm(Elem::BF16, rows, cols, with_residual);
                bench.measure(&name, cost, |device| norm(device, which, &rows_of))?;
            }
        }
    }
    Ok(())
}
