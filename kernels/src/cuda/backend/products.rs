//! Products with weights, dense or of few bits.

use super::buffers::{Buf, Kept, Matrix, Vector};
use super::tuning::shape_of;
use super::{Cuda, Device, Elem, Memory, View};
use crate::backend::{MatrixFormat, ProductShape};
use crate::cuda::choice::{Shape, Way};
use crate::cuda::ops::activation::{Version, add_bias};
use crate::cuda::ops::fp8::{Rows, Scaled, quantize_rows, scaled_matmul};
use crate::cuda::ops::gemv::gemv;
use crate::cuda::ops::matmul::{Matmul, matmul_by};
use crate::cuda::ops::product::{Product, Workspace};
use crate::cuda::ops::quant::{Path, Weight, quant_gemm};
use crate::cuda::pack::DEPTH;
use crate::{Error, Result};

impl Cuda {
    /// `out = x · wᵀ + bias` over the first `n` rows.
    pub(super) fn multiply(
        &self,
        n: usize,
        x: &Buf,
        w: &Matrix,
        bias: Option<&Vector>,
        out: &Buf,
    ) -> Result<()> {
        let product = Product {
            rows: n,
            inputs: w.cols,
            outputs: w.out,
            x: x.rows(n),
            bias: bias.map(Vector::view),
            residual: None,
            out: out.rows(n),
        };
        match &w.kept {
            Kept::Dense(memory, elem) => self.multiply_dense(&product, memory.view(*elem)),
            Kept::Packed(loaded) => self.multiply_packed(&product, &loaded.weight()),
        }
    }

    fn multiply_dense(&self, p: &Product<'_>, w: View<'_>) -> Result<()> {
        let &Product { rows, inputs, outputs, x, out, .. } = p;
        let tuned = self.tuned.get();
        let way = tuned.and_then(|tuned| tuned.way(shape_of(inputs, outputs, x, out), rows));
        let algorithm = match (way, tuned) {
            (Some(Way::Kernel), Some(tuned)) => return gemv(&self.device, w, p, &tuned.workspace()),
            (Some(Way::Library(algorithm)), _) => Some(algorithm),
            _ => None,
        };
        matmul_by(&self.device, &Matmul { rows, inputs, outputs, x, w, out }, algorithm)?;
        finish(&self.device, p)
    }

    fn multiply_packed(&self, p: &Product<'_>, weight: &Weight<'_>) -> Result<()> {
        let shape = Shape { inputs: p.inputs, outputs: p.outputs, elem: Elem::E4M3, out_elem: p.out.elem() };
        let tuned = self.tuned.get();
        let Some((tuned, way)) = tuned.and_then(|tuned| Some((tuned, tuned.way(shape, p.rows)?))) else {
            return Err(Error::Unsupported(format!("a product of {shape:?} that was not announced")));
        };
        multiply_by(&self.device, way, weight, p, &tuned.workspace(), self.quantized.get())
    }

    /// Whether activations become FP8 when there are many rows of them.
    pub(super) fn quantizes_rows(&self) -> bool {
        // Single precision is for tests, and for those who want it as exact as it gets.
        !self.batch_invariant
            && self.elem() != Elem::F32
            && *self.multiplies_fp8.get_or_init(|| self.device.multiplies_fp8())
    }

    /// Room for rows of activations as FP8, if there is none yet.
    pub(super) fn make_room_for_rows(&self) -> Result<()> {
        if let (Some(tuned), None, true) = (self.tuned.get(), self.quantized.get(), self.quantizes_rows()) {
            // Weights come one after the other.
            let _ = self.quantized.set(Quantized::new(&self.device, tuned.packed())?);
        }
        Ok(())
    }
}

/// Activations as FP8 on their way into a product: room for one product at a time.
#[derive(Debug)]
pub(super) struct Quantized {
    bytes: Memory,
    scales: Memory,
}

impl Quantized {
    /// Room for the rows of all `products` whose weights are packed.
    pub(super) fn new(device: &Device, (rows, elements): (usize, usize)) -> Result<Quantized> {
        Ok(Quantized {
            bytes: device.allocate(Elem::E4M3, elements)?,
            scales: device.allocate(Elem::F32, rows)?,
        })
    }

    /// Bytes of that room.
    pub(super) fn bytes(products: &[ProductShape]) -> usize {
        let (rows, elements) = Self::sizes(products);
        rows.saturating_mul(Elem::F32.size()).saturating_add(elements)
    }

    /// The most rows, and the most elements of them.
    pub(super) fn sizes(products: &[ProductShape]) -> (usize, usize) {
        let packed = || products.iter().filter(|p| p.format == MatrixFormat::Fp8);
        let elements = |p: &ProductShape| p.rows.saturating_mul(p.inputs.next_multiple_of(DEPTH));
        (packed().map(|p| p.rows).max().unwrap_or(0), packed().map(elements).max().unwrap_or(0))
    }
}

/// Multiplies by a packed weight. [`Way::Library`] needs `quantized`.
pub(super) fn multiply_by(
    device: &Device,
    way: Way,
    weight: &Weight<'_>,
    p: &Product<'_>,
    workspace: &Workspace<'_>,
    quantized: Option<&Quantized>,
) -> Result<()> {
    let algorithm = match way {
        Way::Kernel => return quant_gemm(device, Path::Few, weight, p, workspace, None),
        Way::Tiles => return quant_gemm(device, Path::Many, weight, p, workspace, None),
        Way::Library(algorithm) => algorithm,
    };
    let Some(Quantized { bytes, scales }) = quantized else {
        return Err(Error::Unsupported("activations as FP8, for which there is no room".to_owned()));
    };
    let &Product { rows, inputs, outputs, x, out, .. } = p;
    let depth = weight.depth;
    let elements = bytes.view(Elem::E4M3).slice(0..rows * depth);
    let scales = scales.view(Elem::F32).slice(0..rows);
    quantize_rows(device, &Rows { rows, cols: inputs, depth, x, out: elements, scales })?;
    let scaled = Scaled { rows, outputs, x: elements, scales, weight: *weight, out };
    scaled_matmul(device, &scaled, Some(algorithm))?;
    finish(device, p)
}

/// Adds the bias to what the library has multiplied.
fn finish(device: &Device, p: &Product<'_>) -> Result<()> {
    match p.bias {
        Some(bias) => add_bias(device, Version::Fast, p.rows, p.outputs, p.out, bias),
        None => Ok(()),
    }
}
