//! The loading of a model's weights into device memory.

use std::ops::Range;
use std::sync::Arc;
use std::vec::IntoIter;

use bytes::Bytes;
use millrace_backend::{Activation, Backend, HeadNorm, HeadRows, Norm, NormKind, RopeSpec, Segment, Xielu};
use millrace_model::memory_plan::head_matrices_bytes;
use millrace_model::{
    Attention, AttentionHeads, DecoderSpec, ExpertsSpec, HeadNormPlan, LatentPlan, LayerSlot, LayerSpec,
    LearnedPositions, Mlp, Positions, RecurrentLayer, RecurrentSlot, RopeTable, RowsInFormat, SharedExpert,
    TensorPlace, WeightError, WeightSlot, WeightSource, WeightStorage, take_parts,
};
use millrace_numbers::tensor::flatten;
use millrace_numbers::{DType, HostTensor, Part};

use super::per_layer::{LayerInputWeights, PerLayerWeights};
use super::projection::Projection;
use super::recurrent::{LowRankWeights, RateWeights, RecurrentWeights};
use super::states_input::StatesInputWeights;
use super::weights::{
    AttentionWeights, DenseWeights, ExpertNorms, ExpertsWeights, LatentWeights, LayerWeights, MlpWeights,
    ModelPart, SharedWeights, SoftmaxWeights, Weights,
};
use crate::Error;

/// Bytes that the disk is asked to read ahead: more than it reads while a matrix is uploaded, and
/// little compared to any machine's memory.
const READ_AHEAD: usize = 512 << 20;

impl<B: Backend> Weights<B> {
    /// Loads the embedding, the layers of `part` and the head from `source`, in the formats that
    /// `storage` says, and computes the rotary tables for `positions` positions. Calls `progress`
    /// after each weight with the bytes on the device so far.
    ///
    /// # Errors
    /// If the source or the device fails, or a weight does not have the shape that the
    /// specification asks for.
    pub fn load<'a>(
        backend: &B,
        part: impl Into<ModelPart<'a>>,
        source: &dyn WeightSource,
        storage: impl Into<WeightStorage>,
        positions: usize,
        progress: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let part = part.into();
        let spec = part.spec;
        let slots = (spec, part.slots(true));
        let mut loader = WeightLoader::new(backend, slots, source, storage.into(), progress);
        let has_ends = spec.has_ends();
        // A head that reads the states of a model has the model's embedding and head.
        let has_own_ends = has_ends && !spec.reads_states;
        let (embedding, tied_head) = has_own_ends.then(|| loader.embedding()).transpose()?.unzip();
        let is_narrow = has_ends && spec.embedding.width.is_some();
        let embedding_projection =
            is_narrow.then(|| loader.matrix(WeightSlot::EmbeddingProjection)).transpose()?;
        let embedding_factor = loader.storage.dtype.round(spec.embedding.factor);
        let embedding_norm = match has_ends && spec.embedding.norm {
            true => Some(loader.norm(WeightSlot::EmbeddingNorm, Some(WeightSlot::EmbeddingNormBias))?),
            false => None,
        };
        let positions_of_ends = spec.embedding.positions.filter(|_| has_ends);
        let learned = positions_of_ends.map(|table| loader.positions(&table)).transpose()?;
        let has_second_type = has_ends && spec.embedding.has_second_type();
        let second_type = has_second_type.then(|| loader.second_type()).transpose()?;
        let has_per_layer = has_ends && spec.per_layer.is_some();
        let per_layer = has_per_layer.then(|| loader.per_layer()).transpose()?;
        let states_input = spec.reads_states.then(|| loader.states_input()).transpose()?;
        let layers = loader.layers(part.layers.clone())?;
        let final_norm = loader.norm_if(
            has_ends && spec.has_final_norm(),
            WeightSlot::FinalNorm,
            Some(WeightSlot::FinalNormBias),
        )?;
        let head_projection = is_narrow.then(|| loader.matrix(WeightSlot::HeadProjection)).transpose()?;
        let has_head = has_own_ends && !spec.tied_head;
        let head = has_head.then(|| loader.matrix(WeightSlot::Head)).transpose()?.or(tied_head.flatten());
        let head_bias = loader.bias(has_ends && spec.head.bias, WeightSlot::HeadBias)?;
        let bytes_read = loader.read;
        Ok(Weights {
            embedding: embedding.map(Arc::new),
            embedding_projection,
            embedding_factor,
            embedding_norm,
            positions: learned,
            second_type,
            states_input,
            per_layer,
            ropes: ropes(backend, spec, positions)?,
            query_scale: query_scale(backend, spec, positions)?,
            first_layer: part.layers.start,
            layers,
            final_norm,
            head_projection,
            head: head.map(Arc::new),
            head_bias,
            bytes_read,
        })
    }
}

/// The loading of one weight after the other.
pub(super) struct WeightLoader<'a, B: Backend> {
    backend: &'a B,
    spec: &'a DecoderSpec,
    source: &'a dyn WeightSource,
    storage: WeightStorage,
    /// The weights for which no read-ahead has been started.
    ahead: IntoIter<WeightSlot>,
    /// Bytes whose read-ahead has been started, and that have not been loaded.
    awaited: usize,
    done: usize,
    /// Bytes that were read from the source.
    pub(super) read: usize,
    progress: &'a mut dyn FnMut(usize) -> Result<(), Error>,
}

impl<'a, B: Backend> WeightLoader<'a, B> {
    /// Creates a loader of the weights of `spec` in `slots`.
    pub(super) fn new(
        backend: &'a B,
        (spec, slots): (&'a DecoderSpec, IntoIter<WeightSlot>),
        source: &'a dyn WeightSource,
        storage: WeightStorage,
        progress: &'a mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Self {
        WeightLoader { backend, spec, source, storage, ahead: slots, awaited: 0, done: 0, read: 0, progress }
    }

    /// Loads the layers with these indices.
    pub(super) fn layers(&mut self, indices: Range<usize>) -> Result<Vec<LayerWeights<B>>, Error> {
        let spec = self.spec;
        indices.map(|index| self.layer(index, &spec.layers[index])).collect()
    }

    fn layer(&mut self, index: usize, layer: &LayerSpec) -> Result<LayerWeights<B>, Error> {
        use LayerSlot as Slot;
        let at = |slot| WeightSlot::Layer(index, slot);
        let place = self.spec.norm.place;
        let (has_attention, has_mlp) = (!layer.attention.is_none(), !layer.mlp.is_none());
        Ok(LayerWeights {
            attention_norm: self.norm_if(
                self.spec.has_attention_norm(layer),
                at(Slot::AttentionNorm),
                Some(at(Slot::AttentionNormBias)),
            )?,
            attention: self.attention(index, &layer.attention)?,
            attention_out_norm: self.norm_if(
                has_attention && place.is_after(),
                at(Slot::AttentionOutNorm),
                None,
            )?,
            mlp_norm: self.norm_if(
                has_mlp && self.spec.has_mlp_norm(),
                at(Slot::MlpNorm),
                Some(at(Slot::MlpNormBias)),
            )?,
            mlp: self.mlp(index, &layer.mlp)?,
            mlp_out_norm: self.norm_if(
                has_mlp && (place.is_after() || place.is_of_sums()),
                at(Slot::MlpOutNorm),
                Some(at(Slot::MlpOutNormBias)).filter(|_| place.is_of_sums()),
            )?,
            input: if self.spec.per_layer.is_some() { Some(self.layer_input(index)?) } else { None },
            scalar: if self.spec.layer_scalars { Some(self.number(at(Slot::Scalar))?) } else { None },
        })
    }

    fn attention(&mut self, layer: usize, attention: &Attention) -> Result<AttentionWeights<B>, Error> {
        match attention {
            Attention::Full(heads) | Attention::Sliding { heads, .. } | Attention::Chunked { heads, .. } => {
                Ok(match &heads.latent {
                    None => AttentionWeights::Softmax(self.softmax(layer, heads)?),
                    Some(plan) => AttentionWeights::Latent(self.latent(layer, heads, plan)?),
                })
            }
            Attention::Recurrent(spec) => Ok(AttentionWeights::Recurrent(self.recurrent(layer, spec)?)),
            Attention::Hybrid { heads, recurrent } => {
                // The recurrence comes first in the order of slots.
                let recurrent = self.recurrent(layer, recurrent)?;
                Ok(AttentionWeights::Hybrid(self.softmax(layer, heads)?, recurrent))
            }
            Attention::None => Ok(AttentionWeights::None),
        }
    }

    fn softmax(&mut self, layer: usize, heads: &AttentionHeads) -> Result<SoftmaxWeights<B>, Error> {
        use LayerSlot as Slot;
        let at = |slot| WeightSlot::Layer(layer, slot);
        let has_keys = heads.kv_source.is_none();
        Ok(SoftmaxWeights {
            qkv: self.projection(at(Slot::Qkv), heads.qkv_bias.then_some(at(Slot::QkvBias)))?,
            query_norm: if has_keys { None } else { self.query_norm(layer, heads)? },
            head_norm: if has_keys { self.head_norm(layer, heads)? } else { None },
            value_norm: if has_keys && heads.value_norm { Some(self.unscaled_norm(heads)?) } else { None },
            alibi: match heads.positions {
                Positions::Linear(alibi) => Some(floats(self.backend, &alibi.slopes(heads.layout.heads))?),
                Positions::None | Positions::Rotary { .. } | Positions::Distance(_) => None,
            },
            distance: self.distance_bias(heads)?,
            sinks: self.bias(heads.sinks, at(Slot::Sinks))?,
            out_gate: if heads.out_gate { Some(self.projection(at(Slot::OutGate), None)?) } else { None },
            out: self.projection(at(Slot::Out), heads.out_bias.then_some(at(Slot::OutBias)))?,
        })
    }

    /// Loads the biases of scores by distance, if there are any. Every layer has a copy of its own:
    /// the table is small.
    fn distance_bias(&mut self, heads: &AttentionHeads) -> Result<Option<B::Vector>, Error> {
        let Positions::Distance(biased) = heads.positions else { return Ok(None) };
        let table = flatten(&self.source.parts(WeightSlot::DistanceBias)?)?;
        Ok(Some(floats(self.backend, &biased.biases(&table, heads.layout.heads))?))
    }

    /// Loads the weights of latent attention.
    fn latent(
        &mut self,
        layer: usize,
        heads: &AttentionHeads,
        plan: &LatentPlan,
    ) -> Result<LatentWeights<B>, Error> {
        let at = |slot| WeightSlot::Layer(layer, slot);
        let eps = plan.norm_eps;
        let (query_down, query) = if plan.query_rank.is_some() {
            let down = self.projection(at(LayerSlot::QueryDown), None)?;
            (Some((down, Norm::rms(self.vector(at(LayerSlot::QueryDownNorm))?, eps))), LayerSlot::QueryUp)
        } else {
            (None, LayerSlot::LatentQuery)
        };
        let query = self.projection(at(query), None)?;
        let down = self.projection(at(LayerSlot::LatentDown), None)?;
        let norm = Norm::rms(self.vector(at(LayerSlot::LatentNorm))?, eps);
        let slot = at(LayerSlot::LatentUp);
        let parts = self.parts(slot)?;
        let of_head = plan.plain_dim + plan.value_dim;
        let matrices = |rows: Range<usize>, is| {
            let stacks = (0..heads.layout.heads).map(|head| {
                let (start, mut stack) = (head * of_head, Vec::new());
                take_parts(&parts, start + rows.start..start + rows.end, false, &mut stack);
                stack
            });
            let stacks: Vec<Vec<Part>> = stacks.collect();
            let loaded = self.backend.head_matrices(&stacks, is, self.storage.dtype);
            loaded.map_err(|source| self.matrix_error(slot, &parts, source))
        };
        // A key is multiplied by the transposed matrix.
        let keys = matrices(0..plan.plain_dim, HeadRows::Inputs)?;
        let values = matrices(plan.plain_dim..of_head, HeadRows::Outputs)?;
        self.advance(head_matrices_bytes(self.spec, slot, self.storage.dtype, self.backend))?;
        let out = self.projection(at(LayerSlot::Out), heads.out_bias.then_some(at(LayerSlot::OutBias)))?;
        Ok(LatentWeights { query_down, query, down, norm, keys, values, out })
    }

    /// Loads the weights of a recurrent layer.
    fn recurrent(&mut self, layer: usize, spec: &RecurrentLayer) -> Result<RecurrentWeights<B>, Error> {
        use RecurrentSlot as Slot;
        let at = |slot| WeightSlot::Recurrent(layer, slot);
        let input = self.projection(at(Slot::In), spec.in_bias.then_some(at(Slot::InBias)))?;
        let by_channel = spec.is_by_channel();
        let (rates, step_bias) = match by_channel {
            true => (Slot::Strengths, Slot::ChannelBias),
            false => (Slot::Rates, Slot::StepBias),
        };
        let matrix = if spec.is_convolution() { None } else { Some(self.matrix(at(rates))?) };
        let low_rank = if by_channel { Some(self.low_rank(layer, spec)?) } else { None };
        let (conv, conv_bias) =
            (self.by_tap(at(Slot::Conv), spec)?, self.bias(spec.conv_bias, at(Slot::ConvBias))?);
        let rates = match matrix {
            Some(matrix) => {
                let decay_log = self.vector(at(Slot::DecayLog))?;
                let step_bias = self.vector(at(step_bias))?;
                let skip = self.bias(spec.has_skip(), at(Slot::Skip))?;
                Some(RateWeights { matrix, decay_log, step_bias, skip })
            }
            None => None,
        };
        // The kind of the norm is not that of the model's norms.
        let norm = match spec.result.norm_eps() {
            Some(eps) => Some(Norm::rms(self.vector(at(Slot::Norm))?, eps)),
            None => None,
        };
        let out = self.projection(at(Slot::Out), spec.out_bias.then_some(at(Slot::OutBias)))?;
        Ok(RecurrentWeights { input, conv, conv_bias, rates, low_rank, norm, out })
    }

    /// Loads the matrices of rates and gates that are products of two.
    fn low_rank(&mut self, layer: usize, spec: &RecurrentLayer) -> Result<LowRankWeights<B>, Error> {
        use RecurrentSlot as Slot;
        let at = |slot| WeightSlot::Recurrent(layer, slot);
        let (rate_down, rate_up) = (self.matrix(at(Slot::RateDown))?, self.matrix(at(Slot::RateUp))?);
        let gates = match spec.low_rank_gates() {
            0 => None,
            _ => Some((self.matrix(at(Slot::GateDown))?, self.matrix(at(Slot::GateUp))?)),
        };
        Ok(LowRankWeights { rate_down, rate_up, gates })
    }

    /// Loads the weights of a convolution, which are stored channel by channel, tap by tap. They
    /// contain the factors on the channels' inputs.
    fn by_tap(&mut self, slot: WeightSlot, spec: &RecurrentLayer) -> Result<B::Vector, Error> {
        let values = flatten(&self.parts(slot)?)?;
        self.advance(values.len() * size_of::<f32>())?;
        let of_tap = |tap: usize| {
            let of_channels = values.iter().skip(tap).step_by(spec.taps);
            of_channels.zip(spec.channel_factors()).map(|(weight, factor)| weight * factor)
        };
        Ok(floats(self.backend, &(0..spec.taps).flat_map(of_tap).collect::<Vec<_>>())?)
    }

    fn mlp(&mut self, layer: usize, mlp: &Mlp) -> Result<MlpWeights<B>, Error> {
        use LayerSlot as Slot;
        let at = |slot| WeightSlot::Layer(layer, slot);
        Ok(match mlp {
            Mlp::Gated(mlp) => MlpWeights::Dense(DenseWeights {
                up: self.projection(at(Slot::GateUp), mlp.up_bias.then_some(at(Slot::GateUpBias)))?,
                act: None,
                down: self.projection(at(Slot::Down), mlp.down_bias.then_some(at(Slot::DownBias)))?,
            }),
            Mlp::Plain(mlp) => MlpWeights::Dense(DenseWeights {
                up: self.projection(at(Slot::Up), mlp.up_bias.then_some(at(Slot::UpBias)))?,
                act: if mlp.xielu { Some(self.xielu(layer)?) } else { None },
                down: self.projection(at(Slot::Down), mlp.down_bias.then_some(at(Slot::DownBias)))?,
            }),
            Mlp::Experts(experts) => MlpWeights::Experts(ExpertsWeights {
                router: self.matrix(at(Slot::Router))?,
                router_bias: self.bias(experts.router_bias, at(Slot::RouterBias))?,
                choice_bias: self.bias(experts.choice_bias, at(Slot::ChoiceBias))?,
                gate_up: self.experts(at(Slot::ExpertGateUp))?,
                gate_up_bias: self.bias(experts.up_bias, at(Slot::ExpertGateUpBias))?,
                down: self.experts(at(Slot::ExpertDown))?,
                down_bias: self.bias(experts.down_bias, at(Slot::ExpertDownBias))?,
                shared: experts.shared.map(|shared| self.shared_expert(layer, shared)).transpose()?,
                scales: self.bias(experts.scales, at(Slot::RouterScales))?,
                norms: if experts.own_norms { Some(self.expert_norms(layer, experts)?) } else { None },
            }),
            Mlp::None => MlpWeights::None,
        })
    }

    /// Reads the numbers of xIELU. The factors on its curves are stored before a softplus.
    fn xielu(&mut self, layer: usize) -> Result<Activation, Error> {
        let mut number = |slot| self.number(WeightSlot::Layer(layer, slot));
        let softplus = |x: f32| f64::from(x).exp().ln_1p() as f32;
        let positive = softplus(number(LayerSlot::ActPositive)?);
        let negative = softplus(number(LayerSlot::ActNegative)?);
        let linear = number(LayerSlot::ActLinear)?;
        let limit = number(LayerSlot::ActLimit)?;
        Ok(Activation::Xielu(Xielu { positive, negative: linear + negative, linear, limit }))
    }

    fn shared_expert(&mut self, layer: usize, shared: SharedExpert) -> Result<SharedWeights<B>, Error> {
        let at = |slot| WeightSlot::Layer(layer, slot);
        let mlp = DenseWeights {
            up: self.projection(at(LayerSlot::SharedGateUp), None)?,
            act: None,
            down: self.projection(at(LayerSlot::SharedDown), None)?,
        };
        let gate = if shared.gated { Some(self.matrix(at(LayerSlot::SharedGate))?) } else { None };
        Ok(SharedWeights { mlp, gate })
    }

    /// Loads the norms of a mixture of experts.
    fn expert_norms(&mut self, layer: usize, experts: &ExpertsSpec) -> Result<ExpertNorms<B>, Error> {
        let at = |slot| WeightSlot::Layer(layer, slot);
        let mut scale = flatten(&self.parts(at(LayerSlot::RouterNorm))?)?;
        self.advance(scale.len() * size_of::<f32>())?;
        let factor = (self.spec.hidden as f32).sqrt().recip();
        scale.iter_mut().for_each(|scale| *scale *= factor);
        let router = self.norm_by(floats(self.backend, &scale)?);
        let input = self.norm(at(LayerSlot::ExpertNorm), None)?;
        let out = self.norm(at(LayerSlot::ExpertOutNorm), None)?;
        let shared_out = self.norm_if(experts.shared.is_some(), at(LayerSlot::SharedOutNorm), None)?;
        Ok(ExpertNorms { router, input, out, shared_out })
    }

    /// Loads a matrix of each expert.
    fn experts(&mut self, slot: WeightSlot) -> Result<B::Experts, Error> {
        let parts = self.parts(slot)?;
        let ((rows, cols), count) = (self.spec.shape(slot), self.spec.stacked_experts(slot));
        let of_expert = rows / count;
        let format = self.storage.matrix(slot, cols);
        let stacks = (0..count).map(|expert| {
            let mut stack = Vec::new();
            take_parts(&parts, expert * of_expert..(expert + 1) * of_expert, false, &mut stack);
            stack
        });
        let experts = self
            .backend
            .experts(&stacks.collect::<Vec<_>>(), format)
            .map_err(|source| self.matrix_error(slot, &parts, source))?;
        self.advance(self.backend.experts_bytes(count, of_expert, cols, format))?;
        Ok(experts)
    }

    fn head_norm(
        &mut self,
        layer: usize,
        heads: &AttentionHeads,
    ) -> Result<Option<HeadNorm<B::Vector>>, Error> {
        if heads.head_norm == HeadNormPlan::SharedAfterRotation {
            return self.norm_after_rotation(layer, heads).map(Some);
        }
        let Some(q) = self.query_norm(layer, heads)? else { return Ok(None) };
        let at = |slot| WeightSlot::Layer(layer, slot);
        let k = match heads.head_norm {
            HeadNormPlan::None | HeadNormPlan::SharedAfterRotation => return Ok(None),
            HeadNormPlan::Unscaled => self.unscaled_norm(heads)?,
            HeadNormPlan::Shared => self.norm(at(LayerSlot::KNorm), None)?,
            HeadNormPlan::SharedWithBias => {
                self.norm(at(LayerSlot::KNorm), Some(at(LayerSlot::KNormBias)))?
            }
            HeadNormPlan::PerHead | HeadNormPlan::AllHeads => self.norm(at(LayerSlot::KHeadsNorm), None)?,
        };
        Ok(Some(HeadNorm { q, k }))
    }

    /// Loads the norm of query heads. If it follows the rotation, it is one with that of keys.
    fn query_norm(&mut self, layer: usize, heads: &AttentionHeads) -> Result<Option<Norm<B::Vector>>, Error> {
        let at = |slot| WeightSlot::Layer(layer, slot);
        Ok(match heads.head_norm {
            HeadNormPlan::None | HeadNormPlan::SharedAfterRotation => None,
            HeadNormPlan::Unscaled => Some(self.unscaled_norm(heads)?),
            HeadNormPlan::Shared => Some(self.norm(at(LayerSlot::QNorm), None)?),
            HeadNormPlan::SharedWithBias => {
                Some(self.norm(at(LayerSlot::QNorm), Some(at(LayerSlot::QNormBias)))?)
            }
            HeadNormPlan::PerHead | HeadNormPlan::AllHeads => {
                Some(self.norm(at(LayerSlot::QHeadsNorm), None)?)
            }
        })
    }

    /// Loads the norms of heads that are rotated first. A rotation keeps the root mean square of a
    /// head, and so keys are divided by it before the rotation. A score is a sum of products of a
    /// query's and a key's features, and so queries take the product of both scales.
    fn norm_after_rotation(
        &mut self,
        layer: usize,
        heads: &AttentionHeads,
    ) -> Result<HeadNorm<B::Vector>, Error> {
        let mut scales = self.scales(WeightSlot::Layer(layer, LayerSlot::QNorm))?;
        let of_keys = self.scales(WeightSlot::Layer(layer, LayerSlot::KNorm))?;
        scales.iter_mut().zip(of_keys).for_each(|(scale, of_key)| *scale *= of_key);
        self.advance(scales.len() * size_of::<f32>())?;
        let q = self.norm_by(floats(self.backend, &scales)?);
        Ok(HeadNorm { q, k: self.unscaled_norm(heads)? })
    }

    /// Makes a norm of heads whose scales are 1.
    fn unscaled_norm(&mut self, heads: &AttentionHeads) -> Result<Norm<B::Vector>, Error> {
        let scales = vec![1.0; heads.layout.head_dim];
        self.advance(scales.len() * size_of::<f32>())?;
        let weight = floats(self.backend, &scales)?;
        Ok(self.norm_by(weight))
    }

    /// Makes a norm of the model's kind with these scales, which are not stored minus 1.
    fn norm_by(&self, weight: B::Vector) -> Norm<B::Vector> {
        match self.spec.norm.kind {
            millrace_model::NormKind::Rms { eps, .. } => Norm::rms(weight, eps),
            millrace_model::NormKind::Layer { eps, .. } => {
                Norm { kind: NormKind::Layer, weight, bias: None, eps }
            }
        }
    }

    /// Loads the weights of per-layer embeddings that belong to no layer.
    fn per_layer(&mut self) -> Result<PerLayerWeights<B>, Error> {
        let table = self.looked_up(WeightSlot::PerLayerEmbedding)?;
        let width = self.spec.per_layer.map_or(0, |table| table.width);
        Ok(PerLayerWeights {
            table,
            factor: self.storage.dtype.round((width as f32).sqrt()),
            projection: self.matrix(WeightSlot::PerLayerProjection)?,
            norm: self.norm(WeightSlot::PerLayerProjectionNorm, None)?,
        })
    }

    /// Loads the weights by which a layer reads its own embedding.
    fn layer_input(&mut self, layer: usize) -> Result<LayerInputWeights<B>, Error> {
        let at = |slot| WeightSlot::Layer(layer, slot);
        Ok(LayerInputWeights {
            gate: self.matrix(at(LayerSlot::InputGate))?,
            projection: self.matrix(at(LayerSlot::InputProjection))?,
            norm: self.norm(at(LayerSlot::InputNorm), None)?,
        })
    }

    /// Loads the weights by which a head reads the states of a model.
    fn states_input(&mut self) -> Result<StatesInputWeights<B>, Error> {
        Ok(StatesInputWeights {
            token_norm: self.norm(WeightSlot::TokenNorm, None)?,
            token_projection: self.matrix(WeightSlot::TokenProjection)?,
            state_norm: self.norm(WeightSlot::StateNorm, None)?,
            state_projection: self.matrix(WeightSlot::StateProjection)?,
        })
    }

    /// Loads the table of learned positions, from the row of position 0 on.
    fn positions(&mut self, table: &LearnedPositions) -> Result<B::Matrix, Error> {
        let slot = WeightSlot::Positions;
        let mut parts = self.parts(slot)?;
        // The table is one tensor, which every rank has whole.
        parts.iter_mut().for_each(|part| part.rows.start += table.first);
        let dtype = self.storage.dtype;
        let positions =
            self.backend.embedding(&parts, dtype).map_err(|source| Error::Matrix { slot, source })?;
        let (rows, cols) = self.spec.shape(slot);
        self.advance(self.backend.embedding_bytes(rows, cols, dtype))?;
        Ok(positions)
    }

    /// Reads what tokens of the second type get in addition, which stays on the host.
    fn second_type(&mut self) -> Result<Vec<f32>, Error> {
        let values = flatten(&self.parts(WeightSlot::SecondType)?)?;
        self.advance(values.len() * size_of::<f32>())?;
        Ok(values)
    }

    /// Loads a matrix that adapters may change, and its bias if it has one.
    fn projection(&mut self, slot: WeightSlot, bias: Option<WeightSlot>) -> Result<Projection<B>, Error> {
        let matrix = self.matrix(slot)?;
        let bias = bias.map(|slot| self.vector(slot)).transpose()?;
        Ok(Projection { slot, matrix, bias, adapters: None })
    }

    fn matrix(&mut self, slot: WeightSlot) -> Result<B::Matrix, Error> {
        let parts = self.parts(slot)?;
        self.matrix_of(slot, &parts)
    }

    fn matrix_of(&mut self, slot: WeightSlot, parts: &[Part]) -> Result<B::Matrix, Error> {
        let shape = self.spec.shape(slot);
        let (mut segments, mut bytes, mut rest) = (Vec::new(), 0, parts);
        let formats = self.storage.rows(slot, shape);
        for (index, &RowsInFormat { rows, format }) in formats.iter().enumerate() {
            let is_last = index + 1 == formats.len();
            let (of_segment, others) = if is_last { (rest, &[][..]) } else { first_rows(rest, rows) };
            segments.push(Segment::new(of_segment, format));
            (bytes, rest) = (bytes + self.backend.matrix_bytes(rows, shape.1, format), others);
        }
        let loaded = self.backend.matrix(&segments);
        let matrix = loaded.map_err(|source| self.matrix_error(slot, parts, source))?;
        self.advance(bytes)?;
        Ok(matrix)
    }

    /// Returns the error of a matrix that the device cannot load. It names the tensor with a number
    /// that cannot be used.
    fn matrix_error(&self, slot: WeightSlot, parts: &[Part], source: millrace_backend::Error) -> Error {
        if let millrace_backend::Error::Numbers(millrace_numbers::Error::StoredNumber { part, row, col }) =
            source
            && let Some(TensorPlace { file, tensor }) =
                parts.get(part).and_then(|part| self.source.tensor_of(part))
        {
            let reason = format!("has a NaN or an infinity in row {row}, column {col}");
            return WeightError::Quantized { file, tensor, reason }.into();
        }
        Error::Matrix { slot, source }
    }

    /// Loads the embedding: as a matrix if it is also the head, and otherwise as rows to look up. A
    /// quantized head is a matrix beside the embedding, and comes second.
    fn embedding(&mut self) -> Result<(B::Matrix, Option<B::Matrix>), Error> {
        let slot = WeightSlot::Embedding;
        match self.spec.tied_head {
            true if self.storage.quantizes_tied_head(self.spec) => {
                let parts = self.parts(slot)?;
                Ok((self.rows_of(slot, &parts)?, Some(self.matrix_of(slot, &parts)?)))
            }
            true => Ok((self.matrix(slot)?, None)),
            false => Ok((self.looked_up(slot)?, None)),
        }
    }

    /// Loads rows to look up.
    fn looked_up(&mut self, slot: WeightSlot) -> Result<B::Matrix, Error> {
        let parts = self.parts(slot)?;
        let embedding = self.rows_of(slot, &parts)?;
        let (rows, cols) = self.spec.shape(slot);
        self.advance(self.backend.embedding_bytes(rows, cols, self.storage.dtype))?;
        Ok(embedding)
    }

    fn rows_of(&self, slot: WeightSlot, parts: &[Part]) -> Result<B::Matrix, Error> {
        self.backend.embedding(parts, self.storage.dtype).map_err(|source| Error::Matrix { slot, source })
    }

    fn vector(&mut self, slot: WeightSlot) -> Result<B::Vector, Error> {
        let parts = self.parts(slot)?;
        let vector = self.backend.vector(&parts)?;
        let (rows, cols) = self.spec.shape(slot);
        self.advance(rows * cols * size_of::<f32>())?;
        Ok(vector)
    }

    /// Reads a vector of one number, which stays on the host.
    fn number(&mut self, slot: WeightSlot) -> Result<f32, Error> {
        let values = flatten(&self.parts(slot)?)?;
        self.advance(size_of::<f32>())?;
        let [number] = values[..] else { unreachable!("the shape of {slot:?} was checked") };
        Ok(number)
    }

    /// Loads a norm. Its bias is at `bias`, if the norms of the model have biases.
    fn norm(&mut self, slot: WeightSlot, bias: Option<WeightSlot>) -> Result<Norm<B::Vector>, Error> {
        let has_bias = self.spec.norm.has_bias();
        Ok(match self.spec.norm.kind {
            millrace_model::NormKind::Rms { eps, add_one } => {
                let weight = if add_one { self.scales_plus_one(slot)? } else { self.vector(slot)? };
                Norm::rms(weight, eps)
            }
            millrace_model::NormKind::Layer { eps, .. } => Norm {
                kind: NormKind::Layer,
                weight: self.vector(slot)?,
                bias: bias.filter(|_| has_bias).map(|slot| self.vector(slot)).transpose()?,
                eps,
            },
        })
    }

    fn norm_if(
        &mut self,
        wanted: bool,
        slot: WeightSlot,
        bias: Option<WeightSlot>,
    ) -> Result<Option<Norm<B::Vector>>, Error> {
        if wanted { self.norm(slot, bias).map(Some) } else { Ok(None) }
    }

    /// Reads the scales of a norm, which may be stored minus 1.
    fn scales(&mut self, slot: WeightSlot) -> Result<Vec<f32>, Error> {
        let mut values = flatten(&self.parts(slot)?)?;
        if matches!(self.spec.norm.kind, millrace_model::NormKind::Rms { add_one: true, .. }) {
            values.iter_mut().for_each(|value| *value += 1.0);
        }
        Ok(values)
    }

    /// Loads the scales of a norm that are stored minus 1.
    fn scales_plus_one(&mut self, slot: WeightSlot) -> Result<B::Vector, Error> {
        let values = self.scales(slot)?;
        self.advance(values.len() * size_of::<f32>())?;
        Ok(floats(self.backend, &values)?)
    }

    fn bias(&mut self, wanted: bool, slot: WeightSlot) -> Result<Option<B::Vector>, Error> {
        if wanted { self.vector(slot).map(Some) } else { Ok(None) }
    }

    fn parts(&mut self, slot: WeightSlot) -> Result<Vec<Part>, Error> {
        let parts = self.source.parts(slot)?;
        self.read_ahead()?;
        let bytes = stored_bytes(&parts);
        self.awaited = self.awaited.saturating_sub(bytes);
        self.read += bytes;
        let (want_rows, want_cols) = self.spec.shape(slot);
        // The parts of a vector are joined end to end; those of a matrix are stacked.
        let (rows, cols) = if slot.is_vector() {
            (1, parts.iter().map(Part::elements).sum())
        } else {
            (parts.iter().map(|part| part.rows.len()).sum(), parts.first().map_or(0, |part| part.cols.len()))
        };
        if (rows, cols) != (want_rows, want_cols) {
            return Err(Error::WeightShape { slot, rows, cols, want_rows, want_cols });
        }
        Ok(parts)
    }

    /// Starts the read-ahead of the next weights, so that the disk reads while this one is
    /// uploaded.
    fn read_ahead(&mut self) -> Result<(), Error> {
        if !self.backend.reads_parts() {
            return Ok(());
        }
        while self.awaited < READ_AHEAD
            && let Some(slot) = self.ahead.next()
        {
            let parts = self.source.parts(slot)?;
            parts.iter().for_each(|part| self.source.will_need(part));
            self.awaited += stored_bytes(&parts);
        }
        Ok(())
    }

    fn advance(&mut self, bytes: usize) -> Result<(), Error> {
        self.done += bytes;
        (self.progress)(self.done)
    }
}

/// Returns the bytes that the parts take in their source.
fn stored_bytes(parts: &[Part]) -> usize {
    parts.iter().map(Part::stored_bytes).sum()
}

/// Loads a vector that is not stored.
fn floats<B: Backend>(backend: &B, values: &[f32]) -> millrace_backend::Result<B::Vector> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    backend.vector(&[Part::whole(HostTensor::dense(DType::F32, 1, values.len(), Bytes::from(bytes)))])
}

/// Computes the rotary tables of a model for sequences of `positions` positions and loads them.
pub(super) fn ropes<B: Backend>(
    backend: &B,
    spec: &DecoderSpec,
    positions: usize,
) -> millrace_backend::Result<Vec<RopeSpec<B::Vector>>> {
    spec.ropes.iter().map(|table| rope(backend, table, positions)).collect()
}

/// Computes the factors on queries by position, if the model has such factors, and loads them.
pub(super) fn query_scale<B: Backend>(
    backend: &B,
    spec: &DecoderSpec,
    positions: usize,
) -> millrace_backend::Result<Option<B::Vector>> {
    spec.query_scale.map(|scale| floats(backend, &scale.values(positions))).transpose()
}

/// Computes a rotary table for sequences of `positions` positions and loads it.
fn rope<B: Backend>(
    backend: &B,
    table: &RopeTable,
    positions: usize,
) -> millrace_backend::Result<RopeSpec<B::Vector>> {
    // On the second axis, positions behind an empty prefix are counted from 1.
    let positions = positions + usize::from(table.two_axes);
    let values = table.values(positions);
    let vector = |values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let cols = table.rotary_dim / 2;
        let tensor = HostTensor::dense(DType::F32, positions, cols, Bytes::from(bytes));
        backend.vector(&[Part::whole(tensor)])
    };
    Ok(RopeSpec {
        style: table.style,
        rotary_dim: table.rotary_dim,
        two_axes: table.two_axes,
        cos: vector(&values.cos)?,
        sin: vector(&values.sin)?,
    })
}

/// Divides stacked parts after those that have the first `rows` rows.
fn first_rows(parts: &[Part], rows: usize) -> (&[Part], &[Part]) {
    let mut missing = rows;
    let is_before = |part: &&Part| {
        let is_wanted = missing > 0;
        missing = missing.saturating_sub(part.rows.len());
        is_wanted
    };
    parts.split_at(parts.iter().take_while(is_before).count())
}
