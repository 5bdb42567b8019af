//! Configurations of early repositories, whose `model_type` or keys differ from those that the
//! family has today.
//!
//! Each is rewritten into the keys of the family before the family reads it. Repositories whose
//! tensors have names that no family knows are refused with advice.

use serde_json::Value;

use super::config::Config;
use super::error::ConfigError;

/// The name of a model in early repositories.
struct OldName {
    model_type: &'static str,
    /// The class of the repository's code.
    class: &'static str,
    /// The `model_type` of the family, and its class.
    family: (&'static str, &'static str),
    /// Keys, and the family's keys with the same meaning.
    renamed: &'static [(&'static str, &'static str)],
    /// Makes the changes that new names of keys do not make.
    adapt: fn(&mut Config) -> Result<(), ConfigError>,
}

const LLAMA: (&str, &str) = ("llama", "LlamaForCausalLM");
const FALCON: (&str, &str) = ("falcon", "FalconForCausalLM");

const OLD_NAMES: &[OldName] = &[
    OldName {
        model_type: "RefinedWebModel",
        class: "RWForCausalLM",
        family: FALCON,
        renamed: &[],
        adapt: |_| Ok(()),
    },
    OldName {
        model_type: "RefinedWeb",
        class: "RWForCausalLM",
        family: FALCON,
        renamed: &[],
        adapt: falcon_40b,
    },
    OldName {
        model_type: "llama",
        class: "LLaMAForCausalLM",
        family: LLAMA,
        renamed: &[("max_sequence_length", "max_position_embeddings")],
        adapt: |_| Ok(()),
    },
    OldName { model_type: "Yi", class: "YiForCausalLM", family: LLAMA, renamed: &[], adapt: |_| Ok(()) },
    OldName {
        model_type: "aquila",
        class: "AquilaForCausalLM",
        family: LLAMA,
        renamed: &[],
        adapt: |_| Ok(()),
    },
    OldName {
        model_type: "internlm",
        class: "InternLMForCausalLM",
        family: LLAMA,
        renamed: &[],
        adapt: internlm,
    },
    OldName {
        model_type: "stablelm_epoch",
        class: "StableLMEpochForCausalLM",
        family: ("stablelm", "StableLmForCausalLM"),
        renamed: &[("norm_eps", "layer_norm_eps"), ("rope_pct", "partial_rotary_factor")],
        adapt: stablelm_epoch,
    },
];

/// Model types whose tensors have names of code that their repositories no longer have, and what to
/// take instead.
const REPLACED: &[(&str, &str)] =
    &[("mixformer-sequential", "take the newer files of the repository, whose model_type is phi")];

/// Rewrites the configuration of an early repository into the keys of its family.
///
/// # Errors
/// If the repository was replaced by one that is supported, or has a setting that no family has.
pub(super) fn translate(config: &mut Config) -> Result<(), ConfigError> {
    let Some(model_type) = config.optional::<String>("model_type")? else { return Ok(()) };
    if let Some((_, advice)) = REPLACED.iter().find(|(name, _)| *name == model_type) {
        return Err(config.unsupported("model_type", advice));
    }
    let Some(old) = OLD_NAMES.iter().find(|old| old.model_type == model_type) else { return Ok(()) };
    let (family, class) = old.family;
    config.replace("model_type", family.into());
    if let Some(mut classes) = config.optional::<Vec<String>>("architectures")? {
        classes.iter_mut().filter(|name| *name == old.class).for_each(|name| *name = class.to_owned());
        config.replace("architectures", classes.into());
    }
    for &(from, to) in old.renamed {
        if let Some(value) = config.optional::<Value>(from)? {
            config.insert_absent(to, value);
        }
    }
    (old.adapt)(config)
}

/// The larger Falcon has groups of heads and two norms, which its configuration does not say.
fn falcon_40b(config: &mut Config) -> Result<(), ConfigError> {
    config.insert_absent("new_decoder_architecture", true.into());
    Ok(())
}

/// The first InternLM is a Llama with one switch for the biases of attention, and an object for the
/// rotation. Its contexts are stretched beyond `max_position_embeddings` only, which is not served.
fn internlm(config: &mut Config) -> Result<(), ConfigError> {
    let bias = config.flag("bias", true)?;
    config.insert_absent("attention_bias", bias.into());
    let Some(rotary) = config.object("rotary")? else { return Ok(()) };
    let kind: Option<String> = rotary.optional("type")?;
    if kind.is_some_and(|kind| !matches!(kind.as_str(), "origin" | "dynamic")) {
        return Err(rotary.unsupported("type", "it must be origin or dynamic"));
    }
    if let Some(base) = rotary.optional_number("base", 1.0)? {
        config.insert_absent("rope_theta", base.into());
    }
    Ok(())
}

/// The code of the first StableLM has a divisor of positions, which published models do not use.
fn stablelm_epoch(config: &mut Config) -> Result<(), ConfigError> {
    const DIVISOR: &str = "rotary_scaling_factor";
    match config.optional_number(DIVISOR, 0.0)? {
        Some(divisor) if divisor != 1.0 => Err(config.unsupported(DIVISOR, "it must be 1")),
        _ => Ok(()),
    }
}
