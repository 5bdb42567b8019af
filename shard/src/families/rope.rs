//! Reads the rotary position embedding from `config.json`, in all forms that versions of
//! transformers write.

use millrace_kernels::RopeStyle;

use super::config::Config;
use super::error::ConfigError;
use crate::model::{RopeScaling, RopeTable};

/// The largest number of positions that is accepted.
pub(super) const MAX_POSITIONS: usize = 1 << 24;

/// The features that are rotated.
pub(super) struct Rotated {
    pub(super) style: RopeStyle,
    pub(super) head_dim: usize,
    /// Share of the features that is rotated if the key is absent.
    pub(super) partial: f64,
    /// The longest context by the configuration.
    pub(super) positions: usize,
}

/// Reads the rotary table and the number of positions that it supports.
///
/// Version 5 of transformers writes `rope_parameters`. Earlier versions write `rope_theta` and
/// `rope_scaling`, whose kind was first called `type`. If both are present, `rope_scaling` was
/// added by hand and takes precedence.
pub(super) fn read(config: &Config, rotated: &Rotated) -> Result<(RopeTable, usize), ConfigError> {
    let nested = match config.object("rope_scaling")? {
        None => config.object("rope_parameters")?,
        scaling => scaling,
    };
    let rope = nested.as_ref().unwrap_or(config);
    if nested.is_some() {
        for kind in ["full_attention", "sliding_attention"] {
            rope.refuse(kind, "all layers must have the same rotation")?;
        }
    }
    let either = |key: &str, min: f64| match rope.optional_number(key, min)? {
        None => config.optional_number(key, min),
        number => Ok(number),
    };
    let theta = either("rope_theta", 1.0)?.unwrap_or(10_000.0);
    if theta == 1.0 {
        return Err(rope.invalid("rope_theta", "is 1, which rotates all features equally".to_owned()));
    }
    let partial = either("partial_rotary_factor", 0.0)?.unwrap_or(rotated.partial);
    let rotary_dim = (rotated.head_dim as f64 * partial) as usize;
    if rotary_dim == 0 || rotary_dim % 2 == 1 || rotary_dim > rotated.head_dim {
        let reason = format!(
            "= {partial} rotates {rotary_dim} of {} features per head; it must be an even number of them",
            rotated.head_dim
        );
        return Err(config.invalid("partial_rotary_factor", reason));
    }
    let (scaling, positions) = match &nested {
        None => (RopeScaling::Default, rotated.positions),
        Some(rope) => scaling(config, rope, rotated.positions)?,
    };
    if positions > MAX_POSITIONS {
        return Err(rope.invalid(
            "factor",
            format!("makes {positions} positions, more than the limit of {MAX_POSITIONS}"),
        ));
    }
    if matches!(scaling, RopeScaling::Dynamic { .. }) && rotary_dim == 2 {
        return Err(rope.invalid("rope_type", "dynamic needs more than 2 rotated features".to_owned()));
    }
    Ok((RopeTable { style: rotated.style, rotary_dim, theta, scaling }, positions))
}

/// Reads the scaling, and computes the number of positions with it.
///
/// `linear` and `dynamic` stretch the configured length. Files with `llama3` state the stretched
/// length. Files with `yarn` state either, and the original length tells which.
fn scaling(config: &Config, rope: &Config, positions: usize) -> Result<(RopeScaling, usize), ConfigError> {
    let (key, kind) = match rope.optional::<String>("rope_type")? {
        Some(kind) => ("rope_type", kind),
        None => match rope.optional("type")? {
            Some(kind) => ("type", kind),
            // Only a table without scaling may omit its kind.
            None if rope.mentions("factor") => return Err(rope.missing("rope_type")),
            None => ("rope_type", "default".to_owned()),
        },
    };
    let stretched = |length: f64, factor: f64| (length * factor) as usize;
    Ok(match kind.as_str() {
        "default" => (RopeScaling::Default, positions),
        "linear" => {
            let factor = rope.number("factor", 1.0)?;
            (RopeScaling::Linear { factor }, stretched(positions as f64, factor))
        }
        "dynamic" => {
            let factor = rope.number("factor", 1.0)?;
            (RopeScaling::Dynamic { factor, original: positions }, stretched(positions as f64, factor))
        }
        "llama3" => {
            let factor = rope.number("factor", 1.0)?;
            let low = rope.number("low_freq_factor", f64::MIN_POSITIVE)?;
            let high = rope.number("high_freq_factor", f64::MIN_POSITIVE)?;
            if high <= low {
                let reason = format!("is {high}, but must be more than low_freq_factor, {low}");
                return Err(rope.invalid("high_freq_factor", reason));
            }
            let original = original(config, rope)?.unwrap_or(positions as f64);
            (RopeScaling::Llama3 { factor, low, high, original }, positions)
        }
        "yarn" => yarn(config, rope, positions)?,
        _ => return Err(rope.unsupported(key, "known are default, linear, dynamic, llama3 and yarn")),
    })
}

/// Reads the parameters of YaRN (Peng et al.), with the attention factor of transformers.
fn yarn(config: &Config, rope: &Config, positions: usize) -> Result<(RopeScaling, usize), ConfigError> {
    let given = original(config, rope)?;
    let original = given.unwrap_or(positions as f64);
    let factor = match rope.optional_number("factor", 1.0)? {
        Some(factor) => factor,
        None if given.is_some() && positions as f64 >= original => positions as f64 / original,
        None => return Err(rope.missing("factor")),
    };
    let beta_fast = rope.optional_number("beta_fast", f64::MIN_POSITIVE)?.unwrap_or(32.0);
    let beta_slow = rope.optional_number("beta_slow", f64::MIN_POSITIVE)?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        let reason = format!("is {beta_fast}, but must not be less than beta_slow, {beta_slow}");
        return Err(rope.invalid("beta_fast", reason));
    }
    // Zero disables these, as in transformers.
    let scale = |key| Ok::<_, ConfigError>(rope.optional_number(key, 0.0)?.filter(|&scale| scale > 0.0));
    let attention_factor = match rope.optional_number("attention_factor", f64::MIN_POSITIVE)? {
        Some(factor) => factor,
        None => {
            let temperature = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
            match (scale("mscale")?, scale("mscale_all_dim")?) {
                (Some(scale), Some(all_dim)) => temperature(scale) / temperature(all_dim),
                _ => temperature(1.0),
            }
        }
    };
    let truncate = rope.flag("truncate", true)?;
    let scaling = RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, attention_factor };
    Ok((scaling, positions.max((original * factor) as usize)))
}

/// Reads the length of the pre-training. The key beside the table takes precedence over the key in
/// it.
fn original(config: &Config, rope: &Config) -> Result<Option<f64>, ConfigError> {
    let key = "original_max_position_embeddings";
    match config.optional_number(key, 1.0)? {
        None => rope.optional_number(key, 1.0),
        outer => Ok(outer),
    }
}
