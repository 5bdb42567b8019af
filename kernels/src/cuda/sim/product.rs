//! Products of matrices on the simulated device, in plain Rust.

use half::{bf16, f16};

use crate::cuda::driver::{Gemm, Scales};
use crate::cuda::memory::Elem;
use crate::{Error, Result, fp8};

/// Sums are in f64, and rounded once.
///
/// # Safety
/// The operands are as long as the shape says.
pub(super) unsafe fn multiply(product: &Gemm) -> Result<()> {
    let &Gemm { rows, inputs, outputs, elem, out_elem, x, w, out, scales, .. } = product;
    // SAFETY: the caller says that the operands are as long; they lie in host memory.
    let (x, w) = unsafe { (widened(elem, x, rows * inputs)?, widened(elem, w, outputs * inputs)?) };
    // SAFETY: as above.
    let factors = |at: fn(&Scales) -> u64, len: usize| unsafe {
        scales.as_ref().map_or_else(|| Ok(vec![1.0; len]), |scales| widened(Elem::F32, at(scales), len))
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
    unsafe { narrowed(out_elem, &sums, out) }
}

/// The `len` elements at `at` as f32.
///
/// # Safety
/// They lie there.
unsafe fn widened(elem: Elem, at: u64, len: usize) -> Result<Vec<f32>> {
    // SAFETY: the caller says so; allocations are aligned to 256 bytes, and views start at elements.
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

/// Writes `values` as elements to `at`.
///
/// # Safety
/// There is room for them.
unsafe fn narrowed(elem: Elem, values: &[f32], at: u64) -> Result<()> {
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
