//! The heads of Gemma 4's layers, their rotations, and the caches that they read.

use millrace_backend::{QkvLayout, RopeStyle};
use serde_json::json;

use super::config::Config;
use super::decoder::{self, MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH};
use super::error::ConfigError;
use super::rope::{self, Rotated};
use crate::description::{DecoderSpec, Positions};

/// Sets the heads of layers whose heads differ from those that the usual keys describe.
///
/// Published files have keys for the layers without a window. Version 5 of transformers writes the
/// keys of each layer that differs as `per_layer_config`.
pub(super) fn shape(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let values_are_keys = config.flag("attention_k_eq_v", false)?;
    let key = "per_layer_config";
    let of_layers = config.object(key)?;
    let count = spec.layers.len();
    if let Some(layers) = &of_layers {
        let is_layer = |name: &str| name.parse::<usize>().is_ok_and(|index| index < count);
        if let Some(name) = layers.keys().find(|name| !is_layer(name)) {
            return Err(config.invalid(key, format!("has {name}, which is no number of a layer")));
        }
    }
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        let is_full = layer.attention.window().is_none();
        let Some(heads) = layer.attention.heads_mut() else { continue };
        let usual = heads.layout;
        let (head_dim, kv_heads) = match (config.mentions(key), &of_layers) {
            (true, Some(layers)) => match layers.object(&index.to_string())? {
                Some(own) => heads_of_layer(&own)?,
                None => (None, None),
            },
            (true, None) => (None, None),
            (false, _) if is_full => {
                let kv_heads = config.optional_size("num_global_key_value_heads", MAX_HEADS)?;
                let head_dim = config.optional_size("global_head_dim", MAX_HEAD_DIM)?.unwrap_or(512);
                (Some(head_dim), kv_heads.filter(|_| values_are_keys))
            }
            (false, _) => (None, None),
        };
        heads.layout = QkvLayout {
            heads: usual.heads,
            kv_heads: kv_heads.unwrap_or(usual.kv_heads),
            head_dim: head_dim.unwrap_or(usual.head_dim),
        };
        heads.values_are_keys = values_are_keys && is_full;
        check_heads(config, index, heads.layout)?;
    }
    Ok(())
}

/// Reads what `per_layer_config` says of a layer: the features of a head, and the number of
/// key/value heads.
fn heads_of_layer(own: &Config) -> Result<(Option<usize>, Option<usize>), ConfigError> {
    let known = ["head_dim", "num_key_value_heads"];
    if let Some(other) = own.keys().find(|key| !known.contains(key)) {
        return Err(own.unsupported(other, "only head_dim and num_key_value_heads may differ by layer"));
    }
    Ok((own.optional_size(known[0], MAX_HEAD_DIM)?, own.optional_size(known[1], MAX_HEADS)?))
}

/// Refuses heads that cannot be computed.
fn check_heads(config: &Config, index: usize, layout: QkvLayout) -> Result<(), ConfigError> {
    let QkvLayout { heads, kv_heads, head_dim } = layout;
    let reason = if heads % kv_heads != 0 {
        format!("is {heads}, which {kv_heads} key/value heads of layer {index} do not divide")
    } else if heads * head_dim > MAX_WIDTH {
        format!("is {heads}, too many for {head_dim} features each in layer {index}")
    } else {
        return Ok(());
    };
    Err(config.invalid("num_attention_heads", reason))
}

/// Reads the rotations of layers without and with a window, and rotates the layers by them.
pub(super) fn rotate(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let mut config = config.clone();
    let absent = json!({
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    });
    config.insert_absent("rope_parameters", absent);
    let of_kind = |windowed: bool, theta| -> Result<Rotated, ConfigError> {
        let of_kind = spec.layers.iter().filter(|layer| layer.attention.window().is_some() == windowed);
        let mut dims: Vec<usize> =
            of_kind.filter_map(|layer| Some(layer.attention.heads()?.layout.head_dim)).collect();
        dims.dedup();
        let head_dim = match dims[..] {
            [] => 2, // No layer uses the table.
            [head_dim] => head_dim,
            _ => {
                return Err(config
                    .unsupported("per_layer_config", "heads of different lengths in layers of one kind"));
            }
        };
        Ok(Rotated { style: RopeStyle::Half, head_dim, partial: 1.0, positions: spec.max_positions, theta })
    };
    let (full, windowed) = (of_kind(false, 1e6)?, of_kind(true, 1e4)?);
    (spec.ropes, spec.max_positions) = rope::read_kinds(&config, &full, &windowed)?;
    for heads in decoder::heads_mut(spec) {
        heads.positions = Positions::Rotary { table: 0 };
    }
    decoder::rotate_windows(spec);
    Ok(())
}

/// Lets the last layers read the cache of the last layer before them with a window, or without one
/// as they have. Their MLPs may be twice as wide.
pub(super) fn share_caches(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let key = "num_kv_shared_layers";
    let (count, readers) = (spec.layers.len(), config.optional::<usize>(key)?.unwrap_or(0));
    let is_wide = config.flag("use_double_wide_mlp", false)?;
    let Some(first) = count.checked_sub(readers) else {
        return Err(config.invalid(key, format!("is {readers}, but there are {count} layers")));
    };
    for index in first..count {
        let window = spec.layers[index].attention.window();
        let source = (0..first).rev().find(|&source| spec.layers[source].attention.window() == window);
        let Some(source) = source else {
            let reason = format!("is {readers}, which leaves layer {index} no earlier cache of its kind");
            return Err(config.invalid(key, reason));
        };
        let shared = spec.layers[source].attention.heads().map(|heads| heads.layout);
        let layer = &mut spec.layers[index];
        if let Some(heads) = layer.attention.heads_mut() {
            if Some(heads.layout) != shared {
                let reason =
                    format!("lets layer {index} read the cache of layer {source}, which has other heads");
                return Err(config.invalid(key, reason));
            }
            (heads.kv_source, heads.values_are_keys) = (Some(source), false);
        }
        if let Some(mlp) = layer.mlp.dense_mut().filter(|_| is_wide) {
            mlp.width *= 2;
        }
    }
    Ok(())
}
