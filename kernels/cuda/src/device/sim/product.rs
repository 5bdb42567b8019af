//! Matrix products on the simulated device, in plain Rust.

use half::{bf16, f16};
use millrace_backend::{Error, Result};
use millrace_numbers::formats::fp8;

use crate::device::driver::{Gemm, RowScales};
use crate::device::elem::Elem;

/// Computes a product with sums in f64 that are rounded once.
///
/// # Safety
/// The operands are as long as the shape says.
pub(super) unsafe fn multiply(product: &Gemm) -> Result<()> {
    let &Gemm { rows, inputs, outputs, elem, out_elem, x, w, out, scales, .. } = product;
    // SAFETY: the caller says that the operands have these lengths; they lie in host memory.
    let (x, w) = unsafe { (read_f32(elem, x, rows * inputs)?, read_f32(elem, w, outputs * inputs)?) };
    // SAFETY: as above.
    let factors = |at: fn(&RowScales) -> u64, len: usize| unsafe {
        scales.as_ref().map_or_else(|| Ok(vec![1.0; len]), |scales| read_f32(Elem::F32, at(scales), len))
    };
    let (of_x, of_w) = (factors(|scales| scales.x, rows)?, factors(|scales| scales.w, outputs)?);
    let dot =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum() };
    let sums: Vec<f32> = x
        .chunks_exact(inputs)
        .zip(&of_x)
        .flat_map(|(x, of_x)| {
            let w = w.chunks_exact(inputs).zip(&of_w);
            w.map(move |(w, of_w)| (dot(x, w) * f64::from(*of_x) * f64::from(*of_w)) as f32)
        })
        .collect();
    // SAFETY: as above.
    unsafe { write_f32(out_elem, &sums, out) }
}

/// The `len` elements at `at` as f32.
///
/// # Safety
/// `len` elements of type `elem` lie at `at`.
unsafe fn read_f32(elem: Elem, at: u64, len: usize) -> Result<Vec<f32>> {
    // SAFETY: the caller says so; allocations are aligned to 256 bytes, and views start at
    // elements.
    unsafe {
        match elem {
            Elem::F32 => Ok(std::slice::from_raw_parts(at as *const f32, len).to_vec()),
            Elem::F16 => {
                Ok(std::slice::from_raw_parts(at as *const f16, len).iter().map(|x| x.to_f32()).collect())
            }
            Elem::BF16 => {
                Ok(std::slice::from_raw_parts(at as *const bf16, len).iter().map(|x| x.to_f32()).collect())
            }
            Elem::E4M3 => {
                Ok(std::slice::from_raw_parts(at as *const u8, len).iter().map(|x| fp8::widen(*x)).collect())
            }
            other => Err(Error::Unsupported(format!("a product of {other:?}"))),
        }
    }
}

/// Writes `values` to `at` as elements of type `elem`.
///
/// # Safety
/// The memory at `at` is long enough.
unsafe fn write_f32(elem: Elem, values: &[f32], at: u64) -> Result<()> {
    // SAFETY: the caller says so; alignment as above.
    unsafe {
        match elem {
            Elem::F32 => std::slice::from_raw_parts_mut(at as *mut f32, values.len()).copy_from_slice(values),
            Elem::F16 => {
                let to = std::slice::from_raw_parts_mut(at as *mut f16, values.len());
                to.iter_mut().zip(values).for_each(|(to, x)| *to = f16::from_f32(*x));
            }
            Elem::BF16 => {
                let to = std::slice::from_raw_parts_mut(at as *mut bf16, values.len());
                to.iter_mut().zip(values).for_each(|(to, x)| *to = bf16::from_f32(*x));
            }
            other => return Err(Error::Unsupported(format!("a product of {other:?}"))),
        }
    }
    Ok(())
}
