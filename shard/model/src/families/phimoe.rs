//! Phi-3.5 MoE: layer norms, and experts that a SparseMixer chooses.

use millrace_backend::RouterScores;

use super::config::Config;
use super::decoder::{self, NormTrait, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::{mixtral, rope};
use crate::description::DecoderSpec;

pub(super) const FAMILY: Family = Family {
    model_type: "phimoe",
    architectures: &["PhimoeForCausalLM", "PhiMoEForCausalLM"],
    spec,
    names: mixtral::NAMES,
};

const KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_local_experts", 16),
    top_k: ("num_experts_per_tok", 2),
    width: ("intermediate_size", 6400),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    config.insist("num_experts_per_tok", 2, "SparseMixer chooses two experts")?;
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        kv_heads: Some(8),
        theta: Some(1_000_000.0),
        positions: Some(131_072),
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        qkv_bias: bias,
        out_bias: bias,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.head.bias = config.flag("lm_head_bias", false)?;
    rope::use_length_factor(config, &mut spec.ropes[0])?;
    let window = config.optional_size("sliding_window", usize::MAX)?;
    decoder::slide(config, &mut spec, window, 0)?;
    let mut of_layers = experts::read(config, &KEYS)?;
    let noise = config.optional_number("router_jitter_noise", 0.0)?.unwrap_or(0.01) as f32;
    of_layers.router.scores = RouterScores::SparseMixer { noise };
    of_layers.router.normalize = false;
    experts::place(&mut spec, &of_layers, |_| true);
    Ok(spec)
}
