//! Products of activations and weights of the same type, by the device's library.

use millrace_backend::{Error, Result};

use super::sizes::countable;
use crate::{Algorithm, Device, Elem, Gemm, View};

/// The operands of `out = x · wᵀ`, whose sums are in f32.
#[derive(Debug, Clone, Copy)]
pub struct Matmul<'a> {
    /// Rows of `x`; 0 is allowed and does nothing.
    pub rows: usize,
    /// Columns of `x` and of `w`.
    pub inputs: usize,
    /// Rows of `w`.
    pub outputs: usize,
    /// `[rows, inputs]`: f32, f16 or bf16.
    pub x: View<'a>,
    /// `[outputs, inputs]`, of the type of `x`.
    pub w: View<'a>,
    /// `[rows, outputs]`, of the type of `x`, or f32.
    pub out: View<'a>,
}

/// Multiplies by the algorithm that the library prefers.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, or an error of the
/// device's library.
pub fn matmul(device: &Device, m: &Matmul<'_>) -> Result<()> {
    matmul_by(device, m, None)
}

/// Multiplies by an algorithm that was found to be fast.
///
/// # Errors
/// As for [`matmul`].
pub fn matmul_by(device: &Device, m: &Matmul<'_>, algorithm: Option<Algorithm>) -> Result<()> {
    let &Matmul { rows, inputs, outputs, x, w, out } = m;
    countable(&[rows, inputs, outputs])?;
    let elem = x.elem();
    x.expect("x", elem, rows * inputs)?;
    w.expect("w", elem, outputs * inputs)?;
    out.expect("out", if out.elem() == Elem::F32 { Elem::F32 } else { elem }, rows * outputs)?;
    if inputs == 0 || outputs == 0 {
        return Err(Error::Shape(format!("a product of {inputs} inputs and {outputs} outputs")));
    }
    if rows == 0 {
        return Ok(());
    }
    let product = Gemm {
        rows,
        inputs,
        outputs,
        elem,
        out_elem: out.elem(),
        x: x.address(),
        w: w.address(),
        out: out.address(),
        scales: None,
        algorithm,
    };
    // SAFETY: the views were checked to be as long as the shape says.
    unsafe { device.gemm(&product) }
}
