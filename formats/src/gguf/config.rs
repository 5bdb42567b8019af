//! The configuration of a GGUF file, as the `config.json` of the same model would have it.

use serde_json::{Map, Value, json};

use super::file::{Header, StoredTensor};
use super::names::{self, Naming};
use crate::dtype::DType;
use crate::error::{Error, TensorFault};
use crate::fault::FileFault;

/// The tensor with the divisors of the rotary frequencies.
pub(super) const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// The largest number of divisors, one for each pair of features of a head.
const MAX_DIVISORS: usize = 1 << 11;

/// A value of `general.architecture` whose models can be served.
pub(super) struct Architecture {
    /// The value.
    name: &'static str,
    /// The values of `model_type` and `architectures` of the same model in Hugging Face layout.
    model_type: &'static str,
    class: &'static str,
    /// Whether features `2 * i` and `2 * i + 1` are rotated together. Converters have reordered the
    /// rows of query and key for this where the original model rotates others together.
    interleaved: bool,
    pub(super) naming: Naming,
}

const ARCHITECTURES: [Architecture; 5] = [
    Architecture {
        name: "llama",
        model_type: "llama",
        class: "LlamaForCausalLM",
        interleaved: true,
        naming: names::LLAMA,
    },
    // With query, key and value in tensors of their own, Baichuan 7B is a Llama.
    Architecture {
        name: "baichuan",
        model_type: "llama",
        class: "LlamaForCausalLM",
        interleaved: true,
        naming: names::LLAMA,
    },
    Architecture {
        name: "qwen2",
        model_type: "qwen2",
        class: "Qwen2ForCausalLM",
        interleaved: false,
        naming: names::LLAMA,
    },
    Architecture {
        name: "qwen3",
        model_type: "qwen3",
        class: "Qwen3ForCausalLM",
        interleaved: false,
        naming: names::LLAMA,
    },
    Architecture {
        name: "chatglm",
        model_type: "chatglm",
        class: "ChatGLMForConditionalGeneration",
        interleaved: true,
        naming: names::CHATGLM,
    },
];

/// The metadata and tensors of a model.
pub(super) struct Model<'a> {
    /// The header of the first file, which has all keys.
    pub(super) header: &'a Header<'a>,
    pub(super) architecture: &'static Architecture,
    /// The tensors of all files.
    pub(super) tensors: &'a [&'a StoredTensor],
    /// The divisors of the rotary frequencies, if the file has them.
    pub(super) divisors: Option<Vec<f32>>,
}

/// Returns the architecture of a file.
pub(super) fn architecture(header: &Header<'_>) -> Result<&'static Architecture, Error> {
    const KEY: &str = "general.architecture";
    let name = header.text(KEY)?.ok_or_else(|| header.fault(FileFault::MissingKey(KEY.to_owned())))?;
    ARCHITECTURES.iter().find(|known| known.name == name).ok_or_else(|| {
        let known = ARCHITECTURES.map(|known| known.name).join(", ");
        let shown: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
        let reason = format!(
            "is {shown}, and GGUF files can be served of {known}; take the model in Hugging Face layout instead"
        );
        header.fault(FileFault::Value { key: KEY.to_owned(), reason })
    })
}

/// Reads the divisors from the bytes of their tensor.
pub(super) fn divisors(header: &Header<'_>, tensor: &StoredTensor, bytes: &[u8]) -> Result<Vec<f32>, Error> {
    let fault = |reason: &str| {
        let (tensor, reason) = (tensor.name.clone(), reason.to_owned());
        header.fault(FileFault::SpecialTensor { tensor, reason })
    };
    if tensor.dtype != DType::F32 || bytes.len() > MAX_DIVISORS * size_of::<f32>() {
        return Err(fault("is not a vector of f32 with one number for each pair of features of a head"));
    }
    let divisors: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    match divisors.iter().all(|divisor| divisor.is_finite() && *divisor > 0.0) {
        true => Ok(divisors),
        false => Err(fault("has a number that is no positive divisor")),
    }
}

/// Returns the keys of the configuration.
pub(super) fn read(model: &Model<'_>) -> Result<Map<String, Value>, Error> {
    let mut config = Map::new();
    let architecture = model.architecture;
    config.insert("model_type".into(), architecture.model_type.into());
    config.insert("architectures".into(), json!([architecture.class]));
    config.insert("torch_dtype".into(), model.dtype().into());
    let head_dim = match architecture.model_type {
        "chatglm" => model.chatglm(&mut config)?,
        _ => model.llama(&mut config)?,
    };
    model.rope(&mut config, head_dim)?;
    model.tokens(&mut config)?;
    if architecture.interleaved && architecture.model_type != "chatglm" {
        config.insert("millrace".into(), json!({"rope_interleaved": true}));
    }
    Ok(config)
}

impl Model<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture.name)
    }

    fn fault(&self, name: &str, reason: String) -> Error {
        self.header.fault(FileFault::Value { key: self.key(name), reason })
    }

    fn count(&self, name: &str) -> Result<u64, Error> {
        let key = self.key(name);
        self.header.count(&key)?.ok_or_else(|| self.header.fault(FileFault::MissingKey(key)))
    }

    /// Reads a count that a file may give for each layer. All layers must have the same.
    fn layer_count(&self, name: &str) -> Result<Option<u64>, Error> {
        let key = self.key(name);
        let Some(super::value::Value::Array(_)) = self.header.value(&key) else {
            return self.header.count(&key);
        };
        let counts = self.header.array(&key, |array, key| array.counts(key))?.unwrap_or_default();
        match counts.split_first() {
            Some((first, rest)) if rest.iter().all(|count| count == first) => Ok(Some(*first)),
            _ => Err(self.fault(name, "differs between layers, which is not supported".to_owned())),
        }
    }

    fn tensor(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name).copied()
    }

    /// Returns the rows of the embedding. The key for the size of the vocabulary is often missing.
    fn vocabulary(&self) -> Result<usize, Error> {
        const EMBEDDING: &str = "token_embd.weight";
        match self.tensor(EMBEDDING).map(|tensor| &tensor.shape[..]) {
            Some(&[rows, _]) => Ok(rows),
            Some(found) => {
                let fault = TensorFault::Shape { found: found.to_vec(), expected: Vec::new() };
                Err(self.header.tensor_fault(EMBEDDING, fault))
            }
            None => Err(self.header.fault(FileFault::SpecialTensor {
                tensor: EMBEDDING.to_owned(),
                reason: "is missing; the file holds no complete model".to_owned(),
            })),
        }
    }

    /// Returns the element type of weights that are not kept as they are: that of most matrices, or
    /// bfloat16, whose range no weight and no activation exceeds.
    fn dtype(&self) -> &'static str {
        let elements = |dtype: &DType| -> u128 {
            let matrices = self.tensors.iter().filter(|tensor| tensor.shape.len() > 1);
            matrices
                .filter(|tensor| tensor.dtype == *dtype)
                .map(|tensor| tensor.shape.iter().map(|&size| size as u128).product::<u128>())
                .sum()
        };
        let has_blocks = self.tensors.iter().any(|tensor| matches!(tensor.dtype, DType::Blocks(_)));
        match [DType::F32, DType::F16, DType::BF16].map(|dtype| elements(&dtype)) {
            _ if has_blocks => "bfloat16",
            [f32, f16, bf16] if f32 >= f16.max(bf16) => "float32",
            [_, f16, bf16] if f16 >= bf16 => "float16",
            _ => "bfloat16",
        }
    }

    /// Adds the sizes of a model in the layout of Llama. Returns the features of a head.
    fn llama(&self, config: &mut Map<String, Value>) -> Result<u64, Error> {
        let hidden = self.count("embedding_length")?;
        let missing = |name: &str| self.header.fault(FileFault::MissingKey(self.key(name)));
        let heads =
            self.layer_count("attention.head_count")?.ok_or_else(|| missing("attention.head_count"))?;
        let width = self.layer_count("feed_forward_length")?.ok_or_else(|| missing("feed_forward_length"))?;
        let eps = "attention.layer_norm_rms_epsilon";
        let eps = self.header.number(&self.key(eps))?.ok_or_else(|| missing(eps))?;
        for (name, what) in
            [("expert_count", "a mixture of experts"), ("attention.max_alibi_bias", "ALiBi positions")]
        {
            if self.header.number(&self.key(name))?.is_some_and(|number| number != 0.0) {
                return Err(
                    self.fault(name, format!("says that the model has {what}, which is not supported"))
                );
            }
        }
        let kv_heads = self.layer_count("attention.head_count_kv")?.unwrap_or(heads);
        let head_dim = match self.header.count(&self.key("attention.key_length"))? {
            Some(length) => length,
            None => hidden.checked_div(heads).unwrap_or_default(),
        };
        if let Some(length) = self.header.count(&self.key("attention.value_length"))?
            && length != head_dim
        {
            let reason = format!("is {length}, but keys have {head_dim} features, and both must be equal");
            return Err(self.fault("attention.value_length", reason));
        }
        config.extend([
            ("hidden_size".into(), hidden.into()),
            ("num_hidden_layers".into(), self.count("block_count")?.into()),
            ("num_attention_heads".into(), heads.into()),
            ("num_key_value_heads".into(), kv_heads.into()),
            ("head_dim".into(), head_dim.into()),
            ("intermediate_size".into(), width.into()),
            ("vocab_size".into(), self.vocabulary()?.into()),
            ("max_position_embeddings".into(), self.count("context_length")?.into()),
            ("rms_norm_eps".into(), eps.into()),
            ("tie_word_embeddings".into(), self.tensor("output.weight").is_none().into()),
        ]);
        self.biases(config);
        self.window(config)?;
        Ok(head_dim)
    }

    /// Adds the biases that the tensors have, for the families whose configuration says so.
    fn biases(&self, config: &mut Map<String, Value>) {
        if matches!(self.architecture.model_type, "llama" | "qwen3") {
            let has = |name: &str| self.tensor(name).is_some();
            config.insert("attention_bias".into(), has("blk.0.attn_q.bias").into());
            config.insert("mlp_bias".into(), has("blk.0.ffn_up.bias").into());
        }
    }

    /// Adds the sliding window. In a file for `llama` it is that of Mistral.
    fn window(&self, config: &mut Map<String, Value>) -> Result<(), Error> {
        const NAME: &str = "attention.sliding_window";
        let Some(window) = self.header.count(&self.key(NAME))?.filter(|&window| window > 0) else {
            return Ok(());
        };
        if window >= self.count("context_length")? {
            return Ok(());
        }
        if self.architecture.name != "llama" {
            let reason = format!("is {window}, but the file does not say which layers have this window");
            return Err(self.fault(NAME, reason));
        }
        config.insert("model_type".into(), "mistral".into());
        config.insert("architectures".into(), json!(["MistralForCausalLM"]));
        config.insert("sliding_window".into(), window.into());
        Ok(())
    }

    /// Adds the sizes of a ChatGLM. Returns the features of a head.
    fn chatglm(&self, config: &mut Map<String, Value>) -> Result<u64, Error> {
        let hidden = self.count("embedding_length")?;
        let heads = self.count("attention.head_count")?;
        let head_dim = match self.header.count(&self.key("attention.key_length"))? {
            Some(length) => length,
            None => hidden.checked_div(heads).unwrap_or_default(),
        };
        let eps = "attention.layer_norm_rms_epsilon";
        let missing = || self.header.fault(FileFault::MissingKey(self.key(eps)));
        config.extend([
            ("hidden_size".into(), hidden.into()),
            ("num_layers".into(), self.count("block_count")?.into()),
            ("num_attention_heads".into(), heads.into()),
            ("multi_query_attention".into(), true.into()),
            ("multi_query_group_num".into(), self.count("attention.head_count_kv")?.into()),
            ("kv_channels".into(), head_dim.into()),
            ("ffn_hidden_size".into(), self.count("feed_forward_length")?.into()),
            ("padded_vocab_size".into(), self.vocabulary()?.into()),
            ("seq_length".into(), self.count("context_length")?.into()),
            ("layernorm_epsilon".into(), self.header.number(&self.key(eps))?.ok_or_else(missing)?.into()),
            ("tie_word_embeddings".into(), self.tensor("output.weight").is_none().into()),
            ("add_qkv_bias".into(), self.tensor("blk.0.attn_qkv.bias").is_some().into()),
        ]);
        Ok(head_dim)
    }

    /// Adds the rotation: its base, its share of the features, and its scaling.
    fn rope(&self, config: &mut Map<String, Value>, head_dim: u64) -> Result<(), Error> {
        let number = |name: &str| self.header.number(&self.key(name));
        config.insert("rope_theta".into(), number("rope.freq_base")?.unwrap_or(10_000.0).into());
        if let Some(rotated) = self.header.count(&self.key("rope.dimension_count"))?
            && rotated != head_dim
            && head_dim > 0
        {
            config.insert("partial_rotary_factor".into(), (rotated as f64 / head_dim as f64).into());
        }
        // Older files have a key of another name for the factor of linear scaling.
        let factor = match number("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => number("rope.scale_linear")?,
        };
        let kind = match self.header.text(&self.key("rope.scaling.type"))? {
            Some(kind) => kind,
            None if factor.is_some_and(|factor| factor != 1.0) => "linear",
            None => "none",
        };
        let mut scaling = match kind {
            "none" => Map::new(),
            "linear" => json_map(json!({"rope_type": "linear", "factor": factor.unwrap_or(1.0)})),
            "yarn" => self.yarn(factor)?,
            other => {
                let reason = format!("is {other:.100}, and known are none, linear and yarn");
                return Err(self.fault("rope.scaling.type", reason));
            }
        };
        if let Some(divisors) = &self.divisors {
            if kind != "none" {
                let reason =
                    format!("is {kind}, but the file has {ROPE_DIVISORS} too, which is another scaling");
                return Err(self.fault("rope.scaling.type", reason));
            }
            scaling = json_map(json!({"rope_type": "divisors", "divisors": divisors}));
        }
        if !scaling.is_empty() {
            config.insert("rope_scaling".into(), scaling.into());
        }
        Ok(())
    }

    /// Returns the parameters of YaRN. The factor on cosines and sines is that of transformers,
    /// times the one in the file.
    fn yarn(&self, factor: Option<f64>) -> Result<Map<String, Value>, Error> {
        let number = |name: &str| self.header.number(&self.key(&format!("rope.scaling.{name}")));
        let factor = factor.unwrap_or(1.0);
        let mut scaling = json_map(json!({"rope_type": "yarn", "factor": factor}));
        if let Some(original) = number("original_context_length")? {
            scaling.insert("original_max_position_embeddings".into(), original.into());
        }
        if let Some(attention) = number("attn_factor")? {
            let temperature = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
            scaling.insert("attention_factor".into(), (attention * temperature).into());
        }
        for (from, to) in [("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")] {
            if let Some(beta) = number(from)? {
                scaling.insert(to.into(), beta.into());
            }
        }
        Ok(scaling)
    }

    /// Adds the ids of the tokens that begin and end a text.
    fn tokens(&self, config: &mut Map<String, Value>) -> Result<(), Error> {
        let id = |name: &str| self.header.count(&format!("tokenizer.ggml.{name}_token_id"));
        if let Some(bos) = id("bos")? {
            config.insert("bos_token_id".into(), bos.into());
        }
        let mut ends: Vec<u64> = Vec::new();
        for name in ["eos", "eot", "eom"] {
            ends.extend(id(name)?.filter(|id| !ends.contains(id)));
        }
        if !ends.is_empty() {
            config.insert("eos_token_id".into(), ends.into());
        }
        Ok(())
    }
}

fn json_map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
