//! Products with weights, dense or packed.

use millrace_backend::{Error, Result};

use super::buffers::{Buf, Matrix, MatrixStorage, Vector};
use super::cuda::Cuda;
use super::packed::{PackedBuffers, add_bias_to, multiply_packed};
use super::tuning::shape_of;
use crate::View;
use crate::ops::gemv::gemv;
use crate::ops::matmul::{Matmul, matmul_by};
use crate::ops::product::ProductOperands;
use crate::tuning::{ProductMethod, TunedProduct};
use crate::weights::QuantizedWeight;

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
        let (out, mut first) = (out.rows(n), 0);
        for segment in &w.segments {
            let end = first + segment.rows;
            let product = ProductOperands {
                rows: n,
                inputs: w.cols,
                outputs: segment.rows,
                x: x.rows(n),
                bias: bias.map(|bias| bias.view().slice(first..end)),
                out: out.slice(first.min(out.len())..out.len()),
                out_stride: w.out,
            };
            match &segment.storage {
                MatrixStorage::Dense(memory, elem) => self.multiply_dense(&product, memory.view(*elem))?,
                MatrixStorage::Packed(loaded) => self.multiply_packed(&product, &loaded.weight())?,
            }
            first = end;
        }
        Ok(())
    }

    fn multiply_dense(&self, p: &ProductOperands<'_>, w: View<'_>) -> Result<()> {
        p.expect_dense()?;
        let &ProductOperands { rows, inputs, outputs, x, out, .. } = p;
        let tuned = self.tuned.get();
        let method = tuned.and_then(|tuned| tuned.method(shape_of(inputs, outputs, x, out), rows));
        let algorithm = match (method, tuned) {
            (Some(ProductMethod::Kernel), Some(tuned)) => {
                return gemv(&self.device, w, p, &tuned.workspace());
            }
            (Some(ProductMethod::Library(algorithm)), _) => Some(algorithm),
            _ => None,
        };
        matmul_by(&self.device, &Matmul { rows, inputs, outputs, x, w, out }, algorithm)?;
        add_bias_to(&self.device, p)
    }

    fn multiply_packed(&self, p: &ProductOperands<'_>, weight: &QuantizedWeight<'_>) -> Result<()> {
        let layout = weight.layout();
        let shape =
            TunedProduct { inputs: p.inputs, outputs: p.outputs, weight: layout, out_elem: p.out.elem() };
        let tuned = self.tuned.get();
        let Some((tuned, method)) = tuned.and_then(|tuned| Some((tuned, tuned.method(shape, p.rows)?)))
        else {
            return Err(Error::Unsupported(format!("a product of {shape:?} that was not announced")));
        };
        let ordered = self.ordered.get().map(|memory| memory.view(self.elem()));
        let buffers = PackedBuffers { quantized: self.quantized.get(), ordered };
        multiply_packed(&self.device, method, weight, p, &tuned.workspace(), buffers)
    }
}
