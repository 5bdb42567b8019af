//! The text part of Gemma 4: norms around both branches and of values, no factor on scores, a
//! number per layer on the residual stream, and other heads in layers without a window.

use millrace_backend::{Activation, MlpKind};

use super::config::Config;
use super::decoder::{self, MAX_VOCAB, MAX_WIDTH, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::names::{LLAMA, Names, StackedExperts};
use super::{gemma2, gemma4_heads};
use crate::description::{
    DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, NormPlace, PerLayerEmbedding, SharedExpert,
    StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family = Family {
    model_type: "gemma4_text",
    architectures: &["Gemma4ForCausalLM"],
    spec,
    names: Names { tensors, experts: StackedExperts::ByOutputWithoutSuffix, ..LLAMA },
};

/// The MLP beside experts has the names that it has without them.
fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Gate, Hidden, Up};
    use LayerSlot as Slot;
    match slot {
        WeightSlot::Layer(_, Slot::Router) => &[("router.proj", &[Experts])],
        WeightSlot::Layer(_, Slot::ExpertGateUp) => &[("experts.gate_up_proj", &[Gate, Up])],
        WeightSlot::Layer(_, Slot::ExpertDown) => &[("experts.down_proj", &[Hidden])],
        WeightSlot::Layer(_, Slot::SharedGateUp) => &[("mlp.gate_proj", &[Gate]), ("mlp.up_proj", &[Up])],
        WeightSlot::Layer(_, Slot::SharedDown) => &[("mlp.down_proj", &[Hidden])],
        other => gemma2::tensors(other),
    }
}

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    // Only the tokens of images attend to later ones then.
    config.insist("use_bidirectional_attention", "vision", "tokens that attend to later ones")?;
    config.refuse("rope_scaling", "the rotations of Gemma 4 are in rope_parameters")?;
    let bias = config.flag("attention_bias", false)?;
    let traits = Traits {
        kv_heads: Some(4),
        head_dim: Some(256),
        positions: Some(131_072),
        // The rotations depend on the heads of each kind of layer.
        rotary: false,
        tied_head: true,
        norm_eps: Some(1e-6),
        act: Activation::GeluTanh,
        qkv_bias: bias,
        out_bias: bias,
        head_norm: HeadNormPlan::Shared,
        ..Traits::default()
    };
    let mut spec = decoder::read(config, &traits)?;
    spec.embedding.factor = (spec.hidden as f32).sqrt();
    spec.norm.place = NormPlace::AroundBranches;
    spec.layer_scalars = true;
    spec.head.soft_cap =
        config.optional_number("final_logit_softcapping", f64::MIN_POSITIVE)?.map(|cap| cap as f32);
    for heads in decoder::heads_mut(&mut spec) {
        heads.score_scale = 1.0;
        heads.value_norm = true;
    }
    place_windows(config, &mut spec)?;
    gemma4_heads::shape(config, &mut spec)?;
    gemma4_heads::rotate(config, &mut spec)?;
    gemma4_heads::share_caches(config, &mut spec)?;
    spec.per_layer = per_layer(config, &spec)?;
    if config.flag("enable_moe_block", false)? {
        config.insist("use_double_wide_mlp", false, "MLPs of several widths beside experts")?;
        add_experts(config, &mut spec)?;
    }
    Ok(spec)
}

/// Reads the embeddings that each layer has of its own. Without the key there are some; `null` and
/// 0 mean that there are none.
fn per_layer(config: &Config, spec: &DecoderSpec) -> Result<Option<PerLayerEmbedding>, ConfigError> {
    let (width_key, rows_key) = ("hidden_size_per_layer_input", "vocab_size_per_layer_input");
    let width = match config.optional::<usize>(width_key)? {
        None if config.mentions(width_key) => return Ok(None),
        Some(0) => return Ok(None),
        _ => config.optional_size(width_key, MAX_WIDTH)?.unwrap_or(256),
    };
    let rows = config.optional_size(rows_key, MAX_VOCAB)?.unwrap_or(262_144);
    if rows < spec.vocab {
        let reason = format!("is {rows}, but each of the {} tokens needs an embedding", spec.vocab);
        return Err(config.invalid(rows_key, reason));
    }
    let act =
        spec.layers.first().and_then(|layer| layer.mlp.dense()).map_or(Activation::GeluTanh, |mlp| mlp.act);
    Ok(Some(PerLayerEmbedding { rows, width, act }))
}

const EXPERT_KEYS: ExpertKeys = ExpertKeys {
    experts: ("num_experts", 0),
    top_k: ("top_k_experts", 0),
    width: ("moe_intermediate_size", 0),
};

/// Adds experts to the MLP of each layer, which becomes their shared expert.
fn add_experts(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let ExpertKeys { experts, top_k, width } = EXPERT_KEYS;
    if let Some((key, _)) = [experts, top_k, width].iter().find(|(key, _)| !config.mentions(key)) {
        return Err(config.missing(key));
    }
    let mut of_layers = experts::read(config, &EXPERT_KEYS)?;
    (of_layers.scales, of_layers.own_norms) = (true, true);
    if let Some(mlp) = spec.layers.first().and_then(|layer| layer.mlp.dense()) {
        of_layers.kind = MlpKind::Gated(mlp.act.into());
        of_layers.shared = Some(SharedExpert { width: mlp.width, gated: false });
    }
    experts::place(spec, &of_layers, |_| true);
    Ok(())
}

/// Sets the windows of all layers but each sixth, unless `layer_types` decides. The last layer
/// never has one.
fn place_windows(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
    let key = "sliding_window";
    let window = decoder::window(config, 512)?.ok_or_else(|| config.missing(key))?;
    decoder::slide_by_pattern(config, spec, Some(window), 6)?;
    if let Some(last) = spec.layers.last_mut() {
        last.attention.unslide();
    }
    Ok(())
}
