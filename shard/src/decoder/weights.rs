//! The weights of a model in the device's memory.

use std::vec::IntoIter;

use millrace_kernels::{Backend, DType, HeadNorm, HostTensor, Norm, Part, RopeSpec};

use crate::Error;
use crate::model::{DecoderSpec, LayerSlot, LayerSpec, RopeTable, Slot, Storage, WeightSource};

/// How far the disk is asked to be ahead, in bytes: more than it reads while a matrix is copied, little beside any machine's memory.
const READ_AHEAD: usize = 512 << 20;

/// All constants of a decoder, as the device holds them.
pub struct Weights<B: Backend> {
    pub(super) embedding: B::Matrix, // [vocab_rows, hidden]
    pub(super) ropes: Vec<RopeSpec<B::Vector>>,
    pub(super) layers: Vec<LayerWeights<B>>,
    final_norm: Norm<B::Vector>, // [hidden]
    head: Option<B::Matrix>,     // [vocab_rows, hidden]; none when tied
    bytes_read: usize,
}

/// The constants of one layer.
pub(super) struct LayerWeights<B: Backend> {
    attention_norm: Norm<B::Vector>,                   // [hidden]
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
    /// Reads every weight of `spec` from `source`, to be kept as `storage` says, and computes the rotary tables for `positions`
    /// positions. `progress` is told the bytes on the device after each weight.
    ///
    /// # Errors
    /// If the source or the device fails, or a weight has not the shape that `spec` asks for.
    pub fn load(
        backend: &B,
        spec: &DecoderSpec,
        source: &dyn WeightSource,
        storage: impl Into<Storage>,
        positions: usize,
        progress: &mut dyn FnMut(usize) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let (ahead, storage) = (spec.slots().into_iter(), storage.into());
        let mut loader =
            Loader { backend, spec, source, storage, ahead, awaited: 0, done: 0, read: 0, progress };
        let embedding = loader.matrix(Slot::Embedding)?;
        let layers = spec
            .layers
            .iter()
            .enumerate()
            .map(|(index, layer)| loader.layer(index, layer))
            .collect::<Result<Vec<_>, _>>()?;
        let final_norm = loader.norm(Slot::FinalNorm)?;
        let head = if spec.tied_head { None } else { Some(loader.matrix(Slot::Head)?) };
        let ropes =
            spec.ropes.iter().map(|table| rope(backend, table, positions)).collect::<Result<Vec<_>, _>>()?;
        let bytes_read = loader.read;
        Ok(Weights { embedding, ropes, layers, final_norm, head, bytes_read })
    }

    /// Bytes that were read of the source: this rank's share, padding included, and what every rank has whole.
    pub fn bytes_read(&self) -> usize {
        self.bytes_read
    }

    /// The norm between the residual stream and layer `index`, or the head after the last one.
    pub(super) fn norm_before(&self, index: usize) -> &Norm<B::Vector> {
        self.layers.get(index).map_or(&self.final_norm, |layer| &layer.attention_norm)
    }

    /// The matrix that makes logits of states.
    pub(super) fn head(&self) -> &B::Matrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

struct Loader<'a, B: Backend> {
    backend: &'a B,
    spec: &'a DecoderSpec,
    source: &'a dyn WeightSource,
    storage: Storage,
    /// The weights that have not been asked for ahead of their use.
    ahead: IntoIter<Slot>,
    /// Bytes that have been asked for ahead and not been read.
    awaited: usize,
    done: usize,
    read: usize,
    progress: &'a mut dyn FnMut(usize) -> Result<(), Error>,
}

impl<'a, B: Backend> Loader<'a, B> {
    fn layer(&mut self, index: usize, layer: &LayerSpec) -> Result<LayerWeights<B>, Error> {
        let at = |slot| Slot::Layer(index, slot);
        Ok(LayerWeights {
            attention_norm: self.norm(at(LayerSlot::AttentionNorm))?,
            qkv: self.matrix(at(LayerSlot::Qkv))?,
            qkv_bias: self.bias(layer.qkv_bias, at(LayerSlot::QkvBias))?,
            head_norm: if layer.head_norm {
                let (q, k) = (self.norm(at(LayerSlot::QNorm))?, self.norm(at(LayerSlot::KNorm))?);
                Some(HeadNorm { q, k })
            } else {
                None
            },
            out: self.matrix(at(LayerSlot::Out))?,
            out_bias: self.bias(layer.out_bias, at(LayerSlot::OutBias))?,
            mlp_norm: self.norm(at(LayerSlot::MlpNorm))?,
            gate_up: self.matrix(at(LayerSlot::GateUp))?,
            gate_up_bias: self.bias(layer.mlp.up_bias, at(LayerSlot::GateUpBias))?,
            down: self.matrix(at(LayerSlot::Down))?,
            down_bias: self.bias(layer.mlp.down_bias, at(LayerSlot::DownBias))?,
        })
    }

    fn matrix(&mut self, slot: Slot) -> Result<B::Matrix, Error> {
        let parts = self.parts(slot)?;
        let format = self.storage.matrix(slot);
        let matrix = self.backend.matrix(&parts, format)?;
        let (rows, cols) = self.spec.shape(slot);
        self.advance(self.backend.matrix_bytes(rows, cols, format))?;
        Ok(matrix)
    }

    fn vector(&mut self, slot: Slot) -> Result<B::Vector, Error> {
        let parts = self.parts(slot)?;
        let vector = self.backend.vector(&parts)?;
        let (rows, cols) = self.spec.shape(slot);
        self.advance(rows * cols * size_of::<f32>())?;
        Ok(vector)
    }

    fn norm(&mut self, slot: Slot) -> Result<Norm<B::Vector>, Error> {
        Ok(Norm { weight: self.vector(slot)?, eps: self.spec.norm_eps })
    }

    fn bias(&mut self, wanted: bool, slot: Slot) -> Result<Option<B::Vector>, Error> {
        if wanted { self.vector(slot).map(Some) } else { Ok(None) }
    }

    fn parts(&mut self, slot: Slot) -> Result<Vec<Part<'a>>, Error> {
        let parts = self.source.parts(slot)?;
        self.read_ahead()?;
        let bytes = stored_bytes(&parts);
        self.awaited = self.awaited.saturating_sub(bytes);
        self.read += bytes;
        let (want_rows, want_cols) = self.spec.shape(slot);
        // The parts of a vector lie one after the other, those of a matrix below one another.
        let (rows, cols) = if slot.is_vector() {
            (1, parts.iter().map(|part| part.rows.len() * part.cols.len()).sum())
        } else {
            (parts.iter().map(|part| part.rows.len()).sum(), parts.first().map_or(0, |part| part.cols.len()))
        };
        if (rows, cols) != (want_rows, want_cols) {
            return Err(Error::WeightShape { slot, rows, cols, want_rows, want_cols });
        }
        Ok(parts)
    }

    /// Lets the disk work on this weight and the next ones while they are on their way to the device.
    fn read_ahead(&mut self) -> Result<(), Error> {
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

/// Bytes that the parts take where they are stored.
fn stored_bytes(parts: &[Part<'_>]) -> usize {
    parts.iter().map(|part| part.rows.len() * part.cols.len() * part.tensor.dtype.size()).sum()
}

fn rope<B: Backend>(
    backend: &B,
    table: &RopeTable,
    positions: usize,
) -> millrace_kernels::Result<RopeSpec<B::Vector>> {
    let values = table.values(positions);
    let vector = |values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        backend.vector(&[Part::whole(HostTensor {
            dtype: DType::F32,
            rows: positions,
            cols: table.rotary_dim / 2,
            bytes: &bytes,
        })])
    };
    Ok(RopeSpec {
        style: table.style,
        rotary_dim: table.rotary_dim,
        cos: vector(&values.cos)?,
        sin: vector(&values.sin)?,
    })
}
