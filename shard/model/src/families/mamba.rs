//! Reads Mamba-2 layers.

use millrace_backend::{Activation, KeySharing, RecurrentHeads};
use serde_json::Value;

use super::config::Config;
use super::decoder::{self, MAX_HEAD_DIM, MAX_WIDTH};
use super::delta::MAX_TAPS;
use super::error::ConfigError;
use crate::description::{
    ProjectionFactors, RecurrentLayer, RecurrentRule, RecurrentSlot, ResultPlan, StoredTensors,
};

/// Larger numbers of heads are typing errors or attacks.
pub(super) const MAX_HEADS: usize = 1 << 14;

/// Makes the table of the tensors of a Mamba-2 layer whose names begin with `$layer`.
macro_rules! tensors_of {
    ($layer:literal, $slot:expr) => {{
        use crate::description::FeatureBlock::{Hidden, Recurrent};
        use crate::description::RecurrentBlock::{
            Gate, GroupedValue, Key, KeyChannels, KeyTaps, Query, QueryChannels, QueryTaps, Rate, Value,
            ValueDim, ValueTaps,
        };
        use crate::description::{RecurrentSlot, StoredTensors};
        const PROJECTED: StoredTensors = &[(
            concat!($layer, ".in_proj"),
            &[Recurrent(Gate), Recurrent(Value), Recurrent(Key), Recurrent(Query), Recurrent(Rate)],
        )];
        const CONV: StoredTensors = &[(
            concat!($layer, ".conv1d.weight"),
            &[Recurrent(ValueTaps), Recurrent(KeyTaps), Recurrent(QueryTaps)],
        )];
        const CONV_BIAS: StoredTensors = &[(
            concat!($layer, ".conv1d"),
            &[Recurrent(Value), Recurrent(KeyChannels), Recurrent(QueryChannels)],
        )];
        const NORM: StoredTensors =
            &[(concat!($layer, ".norm"), &[Recurrent(ValueDim), Recurrent(GroupedValue)])];
        let tensors: StoredTensors = match $slot {
            RecurrentSlot::In | RecurrentSlot::InBias | RecurrentSlot::Rates => PROJECTED,
            RecurrentSlot::Conv => CONV,
            RecurrentSlot::ConvBias => CONV_BIAS,
            RecurrentSlot::DecayLog => &[(concat!($layer, ".A_log"), &[Recurrent(Rate)])],
            // Mamba's rates are those of heads, and its gates are projected with all else.
            RecurrentSlot::Strengths
            | RecurrentSlot::RateDown
            | RecurrentSlot::RateUp
            | RecurrentSlot::GateDown
            | RecurrentSlot::GateUp
            | RecurrentSlot::ChannelBias => &[],
            RecurrentSlot::StepBias => &[(concat!($layer, ".dt_bias"), &[Recurrent(Rate)])],
            RecurrentSlot::Skip => &[(concat!($layer, ".D"), &[Recurrent(Rate)])],
            RecurrentSlot::Norm => NORM,
            RecurrentSlot::Out | RecurrentSlot::OutBias => &[(concat!($layer, ".out_proj"), &[Hidden])],
        };
        tensors
    }};
}
pub(super) use tensors_of;

/// Returns the tensors of a Mamba-2 layer with the name `mamba`.
pub(super) fn tensors(slot: RecurrentSlot) -> StoredTensors {
    tensors_of!("mamba", slot)
}

/// The keys under which a family's configuration has the sizes of Mamba-2 layers, and the values of
/// absent keys.
#[derive(Debug, Clone, Copy)]
pub(super) struct MambaKeys {
    pub(super) heads: (&'static str, usize),
    pub(super) groups: (&'static str, usize),
    pub(super) state: (&'static str, usize),
    pub(super) head_dim: &'static str,
    pub(super) taps: (&'static str, usize),
    pub(super) conv_bias: &'static str,
    pub(super) projection_bias: &'static str,
    pub(super) activation: &'static str,
}

/// The keys of most families.
pub(super) const USUAL_KEYS: MambaKeys = MambaKeys {
    heads: ("mamba_n_heads", 128),
    groups: ("mamba_n_groups", 1),
    state: ("mamba_d_state", 256),
    head_dim: "mamba_d_head",
    taps: ("mamba_d_conv", 4),
    conv_bias: "mamba_conv_bias",
    projection_bias: "mamba_proj_bias",
    activation: "hidden_act",
};

/// Returns the features of the values of a Mamba-2 layer that are a multiple of the width of the
/// residual stream.
pub(super) fn expanded(config: &Config, hidden: usize) -> Result<usize, ConfigError> {
    Ok(config.optional_size("mamba_expand", 1 << 6)?.unwrap_or(2) * hidden)
}

/// Reads a Mamba-2 layer with values of `width` features, whose norms have this epsilon.
pub(super) fn read(
    config: &Config,
    keys: &MambaKeys,
    width: usize,
    eps: f32,
) -> Result<RecurrentLayer, ConfigError> {
    // The rates are a part of the projection, and have no bias of their own.
    config.insist(keys.projection_bias, false, "projections of Mamba layers have no biases")?;
    let size = |(key, default), max| Ok(config.optional_size(key, max)?.unwrap_or(default));
    let (heads, key_heads) = (size(keys.heads, MAX_HEADS)?, size(keys.groups, MAX_HEADS)?);
    let key_dim = size(keys.state, MAX_HEAD_DIM)?;
    if !width.is_multiple_of(heads) {
        let reason = format!("is {heads}, which does not divide the {width} features of Mamba layers");
        return Err(config.invalid(keys.heads.0, reason));
    }
    if !heads.is_multiple_of(key_heads) {
        let reason = format!("is {key_heads}, which does not divide {} = {heads}", keys.heads.0);
        return Err(config.invalid(keys.groups.0, reason));
    }
    let (value_dim, sharing) = (width / heads, KeySharing::Neighbors);
    let heads = RecurrentHeads { key_heads, heads, key_dim, value_dim, sharing };
    // The size may be given as the text "auto".
    if let Ok(Some(given)) = config.optional::<usize>(keys.head_dim)
        && given != heads.value_dim
    {
        let reason =
            format!("is {given}, but {} heads of {width} features have {}", heads.heads, heads.value_dim);
        return Err(config.invalid(keys.head_dim, reason));
    }
    if heads.cols() > MAX_WIDTH {
        let reason = format!("is {key_dim}, too many for {key_heads} groups");
        return Err(config.invalid(keys.state.0, reason));
    }
    let act = decoder::activation_of(config, &[keys.activation], Activation::Silu)?;
    Ok(RecurrentLayer {
        heads,
        rule: RecurrentRule::StateSpace { act, step_limits: step_limits(config)? },
        taps: size(keys.taps, MAX_TAPS)?,
        conv_bias: config.flag(keys.conv_bias, true)?,
        in_bias: false,
        result: ResultPlan::GatedGroups { eps },
        out_bias: false,
        factors: ProjectionFactors::NONE,
    })
}

/// Reads the bounds of time steps. JSON has no infinity, so transformers writes the upper one as an
/// object with its name.
fn step_limits(config: &Config) -> Result<(f32, f32), ConfigError> {
    let key = "time_step_limit";
    let Some(limits) = config.optional::<Vec<Value>>(key)? else { return Ok((0.0, f32::INFINITY)) };
    let number = |limit: &Value| match limit {
        Value::Number(number) => number.as_f64().map(|number| number as f32),
        Value::Object(special) if special.get("__float__").is_some_and(|name| name == "Infinity") => {
            Some(f32::INFINITY)
        }
        _ => None,
    };
    match limits.iter().map(number).collect::<Option<Vec<f32>>>().as_deref() {
        Some(&[least, most]) if least <= most => Ok((least, most)),
        _ => Err(config.unsupported(key, "it must be two numbers, the smaller one first")),
    }
}
