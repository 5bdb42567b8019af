//! Products of the matrix library.

use half::{bf16, f16};
use millrace_backend::{Error, Result};
use millrace_cuda::{Elem, Gemm};
use millrace_ptx_interpreter::DeviceMemory;

fn refused(elem: Elem) -> Error {
    Error::Unsupported(format!("a product of {elem:?} on the PTX interpreter"))
}

fn read(memory: &mut DeviceMemory, elem: Elem, at: u64, len: usize) -> Result<Vec<f64>> {
    let mut bytes = vec![0; len * elem.size()];
    memory.read(at, &mut bytes).map_err(|e| Error::Device(e.to_string()))?;
    let widen: fn(&[u8]) -> f64 = match elem {
        Elem::F32 => |b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        Elem::F16 => |b| f16::from_le_bytes([b[0], b[1]]).to_f64(),
        Elem::BF16 => |b| bf16::from_le_bytes([b[0], b[1]]).to_f64(),
        other => return Err(refused(other)),
    };
    Ok(bytes.chunks_exact(elem.size()).map(widen).collect())
}

/// Multiplies with sums in f64 that are rounded once.
pub(super) fn multiply(product: &Gemm, memory: &mut DeviceMemory) -> Result<()> {
    let &Gemm { rows, inputs, outputs, elem, out_elem, x, w, out, .. } = product;
    let x = read(memory, elem, x, rows * inputs)?;
    let w = read(memory, elem, w, outputs * inputs)?;
    let mut bytes = Vec::with_capacity(rows * outputs * out_elem.size());
    for x in x.chunks_exact(inputs) {
        for w in w.chunks_exact(inputs) {
            let sum: f64 = x.iter().zip(w).map(|(x, w)| x * w).sum();
            match out_elem {
                Elem::F32 => bytes.extend((sum as f32).to_le_bytes()),
                Elem::F16 => bytes.extend(f16::from_f32(sum as f32).to_le_bytes()),
                Elem::BF16 => bytes.extend(bf16::from_f32(sum as f32).to_le_bytes()),
                other => return Err(refused(other)),
            }
        }
    }
    memory.write(out, &bytes).map_err(|e| Error::Device(e.to_string()))
}
