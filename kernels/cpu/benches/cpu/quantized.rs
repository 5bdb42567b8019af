//! Products by quantized weights.

use bytes::Bytes;
use millrace_backend::{DeviceTypes, ForwardOps, ModelLoading, Segment, Sizing, WeightLoading};
use millrace_cpu::Cpu;
use millrace_cpu::limits::{self, Instruction};
use millrace_numbers::{DType, HostTensor, IntFormat, KFormat, Part, WeightFormat};

use crate::harness::{SHAPES, activations, bytes as le_bytes, time, values};

/// Measures every format, or the one given: the weights read per second at few rows, the operations
/// at many.
pub(crate) fn quantized(cpu: &Cpu, only: Option<&str>, rows: &[usize]) {
    for (name, format) in formats().into_iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        for shape in SHAPES {
            products(cpu, shape, name, format, rows);
        }
    }
}

/// Returns all formats with their names.
pub(crate) fn formats() -> Vec<(&'static str, WeightFormat)> {
    let groups = IntFormat::ALL.map(|format| (format.name(), WeightFormat::Int(format)));
    let blocks = KFormat::ALL.map(|format| (format.name(), WeightFormat::K(format)));
    let tables = [("fp8", WeightFormat::Fp8), ("nf4", WeightFormat::Nf4)];
    groups.into_iter().chain(blocks).chain(tables).collect()
}

fn products(
    cpu: &Cpu,
    (name, cols, out): (&str, usize, usize),
    format_name: &str,
    format: WeightFormat,
    rows: &[usize],
) {
    let size = cpu.matrix_bytes(out, cols, format);
    let copies = (200 << 20) / size + 1; // far more than any cache
    let raw = Bytes::from(le_bytes(&values(out * cols)));
    let matrix = |_| -> <Cpu as DeviceTypes>::Matrix {
        let parts = [Part::whole(HostTensor::dense(DType::F32, out, cols, raw.clone()))];
        cpu.matrix(&[Segment::new(&parts, format)]).unwrap()
    };
    let weights: Vec<_> = (0..copies).map(matrix).collect();
    for &n in rows {
        let x = activations(cpu, n, cols);
        let mut y = cpu.buf(n, out).unwrap();
        let peak = limits::peak(cpu.threads(), Instruction::of(cpu.isa(), format));
        let bandwidth = limits::bandwidth(cpu.threads(), cpu.isa());
        let seconds = time(cpu.threads(), |i| cpu.linear(n, &x, &weights[i % copies], None, &mut y).unwrap());
        let (gops, gbs) = (2e-9 * (n * cols * out) as f64 / seconds, 1e-9 * size as f64 / seconds);
        println!(
            "{name:8} {format_name:8} m={n:<4} {:7.2} ms {gops:7.1} Gop/s ({:3.0}% of {peak:.0})  {gbs:5.1} GB/s ({:3.0}% of {bandwidth:.1})",
            1e3 * seconds,
            100.0 * gops / peak,
            100.0 * gbs / bandwidth,
        );
    }
}
