//! Products by dense weights.

use bytes::Bytes;
use millrace_backend::{ForwardOps, ModelLoading};
use millrace_cpu::Cpu;
use millrace_cpu::limits::{self, Instruction};
use millrace_numbers::DType;

use crate::harness::{activations, bytes, matrix, time, values};

/// Prints the speed of products by one matrix for several numbers of rows.
pub(crate) fn linear(cpu: &Cpu, (name, cols, out): (&str, usize, usize), dtype: DType, rows: &[usize]) {
    let size = out * cols * dtype.size();
    let copies = (400 << 20) / size + 1; // far more than any cache
    let data = values(out * cols);
    let raw = Bytes::from(bytes(&data));
    let weights: Vec<_> = (0..copies).map(|_| matrix(cpu, &raw, out, cols, dtype)).collect();
    for &n in rows {
        let x = activations(cpu, n, cols);
        let mut y = cpu.buf(n, out).unwrap();
        let peak = limits::peak(cpu.threads(), Instruction::of(cpu.isa(), dtype));
        let bandwidth = limits::bandwidth(cpu.threads(), cpu.isa());
        let seconds = time(cpu.threads(), |i| cpu.linear(n, &x, &weights[i % copies], None, &mut y).unwrap());
        let (gflops, gbs) = (2e-9 * (n * cols * out) as f64 / seconds, 1e-9 * size as f64 / seconds);
        print!(
            "{name:8} {:8} m={n:<4} {:7.2} ms {gflops:7.1} GFLOP/s ({:3.0}% of {peak:.0})  {gbs:5.1} GB/s ({:3.0}% of {bandwidth:.1})",
            dtype.name(),
            1e3 * seconds,
            100.0 * gflops / peak,
            100.0 * gbs / bandwidth,
        );
        #[cfg(feature = "faer")]
        if dtype == DType::F32 {
            let seconds = faer(cpu.threads(), n, cols, out, &data);
            print!(
                "  faer {:7.2} ms {:7.1} GFLOP/s",
                1e3 * seconds,
                2e-9 * (n * cols * out) as f64 / seconds
            );
        }
        println!();
    }
}

#[cfg(feature = "faer")]
fn faer(threads: usize, n: usize, cols: usize, out: usize, w: &[f32]) -> f64 {
    use faer::{MatMut, MatRef, Par, linalg::matmul::matmul};
    let copies = 4;
    let weights: Vec<Vec<f32>> = (0..copies).map(|_| w.to_vec()).collect();
    let x = values(n * cols);
    let mut y = vec![0f32; n * out];
    let par = if threads > 1 { Par::rayon(threads) } else { Par::Seq };
    time(threads, |i| {
        let w = MatRef::from_row_major_slice(&weights[i % copies], out, cols).transpose();
        let x = MatRef::from_row_major_slice(&x, n, cols);
        matmul(MatMut::from_row_major_slice_mut(&mut y, n, out), faer::Accum::Replace, x, w, 1.0, par);
    })
}
