//! Packing of bf16 weights while a model is loaded.

use bytes::Bytes;
use half::bf16;
use millrace_backend::{Segment, WeightLoading};
use millrace_cpu::Cpu;
use millrace_numbers::{DType, HostTensor, Part};

use crate::harness::{SHAPES, time, values};
use crate::quantized::formats;

/// Measures how many weights of type bf16 are packed per second, in every format or the one given.
pub(crate) fn packing(cpu: &Cpu, only: Option<&str>) {
    let dense = [("bfloat16", DType::BF16.into())];
    for (format, kept) in dense.into_iter().chain(formats()) {
        if only.is_some_and(|name| name != format) {
            continue;
        }
        for (name, cols, out) in SHAPES {
            let weights = values(out * cols).into_iter().map(bf16::from_f32);
            let raw: Bytes = weights.flat_map(bf16::to_le_bytes).collect::<Vec<u8>>().into();
            let seconds = time(cpu.threads(), |_| {
                let parts = [Part::whole(HostTensor::dense(DType::BF16, out, cols, raw.clone()))];
                cpu.matrix(&[Segment::new(&parts, kept)]).unwrap();
            });
            let speed = 1e-6 * (out * cols) as f64 / seconds;
            println!("packing  {format:8} {name:8} {:7.2} ms {speed:7.1} million weights/s", 1e3 * seconds);
        }
    }
}
