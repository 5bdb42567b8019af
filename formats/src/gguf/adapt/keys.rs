//! The parts that the keys of several architectures have in common.

use serde_json::{Map, Value};

use super::super::model::Model;
use super::super::value::Value as FileValue;
use crate::error::Error;

/// A `config.json` that is being written.
pub(in super::super) type Config = Map<String, Value>;

pub(in super::super) fn nothing(_: &Model<'_>, _: &mut Config) -> Result<(), Error> {
    Ok(())
}

/// Copies numbers that must be there from keys of the file to keys of the configuration.
pub(super) fn copy(model: &Model<'_>, config: &mut Config, keys: &[(&str, &str)]) -> Result<(), Error> {
    for (from, to) in keys {
        let number = model.number(from)?.ok_or_else(|| model.missing(from))?;
        config.insert((*to).to_owned(), number.into());
    }
    Ok(())
}

pub(in super::super) fn copy_counts(
    model: &Model<'_>,
    config: &mut Config,
    keys: &[(&str, &str)],
) -> Result<(), Error> {
    for (from, to) in keys {
        config.insert((*to).to_owned(), model.count(from)?.into());
    }
    Ok(())
}

/// Adds whether query, key and value, and the other projections, have biases.
pub(in super::super) fn biases(model: &Model<'_>, config: &mut Config, keys: &[(&str, &str)]) {
    for (tensor, key) in keys {
        config.insert((*key).to_owned(), model.has_bias(tensor).into());
    }
}

/// Refuses an array whose length is not the number of layers.
pub(in super::super) fn check_count(model: &Model<'_>, name: &str, found: usize) -> Result<(), Error> {
    let layers = model.count("block_count")?;
    match found as u64 == layers {
        true => Ok(()),
        false => Err(model.fault(name, format!("has {found} entries for {layers} layers"))),
    }
}

/// Adds which layers have a window, if the file says so for each layer.
pub(super) fn window_layers(model: &Model<'_>, config: &mut Config) -> Result<(), Error> {
    const KEY: &str = "attention.sliding_window_pattern";
    let key = model.key(KEY);
    match model.header.value(&key) {
        Some(FileValue::Array(_)) => {
            let layers = model.header.array(&key, |array, key| array.truths(key))?.unwrap_or_default();
            check_count(model, KEY, layers.len())?;
            let name = |has_window: bool| if has_window { "sliding_attention" } else { "full_attention" };
            config.insert("layer_types".into(), layers.into_iter().map(name).collect());
        }
        Some(_) => {
            let every = model.header.count(&key)?.unwrap_or_default();
            config.insert("sliding_window_pattern".into(), every.into());
        }
        None => {}
    }
    Ok(())
}

/// The functions by which the scores of experts are made, as `expert_gating_func` numbers them.
pub(in super::super) const SOFTMAX: u64 = 1;

pub(in super::super) const SIGMOID: u64 = 2;

/// Refuses a router whose scores are made by another function.
pub(in super::super) fn insist_on_gating(model: &Model<'_>, function: u64) -> Result<(), Error> {
    const KEY: &str = "expert_gating_func";
    let name = if function == SIGMOID { "sigmoids" } else { "softmax" };
    match model.header.count(&model.key(KEY))? {
        // 0 stands for a file that does not say it.
        None | Some(0) => Ok(()),
        Some(found) if found == function => Ok(()),
        Some(other) => {
            Err(model.fault(KEY, format!("is {other}, and the family has only {name} ({function})")))
        }
    }
}

pub(in super::super) const QWEN_EXPERTS: [(&str, &str); 3] = [
    ("expert_count", "num_experts"),
    ("expert_used_count", "num_experts_per_tok"),
    ("expert_feed_forward_length", "moe_intermediate_size"),
];
