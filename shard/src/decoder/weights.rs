//! The weights of a model in device memory.

use std::vec::IntoIter;

use bytes::Bytes;
use millrace_kernels::{Backend, DType, HeadNorm, HostTensor, Norm, Part, RopeSpec, Segment};

use crate::Error;
use crate::model::{
    DecoderSpec, LayerSlot, LayerSpec, Mlp, NormKind, RopeTable, TensorPlace, WeightError, WeightSlot,
    WeightSource, WeightStorage,
};

/// Bytes that the disk is asked to read ahead: more than it reads while a matrix is uploaded, and
/// little compared to any machine's memory.
const READ_AHEAD: usize = 512 << 20;

/// All constants of a decoder in device memory.
pub struct Weights<B: Backend> {
    pub(super) embedding: B::Matrix, // [vocab_rows, hidden]
    pub(super) ropes: Vec<RopeSpec<B::Vector>>,
    pub(super) layers: Vec<LayerWeights<B>>,
    pub(super) final_norm: Norm<B::Vector>, // [hidden]
    pub(super) head: Option<B::Matrix>,     // [vocab_rows, hidden]; none if the head is the embedding
    bytes_read: usize,
}

/// The constants of one layer.
pub(super) struct LayerWeights<B: Backend> {
    pub(super) attention_norm: Norm<B::Vector>,        // [hidden]
    pub(super) qkv: B::Matrix,                         // [(heads + 2 kv_heads) * head_dim, hidden]
    pub(super) qkv_bias: Option<B::Vector>,            // [(heads + 2 kv_heads) * head_dim]
    pub(super) head_norm: Option<HeadNorm<B::Vector>>, // [head_dim] each
    pub(super) out: B::Matrix,                         // [hidden, heads * head_dim]
    pub(super) out_bias: Option<B::Vector>,            // [hidden]
    pub(super) mlp_norm: Norm<B::Vector>,              // [hidden]
    pub(super) gate_up: B::Matrix,                     // [2 * width, hidden]
    pub(super) gate_up_bias: Option<B::Vector>,        // [2 * width]
    pub(super) down: B::Matrix,                        // [hidden, width]
    pub(super) down_bias: Option<B::Vector>,           // [hidden]
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
        let layers = spec
            .layers
            .iter()
            .enumerate()
            .map(|(index, layer)| loader.layer(index, layer))
            .collect::<Result<Vec<_>, _>>()?;
        let final_norm = loader.norm(WeightSlot::FinalNorm)?;
        let head = if spec.tied_head { None } else { Some(loader.matrix(WeightSlot::Head)?) };
        let ropes =
            spec.ropes.iter().map(|table| rope(backend, table, positions)).collect::<Result<Vec<_>, _>>()?;
        let bytes_read = loader.read;
        Ok(Weights { embedding, ropes, layers, final_norm, head, bytes_read })
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
        let at = |slot| WeightSlot::Layer(index, slot);
        let (heads, Mlp::Gated(mlp)) = (layer.attention.heads(), &layer.mlp);
        Ok(LayerWeights {
            attention_norm: self.norm(at(LayerSlot::AttentionNorm))?,
            qkv: self.matrix(at(LayerSlot::Qkv))?,
            qkv_bias: self.bias(heads.qkv_bias, at(LayerSlot::QkvBias))?,
            head_norm: if heads.head_norm {
                let (q, k) = (self.norm(at(LayerSlot::QNorm))?, self.norm(at(LayerSlot::KNorm))?);
                Some(HeadNorm { q, k })
            } else {
                None
            },
            out: self.matrix(at(LayerSlot::Out))?,
            out_bias: self.bias(heads.out_bias, at(LayerSlot::OutBias))?,
            mlp_norm: self.norm(at(LayerSlot::MlpNorm))?,
            gate_up: self.matrix(at(LayerSlot::GateUp))?,
            gate_up_bias: self.bias(mlp.up_bias, at(LayerSlot::GateUpBias))?,
            down: self.matrix(at(LayerSlot::Down))?,
            down_bias: self.bias(mlp.down_bias, at(LayerSlot::DownBias))?,
        })
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

    fn norm(&mut self, slot: WeightSlot) -> Result<Norm<B::Vector>, Error> {
        let NormKind::Rms { eps } = self.spec.norm.kind;
        Ok(Norm { weight: self.vector(slot)?, eps })
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
    })
}
