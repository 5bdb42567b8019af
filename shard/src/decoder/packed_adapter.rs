//! Adapters that wait in host memory, in the type of numbers that the pools keep.

use std::collections::BTreeMap;
use std::ops::Range;

use millrace_backend::{AdapterWeights, LowRankProduct};
use millrace_model::WeightSlot;
use millrace_numbers::DType;

use super::RankAdapter;

/// A rank's share of an adapter. It takes no more memory than a place of the pools that it fits.
#[derive(Debug)]
pub struct PackedAdapter {
    dtype: DType,
    slots: BTreeMap<WeightSlot, Vec<PackedProduct>>,
}

#[derive(Debug)]
struct PackedProduct {
    rank: usize,
    rows: Vec<Range<usize>>,
    /// The matrix from inputs to features, as little-endian numbers.
    down: Vec<u8>,
    /// The matrix from features to outputs, as little-endian numbers.
    up: Vec<u8>,
}

impl PackedAdapter {
    /// Rounds an adapter to numbers of type `dtype`. The pools of this type would round it to the
    /// same numbers.
    pub fn pack(weights: RankAdapter, dtype: DType) -> PackedAdapter {
        let slots = weights.into_iter().map(|(slot, AdapterWeights { products })| {
            (slot, products.into_iter().map(|product| PackedProduct::pack(product, dtype)).collect())
        });
        PackedAdapter { dtype, slots: slots.collect() }
    }

    /// Returns the adapter.
    pub fn unpack(&self) -> RankAdapter {
        let slots = self.slots.iter().map(|(&slot, products)| {
            let products = products.iter().map(|product| product.unpack(self.dtype)).collect();
            (slot, AdapterWeights { products })
        });
        slots.collect()
    }
}

impl PackedProduct {
    fn pack(product: LowRankProduct, dtype: DType) -> PackedProduct {
        let LowRankProduct { rank, down, up, rows } = product;
        let bytes = |numbers: Vec<f32>| {
            let mut bytes = Vec::with_capacity(numbers.len() * dtype.size());
            numbers.into_iter().for_each(|x| dtype.push(x, &mut bytes));
            bytes
        };
        PackedProduct { rank, rows, down: bytes(down), up: bytes(up) }
    }

    fn unpack(&self, dtype: DType) -> LowRankProduct {
        let numbers =
            |bytes: &[u8]| bytes.chunks_exact(dtype.size()).map(|number| dtype.read(number)).collect();
        LowRankProduct {
            rank: self.rank,
            down: numbers(&self.down),
            up: numbers(&self.up),
            rows: self.rows.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_as_in_the_pools() {
        let numbers = vec![1.0, -0.3, 1e-3, 65504.0];
        let product =
            LowRankProduct { rank: 2, down: numbers.clone(), up: numbers.clone(), rows: vec![0..1, 3..4] };
        let slot = WeightSlot::Embedding;
        let weights = RankAdapter::from([(slot, AdapterWeights { products: vec![product.clone()] })]);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let packed = PackedAdapter::pack(weights.clone(), dtype);
            let rounded: Vec<f32> = numbers.iter().map(|&x| dtype.round(x)).collect();
            let expected = LowRankProduct { down: rounded.clone(), up: rounded, ..product.clone() };
            assert_eq!(packed.unpack()[&slot].products, [expected]);
            assert_eq!(packed.slots[&slot][0].down.len(), 4 * dtype.size());
        }
    }
}
