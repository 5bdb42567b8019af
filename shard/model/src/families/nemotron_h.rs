//! Nemotron-H: layers of one branch each, which is a Mamba-2 layer, attention without positions, an
//! MLP, or a mixture of experts without gates.

use millrace_backend::{Activation, MlpKind};

use super::config::Config;
use super::decoder::{self, Keys, MAX_HEAD_DIM, MAX_LAYERS, MAX_WIDTH, Traits, USUAL_KEYS};
use super::error::ConfigError;
use super::experts::{self, ExpertKeys};
use super::family::Family;
use super::mamba::{self, MambaKeys};
use super::names::{LLAMA, Names};
use crate::description::{
    Attention, DecoderSpec, ExpertsSpec, FeatureBlock, LayerSlot, Mlp, NormKind, RecurrentLayer,
    SharedExpert, StoredTensors, WeightSlot,
};

pub(super) const FAMILY: Family =
    Family { model_type: "nemotron_h", architectures: &["NemotronHForCausalLM"], spec, names: NAMES };

/// The names of Nemotron-H's tensors. transformers has another prefix for the same tensors.
pub(super) const NAMES: Names =
    Names { layers: "backbone.layers.", tensors, aliases: &[("backbone.", "model.")], ..LLAMA };

fn tensors(slot: WeightSlot) -> StoredTensors {
    use FeatureBlock::{Experts, Hidden, Key, Query, Up, Value, Vocabulary};
    match slot {
        WeightSlot::Embedding => &[("backbone.embeddings", &[Vocabulary])],
        WeightSlot::FinalNorm => &[("backbone.norm_f", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::AttentionNorm | LayerSlot::MlpNorm) => &[("norm", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::Qkv) => {
            &[("mixer.q_proj", &[Query]), ("mixer.k_proj", &[Key]), ("mixer.v_proj", &[Value])]
        }
        WeightSlot::Layer(_, LayerSlot::Out) => &[("mixer.o_proj", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::Up | LayerSlot::UpBias) => &[("mixer.up_proj", &[Up])],
        WeightSlot::Layer(_, LayerSlot::Down | LayerSlot::DownBias) => &[("mixer.down_proj", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::Router) => &[("mixer.gate", &[Experts])],
        WeightSlot::Layer(_, LayerSlot::ChoiceBias) => &[("mixer.gate.e_score_correction_bias", &[Experts])],
        WeightSlot::Layer(_, LayerSlot::ExpertGateUp) => &[("mixer.experts.*.up_proj", &[Up])],
        WeightSlot::Layer(_, LayerSlot::ExpertDown) => &[("mixer.experts.*.down_proj", &[Hidden])],
        WeightSlot::Layer(_, LayerSlot::SharedGateUp) => &[("mixer.shared_experts.up_proj", &[Up])],
        WeightSlot::Layer(_, LayerSlot::SharedDown) => &[("mixer.shared_experts.down_proj", &[Hidden])],
        WeightSlot::Recurrent(_, slot) => mamba::tensors_of!("mixer", slot),
        other => other.usual_tensors(),
    }
}

/// The branch of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Branch {
    Mamba,
    Attention,
    Mlp,
    Experts,
}

const KEYS: Keys = Keys { norm_eps: "layer_norm_epsilon", ..USUAL_KEYS };
const MAMBA_KEYS: MambaKeys = MambaKeys {
    heads: ("mamba_num_heads", 128),
    groups: ("n_groups", 8),
    state: ("ssm_state_size", 128),
    head_dim: "mamba_head_dim",
    taps: ("conv_kernel", 4),
    conv_bias: "use_conv_bias",
    projection_bias: "use_bias",
    activation: "mamba_hidden_act",
};
const EXPERT_KEYS: ExpertKeys = ExpertKeys {
    experts: ("n_routed_experts", 8),
    top_k: ("num_experts_per_tok", 2),
    width: ("moe_intermediate_size", 7688),
};

fn spec(config: &Config) -> Result<DecoderSpec, ConfigError> {
    let branches = branches(config)?;
    let traits = Traits {
        keys: KEYS,
        layers: Some(branches.len()),
        kv_heads: Some(8),
        head_dim: Some(128),
        positions: Some(4096),
        rotary: false,
        norm_eps: Some(1e-5),
        gated: false,
        mlp_bias: config.flag("mlp_bias", false)?,
        ..Traits::default()
    };
    config.insist("attention_bias", false, "projections of attention have no biases")?;
    config.refuse("sliding_window", "attention is to all earlier tokens")?;
    let mut spec = decoder::read(config, &traits)?;
    let act = decoder::activation_of(config, &["mlp_hidden_act"], Activation::ReluSquared)?;
    // Sizes of branches that no layer has may be absent.
    let has = |branch| branches.contains(&branch);
    let recurrent = if has(Branch::Mamba) { Some(recurrence(config, &spec)?) } else { None };
    let experts = if has(Branch::Experts) { Some(mixture(config, act)?) } else { None };
    for (layer, branch) in spec.layers.iter_mut().zip(&branches) {
        if *branch != Branch::Attention {
            layer.attention = Attention::None;
        }
        match (&mut layer.mlp, branch) {
            (Mlp::Plain(mlp), Branch::Mlp) => mlp.act = act,
            (mlp, _) => *mlp = Mlp::None,
        }
        match (branch, &recurrent, &experts) {
            (Branch::Mamba, Some(recurrent), _) => layer.attention = Attention::Recurrent(recurrent.clone()),
            (Branch::Experts, _, Some(experts)) => layer.mlp = Mlp::Experts(experts.clone()),
            _ => {}
        }
    }
    Ok(spec)
}

/// Reads the branch of each layer, from a list of names or from a text with a letter for each.
fn branches(config: &Config) -> Result<Vec<Branch>, ConfigError> {
    let (list, pattern) = ("layers_block_type", "hybrid_override_pattern");
    let (key, names) = match config.optional::<Vec<String>>(list)? {
        Some(names) => (list, names),
        None => {
            let letters = config.optional::<String>(pattern)?.ok_or_else(|| config.missing(pattern))?;
            (pattern, letters.chars().map(String::from).collect())
        }
    };
    let branch = |name: &String| match name.as_str() {
        "M" | "mamba" | "linear_attention" => Ok(Branch::Mamba),
        "*" | "attention" | "full_attention" => Ok(Branch::Attention),
        "-" | "mlp" => Ok(Branch::Mlp),
        "E" | "moe" => Ok(Branch::Experts),
        other => Err(config.invalid(key, format!("has {other}, which is not supported"))),
    };
    let branches: Vec<Branch> = names.iter().map(branch).collect::<Result<_, _>>()?;
    let count = config.optional_size("num_hidden_layers", MAX_LAYERS)?.unwrap_or(branches.len());
    if branches.is_empty() || branches.len() > MAX_LAYERS || branches.len() != count {
        let reason = format!("has {} entries for {count} layers", branches.len());
        return Err(config.invalid(key, reason));
    }
    Ok(branches)
}

/// Reads the Mamba-2 layers.
fn recurrence(config: &Config, spec: &DecoderSpec) -> Result<RecurrentLayer, ConfigError> {
    let NormKind::Rms { eps, .. } = spec.norm.kind else {
        unreachable!("the traits ask for RMS norms; this is a bug")
    };
    config.insist("mamba_proj_bias", false, "projections of Mamba layers have no biases")?;
    let size = |key, default, max| Ok(config.optional_size(key, max)?.unwrap_or(default));
    let heads = size(MAMBA_KEYS.heads.0, MAMBA_KEYS.heads.1, mamba::MAX_HEADS)?;
    let head_dim = size(MAMBA_KEYS.head_dim, 64, MAX_HEAD_DIM)?;
    mamba::read(config, &MAMBA_KEYS, heads * head_dim, eps)
}

/// Reads the mixtures of experts.
fn mixture(config: &Config, act: Activation) -> Result<ExpertsSpec, ConfigError> {
    config.insist("mlp_bias", false, "experts have no biases")?;
    config.refuse("moe_latent_size", "experts read the residual stream")?;
    let mut spec = experts::read_grouped(config, &EXPERT_KEYS)?;
    spec.kind = MlpKind::Plain(act);
    let width = config.optional_size("moe_shared_expert_intermediate_size", MAX_WIDTH)?.unwrap_or(7688);
    spec.shared = Some(SharedExpert { width, gated: false });
    Ok(spec)
}
