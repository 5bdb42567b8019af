//! Falcon: parallel branches, and three generations of heads and norms.

use millrace_backend::Activation;

use super::bloom;
use super::config::Config;
use super::decoder::{self, Keys, NormTrait, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{DecoderSpec, Residual, SlopeRule};

pub(super) const FAMILY: Family = Family {
    model_type: "falcon",
    architectures: &["FalconForCausalLM", "RWForCausalLM"],
    spec,
    names: Names {
        layers: "transformer.h.",
        tensors: bloom::tensors,
        grouped_qkv: true,
        // Models with two norms before parallel branches give them names of their own.
        aliases: &[("input_layernorm", "ln_attn"), ("post_attention_layernorm", "ln_mlp")],
        ..LLAMA
    },
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let either = |first, second| if config.mentions(first) { first } else { second };
    let (new, bias) = (config.flag("new_decoder_architecture", false)?, config.flag("bias", false)?);
    let alibi = config.flag("alibi", false)?;
    let multi_query = !new && config.flag("multi_query", true)?;
    let keys = Keys {
        layers: either("num_hidden_layers", "n_layer"),
        heads: either("num_attention_heads", "n_head"),
        kv_heads: if new { either("num_kv_heads", "n_head_kv") } else { "" },
        width: "ffn_hidden_size",
        norm_eps: "layer_norm_epsilon",
        ..USUAL_KEYS
    };
    let traits = Traits {
        keys,
        kv_heads: multi_query.then_some(1),
        rotary: !alibi,
        positions: Some(2048),
        tied_head: true,
        norm: NormTrait::Layer { bias: true },
        norm_eps: Some(1e-5),
        act: Activation::Gelu,
        gated: false,
        fourfold_width: true,
        qkv_bias: bias,
        out_bias: bias,
        mlp_bias: bias,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    if new || config.flag("parallel_attn", true)? {
        let norms = config.optional_size("num_ln_in_parallel_attn", 2)?.unwrap_or(if new { 2 } else { 1 });
        spec.residual = Residual::Parallel { has_mlp_norm: norms == 2 };
    }
    if alibi {
        // The biases are added before the scores are scaled.
        let factor = decoder::heads_mut(&mut spec).next().map_or(1.0, |heads| heads.score_scale);
        decoder::use_linear_biases(&mut spec, SlopeRule::Below { factor });
    }
    Ok(spec)
}
