//! Mamba-2: every layer is a recurrence, without attention and without an MLP.

use super::config::Config;
use super::decoder::{self, Keys, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::mamba::{self, MambaKeys};
use super::nemotron_h;
use crate::description::{Attention, DecoderSpec, LayerSpec, Mlp, NormKind};

pub(super) const FAMILY: Family =
    Family { model_type: "mamba2", architectures: &["Mamba2ForCausalLM"], spec, names: nemotron_h::NAMES };

const KEYS: Keys = Keys { heads: "num_heads", norm_eps: "layer_norm_epsilon", ..USUAL_KEYS };
const MAMBA_KEYS: MambaKeys = MambaKeys {
    heads: ("num_heads", 128),
    groups: ("n_groups", 8),
    state: ("state_size", 128),
    head_dim: "head_dim",
    taps: ("conv_kernel", 4),
    conv_bias: "use_conv_bias",
    projection_bias: "use_bias",
    activation: "hidden_act",
};

/// Number of positions if the configuration has none. A recurrence has no limit.
const POSITIONS: usize = 1 << 18;

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("rms_norm", true, "the results of recurrences are normalized")?;
    let traits = Traits {
        keys: KEYS,
        head_dim: Some(64),
        positions: Some(POSITIONS),
        rotary: false,
        norm_eps: Some(1e-5),
        fourfold_width: true,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    let NormKind::Rms { eps, .. } = spec.norm.kind else {
        unreachable!("the traits ask for RMS norms; this is a bug")
    };
    let width = config.optional_size("expand", 1 << 6)?.unwrap_or(2) * spec.hidden;
    let recurrent = mamba::read(config, &MAMBA_KEYS, width, eps)?;
    let layer = LayerSpec { attention: Attention::Recurrent(recurrent), mlp: Mlp::None };
    spec.layers.fill(layer);
    Ok(spec)
}
