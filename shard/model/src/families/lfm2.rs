//! LFM2: short convolutions between gates in most layers, and attention with norms of heads.

use millrace_backend::{KeySharing, RecurrentHeads};

use super::config::Config;
use super::decoder::{self, Keys, MAX_WIDTH, Traits, USUAL_KEYS};
use super::delta::{MAX_TAPS, layer_kinds};
use super::error::ConfigError;
use super::family::Family;
use super::names::{LLAMA, Names};
use crate::description::{
    Attention, DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, ProjectionFactors, RecurrentBlock,
    RecurrentLayer, RecurrentRule, RecurrentSlot, ResultPlan, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "lfm2",
    architectures: &["Lfm2ForCausalLM"],
    spec,
    names: Names { tensors, ..LLAMA },
};

/// Returns the tensors of a weight, also of LFM2 with experts.
pub(super) fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Gate, HeadDim, Hidden, Recurrent, Up};
    use RecurrentBlock::{Key, Query, Value, ValueTaps};
    // The inner gates are stored before the outer ones.
    const PROJECTED: StoredTensors =
        &[("conv.in_proj", &[Recurrent(Key), Recurrent(Query), Recurrent(Value)])];
    match slot {
        WeightSlot::FinalNorm => &[("model.embedding_norm", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::AttentionNorm) => &[("operator_norm", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::MlpNorm) => &[("ffn_norm", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::QNorm) => &[("self_attn.q_layernorm", &[HeadDim])],
        WeightSlot::Layer(_, LayerSlot::KNorm) => &[("self_attn.k_layernorm", &[HeadDim])],
        WeightSlot::Layer(_, LayerSlot::Out) => &[("self_attn.out_proj", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::GateUp) => {
            &[("feed_forward.w1", &[Gate]), ("feed_forward.w3", &[Up])]
        }
        WeightSlot::Layer(_, LayerSlot::Down) => &[("feed_forward.w2", &[Hidden])],
        WeightSlot::Recurrent(_, RecurrentSlot::In | RecurrentSlot::InBias) => PROJECTED,
        WeightSlot::Recurrent(_, RecurrentSlot::Conv) => &[("conv.conv.weight", &[Recurrent(ValueTaps)])],
        WeightSlot::Recurrent(_, RecurrentSlot::ConvBias) => &[("conv.conv", &[Recurrent(Value)])],
        WeightSlot::Recurrent(_, RecurrentSlot::Out | RecurrentSlot::OutBias) => {
            &[("conv.out_proj", &[Hidden])]
        }
        other => other.usual_tensors(),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    // Files of the first release have another name for the width.
    let key = if config.mentions("block_ff_dim") { "block_ff_dim" } else { USUAL_KEYS.width };
    let mut spec = read(config, key)?;
    let width = adjusted_width(config, key)?;
    spec.layers.iter_mut().filter_map(|layer| layer.mlp.dense_mut()).for_each(|mlp| mlp.width = width);
    Ok(spec)
}

/// Reads a decoder with the layers of LFM2 and MLPs whose width is under the key `width`.
pub(super) fn read(config: &Config, width: &'static str) -> Result<DecoderSpec, ConfigError> {
    let keys = Keys { norm_eps: "norm_eps", width, ..USUAL_KEYS };
    let traits = Traits {
        keys,
        kv_heads: Some(8),
        theta: Some(1e6),
        positions: Some(128_000),
        tied_head: true,
        norm_eps: Some(1e-5),
        head_norm: HeadNormPlan::Shared,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.tied_head = config.flag("tie_embedding", spec.tied_head)?;
    let bias = config.flag("conv_bias", false)?;
    let channels = spec.hidden;
    let convolution = RecurrentLayer {
        heads: RecurrentHeads {
            key_heads: channels,
            heads: channels,
            key_dim: 1,
            value_dim: 1,
            sharing: KeySharing::Neighbors,
        },
        rule: RecurrentRule::Convolution,
        taps: config.optional_size("conv_L_cache", MAX_TAPS)?.unwrap_or(3),
        conv_bias: bias,
        in_bias: bias,
        result: ResultPlan::Plain,
        out_bias: bias,
        factors: ProjectionFactors::NONE,
    };
    let with_attention: Option<Vec<usize>> = config.optional("full_attn_idxs")?;
    let is_convolution = layer_kinds(config, spec.layers.len(), &["conv"], |index| {
        with_attention.as_ref().is_some_and(|layers| !layers.contains(&index))
    })?;
    for (layer, is_convolution) in spec.layers.iter_mut().zip(is_convolution) {
        if is_convolution {
            layer.attention = Attention::Recurrent(convolution.clone());
        }
    }
    Ok(spec)
}

/// Returns the width of the MLPs: two thirds of the configured one times a factor, rounded up to a
/// multiple, unless the configuration turns this off.
fn adjusted_width(config: &Config, key: &'static str) -> Result<usize, ConfigError> {
    let width = config.size(key, MAX_WIDTH)?;
    if !config.flag("block_auto_adjust_ff_dim", true)? {
        return Ok(width);
    }
    let thirds = (2 * width / 3) as f64;
    let factor = config.optional_number("block_ffn_dim_multiplier", f64::MIN_POSITIVE)?;
    let multiple = config.optional_size("block_multiple_of", MAX_WIDTH)?.unwrap_or(256);
    if factor.is_none() && config.mentions("block_ffn_dim_multiplier") {
        return Ok(thirds as usize);
    }
    let width = ((factor.unwrap_or(1.0) * thirds) as usize).next_multiple_of(multiple);
    if width == 0 || width > MAX_WIDTH {
        let reason = format!("makes {width} features, which is not between 1 and {MAX_WIDTH}");
        return Err(config.invalid("block_ffn_dim_multiplier", reason));
    }
    Ok(width)
}
