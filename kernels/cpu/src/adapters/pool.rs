//! The pool of adapters of one matrix.

use std::ops::Range;

use half::{bf16, f16};
use millrace_backend::{AdapterSpec, AdapterWeights, LowRankProduct, Result};
use millrace_numbers::DType;

use super::super::memory::Memory;
use super::super::simd::Element;

/// Numbers of the longest vector. Rows over inputs are padded with zeros to whole vectors, and the
/// numbers over outputs are followed by as many, so that a vector may reach beyond its row.
const LONGEST_VECTOR: usize = 16;

/// The adapters of one matrix.
#[derive(Debug)]
pub struct Adapters {
    pub(super) spec: AdapterSpec,
    /// Outputs of a panel: two vectors.
    pub(super) panel_width: usize,
    pub(super) places: Vec<Place>,
    pub(super) numbers: PoolNumbers,
}

/// The adapter in one place.
#[derive(Debug, Default)]
pub(super) struct Place {
    /// The sum of the ranks of the products.
    pub(super) rank: usize,
    pub(super) pieces: Vec<Piece>,
}

/// The part of a product that is added to neighboring outputs.
#[derive(Debug)]
pub(super) struct Piece {
    /// The outputs.
    pub(super) outputs: Range<usize>,
    /// The product's features among the features of the adapter.
    pub(super) features: Range<usize>,
    /// Index of its first number over outputs within the place.
    pub(super) start: usize,
}

/// The numbers of all places, in the type that the pool keeps.
#[derive(Debug)]
pub(super) enum PoolNumbers {
    F32(Pool<f32>),
    F16(Pool<f16>),
    BF16(Pool<bf16>),
}

/// The numbers of all places. Weights of an empty part of a place are unspecified.
#[derive(Debug)]
pub(super) struct Pool<T: Element> {
    /// The matrices from inputs to features, `[places, rank, padded inputs]`.
    down: Memory<T>,
    /// The matrices from features to outputs, `[places, rank * outputs]`.
    ///
    /// A piece is cut into panels of outputs. A panel is `[features, width]`, so that its numbers
    /// are read in the order in which they are stored. The last panel of a piece may be narrower.
    up: Memory<T>,
}

impl Adapters {
    /// Allocates a pool without adapters.
    pub(crate) fn new(spec: &AdapterSpec, panel_width: usize) -> Result<Adapters> {
        let numbers = match spec.dtype {
            DType::F32 => PoolNumbers::F32(Pool::new(spec)?),
            DType::F16 => PoolNumbers::F16(Pool::new(spec)?),
            DType::BF16 => PoolNumbers::BF16(Pool::new(spec)?),
        };
        let places = std::iter::repeat_with(Place::default).take(spec.places).collect();
        Ok(Adapters { spec: *spec, panel_width, places, numbers })
    }

    /// Returns the bytes of a pool with its padding.
    pub(crate) fn bytes(spec: &AdapterSpec) -> usize {
        let (down, up) = sizes(spec);
        down.saturating_add(up).saturating_mul(spec.dtype.size())
    }

    /// Replaces the adapter in a place.
    pub(crate) fn load(&mut self, place: usize, weights: &AdapterWeights) -> Result<()> {
        weights.check(&self.spec, place)?;
        let Adapters { spec, panel_width, places, numbers } = self;
        places[place].set(weights);
        let at = (place, *panel_width);
        match numbers {
            PoolNumbers::F32(pool) => pool.load(spec, at, weights, &places[place].pieces),
            PoolNumbers::F16(pool) => pool.load(spec, at, weights, &places[place].pieces),
            PoolNumbers::BF16(pool) => pool.load(spec, at, weights, &places[place].pieces),
        }
        Ok(())
    }
}

impl Place {
    fn set(&mut self, weights: &AdapterWeights) {
        self.pieces.clear();
        let (mut first, mut start) = (0, 0);
        for LowRankProduct { rank, rows, .. } in &weights.products {
            for outputs in rows {
                let features = first..first + rank;
                self.pieces.push(Piece { outputs: outputs.clone(), features, start });
                start += rank * outputs.len();
            }
            first += rank;
        }
        self.rank = first;
    }
}

impl<T: Element> Pool<T> {
    fn new(spec: &AdapterSpec) -> Result<Pool<T>> {
        let (down, up) = sizes(spec);
        Ok(Pool { down: Memory::zeroed(down, "adapters")?, up: Memory::zeroed(up, "adapters")? })
    }

    /// Returns the matrix from inputs to features of a place, `[rank, padded inputs]`.
    pub(super) fn down(&self, spec: &AdapterSpec, place: usize) -> &[T] {
        let size = spec.rank * padded(spec.inputs);
        &self.down[place * size..][..size]
    }

    /// Returns the panels of a place, and everything behind them.
    pub(super) fn up(&self, spec: &AdapterSpec, place: usize) -> &[T] {
        &self.up[place * spec.rank * spec.outputs..]
    }

    /// Writes the weights of a place, whose `pieces` are set already.
    fn load(
        &mut self,
        spec: &AdapterSpec,
        (place, panel_width): (usize, usize),
        weights: &AdapterWeights,
        pieces: &[Piece],
    ) {
        let width = padded(spec.inputs);
        let size = spec.rank * width;
        let rows = self.down[place * size..][..size].chunks_exact_mut(width.max(1));
        let from = weights.products.iter().flat_map(|product| product.down.chunks_exact(spec.inputs.max(1)));
        for (to, from) in rows.zip(from) {
            to.iter_mut().zip(from).for_each(|(to, x)| *to = T::from_f32(*x));
        }
        let size = spec.rank * spec.outputs;
        let up = &mut self.up[place * size..][..size];
        let mut pieces = pieces.iter();
        for LowRankProduct { rank, up: from, rows, .. } in &weights.products {
            let mut row = 0;
            for piece in pieces.by_ref().take(rows.len()) {
                let count = piece.outputs.len();
                let from = &from[row * rank..][..count * rank];
                transpose(from, *rank, panel_width, &mut up[piece.start..][..count * rank]);
                row += count;
            }
        }
    }
}

/// Writes rows of `rank` numbers as panels of `width` rows, `[rank, width]` each.
fn transpose<T: Element>(rows: &[f32], rank: usize, width: usize, to: &mut [T]) {
    for (panel, rows) in to.chunks_mut(width * rank).zip(rows.chunks(width * rank)) {
        let width = rows.len() / rank;
        for (lane, row) in rows.chunks_exact(rank).enumerate() {
            for (feature, x) in row.iter().enumerate() {
                panel[feature * width + lane] = T::from_f32(*x);
            }
        }
    }
}

/// Returns how many numbers a pool has over inputs and over outputs.
fn sizes(spec: &AdapterSpec) -> (usize, usize) {
    let &AdapterSpec { inputs, outputs, places, rank, .. } = spec;
    let rows = places.saturating_mul(rank);
    let up = rows.saturating_mul(outputs).saturating_add(LONGEST_VECTOR);
    (rows.saturating_mul(padded(inputs)), up)
}

/// Returns the numbers of a row over inputs with its padding.
pub(super) const fn padded(inputs: usize) -> usize {
    inputs.next_multiple_of(LONGEST_VECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_are_stored_by_features() {
        let rows: Vec<f32> = (0..10).map(|x| x as f32).collect(); // [5, 2]
        let mut to = [0.0f32; 10];
        transpose(&rows, 2, 4, &mut to);
        assert_eq!(to, [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0, 8.0, 9.0]);
    }

    /// An adapter that takes the place of a larger one leaves zeros in the padding of rows.
    #[test]
    fn a_place_is_replaced() {
        let spec = AdapterSpec { inputs: 3, outputs: 40, places: 2, rank: 3, dtype: DType::BF16 };
        let mut adapters = Adapters::new(&spec, 16).unwrap();
        let product = |rank: usize, rows: Range<usize>| LowRankProduct {
            rank,
            down: vec![1.0; 3 * rank],
            up: vec![2.0; rows.len() * rank],
            rows: vec![rows],
        };
        let products = vec![product(1, 0..40), product(2, 7..9)];
        adapters.load(1, &AdapterWeights { products }).unwrap();
        assert_eq!((adapters.places[1].rank, adapters.places[1].pieces.len()), (3, 2));
        let PoolNumbers::BF16(pool) = &adapters.numbers else { panic!("another type") };
        let row: Vec<f32> = pool.down(&spec, 1)[..16].iter().map(|x| x.to_f32()).collect();
        assert_eq!(row, [[1.0; 3].as_slice(), &[0.0; 13]].concat());
        assert!(pool.up(&spec, 1)[..44].iter().all(|x| x.to_f32() == 2.0));
        assert!(pool.down(&spec, 0).iter().all(|x| x.to_f32() == 0.0));

        adapters.load(1, &AdapterWeights::default()).unwrap();
        assert_eq!((adapters.places[1].rank, adapters.places[1].pieces.len()), (0, 0));
        assert!(adapters.load(2, &AdapterWeights::default()).is_err());
        let (down, up) = sizes(&spec);
        assert_eq!((down, up, Adapters::bytes(&spec)), (96, 256, 704));
    }
}
