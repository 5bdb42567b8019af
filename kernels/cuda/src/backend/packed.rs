//! Products with packed weights of few bits.

use millrace_backend::{Error, ProductShape, Result};
use millrace_numbers::{IntFormat, WeightFormat};

use crate::ops::activation::{BiasRows, KernelVersion, add_bias};
use crate::ops::fp8::{QuantizeRows, ScaledMatmul, quantize_rows, scaled_matmul};
use crate::ops::product::{ProductOperands, ProductWorkspace};
use crate::ops::quant::{QuantGemmPath, quant_gemm};
use crate::tuning::ProductMethod;
use crate::weights::{DEPTH, GroupLayout, QuantizedWeight, WeightLayout};
use crate::{Device, Elem, Memory, View};

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
    /// Returns the sizes for the products whose activations may be quantized to FP8.
    pub(super) fn of(products: &[ProductShape]) -> PackedSizes {
        Self::of_those(products, |product| packed_layout(product) == Some(WeightLayout::FP8_ROWS))
    }

    /// Returns the sizes for the products by stored weights, whose columns may have an order of
    /// their own: the activations are then brought into this order.
    pub(super) fn ordered(products: &[ProductShape]) -> PackedSizes {
        Self::of_those(products, |product| matches!(product.format, WeightFormat::Int(IntFormat::Stored(_))))
    }

    fn of_those(products: &[ProductShape], is_counted: impl Fn(&ProductShape) -> bool) -> PackedSizes {
        let counted = || products.iter().filter(|product| is_counted(product));
        let elements = |p: &ProductShape| p.rows.saturating_mul(packed_depth(p));
        PackedSizes {
            rows: counted().map(|p| p.rows).max().unwrap_or(0),
            elements: counted().map(elements).max().unwrap_or(0),
        }
    }
}

/// Returns how the weight of a product lies in device memory, if it is packed.
pub(super) fn packed_layout(product: &ProductShape) -> Option<WeightLayout> {
    let layout = GroupLayout::of(product.format, product.outputs, product.inputs)?;
    Some(layout.weight_layout())
}

/// Returns the columns of a product's weight in device memory, padding included, if it is packed.
pub(super) fn packed_depth(product: &ProductShape) -> usize {
    let cols = match product.format {
        WeightFormat::Int(format) => format.packed_cols(product.inputs),
        _ => product.inputs,
    };
    cols.next_multiple_of(DEPTH)
}

/// The buffers for activations that are quantized or reordered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PackedBuffers<'a> {
    /// For activations in FP8. [`ProductMethod::Library`] needs it.
    pub(super) quantized: Option<&'a QuantizedRows>,
    /// For activations in the order of a weight's columns. [`ProductMethod::Tiles`] needs it if the
    /// weight has such an order.
    pub(super) ordered: Option<View<'a>>,
}

/// Multiplies by a packed weight. [`ProductMethod::Library`] quantizes the activations.
pub(super) fn multiply_packed(
    device: &Device,
    method: ProductMethod,
    weight: &QuantizedWeight<'_>,
    p: &ProductOperands<'_>,
    workspace: &ProductWorkspace<'_>,
    buffers: PackedBuffers<'_>,
) -> Result<()> {
    let PackedBuffers { quantized, ordered } = buffers;
    let ordered = ordered.map(|view| view.slice(0..view.len().min(p.rows * weight.depth)));
    let algorithm = match method {
        ProductMethod::Kernel => {
            return quant_gemm(device, QuantGemmPath::Few, weight, p, workspace, ordered);
        }
        ProductMethod::Tiles => {
            return quant_gemm(device, QuantGemmPath::Many, weight, p, workspace, ordered);
        }
        ProductMethod::Library(algorithm) => algorithm,
    };
    p.expect_dense()?;
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
