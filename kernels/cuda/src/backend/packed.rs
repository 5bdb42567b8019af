//! Products with packed weights of few bits.

use millrace_backend::{Error, ProductShape, Result};
use millrace_numbers::WeightFormat;

use crate::ops::activation::{BiasRows, KernelVersion, add_bias};
use crate::ops::fp8::{QuantizeRows, ScaledMatmul, quantize_rows, scaled_matmul};
use crate::ops::product::{ProductOperands, ProductWorkspace};
use crate::ops::quant::{QuantGemmPath, quant_gemm};
use crate::tuning::ProductMethod;
use crate::weights::{DEPTH, QuantizedWeight};
use crate::{Device, Elem, Memory};

/// A buffer for activations that are quantized to FP8 for one product.
#[derive(Debug)]
pub(super) struct QuantizedRows {
    bytes: Memory,
    scales: Memory,
}

impl QuantizedRows {
    /// Allocates a buffer of these sizes.
    pub(super) fn new(device: &Device, sizes: PackedSizes) -> Result<QuantizedRows> {
        let PackedSizes { rows, elements } = sizes;
        Ok(QuantizedRows {
            bytes: device.allocate(Elem::E4M3, elements)?,
            scales: device.allocate(Elem::F32, rows)?,
        })
    }

    /// Returns the bytes of the buffer that these products need.
    pub(super) fn bytes(products: &[ProductShape]) -> usize {
        let PackedSizes { rows, elements } = PackedSizes::of(products);
        rows.saturating_mul(Elem::F32.size()).saturating_add(elements)
    }
}

/// The largest activations that are multiplied by packed weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct PackedSizes {
    /// The largest number of rows.
    pub(super) rows: usize,
    /// The largest number of elements, padding included.
    pub(super) elements: usize,
}

impl PackedSizes {
    /// Returns the sizes for those of `products` whose weights are packed.
    pub(super) fn of(products: &[ProductShape]) -> PackedSizes {
        let packed = || products.iter().filter(|p| p.format == WeightFormat::Fp8);
        let elements = |p: &ProductShape| p.rows.saturating_mul(p.inputs.next_multiple_of(DEPTH));
        PackedSizes {
            rows: packed().map(|p| p.rows).max().unwrap_or(0),
            elements: packed().map(elements).max().unwrap_or(0),
        }
    }
}

/// Multiplies by a packed weight. [`ProductMethod::Library`] quantizes the activations, and needs
/// `quantized` for it.
pub(super) fn multiply_packed(
    device: &Device,
    method: ProductMethod,
    weight: &QuantizedWeight<'_>,
    p: &ProductOperands<'_>,
    workspace: &ProductWorkspace<'_>,
    quantized: Option<&QuantizedRows>,
) -> Result<()> {
    let algorithm = match method {
        ProductMethod::Kernel => return quant_gemm(device, QuantGemmPath::Few, weight, p, workspace, None),
        ProductMethod::Tiles => return quant_gemm(device, QuantGemmPath::Many, weight, p, workspace, None),
        ProductMethod::Library(algorithm) => algorithm,
    };
    let Some(QuantizedRows { bytes, scales }) = quantized else {
        return Err(Error::Unsupported("FP8 activations without a buffer for them".to_owned()));
    };
    let &ProductOperands { rows, inputs, outputs, x, out, .. } = p;
    let depth = weight.depth;
    let elements = bytes.view(Elem::E4M3).slice(0..rows * depth);
    let scales = scales.view(Elem::F32).slice(0..rows);
    quantize_rows(device, &QuantizeRows { rows, cols: inputs, depth, x, out: elements, scales })?;
    let scaled = ScaledMatmul { rows, outputs, x: elements, scales, weight: *weight, out };
    scaled_matmul(device, &scaled, Some(algorithm))?;
    add_bias_to(device, p)
}

/// Adds the bias to the product that the library has computed.
pub(super) fn add_bias_to(device: &Device, p: &ProductOperands<'_>) -> Result<()> {
    match p.bias {
        Some(bias) => {
            let rows = BiasRows { rows: p.rows, cols: p.outputs, x: p.out, bias };
            add_bias(device, KernelVersion::Fast, &rows)
        }
        None => Ok(()),
    }
}
