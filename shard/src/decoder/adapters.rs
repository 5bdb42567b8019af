//! The pools of adapters beside a model's matrices.

use std::collections::BTreeMap;

use millrace_backend::{AdapterSpec, AdapterWeights, Backend};
use millrace_model::{AdapterLimits, DecoderSpec, WeightSlot};
use millrace_numbers::DType;

use super::Decoder;
use super::projection::Projection;
use super::weights::{AttentionWeights, DenseWeights, LayerWeights, MlpWeights, Weights};
use crate::Error;

/// The products that an adapter adds to the matrices of a rank. Matrices that it does not change
/// may be absent.
pub type RankAdapter = BTreeMap<WeightSlot, AdapterWeights>;

impl<B: Backend> Weights<B> {
    /// Allocates pools for `limits.count` adapters with numbers of type `dtype`, and returns the
    /// matrices that adapters can change, with the sizes of their pools. `spec` is this rank's
    /// share of the model.
    ///
    /// # Errors
    /// If the device has no kernels for adapters or not enough memory.
    pub fn reserve_adapters(
        &mut self,
        backend: &B,
        spec: &DecoderSpec,
        limits: AdapterLimits,
        dtype: DType,
    ) -> Result<Vec<(WeightSlot, AdapterSpec)>, Error> {
        let mut pools = Vec::new();
        if limits.count == 0 {
            return Ok(pools);
        }
        for projection in self.layers.iter_mut().flat_map(LayerWeights::projections) {
            let sizes = limits.pool(spec, projection.slot, dtype);
            projection.adapters = Some((backend.adapters(&sizes)?, sizes));
            pools.push((projection.slot, sizes));
        }
        Ok(pools)
    }
}

impl<B: Backend> Decoder<B> {
    /// Replaces the adapter in a place of the pools. Without an adapter the place is free. No step
    /// may be in flight.
    ///
    /// # Errors
    /// If the adapter does not fit the pools. The place is free then.
    pub fn set_adapter(
        &mut self,
        backend: &B,
        place: usize,
        adapter: Option<&RankAdapter>,
    ) -> Result<(), Error> {
        let result = self.write_adapter(backend, place, adapter);
        if result.is_err() {
            self.write_adapter(backend, place, None)?;
        }
        result
    }

    /// Writes every pool, so that nothing of a former adapter is left in the place.
    fn write_adapter(
        &mut self,
        backend: &B,
        place: usize,
        adapter: Option<&RankAdapter>,
    ) -> Result<(), Error> {
        let unchanged = AdapterWeights::default();
        for projection in self.forward.layers.weights().flat_map(LayerWeights::projections) {
            if let Some((pool, _)) = &mut projection.adapters {
                let weights = adapter.and_then(|adapter| adapter.get(&projection.slot));
                backend.load_adapter(pool, place, weights.unwrap_or(&unchanged))?;
            }
        }
        Ok(())
    }
}

impl<B: Backend> LayerWeights<B> {
    /// Returns the products of the layer that adapters may change.
    fn projections(&mut self) -> Vec<&mut Projection<B>> {
        let mut all = Vec::new();
        let (softmax, recurrent) = match &mut self.attention {
            AttentionWeights::Softmax(w) => (Some(w), None),
            AttentionWeights::Recurrent(w) => (None, Some(w)),
            AttentionWeights::Hybrid(softmax, recurrent) => (Some(softmax), Some(recurrent)),
            AttentionWeights::Latent(w) => {
                all.extend(w.query_down.as_mut().map(|(down, _)| down));
                all.extend([&mut w.query, &mut w.down, &mut w.out]);
                (None, None)
            }
            AttentionWeights::None => (None, None),
        };
        if let Some(w) = softmax {
            all.extend([&mut w.qkv, &mut w.out].into_iter().chain(&mut w.out_gate));
        }
        if let Some(w) = recurrent {
            all.extend([&mut w.input, &mut w.out]);
        }
        let dense = match &mut self.mlp {
            MlpWeights::Dense(w) => Some(w),
            MlpWeights::Experts(experts) => experts.shared.as_mut().map(|shared| &mut shared.mlp),
            MlpWeights::None => None,
        };
        all.extend(dense.into_iter().flat_map(|DenseWeights { up, down, .. }| [up, down]));
        all
    }
}
