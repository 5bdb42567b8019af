//! Reads mixtures of experts. All families with experts use this reader.

use millrace_backend::{Activation, ExpertGroups, GroupScore, MlpKind, RouterScores, RouterSpec};

use super::config::Config;
use super::decoder::{self, MAX_WIDTH};
use super::error::ConfigError;
use crate::description::{DecoderSpec, ExpertsSpec, Mlp, SharedExpert};

/// Larger numbers are typing errors or attacks.
const MAX_EXPERTS: usize = 1 << 12;

/// The keys under which a family's configuration has the sizes of experts, and the values of absent
/// keys. Version 5 of transformers writes the number of experts as `num_local_experts` for all
/// families.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExpertKeys {
    pub(super) experts: (&'static str, usize),
    pub(super) top_k: (&'static str, usize),
    pub(super) width: (&'static str, usize),
}

/// Reads experts that are chosen by a softmax, with weights whose sum is 1, and no shared expert.
pub(super) fn read(config: &Config, keys: &ExpertKeys) -> Result<ExpertsSpec, ConfigError> {
    let size = |(key, default), max| Ok(config.optional_size(key, max)?.unwrap_or(default));
    let experts = match config.optional_size(keys.experts.0, MAX_EXPERTS)? {
        Some(experts) => experts,
        None => size(("num_local_experts", keys.experts.1), MAX_EXPERTS)?,
    };
    let top_k = size(keys.top_k, MAX_EXPERTS)?;
    if top_k > experts {
        let reason = format!("is {top_k}, more than {} = {experts}", keys.experts.0);
        return Err(config.invalid(keys.top_k.0, reason));
    }
    Ok(ExpertsSpec {
        router: RouterSpec {
            experts,
            top_k,
            scores: RouterScores::Softmax,
            normalize: true,
            factor: 1.0,
            weighs_inputs: false,
            groups: None,
        },
        router_bias: false,
        choice_bias: false,
        width: size(keys.width, MAX_WIDTH)?,
        kind: MlpKind::Gated(decoder::activation(config, Activation::Silu)?.into()),
        up_bias: false,
        down_bias: false,
        shared: None,
        scales: false,
        own_norms: false,
    })
}

/// Reads experts as DeepSeek-V3 has them: chosen by sigmoids and a bias from the best of
/// `n_group` groups, beside `n_shared_experts` that are one expert of their common width.
pub(super) fn read_grouped(config: &Config, keys: &ExpertKeys) -> Result<ExpertsSpec, ConfigError> {
    let mut spec = read_limited(config, keys, (Some(GroupScore::TwoBest), 1))?;
    spec.router.scores = RouterScores::Sigmoid;
    spec.router.normalize = config.flag("norm_topk_prob", true)?;
    spec.choice_bias = true;
    Ok(spec)
}

/// Reads experts as DeepSeek-V2 has them: chosen by a softmax, with weights that are not
/// normalized, beside `n_shared_experts` that are one expert of their common width. The choice is
/// limited to the best groups if these have a score. `shared` is the number of shared experts if
/// the key is absent.
pub(super) fn read_limited(
    config: &Config,
    keys: &ExpertKeys,
    (score, shared): (Option<GroupScore>, usize),
) -> Result<ExpertsSpec, ConfigError> {
    let mut spec = read(config, keys)?;
    spec.router.normalize = false;
    spec.router.factor = config.optional_number("routed_scaling_factor", 0.0)?.unwrap_or(1.0) as f32;
    spec.router.groups = match score {
        Some(score) => groups(config, &spec.router, score)?,
        None => None,
    };
    spec.shared = self::shared(config, "n_shared_experts", shared, spec.width)?;
    Ok(spec)
}

/// Reads the number of shared experts, which are one expert of their common width. `width` is the
/// width of one.
pub(super) fn shared(
    config: &Config,
    key: &'static str,
    absent: usize,
    width: usize,
) -> Result<Option<SharedExpert>, ConfigError> {
    let count = config.optional::<usize>(key)?.unwrap_or(absent);
    match count.checked_mul(width) {
        Some(0) => Ok(None),
        Some(width) if width <= MAX_WIDTH => Ok(Some(SharedExpert { width, gated: false })),
        _ => Err(config.invalid(key, format!("is {count}, which is too many"))),
    }
}

/// Refuses a configuration without the keys of groups: their absence does not mean one group.
pub(super) fn require_groups(config: &Config) -> Result<(), ConfigError> {
    match ["n_group", "topk_group"].into_iter().find(|key| !config.mentions(key)) {
        Some(key) => Err(config.missing(key)),
        None => Ok(()),
    }
}

/// Reads the groups that limit the choice. A choice from all groups is not limited.
fn groups(
    config: &Config,
    router: &RouterSpec,
    score: GroupScore,
) -> Result<Option<ExpertGroups>, ConfigError> {
    let count = config.optional_size("n_group", ExpertGroups::MAX)?.unwrap_or(1);
    let chosen = config.optional_size("topk_group", ExpertGroups::MAX)?.unwrap_or(1);
    let (experts, top_k) = (router.experts, router.top_k);
    if chosen >= count {
        return Ok(None);
    }
    if experts % count != 0 || experts / count < 2 {
        let reason =
            format!("is {count}, which does not divide {experts} experts into groups of two or more");
        return Err(config.invalid("n_group", reason));
    }
    if experts / count * chosen < top_k {
        let reason = format!("is {chosen}, but {chosen} of {count} groups have fewer than {top_k} experts");
        return Err(config.invalid("topk_group", reason));
    }
    Ok(Some(ExpertGroups { count, chosen, score }))
}

/// Gives the experts to the layers for which `has_experts` returns true.
pub(super) fn place(spec: &mut DecoderSpec, experts: &ExpertsSpec, has_experts: impl Fn(usize) -> bool) {
    for (_, layer) in spec.layers.iter_mut().enumerate().filter(|(index, _)| has_experts(*index)) {
        layer.mlp = Mlp::Experts(experts.clone());
    }
}

/// Gives the experts to the layers that are `sparse` in `mlp_layer_types`. If that is absent, only
/// the first `first_k_dense_replace` layers are dense, or the first one.
pub(super) fn place_listed(
    config: &Config,
    spec: &mut DecoderSpec,
    experts: &ExpertsSpec,
) -> Result<(), ConfigError> {
    let (key, count) = ("mlp_layer_types", spec.layers.len());
    let Some(kinds) = config.optional::<Vec<String>>(key)? else {
        let dense = config.optional("first_k_dense_replace")?.unwrap_or(1);
        place(spec, experts, |index| index >= dense);
        return Ok(());
    };
    if kinds.len() != count {
        return Err(config.invalid(key, format!("has {} entries for {count} layers", kinds.len())));
    }
    if let Some(other) = kinds.iter().find(|kind| !["dense", "sparse"].contains(&kind.as_str())) {
        return Err(config.invalid(key, format!("has {other}, which is not supported")));
    }
    place(spec, experts, |index| kinds[index] == "sparse");
    Ok(())
}

/// Gives the experts to every layer that neither `mlp_only_layers` nor `decoder_sparse_step` leaves
/// out (Qwen).
pub(super) fn place_sparsely(
    config: &Config,
    spec: &mut DecoderSpec,
    experts: &ExpertsSpec,
) -> Result<(), ConfigError> {
    let step = config.optional_size("decoder_sparse_step", usize::MAX)?.unwrap_or(1);
    let dense: Vec<usize> = config.optional("mlp_only_layers")?.unwrap_or_default();
    place(spec, experts, |index| !dense.contains(&index) && (index + 1).is_multiple_of(step));
    Ok(())
}
