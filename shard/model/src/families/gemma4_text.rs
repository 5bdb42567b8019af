//! The text part of Gemma 4: norms around both branches and of values, no factor on scores, a
//! number per layer on the residual stream, and other heads in layers without a window.

use millrace_backend::{Activation, MlpKind, QkvLayout, RopeStyle};
use serde_json::json;

use super::config::Config;
use super::decoder::{self, MAX_HEAD_DIM, MAX_HEADS, MAX_WIDTH, Traits};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::gemma2;
use super::names::{LLAMA, Names, StackedExperts};
use super::rope::{self, Rotated};
use crate::description::{
    DecoderSpec, FeatureBlock, HeadNormPlan, LayerSlot, NormPlace, Positions, SharedExpert, StoredTensors,
    WeightSlot,
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
    config.insist("num_kv_shared_layers", 0, "layers that share keys and values")?;
    if config.optional("hidden_size_per_layer_input")? != Some(0) {
        return Err(
            config.unsupported("hidden_size_per_layer_input", "embeddings for each layer; it must be 0")
        );
    }
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
    shape_heads(config, &mut spec)?;
    rotate(config, &mut spec)?;
    if config.flag("enable_moe_block", false)? {
        add_experts(config, &mut spec)?;
    }
    Ok(spec)
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

/// Sets the heads of layers whose heads differ from those that the usual keys describe.
///
/// Published files have keys for the layers without a window. Version 5 of transformers writes the
/// keys of each layer that differs as `per_layer_config`.
fn shape_heads(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
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
fn rotate(config: &Config, spec: &mut DecoderSpec) -> Result<(), ConfigError> {
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
