//! The weights of a model in device memory.

use std::ops::Range;
use std::vec::IntoIter;

use bytes::Bytes;
use millrace_kernels::tensor::flatten;
use millrace_kernels::{
    Backend, DType, HeadNorm, HeadRows, HostTensor, Norm, NormKind, Part, RopeSpec, Segment,
};

use super::head_matrices::head_matrices_bytes;
use crate::Error;
use crate::model::{
    self, Attention, AttentionHeads, DecoderSpec, HeadNormPlan, LatentPlan, LayerSlot, LayerSpec,
    LearnedPositions, Mlp, Positions, RopeTable, SharedExpert, TensorPlace, WeightError, WeightSlot,
    WeightSource, WeightStorage, take,
};

/// Bytes that the disk is asked to read ahead: more than it reads while a matrix is uploaded, and
/// little compared to any machine's memory.
const READ_AHEAD: usize = 512 << 20;

/// All constants of a decoder in device memory.
pub struct Weights<B: Backend> {
    pub(super) embedding: B::Matrix, // [vocab_rows, hidden]
    /// Factor on the embedding.
    pub(super) embedding_factor: f32,
    pub(super) embedding_norm: Option<Norm<B::Vector>>, // [hidden]
    pub(super) positions: Option<B::Matrix>,            // [positions, hidden]
    pub(super) ropes: Vec<RopeSpec<B::Vector>>,
    pub(super) layers: Vec<LayerWeights<B>>,
    pub(super) final_norm: Option<Norm<B::Vector>>, // [hidden]
    pub(super) head: Option<B::Matrix>,             // [vocab_rows, hidden]; none if the head is the embedding
    pub(super) head_bias: Option<B::Vector>,        // [vocab_rows]
    bytes_read: usize,
}

/// The constants of one layer.
pub(super) struct LayerWeights<B: Backend> {
    pub(super) attention_norm: Option<Norm<B::Vector>>, // [hidden]
    pub(super) attention: AttentionWeights<B>,
    pub(super) attention_out_norm: Option<Norm<B::Vector>>, // [hidden]
    pub(super) mlp_norm: Option<Norm<B::Vector>>,           // [hidden]
    pub(super) mlp: MlpWeights<B>,
    pub(super) mlp_out_norm: Option<Norm<B::Vector>>, // [hidden]
}

/// The constants of a layer's attention.
pub(super) enum AttentionWeights<B: Backend> {
    Softmax(SoftmaxWeights<B>),
    Latent(LatentWeights<B>),
}

/// The constants of softmax attention.
pub(super) struct SoftmaxWeights<B: Backend> {
    pub(super) qkv: B::Matrix,              // [(heads + 2 kv_heads) * head_dim, hidden]
    pub(super) qkv_bias: Option<B::Vector>, // [(heads + 2 kv_heads) * head_dim]
    pub(super) head_norm: Option<HeadNorm<B::Vector>>, // [head_dim], or the features of all heads, each
    pub(super) alibi: Option<B::Vector>,    // [heads]
    pub(super) sinks: Option<B::Vector>,    // [heads]
    pub(super) out: B::Matrix,              // [hidden, heads * head_dim]
    pub(super) out_bias: Option<B::Vector>, // [hidden]
}

/// The constants of latent attention.
pub(super) struct LatentWeights<B: Backend> {
    /// `[query_rank, hidden]`, and the norm that follows, if queries are not computed from the
    /// residual stream.
    pub(super) query_down: Option<(B::Matrix, Norm<B::Vector>)>,
    pub(super) query: B::Matrix, // [heads * (plain_dim + rotary_dim), query_rank or hidden]
    pub(super) down: B::Matrix,  // [rotary_dim + rank, hidden]
    pub(super) norm: Norm<B::Vector>, // [rank]
    pub(super) keys: B::HeadMatrices, // plain_dim inputs, rank outputs
    pub(super) values: B::HeadMatrices, // rank inputs, value_dim outputs
    pub(super) out: B::Matrix,   // [hidden, heads * value_dim]
    pub(super) out_bias: Option<B::Vector>, // [hidden]
}

/// The constants of an MLP.
pub(super) enum MlpWeights<B: Backend> {
    Dense(DenseWeights<B>),
    Experts(ExpertsWeights<B>),
}

/// The constants of an MLP that every token passes through.
pub(super) struct DenseWeights<B: Backend> {
    pub(super) up: B::Matrix, // [2 * width, hidden] with a gate, else [width, hidden]
    pub(super) up_bias: Option<B::Vector>, // one for each row of `up`
    pub(super) down: B::Matrix, // [hidden, width]
    pub(super) down_bias: Option<B::Vector>, // [hidden]
}

/// The constants of a mixture of experts.
pub(super) struct ExpertsWeights<B: Backend> {
    pub(super) router: B::Matrix,               // [experts, hidden]
    pub(super) router_bias: Option<B::Vector>,  // [experts]
    pub(super) choice_bias: Option<B::Vector>,  // [experts]
    pub(super) gate_up: B::Experts,             // [2 * width, hidden] of each expert
    pub(super) gate_up_bias: Option<B::Vector>, // [experts, 2 * width]
    pub(super) down: B::Experts,                // [hidden, width] of each expert
    pub(super) down_bias: Option<B::Vector>,    // [experts, hidden]
    pub(super) shared: Option<SharedWeights<B>>,
}

/// The constants of a shared expert.
pub(super) struct SharedWeights<B: Backend> {
    pub(super) mlp: DenseWeights<B>,
    pub(super) gate: Option<B::Matrix>, // [1, hidden]
}

impl<B: Backend> Weights<B> {
    /// Loads every weight of `spec` from `source` in the formats that `storage` says, and computes
    /// the rotary tables for `positions` positions. Calls `progress` after each weight with the
    /// bytes on the device so far.
    ///
    /// # Errors
    /// If the source or the device fails, or a weight does not have the shape that `spec` asks for.
    pub fn load(
        backend: &B,
        spec: &DecoderSpec,
        source: &dyn WeightSource,
        storage: impl Into<WeightStorage>,
        positions: usize,
        progress: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let (ahead, storage) = (spec.slots().into_iter(), storage.into());
        let mut loader =
            WeightLoader { backend, spec, source, storage, ahead, awaited: 0, done: 0, read: 0, progress };
        let embedding = loader.embedding()?;
        let embedding_factor = loader.storage.dtype.round(spec.embedding.factor);
        let embedding_norm = match spec.embedding.norm {
            true => Some(loader.norm(WeightSlot::EmbeddingNorm, Some(WeightSlot::EmbeddingNormBias))?),
            false => None,
        };
        let learned = spec.embedding.positions.map(|table| loader.positions(&table)).transpose()?;
        let layers = spec
            .layers
            .iter()
            .enumerate()
            .map(|(index, layer)| loader.layer(index, layer))
            .collect::<Result<Vec<_>, _>>()?;
        let final_norm =
            loader.norm_if(spec.has_final_norm(), WeightSlot::FinalNorm, Some(WeightSlot::FinalNormBias))?;
        let head = if spec.tied_head { None } else { Some(loader.matrix(WeightSlot::Head)?) };
        let head_bias = loader.bias(spec.head.bias, WeightSlot::HeadBias)?;
        let ropes =
            spec.ropes.iter().map(|table| rope(backend, table, positions)).collect::<Result<Vec<_>, _>>()?;
        let bytes_read = loader.read;
        Ok(Weights {
            embedding,
            embedding_factor,
            embedding_norm,
            positions: learned,
            ropes,
            layers,
            final_norm,
            head,
            head_bias,
            bytes_read,
        })
    }

    /// Returns the bytes that were read from the source: this rank's share, padding included, and
    /// the weights that every rank has whole.
    pub fn bytes_read(&self) -> usize {
        self.bytes_read
    }
}

/// The state of [`Weights::load`].
struct WeightLoader<'a, B: Backend> {
    backend: &'a B,
    spec: &'a DecoderSpec,
    source: &'a dyn WeightSource,
    storage: WeightStorage,
    /// The weights for which no read-ahead has been started.
    ahead: IntoIter<WeightSlot>,
    /// Bytes whose read-ahead has been started, and that have not been loaded.
    awaited: usize,
    done: usize,
    read: usize,
    progress: &'a mut dyn FnMut(usize) -> Result<(), Error>,
}

impl<B: Backend> WeightLoader<'_, B> {
    fn layer(&mut self, index: usize, layer: &LayerSpec) -> Result<LayerWeights<B>, Error> {
        use LayerSlot as Slot;
        let at = |slot| WeightSlot::Layer(index, slot);
        let place = self.spec.norm.place;
        Ok(LayerWeights {
            attention_norm: self.norm_if(
                place.is_before(),
                at(Slot::AttentionNorm),
                Some(at(Slot::AttentionNormBias)),
            )?,
            attention: self.attention(index, &layer.attention)?,
            attention_out_norm: self.norm_if(place.is_after(), at(Slot::AttentionOutNorm), None)?,
            mlp_norm: self.norm_if(
                self.spec.has_mlp_norm(),
                at(Slot::MlpNorm),
                Some(at(Slot::MlpNormBias)),
            )?,
            mlp: self.mlp(index, &layer.mlp)?,
            mlp_out_norm: self.norm_if(
                place.is_after() || place.is_of_sums(),
                at(Slot::MlpOutNorm),
                Some(at(Slot::MlpOutNormBias)).filter(|_| place.is_of_sums()),
            )?,
        })
    }

    fn attention(&mut self, layer: usize, attention: &Attention) -> Result<AttentionWeights<B>, Error> {
        match attention {
            Attention::Full(heads) | Attention::Sliding { heads, .. } => Ok(match &heads.latent {
                None => AttentionWeights::Softmax(self.softmax(layer, heads)?),
                Some(plan) => AttentionWeights::Latent(self.latent(layer, heads, plan)?),
            }),
        }
    }

    fn softmax(&mut self, layer: usize, heads: &AttentionHeads) -> Result<SoftmaxWeights<B>, Error> {
        use LayerSlot as Slot;
        let at = |slot| WeightSlot::Layer(layer, slot);
        Ok(SoftmaxWeights {
            qkv: self.matrix(at(Slot::Qkv))?,
            qkv_bias: self.bias(heads.qkv_bias, at(Slot::QkvBias))?,
            head_norm: self.head_norm(layer, heads.head_norm)?,
            alibi: match heads.positions {
                Positions::Linear(alibi) => Some(floats(self.backend, &alibi.slopes(heads.layout.heads))?),
                Positions::None | Positions::Rotary { .. } => None,
            },
            sinks: self.bias(heads.sinks, at(Slot::Sinks))?,
            out: self.matrix(at(Slot::Out))?,
            out_bias: self.bias(heads.out_bias, at(Slot::OutBias))?,
        })
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
            let down = self.matrix(at(LayerSlot::QueryDown))?;
            (Some((down, Norm::rms(self.vector(at(LayerSlot::QueryDownNorm))?, eps))), LayerSlot::QueryUp)
        } else {
            (None, LayerSlot::LatentQuery)
        };
        let (query, down) = (self.matrix(at(query))?, self.matrix(at(LayerSlot::LatentDown))?);
        let norm = Norm::rms(self.vector(at(LayerSlot::LatentNorm))?, eps);
        let slot = at(LayerSlot::LatentUp);
        let parts = self.parts(slot)?;
        let of_head = plan.plain_dim + plan.value_dim;
        let matrices = |rows: Range<usize>, is| {
            let stacks = (0..heads.layout.heads).map(|head| {
                let (start, mut stack) = (head * of_head, Vec::new());
                take(&parts, start + rows.start..start + rows.end, false, &mut stack);
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
        let out = self.matrix(at(LayerSlot::Out))?;
        let out_bias = self.bias(heads.out_bias, at(LayerSlot::OutBias))?;
        Ok(LatentWeights { query_down, query, down, norm, keys, values, out, out_bias })
    }

    fn mlp(&mut self, layer: usize, mlp: &Mlp) -> Result<MlpWeights<B>, Error> {
        use LayerSlot as Slot;
        let at = |slot| WeightSlot::Layer(layer, slot);
        Ok(match mlp {
            Mlp::Gated(mlp) => MlpWeights::Dense(DenseWeights {
                up: self.matrix(at(Slot::GateUp))?,
                up_bias: self.bias(mlp.up_bias, at(Slot::GateUpBias))?,
                down: self.matrix(at(Slot::Down))?,
                down_bias: self.bias(mlp.down_bias, at(Slot::DownBias))?,
            }),
            Mlp::Plain(mlp) => MlpWeights::Dense(DenseWeights {
                up: self.matrix(at(Slot::Up))?,
                up_bias: self.bias(mlp.up_bias, at(Slot::UpBias))?,
                down: self.matrix(at(Slot::Down))?,
                down_bias: self.bias(mlp.down_bias, at(Slot::DownBias))?,
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
            }),
        })
    }

    fn shared_expert(&mut self, layer: usize, shared: SharedExpert) -> Result<SharedWeights<B>, Error> {
        let at = |slot| WeightSlot::Layer(layer, slot);
        let mlp = DenseWeights {
            up: self.matrix(at(LayerSlot::SharedGateUp))?,
            up_bias: None,
            down: self.matrix(at(LayerSlot::SharedDown))?,
            down_bias: None,
        };
        let gate = if shared.gated { Some(self.matrix(at(LayerSlot::SharedGate))?) } else { None };
        Ok(SharedWeights { mlp, gate })
    }

    /// Loads a matrix of each expert.
    fn experts(&mut self, slot: WeightSlot) -> Result<B::Experts, Error> {
        let parts = self.parts(slot)?;
        let ((rows, cols), count) = (self.spec.shape(slot), self.spec.stacked_experts(slot));
        let of_expert = rows / count;
        let format = self.storage.matrix(slot, cols);
        let stacks = (0..count).map(|expert| {
            let mut stack = Vec::new();
            take(&parts, expert * of_expert..(expert + 1) * of_expert, false, &mut stack);
            stack
        });
        let experts = self
            .backend
            .experts(&stacks.collect::<Vec<_>>(), format)
            .map_err(|source| self.matrix_error(slot, &parts, source))?;
        self.advance(self.backend.experts_bytes(count, of_expert, cols, format))?;
        Ok(experts)
    }

    fn head_norm(&mut self, layer: usize, plan: HeadNormPlan) -> Result<Option<HeadNorm<B::Vector>>, Error> {
        let (q, k) = match plan {
            HeadNormPlan::None => return Ok(None),
            HeadNormPlan::Shared => (LayerSlot::QNorm, LayerSlot::KNorm),
            HeadNormPlan::PerHead | HeadNormPlan::AllHeads => (LayerSlot::QHeadsNorm, LayerSlot::KHeadsNorm),
        };
        let q = self.norm(WeightSlot::Layer(layer, q), None)?;
        let k = self.norm(WeightSlot::Layer(layer, k), None)?;
        Ok(Some(HeadNorm { q, k }))
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

    fn matrix(&mut self, slot: WeightSlot) -> Result<B::Matrix, Error> {
        let parts = self.parts(slot)?;
        let (rows, cols) = self.spec.shape(slot);
        let format = self.storage.matrix(slot, cols);
        let matrix = self
            .backend
            .matrix(&[Segment::new(&parts, format)])
            .map_err(|source| self.matrix_error(slot, &parts, source))?;
        self.advance(self.backend.matrix_bytes(rows, cols, format))?;
        Ok(matrix)
    }

    /// Returns the error of a matrix that the device cannot load. It names the tensor with a number
    /// that cannot be used.
    fn matrix_error(&self, slot: WeightSlot, parts: &[Part], source: millrace_kernels::Error) -> Error {
        if let millrace_kernels::Error::StoredNumber { part, row, col } = source
            && let Some(TensorPlace { file, tensor }) =
                parts.get(part).and_then(|part| self.source.tensor_of(part))
        {
            let reason = format!("has a NaN or an infinity in row {row}, column {col}");
            return WeightError::Quantized { file, tensor, reason }.into();
        }
        Error::Matrix { slot, source }
    }

    /// Loads the embedding: as a matrix if it is also the head, and otherwise as rows to look up.
    fn embedding(&mut self) -> Result<B::Matrix, Error> {
        let slot = WeightSlot::Embedding;
        if self.spec.tied_head {
            return self.matrix(slot);
        }
        let (parts, dtype) = (self.parts(slot)?, self.storage.dtype);
        let embedding =
            self.backend.embedding(&parts, dtype).map_err(|source| Error::Matrix { slot, source })?;
        let (rows, cols) = self.spec.shape(slot);
        self.advance(self.backend.embedding_bytes(rows, cols, dtype))?;
        Ok(embedding)
    }

    fn vector(&mut self, slot: WeightSlot) -> Result<B::Vector, Error> {
        let parts = self.parts(slot)?;
        let vector = self.backend.vector(&parts)?;
        let (rows, cols) = self.spec.shape(slot);
        self.advance(rows * cols * size_of::<f32>())?;
        Ok(vector)
    }

    /// Loads a norm. Its bias is at `bias`, if the norms of the model have biases.
    fn norm(&mut self, slot: WeightSlot, bias: Option<WeightSlot>) -> Result<Norm<B::Vector>, Error> {
        let has_bias = self.spec.norm.has_bias();
        Ok(match self.spec.norm.kind {
            model::NormKind::Rms { eps, add_one } => {
                let weight = if add_one { self.vector_plus_one(slot)? } else { self.vector(slot)? };
                Norm::rms(weight, eps)
            }
            model::NormKind::Layer { eps, .. } => Norm {
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

    /// Loads a vector whose numbers are stored minus 1.
    fn vector_plus_one(&mut self, slot: WeightSlot) -> Result<B::Vector, Error> {
        let mut values = flatten(&self.parts(slot)?)?;
        values.iter_mut().for_each(|value| *value += 1.0);
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
fn floats<B: Backend>(backend: &B, values: &[f32]) -> millrace_kernels::Result<B::Vector> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    backend.vector(&[Part::whole(HostTensor::dense(DType::F32, 1, values.len(), Bytes::from(bytes)))])
}

/// Computes a rotary table for `positions` positions and loads it.
fn rope<B: Backend>(
    backend: &B,
    table: &RopeTable,
    positions: usize,
) -> millrace_kernels::Result<RopeSpec<B::Vector>> {
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
        cos: vector(&values.cos)?,
        sin: vector(&values.sin)?,
        query_scale: table.query_scales(positions).map(|scales| floats(backend, &scales)).transpose()?,
    })
}
