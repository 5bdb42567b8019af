//! The text part of models that also read images.
//!
//! Such a configuration has the keys of the decoder in `text_config`, or beside the others in older
//! versions of transformers. The tensors of the other parts are ignored.

use super::config::Config;
use super::error::ConfigError;

/// A model with images, whose text part is a decoder.
struct ImageModel {
    /// The `model_type` of the whole model.
    model_type: &'static str,
    /// The `model_type` of the text part, unless the configuration names it.
    text_type: &'static str,
    /// The values of keys of the text part if they are absent, because transformers does not write
    /// defaults.
    absent: &'static [(&'static str, u64)],
}

const IMAGE_MODELS: &[ImageModel] = &[
    ImageModel { model_type: "mistral3", text_type: "mistral", absent: &[] },
    ImageModel {
        model_type: "gemma3",
        text_type: "gemma3_text",
        absent: &[
            ("vocab_size", 262_208),
            ("num_attention_heads", 8),
            ("head_dim", 256),
            ("max_position_embeddings", 131_072),
        ],
    },
    ImageModel {
        model_type: "gemma4",
        text_type: "gemma4_text",
        absent: &[
            ("vocab_size", 262_144),
            ("hidden_size", 2304),
            ("intermediate_size", 9216),
            ("num_hidden_layers", 30),
            ("num_attention_heads", 8),
        ],
    },
    ImageModel { model_type: "qwen2_vl", text_type: "qwen2", absent: &[] },
    ImageModel { model_type: "qwen2_5_vl", text_type: "qwen2", absent: &[] },
    ImageModel { model_type: "qwen3_vl", text_type: "qwen3", absent: &[] },
    ImageModel { model_type: "qwen3_vl_moe", text_type: "qwen3_vl_moe_text", absent: &[] },
    ImageModel {
        model_type: "llama4",
        text_type: "llama4_text",
        absent: &[
            ("vocab_size", 202_048),
            ("hidden_size", 5120),
            ("num_hidden_layers", 48),
            ("num_attention_heads", 40),
            ("intermediate_size_mlp", 16_384),
        ],
    },
    ImageModel { model_type: "qwen3_5", text_type: "qwen3_5_text", absent: &[] },
    ImageModel { model_type: "qwen3_5_moe", text_type: "qwen3_5_moe_text", absent: &[] },
    ImageModel { model_type: "glm4v", text_type: "glm4v_text", absent: &[] },
    ImageModel { model_type: "minimax_m3_vl", text_type: "minimax_m3_vl_text", absent: &[] },
    ImageModel { model_type: "kimi_k25", text_type: "deepseek_v3", absent: &[] },
];

/// Model types of text parts that are computed as another family is.
const SAME_AS: &[(&str, &str)] =
    &[("qwen2_vl_text", "qwen2"), ("qwen2_5_vl_text", "qwen2"), ("qwen3_vl_text", "qwen3")];

/// Keys of the whole model that hold for the text part too, unless that has them itself.
const SHARED_KEYS: [&str; 3] = ["dtype", "torch_dtype", "quantization_config"];

/// The key that holds for the whole model, whatever the text part has: transformers ties the
/// weights of the whole model.
const TIED: &str = "tie_word_embeddings";

/// Returns the configuration of the decoder: `config` itself, or that of its text part if the model
/// also reads images.
///
/// # Errors
/// If `text_config` is not an object.
pub(super) fn of(config: Config) -> Result<Config, ConfigError> {
    let model_type: Option<String> = config.optional("model_type")?;
    let is_of = |model: &&ImageModel| model_type.as_deref() == Some(model.model_type);
    let Some(model) = IMAGE_MODELS.iter().find(is_of) else { return Ok(config) };
    let mut text = match config.object("text_config")? {
        Some(text) => text,
        None => config.clone(),
    };
    let inner: Option<String> = text.optional("model_type")?.filter(|name| name != model.model_type);
    let family = inner.as_deref().unwrap_or(model.text_type);
    let family = SAME_AS.iter().find(|(name, _)| *name == family).map_or(family, |(_, same)| same);
    let family = family.to_owned();
    text.replace("model_type", family.into());
    // These name the class of the whole model.
    text.remove("architectures");
    for key in SHARED_KEYS {
        if let Some(value) = config.optional(key)? {
            text.insert_absent(key, value);
        }
    }
    if let Some(tied) = config.optional(TIED)? {
        text.replace(TIED, tied);
    }
    for &(key, value) in model.absent {
        text.insert_absent(key, value.into());
    }
    Ok(text)
}

/// Returns the models with images whose text part is of this family.
#[cfg(test)]
pub(super) fn image_models(family: &str) -> Vec<&'static str> {
    let models = IMAGE_MODELS.iter().filter(|model| model.text_type == family);
    models.map(|model| model.model_type).collect()
}
