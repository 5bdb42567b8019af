//! Low-rank adapters: changes of weight matrices that each sequence chooses for itself (Hu et al.,
//! "LoRA: Low-Rank Adaptation of Large Language Models").
//!
//! The matrix itself stays as it is. [`AdapterOps::adapt`] adds what a sequence's adapter changes
//! to the results of [`ForwardOps::linear`](crate::ForwardOps::linear), so that sequences with
//! different adapters, and without one, share a step. The adapters of one matrix are in a pool of
//! fixed size, which [`ModelLoading::adapters`](crate::ModelLoading::adapters) allocates.

use std::ops::Range;

use millrace_numbers::DType;

use crate::step::OpenStep;
use crate::types::DeviceTypes;
use crate::{Error, Result};

/// The sizes of the pool of adapters of one matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdapterSpec {
    /// Columns of the matrix.
    pub inputs: usize,
    /// Rows of the matrix.
    pub outputs: usize,
    /// Number of adapters that the pool holds, in places `0..places`.
    pub places: usize,
    /// The largest sum of the ranks of one adapter's products in this matrix.
    pub rank: usize,
    /// Type of the numbers that the device keeps.
    pub dtype: DType,
}

impl AdapterSpec {
    /// Returns the bytes of the numbers of all places, without padding. The result saturates.
    pub const fn bytes(&self) -> usize {
        let features = self.inputs.saturating_add(self.outputs);
        let numbers = self.places.saturating_mul(self.rank).saturating_mul(features);
        numbers.saturating_mul(self.dtype.size())
    }
}

/// The change of one matrix by an adapter: the sum of its products.
///
/// Without products, the adapter does not change the matrix.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AdapterWeights {
    /// The products, which are added one after the other.
    pub products: Vec<LowRankProduct>,
}

/// The product of two narrow matrices, which is added to some rows of a weight matrix.
///
/// A fused matrix (query, key and value; gate and up) has one product for each of its parts that
/// the adapter changes.
#[derive(Debug, Clone, PartialEq)]
pub struct LowRankProduct {
    /// Number of features between the two matrices; at least 1.
    pub rank: usize,
    /// The matrix from inputs to features, `[rank, inputs]`.
    pub down: Vec<f32>,
    /// The matrix from features to outputs, `[number of rows, rank]`. It contains the adapter's
    /// scale.
    pub up: Vec<f32>,
    /// The outputs that the product is added to, in the order of the rows of `up`.
    pub rows: Vec<Range<usize>>,
}

impl AdapterWeights {
    /// Returns the sum of the ranks of the products.
    pub fn rank(&self) -> usize {
        self.products.iter().map(|product| product.rank).sum()
    }

    /// Checks that the weights fit `place` of a pool of these sizes.
    ///
    /// # Errors
    /// [`Error::Shape`] if the place is not in the pool, if the sum of the ranks is too large, or
    /// if the shapes of a product do not belong to the matrix. [`Error::Unsupported`] if a number
    /// is too large for the type that the pool keeps.
    pub fn check(&self, spec: &AdapterSpec, place: usize) -> Result<()> {
        if place >= spec.places {
            return Err(Error::Shape(format!("adapter {place} in a pool of {}", spec.places)));
        }
        let rank = self.products.iter().fold(0usize, |sum, product| sum.saturating_add(product.rank));
        if rank > spec.rank {
            return Err(Error::Shape(format!("an adapter of rank {rank} in a pool for rank {}", spec.rank)));
        }
        self.products.iter().try_for_each(|product| product.check(spec))
    }
}

impl LowRankProduct {
    fn check(&self, spec: &AdapterSpec) -> Result<()> {
        let LowRankProduct { rank, down, up, rows } = self;
        let &AdapterSpec { inputs, outputs, dtype, .. } = spec;
        if let Some(rows) = rows.iter().find(|rows| rows.start > rows.end || rows.end > outputs) {
            return Err(Error::Shape(format!("outputs {rows:?} of an adapter, in a matrix with {outputs}")));
        }
        let row_count = rows.iter().fold(0usize, |sum, rows| sum.saturating_add(rows.len()));
        let fits = row_count <= outputs
            && down.len() == rank.saturating_mul(inputs)
            && up.len() == row_count.saturating_mul(*rank);
        if *rank == 0 || !fits {
            return Err(Error::Shape(format!(
                "an adapter with {} and {} numbers, of rank {rank}, from {inputs} inputs to {row_count} of \
                 {outputs} outputs",
                down.len(),
                up.len()
            )));
        }
        match down.iter().chain(up).find(|x| x.is_finite() && !dtype.round(**x).is_finite()) {
            Some(x) => Err(Error::Unsupported(format!("the number {x} of an adapter in {}", dtype.name()))),
            None => Ok(()),
        }
    }
}

/// The operation of adapters.
pub trait AdapterOps: DeviceTypes {
    /// `out[t][rows] += up · (down · x[t])` for each token of the step whose row has an adapter,
    /// and for each product of this adapter in one matrix. `x` is `[n, inputs]`, `out` is `[n,
    /// outputs]`. All other rows and outputs stay as they are. A step in which no row has an
    /// adapter costs nothing.
    ///
    /// `adapters` are the adapters of the matrix; a row's
    /// [`SeqRow::adapter`](crate::SeqRow::adapter) is a place in them. `mid` is working memory of
    /// `n` rows and at least [`AdapterSpec::rank`] columns, whose contents are lost.
    ///
    /// # Errors
    /// [`Error::Device`] if the device has failed.
    ///
    /// # Panics
    /// If a row's adapter is not a place of the pool, or if shapes differ. Both are bugs.
    fn adapt(
        &self,
        step: &OpenStep<'_, Self::Queue>,
        x: &Self::Buf,
        adapters: &Self::Adapters,
        mid: &mut Self::Buf,
        out: &mut Self::Buf,
    ) -> Result<()>;
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of one range are meant")]
mod tests {
    use super::*;

    const SPEC: AdapterSpec = AdapterSpec { inputs: 3, outputs: 5, places: 2, rank: 4, dtype: DType::F16 };

    fn product(rank: usize, rows: Vec<Range<usize>>) -> LowRankProduct {
        let count: usize = rows.iter().map(Range::len).sum();
        LowRankProduct { rank, down: vec![0.5; rank * 3], up: vec![0.25; count * rank], rows }
    }

    #[test]
    fn weights_that_fit_are_accepted() {
        let products = vec![product(1, vec![0..2, 4..5]), product(3, vec![2..4])];
        let weights = AdapterWeights { products };
        assert_eq!(weights.rank(), 4);
        weights.check(&SPEC, 1).unwrap();
        AdapterWeights::default().check(&SPEC, 0).unwrap();
        assert_eq!(SPEC.bytes(), 2 * 4 * (3 + 5) * 2);
    }

    #[test]
    fn weights_that_do_not_fit_are_refused_by_name() {
        let refusal = |products: Vec<LowRankProduct>, place: usize| {
            AdapterWeights { products }.check(&SPEC, place).unwrap_err().to_string()
        };
        let fitting = || product(2, vec![0..3]);
        assert!(refusal(vec![fitting()], 2).contains("adapter 2 in a pool of 2"));
        assert!(refusal(vec![fitting(), product(3, vec![0..5])], 0).contains("rank 5 in a pool for rank 4"));
        assert!(refusal(vec![product(1, vec![3..6])], 0).contains("outputs 3..6"));
        assert!(refusal(vec![product(1, vec![0..5, 0..1])], 0).contains("6 of 5 outputs"));
        assert!(refusal(vec![product(0, vec![0..1])], 0).contains("rank 0"));
        assert!(refusal(vec![LowRankProduct { down: vec![0.0; 5], ..fitting() }], 0).contains("5 and 6"));
        assert!(refusal(vec![LowRankProduct { up: vec![0.0; 7], ..fitting() }], 0).contains("6 and 7"));
        let large = LowRankProduct { up: vec![1e5; 6], ..fitting() };
        assert!(refusal(vec![large], 0).contains("the number 100000 of an adapter in float16"));
    }
}
