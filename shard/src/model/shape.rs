//! Which weights a specification asks for, and their shapes.

use super::{DecoderSpec, LayerSlot, Slot};

impl Slot {
    /// The weight is a `[cols]` vector (norm scale or bias), not a matrix.
    pub fn is_vector(self) -> bool {
        match self {
            Slot::Embedding | Slot::Head => false,
            Slot::FinalNorm => true,
            Slot::Layer(_, slot) => {
                !matches!(slot, LayerSlot::Qkv | LayerSlot::Out | LayerSlot::GateUp | LayerSlot::Down)
            }
        }
    }
}

impl DecoderSpec {
    /// Every weight of the model, in the order it is loaded.
    pub fn slots(&self) -> Vec<Slot> {
        let mut slots = vec![Slot::Embedding];
        for (index, layer) in self.layers.iter().enumerate() {
            let optional = |wanted, slot| if wanted { Some(slot) } else { None };
            let of_layer = [
                Some(LayerSlot::AttentionNorm),
                Some(LayerSlot::Qkv),
                optional(layer.qkv_bias, LayerSlot::QkvBias),
                optional(layer.head_norm, LayerSlot::QNorm),
                optional(layer.head_norm, LayerSlot::KNorm),
                Some(LayerSlot::Out),
                optional(layer.out_bias, LayerSlot::OutBias),
                Some(LayerSlot::MlpNorm),
                Some(LayerSlot::GateUp),
                optional(layer.mlp.up_bias, LayerSlot::GateUpBias),
                Some(LayerSlot::Down),
                optional(layer.mlp.down_bias, LayerSlot::DownBias),
            ];
            slots.extend(of_layer.into_iter().flatten().map(|slot| Slot::Layer(index, slot)));
        }
        slots.push(Slot::FinalNorm);
        if !self.tied_head {
            slots.push(Slot::Head);
        }
        slots
    }

    /// Rows and columns of the weight for `slot`; a vector has one row.
    ///
    /// # Panics
    /// If `slot` names a layer that the model does not have.
    pub fn shape(&self, slot: Slot) -> (usize, usize) {
        let (index, slot) = match slot {
            Slot::Embedding | Slot::Head => return (self.vocab_rows.len(), self.hidden),
            Slot::FinalNorm => return (1, self.hidden),
            Slot::Layer(index, slot) => (index, slot),
        };
        let layer = &self.layers[index];
        match slot {
            LayerSlot::AttentionNorm | LayerSlot::MlpNorm | LayerSlot::OutBias | LayerSlot::DownBias => {
                (1, self.hidden)
            }
            LayerSlot::Qkv => (layer.qkv.cols(), self.hidden),
            LayerSlot::QkvBias => (1, layer.qkv.cols()),
            LayerSlot::QNorm | LayerSlot::KNorm => (1, layer.qkv.head_dim),
            LayerSlot::Out => (self.hidden, layer.qkv.heads * layer.qkv.head_dim),
            LayerSlot::GateUp => (2 * layer.mlp.width, self.hidden),
            LayerSlot::GateUpBias => (1, 2 * layer.mlp.width),
            LayerSlot::Down => (self.hidden, layer.mlp.width),
        }
    }

    /// Number of weights; a tied head counts once.
    pub fn parameters(&self) -> usize {
        self.slots().into_iter().map(|slot| self.shape(slot)).map(|(rows, cols)| rows * cols).sum()
    }
}
