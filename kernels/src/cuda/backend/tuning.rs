//! Products timed on the device itself, on the shapes that steps will ask for.

use super::{Device, Elem, Memory, View};
use crate::Result;
use crate::backend::ProductShape;
use crate::cuda::Event;
use crate::cuda::choice::{self, Choices, Contest, Shape, Table, Way};
use crate::cuda::driver::Gemm;
use crate::cuda::ops::gemv::gemv;
use crate::cuda::ops::matmul::{Matmul, matmul_by};
use crate::cuda::ops::product::{Product, Workspace, counters, partials};

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
    partials: Memory,
    counters: Memory,
}

impl Tuned {
    /// Takes what is known of this card from the disk and times the rest; none where the device's library leaves no choice.
    /// Also returns what went wrong on the disk, which costs nothing but the time of the next start.
    pub(super) fn new(
        device: &Device,
        elem: Elem,
        products: &[ProductShape],
        one_for_all: bool,
    ) -> Result<(Option<Tuned>, Vec<String>)> {
        let Some(library) = device.product_library() else { return Ok((None, Vec::new())) };
        let kind = if one_for_all { "one for all rows" } else { "by rows" };
        let version = env!("CARGO_PKG_VERSION");
        let table =
            Table::of_user(format!("products of Millrace {version}, {}, {library}, {kind}", device.name()));
        let (mut choices, warning) = table.read();
        let mut warnings = Vec::from_iter(warning);
        let mut changed = false;
        for product in products {
            let shape = Shape {
                inputs: product.inputs,
                outputs: product.outputs,
                elem,
                out_elem: if product.logits { Elem::F32 } else { elem },
            };
            let mut race = Race::new(device, shape, product.rows);
            changed |= choice::complete(&mut choices, shape, product.rows, one_for_all, &mut race)?;
        }
        if changed {
            warnings.extend(table.write(&choices));
        }
        let largest = |of: fn(usize, usize, usize) -> usize| {
            products.iter().map(|p| of(KERNEL_ROWS, p.inputs, p.outputs)).max().unwrap_or(0)
        };
        let counters = device.allocate(Elem::U32, largest(counters))?;
        device.fill(counters.view(Elem::U32), 0)?;
        Ok((
            Some(Tuned { choices, partials: device.allocate(Elem::F32, largest(partials))?, counters }),
            warnings,
        ))
    }

    pub(super) fn way(&self, shape: Shape, rows: usize) -> Option<Way> {
        self.choices.way(shape, rows)
    }

    pub(super) fn workspace(&self) -> Workspace<'_> {
        Workspace { partials: self.partials.view(Elem::F32), counters: self.counters.view(Elem::U32) }
    }
}

/// The ways to multiply by one weight, on a device.
struct Race<'a> {
    device: &'a Device,
    shape: Shape,
    /// The most rows.
    rows: usize,
    /// Made when something is first timed.
    track: Option<Track>,
}

/// What products are timed with. The contents of operands do not matter, but must not be what makes arithmetic slow.
struct Track {
    x: Memory,
    w: Memory,
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
        let Shape { inputs, outputs, elem, out_elem } = shape;
        let zeroed = |elem, len| {
            let memory = device.allocate(elem, len)?;
            device.fill(memory.view(elem), 0)?;
            Ok::<_, crate::Error>(memory)
        };
        Ok(Track {
            x: zeroed(elem, rows * inputs)?,
            w: zeroed(elem, outputs * inputs)?,
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
        let (x, w, out) = (self.x.view(elem), self.w.view(elem), self.out.view(out_elem));
        match way {
            Way::Kernel => {
                let workspace = Workspace {
                    partials: self.partials.view(Elem::F32),
                    counters: self.counters.view(Elem::U32),
                };
                let product = Product { rows, inputs, outputs, x, bias: None, residual: None, out };
                gemv(device, w, &product, &workspace)
            }
            Way::Library(algorithm) => {
                matmul_by(device, &Matmul { rows, inputs, outputs, x, w, out }, Some(algorithm))
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

impl<'a> Race<'a> {
    fn new(device: &'a Device, shape: Shape, rows: usize) -> Race<'a> {
        Race { device, shape, rows: rows.max(1), track: None }
    }

    /// The product as the library sees it; the addresses are nobody's.
    fn product(&self, way: Way, rows: usize) -> Gemm {
        let Shape { inputs, outputs, elem, out_elem } = self.shape;
        let algorithm = match way {
            Way::Library(algorithm) => Some(algorithm),
            Way::Kernel => None,
        };
        Gemm { rows: rows.min(self.rows), inputs, outputs, elem, out_elem, x: 0, w: 0, out: 0, algorithm }
    }
}

impl Contest for Race<'_> {
    fn ways(&mut self, rows: usize) -> Result<Vec<Way>> {
        let product = self.product(Way::Kernel, rows);
        let algorithms = self.device.algorithms(&product, MOST_ALGORITHMS)?;
        let mut ways: Vec<Way> = algorithms.into_iter().map(Way::Library).collect();
        if rows <= KERNEL_ROWS && kernel_takes(self.shape) {
            ways.push(Way::Kernel);
        }
        Ok(ways)
    }

    fn seconds(&mut self, way: Way, rows: usize) -> Result<f64> {
        if !self.device.fits(&self.product(way, rows))? {
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

/// The shape of a product of these operands.
pub(super) fn shape_of(inputs: usize, outputs: usize, x: View<'_>, out: View<'_>) -> Shape {
    Shape { inputs, outputs, elem: x.elem(), out_elem: out.elem() }
}
