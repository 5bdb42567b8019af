//! The configuration of a GGUF file, as the `config.json` of the same model would have it.

use serde_json::{Map, Value, json};

use super::architecture::{Architecture, Window};
use super::architectures;
use super::file::{Header, StoredTensor};
use super::model::Model;
use super::naming::{LONG_ROPE, ROPE_DIVISORS};
use crate::dtype::DType;
use crate::error::Error;
use crate::fault::FileFault;

/// The key, after the name of the architecture, with the number of the pooling of vectors.
const POOLING: &str = "pooling_type";

/// The largest number of divisors, one for each pair of features of a head.
const MAX_DIVISORS: usize = 1 << 11;

/// Returns the architecture of a file.
pub(super) fn architecture(header: &Header<'_>) -> Result<&'static Architecture, Error> {
    const KEY: &str = "general.architecture";
    let name = header.text(KEY)?.ok_or_else(|| header.fault(FileFault::MissingKey(KEY.to_owned())))?;
    architectures::all().find(|known| known.name == name).ok_or_else(|| {
        let known = architectures::all().map(|known| known.name).collect::<Vec<_>>().join(", ");
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
pub(super) fn read(model: &Model<'_>, architecture: &Architecture) -> Result<Map<String, Value>, Error> {
    let mut config = Map::new();
    config.insert("model_type".into(), architecture.model_type.into());
    config.insert("architectures".into(), json!([architecture.class]));
    config.insert("torch_dtype".into(), model.dtype().into());
    let head_dim = match architecture.model_type {
        "chatglm" => model.chatglm(&mut config)?,
        _ => model.llama(&mut config, architecture)?,
    };
    model.rope(&mut config, head_dim)?;
    model.tokens(&mut config)?;
    (architecture.adapt)(model, &mut config)?;
    let later_layers = model.later_layers()?;
    if later_layers > 0 {
        config.insert("num_nextn_predict_layers".into(), later_layers.into());
    }
    let mut own = match config.remove("millrace") {
        Some(Value::Object(own)) => own,
        _ => Map::new(),
    };
    if architecture.interleaved {
        own.insert("rope_interleaved".into(), true.into());
    }
    for (is_changed, key) in [
        (architecture.strided_value_heads, "strided_value_heads"),
        (architecture.stacked_qkv, "stacked_qkv"),
        (architecture.by_output, "by_output"),
        (later_layers > 0, "later_layers"),
    ] {
        if is_changed {
            own.insert(key.into(), true.into());
        }
    }
    // A classifier makes no vectors.
    if let Some(kind) = model.header.count(&model.key(POOLING))?.filter(|_| model.classes().is_none()) {
        own.insert("pooling".into(), json!({"key": model.key(POOLING), "type": kind}));
    }
    if !own.is_empty() {
        config.insert("millrace".into(), own.into());
    }
    Ok(config)
}

impl Model<'_> {
    /// Adds the sizes of a model in the layout of Llama. Returns the features of a head.
    fn llama(&self, config: &mut Map<String, Value>, architecture: &Architecture) -> Result<u64, Error> {
        let hidden = self.count("embedding_length")?;
        let missing = |name: &str| self.header.fault(FileFault::MissingKey(self.key(name)));
        let heads =
            self.layer_count("attention.head_count")?.ok_or_else(|| missing("attention.head_count"))?;
        let width = self.mlp_width(architecture.kv_heads)?;
        let (eps, eps_key) = architecture.epsilon;
        let eps = self.number(eps)?.ok_or_else(|| missing(eps))?;
        let refused = |name: &str, what: &str| {
            Err(self.fault(name, format!("says that the model has {what}, which is not supported")))
        };
        if !architecture.has_experts && self.has_experts()? {
            return refused("expert_count", "a mixture of experts");
        }
        let has_biases = self.number("attention.max_alibi_bias")?.is_some_and(|number| number != 0.0);
        if has_biases && !architecture.has_linear_biases {
            return refused("attention.max_alibi_bias", "ALiBi positions");
        }
        let kv_heads = self.kv_heads(architecture.kv_heads)?.unwrap_or(heads);
        let head_dim = self.head_dim(heads)?;
        // The values of latent attention are a part of its keys.
        let has_latents = self.header.value(&self.key("attention.kv_lora_rank")).is_some();
        if let Some(length) = self.header.count(&self.key("attention.value_length"))?
            && length != head_dim
            && !has_latents
        {
            let reason = format!("is {length}, but keys have {head_dim} features, and both must be equal");
            return Err(self.fault("attention.value_length", reason));
        }
        config.extend([
            ("hidden_size".into(), hidden.into()),
            ("num_hidden_layers".into(), self.layers()?.into()),
            ("num_attention_heads".into(), heads.into()),
            ("num_key_value_heads".into(), kv_heads.into()),
            ("head_dim".into(), head_dim.into()),
            ("intermediate_size".into(), width.into()),
            ("vocab_size".into(), self.vocabulary()?.into()),
            ("max_position_embeddings".into(), self.count("context_length")?.into()),
            (eps_key.into(), eps.into()),
            ("tie_word_embeddings".into(), self.tensor("output.weight").is_none().into()),
        ]);
        self.biases(config, architecture);
        self.window(config, architecture.window)?;
        Ok(head_dim)
    }

    /// Adds the biases that the tensors have, for the families whose configuration says so.
    fn biases(&self, config: &mut Map<String, Value>, architecture: &Architecture) {
        if matches!(architecture.model_type, "llama" | "qwen3") {
            config.insert("attention_bias".into(), self.has_bias("attn_q").into());
            config.insert("mlp_bias".into(), self.has_bias("ffn_up").into());
        }
    }

    /// Adds the sliding window.
    fn window(&self, config: &mut Map<String, Value>, meaning: Window) -> Result<(), Error> {
        const NAME: &str = "attention.sliding_window";
        let Some(window) = self.header.count(&self.key(NAME))?.filter(|&window| window > 0) else {
            return Ok(());
        };
        match meaning {
            Window::ByFamily => {}
            _ if window >= self.count("context_length")? => return Ok(()),
            Window::Mistral => {
                config.insert("model_type".into(), "mistral".into());
                config.insert("architectures".into(), json!(["MistralForCausalLM"]));
            }
            Window::Unknown => {
                let reason = format!("is {window}, but the file does not say which layers have this window");
                return Err(self.fault(NAME, reason));
            }
        }
        config.insert("sliding_window".into(), window.into());
        Ok(())
    }

    /// Adds the sizes of a ChatGLM. Returns the features of a head.
    fn chatglm(&self, config: &mut Map<String, Value>) -> Result<u64, Error> {
        let hidden = self.count("embedding_length")?;
        let heads = self.count("attention.head_count")?;
        let head_dim = self.head_dim(heads)?;
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
            ("add_qkv_bias".into(), self.has_bias("attn_q").into()),
        ]);
        Ok(head_dim)
    }

    /// Adds the rotation: its base, its share of the features, and its scaling.
    fn rope(&self, config: &mut Map<String, Value>, head_dim: u64) -> Result<(), Error> {
        let number = |name: &str| self.number(name);
        config.insert("rope_theta".into(), number("rope.freq_base")?.unwrap_or(10_000.0).into());
        if let Some(rotated) = self.header.count(&self.key("rope.dimension_count"))?
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
            "longrope" => Map::new(),
            other => {
                let reason = format!("is {other:.100}, and known are none, linear, yarn and longrope");
                return Err(self.fault("rope.scaling.type", reason));
            }
        };
        match &self.long_rope {
            [None, None] if kind != "longrope" => {}
            [Some(long), Some(short)] if matches!(kind, "none" | "longrope") => {
                scaling = self.long_rope(long, short)?;
            }
            [long, short] => {
                let missing = if long.is_none() { "the first" } else { "the second" };
                let reason = match long.is_none() || short.is_none() {
                    true => format!(
                        "is {kind}, and of {} and {}, {missing} is missing",
                        LONG_ROPE[0], LONG_ROPE[1]
                    ),
                    false => {
                        format!("is {kind}, but the file has {} too, which is another scaling", LONG_ROPE[0])
                    }
                };
                return Err(self.fault("rope.scaling.type", reason));
            }
        }
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

    /// Returns the parameters of LongRoPE. If the file does not say how long the texts of the
    /// pre-training were, the length of the context counts.
    fn long_rope(&self, long: &[f32], short: &[f32]) -> Result<Map<String, Value>, Error> {
        let original = self.header.count(&self.key("rope.scaling.original_context_length"))?;
        let original = original.map_or_else(|| self.count("context_length"), Ok)?;
        let mut scaling = json_map(json!({
            "rope_type": "longrope",
            "long_factor": long,
            "short_factor": short,
            "original_max_position_embeddings": original,
        }));
        if let Some(attention) = self.number("rope.scaling.attn_factor")? {
            scaling.insert("attention_factor".into(), attention.into());
        }
        Ok(scaling)
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
