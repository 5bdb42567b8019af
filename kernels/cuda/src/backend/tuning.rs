//! Timing of products on the device itself, in the shapes that steps will ask for.

use millrace_backend::{ProductShape, Result};

use super::packed::{
    PackedBuffers, PackedSizes, QuantizedRows, multiply_packed, packed_depth, packed_layout,
};
use crate::ops::gemv::gemv;
use crate::ops::matmul::{Matmul, matmul_by};
use crate::ops::product::{ProductOperands, ProductWorkspace, counters, partials};
use crate::tuning::{self, MethodTimer, ProductMethod, TunedProduct, TuningFile, TuningResults};
use crate::weights::{CodeTable, DEPTH, OUTPUTS, QuantizedWeight, SharedScale, WeightLayout};
use crate::{Algorithm, Device, DeviceEvent, Elem, Gemm, Memory, View};

/// Algorithms of the library that are timed for each shape.
const MAX_ALGORITHMS: usize = 8;
/// With more rows than this, the kernel for few rows is not timed for dense weights, and
/// activations may be quantized.
const FEW_ROWS: usize = 16;
/// With more rows than this, the kernel for few rows is not timed for packed weights. It reads a
/// weight once for every 16 rows. The kernel on tiles reads it once, but its tiles of 128 rows are
/// mostly empty.
const PACKED_ROWS: usize = 64;
/// Rounds per algorithm; the median counts.
const ROUNDS: usize = 5;
/// Columns of the groups that are timed: the size that most checkpoints have.
const TIMED_GROUP: usize = 128;
/// Seconds after which a single round is enough, because long rounds vary little.
const LONG_ROUND: f64 = 2e-3;

/// The algorithm for each product, and the memory that the algorithms need.
#[derive(Debug)]
pub(super) struct TunedProducts {
    choices: TuningResults,
    packed: PackedSizes,
    /// Elements of the largest activations that may be ordered as a weight's columns.
    ordered: usize,
    partials: Memory,
    counters: Memory,
}

/// Restrictions on the algorithms.
#[derive(Debug, Clone, Copy)]
pub(super) struct TuningPolicy {
    /// A row's result must not depend on the number of rows.
    pub(super) one_for_all: bool,
    /// Activations may be quantized to FP8.
    pub(super) quantizes_rows: bool,
}

impl TunedProducts {
    /// Reads the choices that earlier starts have stored for this GPU, and times the products that
    /// are not among them.
    ///
    /// On a device without a library to choose from, nothing is timed: dense weights need no choice
    /// there, and packed ones use the most promising algorithm. Also returns warnings about the
    /// stored choices, whose loss only makes the next start slower, and about methods that failed.
    pub(super) fn new(
        device: &Device,
        elem: Elem,
        products: &[ProductShape],
        policy: TuningPolicy,
    ) -> Result<(TunedProducts, Vec<String>)> {
        let file = tuning_file(device, policy);
        let (mut choices, warning) = file.as_ref().map(TuningFile::read).unwrap_or_default();
        let mut warnings = Vec::from_iter(warning);
        let library = device.product_library();
        let is_fp8 = |product| packed_layout(product) == Some(WeightLayout::FP8_ROWS);
        let has_fp8 = elem != Elem::F32 && products.iter().any(is_fp8);
        warnings.extend(fp8_notice(has_fp8, policy, &device.name(), library.as_deref()));
        let mut changed = false;
        for product in products.iter().filter(|product| file.is_some() || is_packed(product)) {
            let shape = TunedProduct {
                inputs: product.inputs,
                outputs: product.outputs,
                weight: packed_layout(product).unwrap_or(WeightLayout::Dense(elem)),
                out_elem: if product.logits { Elem::F32 } else { elem },
            };
            let is_timed = file.is_some();
            let rows = product.rows.max(1);
            let mut contest = ProductContest { device, shape, rows, policy, is_timed, buffers: None };
            // A packed weight has one algorithm that is valid for all numbers of rows.
            let one_for_all = policy.one_for_all && !is_packed(product);
            let timings = tuning::fill_missing(&mut choices, shape, product.rows, one_for_all, &mut contest)?;
            changed |= timings.has_new;
            warnings.extend(timings.dropped);
        }
        if let (Some(file), true) = (file, changed) {
            warnings.extend(file.write(&choices));
        }
        let largest = |of: fn(usize, usize, usize) -> usize| {
            let by_kernel = products.iter().filter(|p| device.product_library().is_some() || is_packed(p));
            let rows = |p: &ProductShape| if is_packed(p) { PACKED_ROWS } else { FEW_ROWS };
            let of = |p: &ProductShape| of(rows(p), packed_depth(p), p.outputs);
            by_kernel.map(of).max().unwrap_or(0)
        };
        let counters = device.allocate(Elem::U32, largest(counters))?;
        device.fill(counters.view(Elem::U32), 0)?;
        let partials = device.allocate(Elem::F32, largest(partials))?;
        let (packed, ordered) = (PackedSizes::of(products), PackedSizes::ordered(products).elements);
        Ok((TunedProducts { choices, packed, ordered, partials, counters }, warnings))
    }

    /// Returns the sizes of the activations that are quantized for products with FP8 weights.
    pub(super) fn packed_sizes(&self) -> PackedSizes {
        self.packed
    }

    /// Returns the elements of the largest activations that may be ordered as a weight's columns.
    pub(super) fn ordered_elements(&self) -> usize {
        self.ordered
    }

    /// Returns the algorithm for a product of `rows` rows, if its shape was tuned.
    pub(super) fn method(&self, shape: TunedProduct, rows: usize) -> Option<ProductMethod> {
        self.choices.method(shape, rows)
    }

    pub(super) fn workspace(&self) -> ProductWorkspace<'_> {
        ProductWorkspace { partials: self.partials.view(Elem::F32), counters: self.counters.view(Elem::U32) }
    }
}

/// Returns a notice for the operator that the GPU's library does not multiply FP8 weights with
/// scales of rows, and how they are multiplied instead. `None` if there are no such weights, if the
/// library multiplies them, or if the operator has asked for one way for all rows.
fn fp8_notice(has_fp8: bool, policy: TuningPolicy, gpu: &str, library: Option<&str>) -> Option<String> {
    (has_fp8 && !policy.quantizes_rows && !policy.one_for_all).then(|| {
        format!(
            "FP8 weights: products of more than {FEW_ROWS} rows use kernels with activations of 16 bits, because {} on \
             {gpu} does not multiply FP8 with a scale for each row. cuBLASLt does so from version 12.9 on, on Hopper \
             GPUs",
            library.unwrap_or("the matrix library")
        )
    })
}

fn is_packed(product: &ProductShape) -> bool {
    packed_layout(product).is_some()
}

/// Returns the file with the stored choices for this device and policy; `None` if the device has no
/// library to choose from.
fn tuning_file(device: &Device, policy: TuningPolicy) -> Option<TuningFile> {
    device.product_library().map(|library| {
        let kind = if policy.one_for_all { "one for all rows" } else { "by rows" };
        let version = env!("CARGO_PKG_VERSION");
        let name = device.name();
        TuningFile::of_user(format!("products of Millrace {version}, {name}, {library}, {kind}"))
    })
}

/// The algorithms for products with one weight, timed on a device.
struct ProductContest<'a> {
    device: &'a Device,
    shape: TunedProduct,
    /// The largest number of rows, at least one.
    rows: usize,
    policy: TuningPolicy,
    /// Whether algorithms are timed at all.
    is_timed: bool,
    /// Operands, allocated when something is first timed.
    buffers: Option<TimingBuffers>,
}

/// Operands of the products that are timed. Their contents do not matter, except that they must not
/// make the arithmetic slow: they are zeros.
struct TimingBuffers {
    x: Memory,
    w: Memory,
    /// Factors of a packed weight's groups.
    scales: Memory,
    quantized: Option<QuantizedRows>,
    out: Memory,
    partials: Memory,
    counters: Memory,
    /// Twice the size of the L2 cache. It is overwritten before each round, because in a step the
    /// weights are never in the cache.
    flush: Memory,
    start: DeviceEvent,
    end: DeviceEvent,
}

impl TimingBuffers {
    fn new(device: &Device, shape: TunedProduct, rows: usize) -> Result<TimingBuffers> {
        let TunedProduct { outputs, weight, out_elem, .. } = shape;
        let inputs = depth_of(shape);
        let padded = outputs.next_multiple_of(OUTPUTS);
        let (elem, x_elem, elements, groups) = match weight {
            WeightLayout::Dense(elem) => (elem, elem, outputs * inputs, 0),
            WeightLayout::Packed(format, shared) => {
                let groups = inputs.div_ceil(timed_group(shared, inputs));
                (Elem::U8, out_elem, padded * inputs * format.bits() / 8, padded * groups)
            }
        };
        let is_quantized = weight == WeightLayout::FP8_ROWS;
        let zeroed = |elem, len| {
            let memory = device.allocate(elem, len)?;
            device.fill(memory.view(elem), 0)?;
            Ok::<_, millrace_backend::Error>(memory)
        };
        Ok(TimingBuffers {
            x: zeroed(x_elem, rows * inputs)?,
            w: zeroed(elem, elements)?,
            scales: zeroed(Elem::F32, groups)?,
            quantized: is_quantized
                .then(|| QuantizedRows::new(device, PackedSizes { rows, elements: rows * inputs }))
                .transpose()?,
            out: zeroed(out_elem, rows * outputs)?,
            partials: zeroed(Elem::F32, partials(PACKED_ROWS, inputs, outputs))?,
            counters: zeroed(Elem::U32, counters(PACKED_ROWS, inputs, outputs))?,
            flush: zeroed(Elem::U8, 2 * device.properties().l2_bytes)?,
            start: device.timed_event()?,
            end: device.timed_event()?,
        })
    }

    fn multiply(
        &self,
        device: &Device,
        shape: TunedProduct,
        method: ProductMethod,
        rows: usize,
    ) -> Result<()> {
        let TunedProduct { inputs, outputs, weight, out_elem } = shape;
        let workspace = ProductWorkspace {
            partials: self.partials.view(Elem::F32),
            counters: self.counters.view(Elem::U32),
        };
        let out = self.out.view(out_elem);
        let product = |x| ProductOperands { rows, inputs, outputs, x, bias: None, out, out_stride: outputs };
        match weight {
            WeightLayout::Packed(format, shared) => {
                let depth = depth_of(shape);
                let weight = QuantizedWeight {
                    format,
                    depth,
                    group: timed_group(shared, depth),
                    data: self.w.view(Elem::U8),
                    scales: self.scales.view(Elem::U32),
                    columns: None,
                    table: CodeTable::default(),
                };
                let product = product(self.x.view(out_elem));
                let buffers = PackedBuffers { quantized: self.quantized.as_ref(), ordered: None };
                multiply_packed(device, method, &weight, &product, &workspace, buffers)
            }
            WeightLayout::Dense(elem) => {
                let (x, w) = (self.x.view(elem), self.w.view(elem));
                match method {
                    ProductMethod::Library(algorithm) => {
                        matmul_by(device, &Matmul { rows, inputs, outputs, x, w, out }, Some(algorithm))
                    }
                    ProductMethod::Kernel | ProductMethod::Tiles => gemv(device, w, &product(x), &workspace),
                }
            }
        }
    }

    /// Returns the seconds of one round with a cold cache.
    fn round(&self, device: &Device, shape: TunedProduct, method: ProductMethod, rows: usize) -> Result<f64> {
        device.fill(self.flush.view(Elem::U8), 0)?;
        self.start.record()?;
        self.multiply(device, shape, method, rows)?;
        self.end.record()?;
        self.end.wait()?;
        self.end.seconds_since(&self.start)
    }
}

impl ProductContest<'_> {
    /// Returns the product as the library sees it. The addresses are not used.
    fn product(&self, algorithm: Option<Algorithm>, rows: usize) -> Gemm {
        let TunedProduct { inputs, outputs, weight, out_elem } = self.shape;
        let rows = rows.min(self.rows);
        match weight {
            WeightLayout::Packed(..) => {
                let product = Gemm::scaled_fp8(rows, depth_of(self.shape), outputs, out_elem);
                Gemm { algorithm, ..product }
            }
            WeightLayout::Dense(elem) => {
                Gemm { rows, inputs, outputs, elem, out_elem, x: 0, w: 0, out: 0, scales: None, algorithm }
            }
        }
    }

    /// Returns the methods for a packed weight. Few rows are never quantized: with few rows a
    /// product is bound by reading the weights, which takes as long either way.
    fn packed_methods(&self, rows: usize) -> Result<Vec<ProductMethod>> {
        let TuningPolicy { one_for_all, quantizes_rows } = self.policy;
        if one_for_all || self.shape.out_elem.size() != 2 {
            return Ok(vec![ProductMethod::Tiles]);
        }
        let is_fp8 = self.shape.weight == WeightLayout::FP8_ROWS;
        let quantizes_rows = is_fp8 && quantizes_rows && rows > FEW_ROWS;
        let mut methods = if quantizes_rows { self.library_methods(rows)? } else { Vec::new() };
        if rows <= PACKED_ROWS {
            methods.push(ProductMethod::Kernel);
        }
        methods.push(ProductMethod::Tiles);
        Ok(methods)
    }

    fn library_methods(&self, rows: usize) -> Result<Vec<ProductMethod>> {
        let algorithms = self.device.algorithms(&self.product(None, rows), MAX_ALGORITHMS)?;
        Ok(algorithms.into_iter().map(ProductMethod::Library).collect())
    }
}

impl MethodTimer for ProductContest<'_> {
    fn methods(&mut self, rows: usize) -> Result<Vec<ProductMethod>> {
        if matches!(self.shape.weight, WeightLayout::Packed(..)) {
            return self.packed_methods(rows);
        }
        let mut methods = self.library_methods(rows)?;
        if rows <= FEW_ROWS && kernel_takes(self.shape) {
            methods.push(ProductMethod::Kernel);
        }
        Ok(methods)
    }

    fn seconds(&mut self, method: ProductMethod, rows: usize) -> Result<f64> {
        if !self.is_timed {
            // All are equal, so that the first one wins.
            return Ok(1.0);
        }
        if let ProductMethod::Library(algorithm) = method
            && !self.device.supports_algorithm(&self.product(Some(algorithm), rows))?
        {
            return Err(millrace_backend::Error::Unsupported(format!("this algorithm for {rows} rows")));
        }
        let rows = rows.min(self.rows);
        let (device, shape) = (self.device, self.shape);
        let buffers = match &self.buffers {
            Some(buffers) => buffers,
            None => self.buffers.insert(TimingBuffers::new(device, shape, self.rows)?),
        };
        // The first round also loads the kernels.
        let first = buffers.round(device, shape, method, rows)?;
        let rounds = if first > LONG_ROUND { 1 } else { ROUNDS };
        let mut times =
            (0..rounds).map(|_| buffers.round(device, shape, method, rows)).collect::<Result<Vec<_>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

/// Tells whether the fast kernel for few rows supports such a weight.
fn kernel_takes(shape: TunedProduct) -> bool {
    let TunedProduct { inputs, weight, out_elem, .. } = shape;
    weight == WeightLayout::Dense(out_elem)
        && out_elem.size() == 2
        && (inputs * out_elem.size()).is_multiple_of(16)
}

/// Returns the columns of a weight in device memory, padding included.
fn depth_of(shape: TunedProduct) -> usize {
    match shape.weight {
        WeightLayout::Dense(_) => shape.inputs,
        WeightLayout::Packed(..) => shape.inputs.next_multiple_of(DEPTH),
    }
}

/// Returns the columns that share a scale in a weight that is timed.
fn timed_group(shared: SharedScale, depth: usize) -> usize {
    match shared {
        SharedScale::Group => TIMED_GROUP,
        SharedScale::Row => depth.next_power_of_two(),
    }
}

/// Returns the shape of a product of these operands.
pub(super) fn shape_of(inputs: usize, outputs: usize, x: View<'_>, out: View<'_>) -> TunedProduct {
    TunedProduct { inputs, outputs, weight: WeightLayout::Dense(x.elem()), out_elem: out.elem() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_with_fp8_weights_that_the_library_lacks_are_announced() {
        let lacking = TuningPolicy { one_for_all: false, quantizes_rows: false };
        let said = fp8_notice(true, lacking, "NVIDIA L40S", Some("cuBLASLt 13.0.2")).unwrap();
        assert!(
            said.contains("more than 16 rows") && said.contains("cuBLASLt 13.0.2 on NVIDIA L40S"),
            "{said}"
        );
        assert_eq!(fp8_notice(false, lacking, "", None), None, "no weights of FP8");
        let able = TuningPolicy { quantizes_rows: true, ..lacking };
        assert_eq!(fp8_notice(true, able, "", None), None);
        let by_choice = TuningPolicy { one_for_all: true, ..lacking };
        assert_eq!(fp8_notice(true, by_choice, "", None), None);
    }
}
