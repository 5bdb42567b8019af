//! The loading of adapters into the pools beside a model's matrices.

use millrace_backend::Backend;
use millrace_model::adapters::Adapter;
use millrace_model::split::Split;
use millrace_model::{AdapterLimits, DecoderSpec};
use millrace_numbers::DType;

use super::projection::Projection;
use super::weights::{AttentionWeights, DenseWeights, LayerWeights, MlpWeights, Weights};
use crate::Error;

/// The adapters that a rank loads.
#[derive(Debug, Clone, Copy)]
pub struct AdapterSet<'a> {
    /// The adapters, in the order of their numbers.
    pub adapters: &'a [Adapter],
    /// The rank.
    pub split: Split,
    /// Element type of the adapters in memory.
    pub dtype: DType,
    /// The sizes that memory is allocated for.
    pub limits: AdapterLimits,
}

impl<B: Backend> Weights<B> {
    /// Allocates the pools of adapters and loads `set` into them. `spec` is this rank's share of
    /// the model.
    ///
    /// # Errors
    /// If the device has no kernels for adapters or not enough memory, or an adapter cannot be
    /// read.
    pub fn load_adapters(
        &mut self,
        backend: &B,
        spec: &DecoderSpec,
        set: &AdapterSet<'_>,
    ) -> Result<(), Error> {
        if set.adapters.is_empty() {
            return Ok(());
        }
        for projection in self.layers.iter_mut().flat_map(LayerWeights::projections) {
            let slot = projection.slot;
            let sizes = set.limits.pool(spec, slot, set.dtype);
            let mut pool = backend.adapters(&sizes)?;
            for (place, adapter) in set.adapters.iter().enumerate() {
                if let Some(weights) = adapter.weights(slot, set.split)? {
                    backend.load_adapter(&mut pool, place, &weights)?;
                }
            }
            projection.adapters = Some((pool, sizes));
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
