//! Reads the rotary position embedding from `config.json`, in all forms that versions of
//! transformers write.

use millrace_backend::RopeStyle;

use super::config::Config;
use super::error::ConfigError;
use crate::description::{QueryScale, RopeScaling, RopeTable};

/// The largest number of positions that is accepted.
pub(super) const MAX_POSITIONS: usize = 1 << 24;

/// The features that are rotated.
#[derive(Clone, Copy)]
pub(super) struct Rotated {
    pub(super) style: RopeStyle,
    pub(super) head_dim: usize,
    /// Share of the features that is rotated if the key is absent.
    pub(super) partial: f64,
    /// The longest context by the configuration.
    pub(super) positions: usize,
    /// Base of the frequencies if the key is absent.
    pub(super) theta: f64,
}

/// The base of the frequencies of most families.
pub(super) const THETA: f64 = 10_000.0;

/// Reads the rotary tables of layers without and with a sliding window, and the number of positions
/// that the first one supports.
///
/// Version 5 of transformers writes a table for each kind of layer. Earlier versions scale only the
/// layers without a window, and write the base of the others as `rope_local_base_freq`.
pub(super) fn read_kinds(
    config: &Config,
    rotated: &Rotated,
    windowed: &Rotated,
) -> Result<(Vec<RopeTable>, usize), ConfigError> {
    let nested = config.object("rope_parameters")?;
    let of_kind = |kind: &str| nested.as_ref().map_or(Ok(None), |tables| tables.object(kind));
    let (full, sliding) = (of_kind("full_attention")?, of_kind("sliding_attention")?);
    if full.is_none() && sliding.is_none() {
        let (full, positions) = read(config, rotated)?;
        let theta = config.optional_number("rope_local_base_freq", 1.0)?.unwrap_or(windowed.theta);
        let sliding = RopeTable { theta, scaling: RopeScaling::Default, ..full.clone() };
        return Ok((vec![full, sliding], positions));
    }
    let (full, positions) = table(config, full.as_ref(), rotated)?;
    let (sliding, _) = table(config, sliding.as_ref(), windowed)?;
    Ok((vec![full, sliding], positions))
}

/// Reads the rotary table and the number of positions that it supports.
///
/// Version 5 of transformers writes `rope_parameters`. Earlier versions write `rope_theta` and
/// `rope_scaling`, whose kind was first called `type`. If both are present, `rope_scaling` was
/// added by hand and takes precedence.
pub(super) fn read(config: &Config, rotated: &Rotated) -> Result<(RopeTable, usize), ConfigError> {
    let nested = nested(config)?;
    if let Some(rope) = &nested {
        for kind in ["full_attention", "sliding_attention"] {
            rope.refuse(kind, "all layers must have the same rotation")?;
        }
    }
    table(config, nested.as_ref(), rotated)
}

/// Returns the object with the parameters of the rotation.
fn nested(config: &Config) -> Result<Option<Config>, ConfigError> {
    match config.object("rope_scaling")? {
        None => config.object("rope_parameters"),
        scaling => Ok(scaling),
    }
}

/// Reads the factors on queries, which grow with the positions beyond the length of the
/// pre-training (Ministral 3).
pub(super) fn query_scale(config: &Config) -> Result<Option<QueryScale>, ConfigError> {
    let Some(rope) = nested(config)? else { return Ok(None) };
    let Some(beta) = rope.optional_number("llama_4_scaling_beta", 0.0)? else { return Ok(None) };
    let interval = rope.number("original_max_position_embeddings", 1.0)?;
    Ok(Some(QueryScale { beta, interval, offset: 0 }))
}

/// Sets the factor on the lengths of heads that LongRoPE has for short and for long texts (Phi-3.5
/// MoE).
pub(super) fn use_length_factor(config: &Config, table: &mut RopeTable) -> Result<(), ConfigError> {
    let (Some(rope), RopeScaling::LongRope { attention_factor, .. }) = (nested(config)?, &mut table.scaling)
    else {
        return Ok(());
    };
    let factor = |key| rope.optional_number(key, f64::MIN_POSITIVE);
    match (factor("short_mscale")?, factor("long_mscale")?) {
        (Some(short), Some(long)) if short != long => {
            Err(rope.unsupported("long_mscale", "it must be that of short texts, short_mscale"))
        }
        (short, long) => {
            *attention_factor = short.or(long).unwrap_or(*attention_factor);
            Ok(())
        }
    }
}

/// Replaces a dynamic scaling with the key `alpha` by a larger base (Hunyuan).
pub(super) fn use_alpha(config: &Config, table: &mut RopeTable) -> Result<(), ConfigError> {
    let alpha = match nested(config)? {
        Some(rope) => rope.optional_number("alpha", 0.0)?.filter(|&alpha| alpha > 0.0),
        None => None,
    };
    if let (Some(alpha), RopeScaling::Dynamic { .. }) = (alpha, &table.scaling) {
        let features = table.rotary_dim as f64;
        table.theta *= alpha.powf(features / (features - 2.0));
        table.scaling = RopeScaling::Default;
    }
    Ok(())
}

/// Reads a rotary table, whose keys are in `nested` or beside it.
fn table(
    config: &Config,
    nested: Option<&Config>,
    rotated: &Rotated,
) -> Result<(RopeTable, usize), ConfigError> {
    let rope = nested.unwrap_or(config);
    let either = |key: &str, min: f64| match rope.optional_number(key, min)? {
        None => config.optional_number(key, min),
        number => Ok(number),
    };
    let theta = either("rope_theta", 1.0)?.unwrap_or(rotated.theta);
    if theta == 1.0 {
        return Err(rope.invalid("rope_theta", "is 1, which rotates all features equally".to_owned()));
    }
    let partial = either("partial_rotary_factor", 0.0)?.unwrap_or(rotated.partial);
    let share = (rotated.head_dim as f64 * partial) as usize;
    // The features that a proportional rotation keeps as they are belong to pairs too.
    let is_proportional =
        nested.is_some() && rope.optional::<String>("rope_type")?.as_deref() == Some("proportional");
    let rotary_dim = if is_proportional { share.max(rotated.head_dim) } else { share };
    if rotary_dim == 0 || rotary_dim % 2 == 1 || rotary_dim > rotated.head_dim {
        let reason = format!(
            "= {partial} rotates {rotary_dim} of {} features per head; it must be an even number of them",
            rotated.head_dim
        );
        return Err(config.invalid("partial_rotary_factor", reason));
    }
    let (scaling, positions) = match nested {
        None => (RopeScaling::Default, rotated.positions),
        Some(rope) if is_proportional => {
            let factor = rope.optional_number("factor", f64::MIN_POSITIVE)?.unwrap_or(1.0);
            (RopeScaling::Proportional { pairs: share / 2, factor }, rotated.positions)
        }
        Some(rope) => scaling(config, rope, (rotated.positions, rotary_dim))?,
    };
    if positions > MAX_POSITIONS {
        return Err(rope.invalid(
            "factor",
            format!("makes {positions} positions, more than the limit of {MAX_POSITIONS}"),
        ));
    }
    if let RopeScaling::Divided { divisors } = &scaling
        && divisors.len() != rotary_dim / 2
    {
        let reason = format!("has {} numbers for {} pairs of features", divisors.len(), rotary_dim / 2);
        return Err(config.invalid("rope_scaling.divisors", reason));
    }
    if matches!(scaling, RopeScaling::Dynamic { .. }) && rotary_dim == 2 {
        return Err(rope.invalid("rope_type", "dynamic needs more than 2 rotated features".to_owned()));
    }
    let style = rotated.style;
    Ok((RopeTable { style, rotary_dim, two_axes: false, theta, scaling }, positions))
}

/// Reads the scaling, and computes the number of positions with it.
///
/// `linear` and `dynamic` stretch the configured length. Files with `llama3` state the stretched
/// length. Files with `yarn` state either, and the original length tells which.
fn scaling(
    config: &Config,
    rope: &Config,
    (positions, rotary_dim): (usize, usize),
) -> Result<(RopeScaling, usize), ConfigError> {
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
        // The positions of a text without images are the same in all dimensions.
        "default" | "mrope" => (RopeScaling::Default, positions),
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
        "longrope" | "su" => (longrope(config, rope, (positions, rotary_dim))?, positions),
        // Files of Phi-3 gave this name to LongRoPE too.
        "yarn" if rope.mentions("long_factor") => {
            (longrope(config, rope, (positions, rotary_dim))?, positions)
        }
        "yarn" => yarn(config, rope, positions)?,
        "divisors" => (RopeScaling::Divided { divisors: divisors(rope)? }, positions),
        _ => {
            let known = "known are default, linear, dynamic, llama3, longrope, yarn and proportional";
            return Err(rope.unsupported(key, known));
        }
    })
}

/// Reads the parameters of LongRoPE (Ding et al.), with the attention factor of transformers.
fn longrope(
    config: &Config,
    rope: &Config,
    (positions, rotary_dim): (usize, usize),
) -> Result<RopeScaling, ConfigError> {
    let original = original(config, rope)?.ok_or_else(|| rope.missing("original_max_position_embeddings"))?;
    let factors = |key: &str| {
        let factors: Vec<f64> = rope.optional(key)?.ok_or_else(|| rope.missing(key))?;
        let expected = rotary_dim / 2;
        if factors.len() != expected {
            let reason = format!("has {} entries for {expected} pairs of features", factors.len());
            return Err(rope.invalid(key, reason));
        }
        match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
            Some(factor) => Err(rope.invalid(key, format!("has {factor}, which is not a positive number"))),
            None => Ok(factors),
        }
    };
    let factor = match rope.optional_number("factor", 1.0)? {
        Some(factor) => factor,
        None => positions as f64 / original,
    };
    let attention_factor = match rope.optional_number("attention_factor", f64::MIN_POSITIVE)? {
        Some(factor) => factor,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / original.ln()).sqrt(),
    };
    Ok(RopeScaling::LongRope {
        short: factors("short_factor")?,
        long: factors("long_factor")?,
        original: original as usize,
        attention_factor,
    })
}

/// Reads the divisor of each frequency, which a GGUF file stores as a tensor.
fn divisors(rope: &Config) -> Result<Vec<f64>, ConfigError> {
    let key = "divisors";
    let divisors: Vec<f64> = rope.optional(key)?.ok_or_else(|| rope.missing(key))?;
    if divisors.iter().any(|&divisor| !(divisor > 0.0 && divisor.is_finite())) {
        return Err(rope.invalid(key, "has a number that is no positive divisor".to_owned()));
    }
    Ok(divisors)
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
