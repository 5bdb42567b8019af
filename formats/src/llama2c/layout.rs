//! The sizes of a model, and the order of the tensors in its file.

/// The length of the header of versions 1 and 2.
pub(super) const HEADER: u64 = 256;

/// The largest values of the sizes: width of the model and of its MLP, layers, heads, vocabulary,
/// positions.
pub(super) const MAX_SIZES: [u64; 7] = [1 << 20, 1 << 20, 1 << 10, 1 << 14, 1 << 14, 1 << 24, 1 << 24];
pub(super) const NAMES: [&str; 7] =
    ["dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len"];

/// The modules of a layer in the order of the file. All layers of a module follow each other.
const ATTENTION: [&str; 4] = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
const MLP: [&str; 3] = ["mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"];

/// The sizes of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) dim: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) vocab: usize,
    pub(super) positions: usize,
    /// Whether the head is the embedding.
    pub(super) shared: bool,
    /// Elements that share a scale, in version 2.
    pub(super) group: Option<usize>,
}

/// The two orders of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// That of the first version.
    Legacy,
    /// That of versions 1 and 2.
    Versioned,
}

/// A part of a file after its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Item {
    /// A vector in single precision.
    Vector { name: String, len: usize },
    /// A matrix of the version's type.
    Matrix { name: String, rows: usize, cols: usize },
    /// Cosines, then sines of the rotation, `[positions, pairs]` each.
    Rotation { positions: usize, pairs: usize },
}

impl Sizes {
    /// Returns the parts of a file in their order.
    pub(super) fn items(&self, version: Version) -> Vec<Item> {
        let Sizes { dim, heads, positions, shared, vocab, .. } = *self;
        let whole = |name: &str| Item::Matrix { name: format!("{name}.weight"), rows: vocab, cols: dim };
        let embedding = whole("model.embed_tokens");
        let last = Item::Vector { name: "model.norm.weight".to_owned(), len: dim };
        let mut items = Vec::new();
        match version {
            Version::Legacy => {
                items.push(embedding);
                items.extend(self.of_layers(&["input_layernorm"]));
                items.extend(self.of_layers(&ATTENTION));
                items.extend(self.of_layers(&["post_attention_layernorm"]));
                items.extend(self.of_layers(&MLP));
                items.extend([last, Item::Rotation { positions, pairs: dim / heads / 2 }]);
            }
            Version::Versioned => {
                items.extend(self.of_layers(&["input_layernorm", "post_attention_layernorm"]));
                items.extend([last, embedding]);
                items.extend(self.of_layers(&ATTENTION));
                items.extend(self.of_layers(&MLP));
            }
        }
        if !shared {
            items.push(whole("lm_head"));
        }
        items
    }

    /// Returns the tensors of all layers for each of these modules.
    fn of_layers(&self, modules: &[&str]) -> Vec<Item> {
        let Sizes { dim, hidden, heads, kv_heads, layers, .. } = *self;
        let keys = dim / heads * kv_heads;
        let of_layer = |module: &str, layer: usize| {
            let name = format!("model.layers.{layer}.{module}.weight");
            let (rows, cols) = match module {
                "self_attn.q_proj" | "self_attn.o_proj" => (dim, dim),
                "self_attn.k_proj" | "self_attn.v_proj" => (keys, dim),
                "mlp.gate_proj" | "mlp.up_proj" => (hidden, dim),
                "mlp.down_proj" => (dim, hidden),
                _ => return Item::Vector { name, len: dim },
            };
            Item::Matrix { name, rows, cols }
        };
        modules.iter().flat_map(|module| (0..layers).map(|layer| of_layer(module, layer))).collect()
    }
}
