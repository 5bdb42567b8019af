//! Products timed on the device itself, on the shapes that steps will ask for.

use super::products::{Quantized, multiply_by};
use super::{Device, Elem, Memory, View};
use crate::Result;
use crate::backend::{MatrixFormat, ProductShape};
use crate::cuda::choice::{self, Choices, Contest, Shape, Table, Way};
use crate::cuda::driver::Gemm;
use crate::cuda::ops::fp8;
use crate::cuda::ops::gemv::gemv;
use crate::cuda::ops::matmul::{Matmul, matmul_by};
use crate::cuda::ops::product::{Product, Workspace, counters, partials};
use crate::cuda::ops::quant::Weight;
use crate::cuda::pack::{DEPTH, Format, OUTPUTS};
use crate::cuda::{Algorithm, Event};

/// Algorithms of the library that are timed for each shape.
const MOST_ALGORITHMS: usize = 8;
/// The most rows that the kernel for few rows is tried for.
pub(super) const KERNEL_ROWS: usize = 16;
/// How often each is timed; the median counts.
const ROUNDS: usize = 5;
/// Seconds after which a single round is enough: what takes so long varies little.
const LONG: f64 = 2e-3;

/// How products are computed, and what they need for it.
#[derive(Debug)]
pub(super) struct Tuned {
    choices: Choices,
    /// See [`Quantized::sizes`].
    packed: (usize, usize),
    partials: Memory,
    counters: Memory,
}

impl Tuned {
    /// Takes what is known of this card from the disk and times the rest. Where the device has no library to choose from, nothing is timed:
    /// dense weights need no choice there, and packed ones take the most promising way. Also returns what went wrong on the disk, which costs
    /// nothing but the time of the next start.
    pub(super) fn new(
        device: &Device,
        elem: Elem,
        products: &[ProductShape],
        one_for_all: bool,
        quantizes_rows: bool,
    ) -> Result<(Tuned, Vec<String>)> {
        let table = device.product_library().map(|library| {
            let kind = if one_for_all { "one for all rows" } else { "by rows" };
            let version = env!("CARGO_PKG_VERSION");
            let name = device.name();
            Table::of_user(format!("products of Millrace {version}, {name}, {library}, {kind}"))
        });
        let (mut choices, warning) = table.as_ref().map(Table::read).unwrap_or_default();
        let mut warnings = Vec::from_iter(warning);
        let mut changed = false;
        let is_packed = |product: &ProductShape| product.format == MatrixFormat::Fp8;
        for product in products.iter().filter(|product| table.is_some() || is_packed(product)) {
            let shape = Shape {
                inputs: product.inputs,
                outputs: product.outputs,
                elem: if is_packed(product) { Elem::E4M3 } else { elem },
                out_elem: if product.logits { Elem::F32 } else { elem },
            };
            let ways = Ways { is_timed: table.is_some(), one_for_all, quantizes_rows };
            let mut race = Race { device, shape, rows: product.rows.max(1), ways, track: None };
            // A packed weight has a single way that does for all.
            let one_for_all = one_for_all && !is_packed(product);
            changed |= choice::complete(&mut choices, shape, product.rows, one_for_all, &mut race)?;
        }
        if let (Some(table), true) = (table, changed) {
            warnings.extend(table.write(&choices));
        }
        let largest = |of: fn(usize, usize, usize) -> usize| {
            let by_kernel = products.iter().filter(|p| device.product_library().is_some() || is_packed(p));
            let of = |p: &ProductShape| of(KERNEL_ROWS, p.inputs.next_multiple_of(DEPTH), p.outputs);
            by_kernel.map(of).max().unwrap_or(0)
        };
        let counters = device.allocate(Elem::U32, largest(counters))?;
        device.fill(counters.view(Elem::U32), 0)?;
        let partials = device.allocate(Elem::F32, largest(partials))?;
        Ok((Tuned { choices, packed: Quantized::sizes(products), partials, counters }, warnings))
    }

    /// The most rows that packed weights are multiplied with, and the most elements of them.
    pub(super) fn packed(&self) -> (usize, usize) {
        self.packed
    }

    pub(super) fn way(&self, shape: Shape, rows: usize) -> Option<Way> {
        self.choices.way(shape, rows)
    }

    pub(super) fn workspace(&self) -> Workspace<'_> {
        Workspace { partials: self.partials.view(Elem::F32), counters: self.counters.view(Elem::U32) }
    }
}

/// Which ways there are.
#[derive(Clone, Copy)]
struct Ways {
    /// Whether they are tried at all.
    is_timed: bool,
    /// Whether a row's result must not depend on how many there are.
    one_for_all: bool,
    /// Whether activations may become FP8.
    quantizes_rows: bool,
}

/// The ways to multiply by one weight, on a device.
struct Race<'a> {
    device: &'a Device,
    shape: Shape,
    /// The most rows, at least one.
    rows: usize,
    ways: Ways,
    /// Made when something is first timed.
    track: Option<Track>,
}

/// What products are timed with. The contents of operands do not matter, but must not be what makes arithmetic slow.
struct Track {
    x: Memory,
    w: Memory,
    /// Factors of a packed weight's rows, and room for activations like it.
    scales: Memory,
    quantized: Option<Quantized>,
    out: Memory,
    partials: Memory,
    counters: Memory,
    /// Larger than the L2 cache, which is full of it before each round: a step's weights are never there.
    flush: Memory,
    start: Event,
    end: Event,
}

impl Track {
    fn new(device: &Device, shape: Shape, rows: usize) -> Result<Track> {
        let Shape { outputs, elem, out_elem, .. } = shape;
        let (inputs, is_packed) = (depth_of(shape), elem == Elem::E4M3);
        let zeroed = |elem, len| {
            let memory = device.allocate(elem, len)?;
            device.fill(memory.view(elem), 0)?;
            Ok::<_, crate::Error>(memory)
        };
        Ok(Track {
            x: zeroed(if is_packed { out_elem } else { elem }, rows * inputs)?,
            w: zeroed(elem, if is_packed { outputs.next_multiple_of(OUTPUTS) } else { outputs } * inputs)?,
            scales: zeroed(Elem::F32, if is_packed { outputs.next_multiple_of(OUTPUTS) } else { 0 })?,
            quantized: is_packed.then(|| Quantized::new(device, (rows, rows * inputs))).transpose()?,
            out: zeroed(out_elem, rows * outputs)?,
            partials: zeroed(Elem::F32, partials(KERNEL_ROWS, inputs, outputs))?,
            counters: zeroed(Elem::U32, counters(KERNEL_ROWS, inputs, outputs))?,
            flush: zeroed(Elem::U8, 2 * device.properties().l2_bytes)?,
            start: device.timed_event()?,
            end: device.timed_event()?,
        })
    }

    fn multiply(&self, device: &Device, shape: Shape, way: Way, rows: usize) -> Result<()> {
        let Shape { inputs, outputs, elem, out_elem } = shape;
        let workspace =
            Workspace { partials: self.partials.view(Elem::F32), counters: self.counters.view(Elem::U32) };
        let out = self.out.view(out_elem);
        if elem == Elem::E4M3 {
            let depth = depth_of(shape);
            let weight = Weight {
                format: Format::E4M3,
                depth,
                group: depth.next_power_of_two(),
                data: self.w.view(Elem::U8),
                scales: self.scales.view(Elem::U32),
                columns: None,
            };
            let x = self.x.view(out_elem);
            let product = Product { rows, inputs, outputs, x, bias: None, residual: None, out };
            return multiply_by(device, way, &weight, &product, &workspace, self.quantized.as_ref());
        }
        let (x, w) = (self.x.view(elem), self.w.view(elem));
        match way {
            Way::Library(algorithm) => {
                matmul_by(device, &Matmul { rows, inputs, outputs, x, w, out }, Some(algorithm))
            }
            Way::Kernel | Way::Tiles => {
                let product = Product { rows, inputs, outputs, x, bias: None, residual: None, out };
                gemv(device, w, &product, &workspace)
            }
        }
    }

    /// Seconds of one round with nothing in the cache.
    fn round(&self, device: &Device, shape: Shape, way: Way, rows: usize) -> Result<f64> {
        device.fill(self.flush.view(Elem::U8), 0)?;
        self.start.record()?;
        self.multiply(device, shape, way, rows)?;
        self.end.record()?;
        self.end.wait()?;
        self.end.seconds_since(&self.start)
    }
}

impl Race<'_> {
    /// The product as the library sees it; the addresses are nobody's.
    fn product(&self, algorithm: Option<Algorithm>, rows: usize) -> Gemm {
        let Shape { inputs, outputs, elem, out_elem } = self.shape;
        let rows = rows.min(self.rows);
        if elem == Elem::E4M3 {
            return fp8::shape(rows, depth_of(self.shape), outputs, out_elem, algorithm);
        }
        Gemm { rows, inputs, outputs, elem, out_elem, x: 0, w: 0, out: 0, scales: None, algorithm }
    }

    /// Few rows never become FP8: what is gained is the weights' bytes alone, which both have.
    fn packed_ways(&self, rows: usize) -> Result<Vec<Way>> {
        let Ways { one_for_all, quantizes_rows, .. } = self.ways;
        if one_for_all || self.shape.out_elem.size() != 2 {
            return Ok(vec![Way::Tiles]);
        }
        if rows <= KERNEL_ROWS {
            return Ok(vec![Way::Kernel, Way::Tiles]);
        }
        let mut ways = if quantizes_rows { self.library_ways(rows)? } else { Vec::new() };
        ways.push(Way::Tiles);
        Ok(ways)
    }

    fn library_ways(&self, rows: usize) -> Result<Vec<Way>> {
        let algorithms = self.device.algorithms(&self.product(None, rows), MOST_ALGORITHMS)?;
        Ok(algorithms.into_iter().map(Way::Library).collect())
    }
}

impl Contest for Race<'_> {
    fn ways(&mut self, rows: usize) -> Result<Vec<Way>> {
        if self.shape.elem == Elem::E4M3 {
            return self.packed_ways(rows);
        }
        let mut ways = self.library_ways(rows)?;
        if rows <= KERNEL_ROWS && kernel_takes(self.shape) {
            ways.push(Way::Kernel);
        }
        Ok(ways)
    }

    fn seconds(&mut self, way: Way, rows: usize) -> Result<f64> {
        if !self.ways.is_timed {
            // The first one wins.
            return Ok(1.0);
        }
        if let Way::Library(algorithm) = way
            && !self.device.fits(&self.product(Some(algorithm), rows))?
        {
            return Err(crate::Error::Unsupported(format!("this algorithm for {rows} rows")));
        }
        let rows = rows.min(self.rows);
        let (device, shape) = (self.device, self.shape);
        let track = match &self.track {
            Some(track) => track,
            None => self.track.insert(Track::new(device, shape, self.rows)?),
        };
        // The first round loads what is needed.
        let first = track.round(device, shape, way, rows)?;
        let rounds = if first > LONG { 1 } else { ROUNDS };
        let mut times =
            (0..rounds).map(|_| track.round(device, shape, way, rows)).collect::<Result<Vec<_>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }
}

/// Whether the fast kernel for few rows takes such a weight.
pub(super) fn kernel_takes(shape: Shape) -> bool {
    let Shape { inputs, elem, out_elem, .. } = shape;
    elem == out_elem && elem.size() == 2 && (inputs * elem.size()).is_multiple_of(16)
}

/// Columns of a weight as it lies in memory.
fn depth_of(shape: Shape) -> usize {
    if shape.elem == Elem::E4M3 { shape.inputs.next_multiple_of(DEPTH) } else { shape.inputs }
}

/// The shape of a product of these operands.
pub(super) fn shape_of(inputs: usize, outputs: usize, x: View<'_>, out: View<'_>) -> Shape {
    Shape { inputs, outputs, elem: x.elem(), out_elem: out.elem() }
}
