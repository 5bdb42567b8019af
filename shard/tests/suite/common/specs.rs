//! Random specifications of models, and those made from them.

use millrace_backend::{
    Activation, ExpertGroups, Gating, GroupScore, KeySharing, MlpKind, QkvLayout, RecurrentHeads, RopeStyle,
    RouterScores, RouterSpec,
};
use millrace_model::{
    AlibiHeads, Attention, AttentionHeads, DecoderSpec, DenseMlp, DistanceHeads, EmbeddingPlan, ExpertsSpec,
    GateClamp, HeadNormPlan, HeadPlan, LatentPlan, LayerSpec, LearnedPositions, Mlp, NormKind, NormPlace,
    NormPlan, PerLayerEmbedding, Positions, PrefixRule, ProjectionFactors, QueryScale, RecurrentLayer,
    RecurrentRule, Residual, ResultPlan, RopeScaling, RopeTable, SharedExpert, SlopeRule,
};
use proptest::prelude::*;

/// Number of positions of the random models.
pub const POSITIONS: usize = 64;

pub fn scalings() -> impl Strategy<Value = RopeScaling> {
    prop_oneof![
        Just(RopeScaling::Default),
        Just(RopeScaling::Linear { factor: 3.0 }),
        Just(RopeScaling::Dynamic { factor: 2.0, original: 12 }),
        Just(RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 16.0 }),
        (0usize..4).prop_map(|pairs| RopeScaling::Proportional { pairs, factor: 2.0 }),
        any::<bool>().prop_map(|truncate| RopeScaling::Yarn {
            factor: 4.0,
            original: 16.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate,
            attention_factor: 1.2,
        }),
    ]
}

fn head_norms() -> impl Strategy<Value = HeadNormPlan> {
    prop_oneof![
        Just(HeadNormPlan::None),
        Just(HeadNormPlan::Shared),
        Just(HeadNormPlan::SharedWithBias),
        Just(HeadNormPlan::PerHead),
        Just(HeadNormPlan::AllHeads),
        Just(HeadNormPlan::Unscaled),
        Just(HeadNormPlan::SharedAfterRotation),
    ]
}

/// Generates positions. The number of heads is set later.
fn positions() -> impl Strategy<Value = Positions> {
    let alibi = |rule| Positions::Linear(AlibiHeads { rule, all: 0, first: 0 });
    prop_oneof![
        Just(Positions::None),
        (0usize..2).prop_map(|table| Positions::Rotary { table }),
        (0.5f32..2.0).prop_map(move |factor| alibi(SlopeRule::Below { factor })),
        (4f32..9.0).prop_map(move |max| alibi(SlopeRule::Above { max })),
        Just(Positions::Distance(DistanceHeads { all: 0, first: 0 })),
    ]
}

fn activations() -> impl Strategy<Value = Activation> {
    prop_oneof![
        Just(Activation::Silu),
        Just(Activation::Gelu),
        Just(Activation::GeluTanh),
        Just(Activation::Relu),
        Just(Activation::ReluSquared),
    ]
}

fn gatings() -> impl Strategy<Value = Gating> {
    prop_oneof![
        activations().prop_map(Gating::Product),
        (0.5f32..2.0, 0.2f32..3.0).prop_map(|(alpha, limit)| Gating::Clamped { alpha, limit }),
    ]
}

fn kinds() -> impl Strategy<Value = MlpKind> {
    prop_oneof![3 => gatings().prop_map(MlpKind::Gated), 1 => activations().prop_map(MlpKind::Plain)]
}

fn embeddings() -> impl Strategy<Value = EmbeddingPlan> {
    let positions = prop::option::of(0usize..3);
    let width = prop::option::weighted(0.2, 4usize..20);
    (0.5f32..2.0, any::<bool>(), positions, width).prop_map(|(factor, norm, first, width)| EmbeddingPlan {
        token_types: None,
        factor,
        width,
        norm,
        positions: first.map(|first| LearnedPositions { rows: POSITIONS + first, first }),
    })
}

fn heads_of_models() -> impl Strategy<Value = HeadPlan> {
    let cap = prop::option::of(1f32..8.0);
    (any::<bool>(), 0.5f32..2.0, cap).prop_map(|(bias, factor, soft_cap)| HeadPlan {
        bias,
        factor,
        soft_cap,
        unit_rows: false,
        is_absent: false,
        classifier: None,
    })
}

/// Generates norms and the way in which branches are added.
fn branches() -> impl Strategy<Value = (NormPlan, Residual, f32)> {
    // A large epsilon and long vectors, so that norms amplify rounding errors little. The output of
    // a branch may be small, and the features of a layer norm nearly equal.
    let kind = prop_oneof![
        any::<bool>().prop_map(move |add_one| NormKind::Rms { eps: 0.3, add_one }),
        any::<bool>().prop_map(move |bias| NormKind::Layer { eps: 0.3, bias }),
    ];
    let order = prop_oneof![
        Just((NormPlace::BeforeBranches, Residual::Sequential)),
        Just((NormPlace::AfterBranches, Residual::Sequential)),
        Just((NormPlace::AroundBranches, Residual::Sequential)),
        any::<bool>()
            .prop_map(|has_mlp_norm| (NormPlace::BeforeBranches, Residual::Parallel { has_mlp_norm })),
        (0.5f32..2.0).prop_map(|factor| (NormPlace::BeforeBranches, Residual::Normalized { factor })),
    ];
    (kind, order, prop_oneof![Just(1.0), 0.5f32..1.0])
        .prop_map(|(kind, (place, residual), factor)| (NormPlan { kind, place }, residual, factor))
}

fn scores() -> impl Strategy<Value = RouterScores> {
    prop_oneof![
        2 => Just(RouterScores::Softmax),
        2 => Just(RouterScores::Sigmoid),
        1 => (0f32..1.0).prop_map(|noise| RouterScores::SparseMixer { noise }),
    ]
}

/// Generates mixtures of experts with all combinations of options.
pub fn mixtures() -> impl Strategy<Value = ExpertsSpec> {
    let shared = prop::option::of((1usize..20, any::<bool>()));
    let groups = prop::option::of((1usize..4, any::<bool>()));
    let router = (1usize..4, 2usize..4, 1usize..5, (scores(), any::<(bool, bool)>()), groups);
    let biases = any::<(bool, bool, bool, bool, bool, bool)>();
    (router, biases, 1usize..20, kinds(), shared).prop_map(|(router, biases, width, kind, shared)| {
        let (router_bias, choice_bias, up_bias, down_bias, scales, own_norms) = biases;
        let (count, size, top_k, (scores, (normalize, weighs_inputs)), groups) = router;
        let is_mixer = matches!(scores, RouterScores::SparseMixer { .. });
        let choice_bias = choice_bias && !is_mixer;
        let groups = groups.filter(|_| !is_mixer).map(|(chosen, two)| ExpertGroups {
            count,
            chosen: chosen.min(count),
            score: if two { GroupScore::TwoBest } else { GroupScore::Best },
        });
        let router = RouterSpec {
            experts: count * size,
            top_k: top_k.min(groups.map_or(count, |groups| groups.chosen) * size),
            scores,
            normalize,
            factor: 1.5,
            weighs_inputs,
            groups,
        };
        let shared = shared.map(|(width, gated)| SharedExpert { width, gated });
        ExpertsSpec {
            router,
            router_bias,
            choice_bias,
            width,
            kind,
            up_bias,
            down_bias,
            shared,
            scales,
            own_norms,
        }
    })
}

/// Generates projections of latent attention. The number of rotated features is set later.
fn latents() -> impl Strategy<Value = LatentPlan> {
    (prop::option::of(1usize..12), 1usize..9, 1usize..20, 1usize..9).prop_map(
        |(query_rank, plain_dim, rank, value_dim)| LatentPlan {
            query_rank,
            plain_dim,
            rotary_dim: 0,
            rank,
            value_dim,
            norm_eps: 0.3,
        },
    )
}

/// A replacement of the usual attention.
#[derive(Debug, Clone)]
enum Mixer {
    Latent(LatentPlan),
    Recurrent(RecurrentLayer),
    Hybrid(RecurrentLayer),
}

/// The branches of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Branches {
    Both,
    Attention,
    Mlp,
}

/// Generates factors, most of which change nothing.
fn factors() -> impl Strategy<Value = f32> {
    prop_oneof![2 => Just(1.0), 1 => 0.5f32..1.5]
}

/// Generates bounds on scores, and on queries, keys and values.
fn caps() -> impl Strategy<Value = (Option<f32>, Option<f32>)> {
    (prop::option::of(1f32..8.0), prop::option::weighted(0.25, 0.3f32..1.5))
}

fn mixers() -> impl Strategy<Value = Option<Mixer>> {
    prop_oneof![
        2 => Just(None),
        1 => latents().prop_map(|latent| Some(Mixer::Latent(latent))),
        1 => recurrences().prop_map(|layer| Some(Mixer::Recurrent(layer))),
        1 => recurrences().prop_map(|layer| Some(Mixer::Hybrid(layer))),
    ]
}

/// Returns heads with these projections, rotated by the first table.
fn with_latent(heads: AttentionHeads, latent: LatentPlan, rotary_dim: usize) -> AttentionHeads {
    let latent = LatentPlan { rotary_dim, ..latent };
    AttentionHeads {
        reads_residual: heads.reads_residual,
        bidirectional: false,
        kv_source: None,
        layout: QkvLayout { heads: heads.layout.heads, kv_heads: 1, head_dim: latent.row_dim() },
        qkv_bias: false,
        head_norm: HeadNormPlan::None,
        value_norm: false,
        values_are_keys: false,
        clip: None,
        positions: Positions::Rotary { table: 0 },
        score_scale: 1.0 / (latent.query_dim() as f32).sqrt(),
        scales_queries: heads.scales_queries,
        score_cap: None,
        sinks: false,
        out_bias: heads.out_bias,
        out_factor: heads.out_factor,
        out_gate: false,
        latent: Some(latent),
    }
}

/// Generates recurrent layers.
fn recurrences() -> impl Strategy<Value = RecurrentLayer> {
    let heads = (1usize..3, 1usize..4, 4usize..9, 1usize..9);
    let result = prop_oneof![
        Just(ResultPlan::Plain),
        any::<bool>().prop_map(|gated| ResultPlan::Normed { eps: 0.3, gated }),
        Just(ResultPlan::GatedGroups { eps: 0.3 }),
        Just(ResultPlan::NormedGroups { eps: 0.3 }),
        Just(ResultPlan::Gated),
    ];
    let factors = (factors(), factors(), factors(), factors(), factors(), factors()).prop_map(
        |(query, key, value, gate, rate, out)| ProjectionFactors { query, key, value, gate, rate, out },
    );
    let rule = prop_oneof![
        2 => activations().prop_map(RecurrentRule::Delta),
        2 => (activations(), 1usize..5).prop_map(|(act, rank)| RecurrentRule::ChannelDelta { act, rank }),
        2 => (activations(), 0.0f32..0.2, 0.5f32..3.0).prop_map(|(act, least, most)| {
            RecurrentRule::StateSpace { act, step_limits: (least, most) }
        }),
        1 => Just(RecurrentRule::Convolution),
    ];
    (heads, rule, 1usize..6, any::<(bool, bool, bool)>(), (result, factors)).prop_map(
        |(
            (key_heads, group, key_dim, value_dim),
            rule,
            taps,
            (conv_bias, in_bias, out_bias),
            (result, factors),
        )| {
            let is_convolution = rule == RecurrentRule::Convolution;
            // Strided heads cannot be split, which tests of shares do with these specifications.
            let sharing = KeySharing::Neighbors;
            let heads = match is_convolution {
                true => channels(key_heads * key_dim * value_dim),
                false => RecurrentHeads { key_heads, heads: key_heads * group, key_dim, value_dim, sharing },
            };
            RecurrentLayer {
                heads,
                rule,
                taps,
                conv_bias,
                in_bias,
                result: if is_convolution { ResultPlan::Plain } else { result },
                out_bias,
                // A convolution multiplies its values by its gates, and has no other projections.
                factors: match rule {
                    RecurrentRule::Convolution => {
                        ProjectionFactors { value: 1.0, out: factors.out, ..ProjectionFactors::NONE }
                    }
                    // Rates and gates of two matrices have no factors.
                    RecurrentRule::ChannelDelta { .. } => {
                        ProjectionFactors { gate: 1.0, rate: 1.0, ..factors }
                    }
                    _ => factors,
                },
            }
        },
    )
}

/// Returns the heads of a layer that is only a convolution of this many channels.
fn channels(count: usize) -> RecurrentHeads {
    RecurrentHeads {
        key_heads: count,
        heads: count,
        key_dim: 1,
        value_dim: 1,
        sharing: KeySharing::Neighbors,
    }
}

/// Returns whether a layer caches latents.
pub fn has_latents(spec: &DecoderSpec) -> bool {
    spec.layers.iter().any(|layer| layer.attention.heads().is_some_and(|heads| heads.latent.is_some()))
}

/// Generates the branches of a layer, and the factors on the output of attention, on gate and up,
/// and on the output of an MLP.
fn layer_factors() -> impl Strategy<Value = (Branches, [f32; 3])> {
    let branches =
        prop_oneof![4 => Just(Branches::Both), 1 => Just(Branches::Attention), 1 => Just(Branches::Mlp)];
    (branches, [factors(), factors(), factors()])
}

/// Generates specifications with all combinations of options.
pub fn specs() -> impl Strategy<Value = DecoderSpec> {
    let head = (1usize..4, 1usize..4, 1usize..9).prop_map(|(kv_heads, group, half)| QkvLayout {
        heads: kv_heads * group,
        kv_heads,
        head_dim: 2 * half,
    });
    let query_scale = prop::option::of((0.1f64..1.0, 1u8..20, 0usize..2)).prop_map(|scale| {
        scale.map(|(beta, interval, offset)| QueryScale { beta, interval: interval.into(), offset })
    });
    let rope = || (any::<(bool, bool)>(), 1usize..9, scalings());
    let layer = (
        any::<((bool, bool, bool, bool, bool), bool, bool)>(),
        head_norms(),
        positions(),
        prop::option::of((1usize..9, any::<bool>())),
        (1usize..40, any::<(bool, bool)>(), activations(), prop::option::of(mixtures())),
        (caps(), any::<(bool, bool)>(), mixers(), layer_factors()),
    );
    let layers = prop::collection::vec(layer, 1..4);
    let ends = (embeddings(), any::<bool>(), heads_of_models());
    let ropes = ([rope(), rope()].prop_map(Vec::from), query_scale);
    let per_layer = prop::option::of((1usize..6, 0usize..3, activations()));
    let options = (any::<bool>(), [any::<bool>(), any::<bool>()], per_layer);
    (head, ropes, layers, 8usize..40, 8usize..40, ends, (branches(), options)).prop_map(
        |(
            layout,
            (ropes, query_scale),
            layers,
            hidden,
            vocab,
            (embedding, tied_head, head),
            ((norm, residual, branch_factor), (layer_scalars, readers, per_layer)),
        )| {
            let rotary_dim = (2 * ropes[0].1).min(layout.head_dim);
            let stretches = [0, 1].map(|table: usize| matches!(ropes[table].2, RopeScaling::Yarn { .. }));
            let mut spec = DecoderSpec {
                model_type: "random".into(),
                vocab,
                vocab_rows: 0..vocab,
                hidden,
                max_positions: POSITIONS,
                embedding,
                reads_states: false,
                norm,
                residual,
                branch_factor,
                layer_scalars,
                per_layer: per_layer.map(|(width, more, act)| PerLayerEmbedding {
                    rows: vocab + more,
                    width,
                    act,
                }),
                head,
                ropes: ropes
                    .into_iter()
                    .enumerate()
                    .map(|(index, ((half, two_axes), pairs, scaling))| {
                        // Latent attention is rotated by the first table, on one axis.
                        let two_axes = two_axes && index == 1 && layout.head_dim >= 4;
                        let most = if two_axes { layout.head_dim / 4 * 2 } else { layout.head_dim };
                        RopeTable {
                            style: if half { RopeStyle::Half } else { RopeStyle::Interleaved },
                            rotary_dim: (2 * pairs).min(most),
                            two_axes,
                            theta: 100.0,
                            scaling,
                        }
                    })
                    .collect(),
                key_choice: None,
                query_scale,
                layers: layers
                    .into_iter()
                    .map(
                        |(
                            (
                                (qkv_bias, out_bias, up_bias, down_bias, scales_queries),
                                value_norm,
                                reads_residual,
                            ),
                            head_norm,
                            positions,
                            window,
                            mlp,
                            scores,
                        )| {
                            let (width, (is_gated, xielu), act, experts) = mlp;
                            let (xielu, is_clamped) = (xielu && !is_gated, xielu && is_gated);
                            let clamp = is_clamped.then_some(GateClamp { alpha: 1.3, limit: 0.6 });
                            let ((score_cap, clip), (sinks, out_gate), mixer, (branches, factors)) = scores;
                            let [out_factor, up_factor, mlp_factor] = factors;
                            let positions = match positions {
                                Positions::Linear(slopes) => {
                                    Positions::Linear(AlibiHeads { all: layout.heads, ..slopes })
                                }
                                Positions::Distance(_) => {
                                    Positions::Distance(DistanceHeads { all: layout.heads, first: 0 })
                                }
                                other => other,
                            };
                            // A norm after the rotation has conditions.
                            let keeps_lengths = match positions {
                                Positions::Rotary { table } => !stretches[table],
                                _ => true,
                            };
                            let is_rms = matches!(norm.kind, NormKind::Rms { .. });
                            let head_norm = match head_norm {
                                HeadNormPlan::SharedWithBias if !norm.has_bias() => HeadNormPlan::Shared,
                                HeadNormPlan::SharedAfterRotation if !(is_rms && keeps_lengths) => {
                                    HeadNormPlan::Shared
                                }
                                other => other,
                            };
                            let scales_queries =
                                scales_queries && head_norm != HeadNormPlan::SharedAfterRotation;
                            let heads = AttentionHeads {
                                layout,
                                qkv_bias,
                                head_norm,
                                value_norm,
                                values_are_keys: false,
                                clip: clip.filter(|_| head_norm != HeadNormPlan::SharedAfterRotation),
                                positions,
                                score_scale: 1.0 / (layout.head_dim as f32).sqrt(),
                                scales_queries: query_scale.is_some() && scales_queries,
                                score_cap,
                                sinks,
                                out_bias,
                                out_factor,
                                out_gate,
                                latent: None,
                                reads_residual: reads_residual && residual == Residual::Sequential,
                                bidirectional: false,
                                kv_source: None,
                            };
                            let attention = match (mixer, window) {
                                (Some(Mixer::Latent(latent)), _) => {
                                    Attention::Full(with_latent(heads, latent, rotary_dim))
                                }
                                (Some(Mixer::Recurrent(layer)), _) => Attention::Recurrent(layer),
                                (Some(Mixer::Hybrid(recurrent)), _) => Attention::Hybrid { heads, recurrent },
                                (None, None) => Attention::Full(heads),
                                (None, Some((window, true))) => Attention::Sliding { heads, window },
                                (None, Some((size, false))) => Attention::Chunked { heads, size },
                            };
                            let out_factor = mlp_factor;
                            let mlp = DenseMlp {
                                width,
                                act,
                                xielu,
                                clamp,
                                up_bias,
                                down_bias,
                                up_factor,
                                out_factor,
                            };
                            let mlp = if is_gated { Mlp::Gated(mlp) } else { Mlp::Plain(mlp) };
                            let mlp = experts.map_or(mlp, Mlp::Experts);
                            // Branches that read the same states need both.
                            match branches {
                                _ if matches!(residual, Residual::Parallel { .. }) => {
                                    LayerSpec { attention, mlp }
                                }
                                Branches::Both => LayerSpec { attention, mlp },
                                Branches::Attention => LayerSpec { attention, mlp: Mlp::None },
                                Branches::Mlp => LayerSpec { attention: Attention::None, mlp },
                            }
                        },
                    )
                    .collect(),
                prefix: PrefixRule::Prompt,
                tied_head,
            };
            share_caches(&mut spec, readers);
            spec
        },
    )
}

/// Lets each of the layers after the first one that `readers` says read the last cache before it.
fn share_caches(spec: &mut DecoderSpec, readers: [bool; 2]) {
    let mut source = None;
    for (index, LayerSpec { attention, .. }) in spec.layers.iter_mut().enumerate() {
        let is_reader = index > 0 && readers[index - 1] && attention.recurrent().is_none();
        match attention.heads_mut().filter(|heads| heads.latent.is_none()) {
            Some(heads) if is_reader && source.is_some() => heads.kv_source = source,
            Some(_) => source = Some(index),
            None => {}
        }
    }
    // Queries take the scales of keys after the rotation, and so keys of their own layer.
    let heads = || spec.layers.iter().filter_map(|layer| layer.attention.heads());
    if heads().any(|heads| heads.kv_source.is_some()) {
        for heads in spec.layers.iter_mut().filter_map(|layer| layer.attention.heads_mut()) {
            if heads.head_norm == HeadNormPlan::SharedAfterRotation {
                heads.head_norm = HeadNormPlan::Shared;
            }
        }
    }
}

/// Returns a model with the other options of `spec` whose layers can be divided between devices:
/// they have caches of their own, and no embeddings.
pub fn divisible(mut spec: DecoderSpec) -> DecoderSpec {
    for layer in &mut spec.layers {
        layer.attention.heads_mut().into_iter().for_each(|heads| heads.kv_source = None);
    }
    spec.per_layer = None;
    spec
}

/// Makes attention bidirectional, without chunks. Latent attention and recurrent layers stay
/// causal.
fn see_prefixes(spec: &mut DecoderSpec) {
    for layer in &mut spec.layers {
        if let Some(heads) = layer.attention.heads().filter(|heads| heads.latent.is_none()) {
            let mut heads = heads.clone();
            heads.bidirectional = true;
            let window = layer.attention.window();
            layer.attention = match (layer.attention.recurrent().cloned(), window) {
                (Some(recurrent), _) => Attention::Hybrid { heads, recurrent },
                (None, Some(window)) => Attention::Sliding { heads, window },
                (None, None) => Attention::Full(heads),
            };
        }
    }
}

/// Returns a model with the other options of `spec` whose tokens attend to each other before the
/// first token [`SEPARATOR`].
pub fn prefix_model(mut spec: DecoderSpec) -> DecoderSpec {
    see_prefixes(&mut spec);
    spec.prefix = PrefixRule::Before { separator: SEPARATOR, masks: [SEPARATOR + 1, SEPARATOR + 2] };
    spec
}

/// The token that ends the prefix of [`prefix_model`].
pub const SEPARATOR: u32 = 3;

/// Returns an encoder with the other options of `spec`. Latent attention and recurrent layers stay
/// causal.
pub fn encoder(mut spec: DecoderSpec) -> DecoderSpec {
    see_prefixes(&mut spec);
    spec.embedding.token_types = Some(2);
    // Sums are normalized in layers with both branches only.
    if spec.residual == Residual::Sequential && spec.layers.iter().all(|layer| layer.branches() == 2) {
        spec.norm.place = NormPlace::AfterSums;
        spec.layer_scalars = false;
        spec.per_layer = None;
    }
    spec
}

/// Returns one small Llama.
pub fn fixed_spec() -> DecoderSpec {
    small_llama(QkvLayout { heads: 2, kv_heads: 1, head_dim: 4 }, 8, 12)
}

/// Returns one small Llama whose matrices have 256 columns, as super-blocks need.
pub fn wide_spec() -> DecoderSpec {
    small_llama(QkvLayout { heads: 4, kv_heads: 2, head_dim: 64 }, 256, 256)
}

fn small_llama(layout: QkvLayout, hidden: usize, width: usize) -> DecoderSpec {
    let layer = LayerSpec::plain(AttentionHeads::plain(layout), width);
    DecoderSpec {
        model_type: "fixed".into(),
        max_positions: POSITIONS,
        ropes: vec![RopeTable::plain(layout.head_dim)],
        ..DecoderSpec::plain(32, hidden, vec![layer; 2])
    }
}
