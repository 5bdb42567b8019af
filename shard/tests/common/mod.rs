//! Small random models, and steps run by hand.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of this")]
#![allow(clippy::unwrap_used, reason = "a test's helpers fail as tests do")]

pub mod naive;
#[cfg(unix)]
pub mod router;

use std::collections::HashMap;

use millrace_kernels::{
    Activation, Backend, DType, ExpertGroups, Gating, GroupScore, HostTensor, KvFormat, Part, QkvLayout,
    RopeStyle, RouterScores, RouterSpec, SeqRow, StepInput,
};
use millrace_shard::ShardLimits;
use millrace_shard::decoder::{Collective, Decoder, SubmittedStep, Weights};
use millrace_shard::model::{
    AlibiHeads, Attention, AttentionHeads, DecoderSpec, DenseMlp, EmbeddingPlan, ExpertsSpec, HeadNormPlan,
    HeadPlan, LatentPlan, LayerSpec, LearnedPositions, Mlp, NormKind, NormPlace, NormPlan, Positions,
    QueryScale, Residual, RopeScaling, RopeTable, SharedExpert, SlopeRule, WeightError, WeightKind,
    WeightSlot, WeightSource, WeightStorage,
};
use proptest::prelude::*;

/// Limits for [`SMALL_PROMPT`] in one step.
pub const SMALL_LIMITS: ShardLimits = ShardLimits {
    max_step_tokens: 16,
    max_sequences: 16,
    max_sequence_tokens: 16,
    block_size: 16,
    num_blocks: 1,
    kv_format: KvFormat::Dense(DType::F32),
};

/// Tokens of the tiny vocabularies that tests use.
pub const SMALL_PROMPT: [u32; 9] = [3, 14, 15, 9, 26, 5, 35, 58, 9];

/// SplitMix64. The tests need the same random numbers on every machine.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Returns a number in [-1, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    pub fn shuffled(&mut self, n: usize) -> Vec<u32> {
        let mut all: Vec<u32> = (0..n as u32).collect();
        for i in (1..n).rev() {
            all.swap(i, self.below(i + 1));
        }
        all
    }
}

/// Weights in memory, in single precision.
#[derive(Default)]
pub struct MemoryWeights(HashMap<WeightSlot, (usize, usize, Vec<u8>)>);

impl MemoryWeights {
    pub fn random(spec: &DecoderSpec, seed: u64) -> Self {
        let mut random = Random(seed);
        let mut of_slot = |slot: WeightSlot| {
            let (rows, cols) = spec.shape(slot);
            let norm = slot.info().kind == WeightKind::NormScale;
            let scale = if slot.is_vector() { 0.5 } else { (3.0 / cols as f64).sqrt() };
            let shift = if norm { 1.0 } else { 0.0 };
            let values = (0..rows * cols).map(|_| (random.unit() * scale + shift) as f32);
            (slot, (rows, cols, values.flat_map(f32::to_le_bytes).collect()))
        };
        MemoryWeights(spec.slots().into_iter().map(&mut of_slot).collect())
    }

    pub fn set(&mut self, slot: WeightSlot, rows: usize, cols: usize, values: &[f32]) {
        assert_eq!(values.len(), rows * cols, "{slot:?}");
        self.0.insert(slot, (rows, cols, values.iter().flat_map(|v| v.to_le_bytes()).collect()));
    }

    /// Returns all elements in row-major order.
    pub fn values(&self, slot: WeightSlot) -> Vec<f64> {
        let bytes = &self.0[&slot].2;
        bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
    }
}

impl WeightSource for MemoryWeights {
    fn parts(&self, slot: WeightSlot) -> Result<Vec<Part>, WeightError> {
        let (rows, cols, bytes) = &self.0[&slot];
        let tensor = HostTensor::dense(DType::F32, *rows, *cols, bytes.clone().into());
        Ok(vec![Part::whole(tensor)])
    }
}

/// Number of positions of the random models.
pub const POSITIONS: usize = 64;

pub fn scalings() -> impl Strategy<Value = RopeScaling> {
    prop_oneof![
        Just(RopeScaling::Default),
        Just(RopeScaling::Linear { factor: 3.0 }),
        Just(RopeScaling::Dynamic { factor: 2.0, original: 12 }),
        Just(RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 16.0 }),
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
        Just(HeadNormPlan::PerHead),
        Just(HeadNormPlan::AllHeads),
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
    ]
}

fn activations() -> impl Strategy<Value = Activation> {
    prop_oneof![
        Just(Activation::Silu),
        Just(Activation::Gelu),
        Just(Activation::GeluTanh),
        Just(Activation::Relu),
    ]
}

fn gatings() -> impl Strategy<Value = Gating> {
    prop_oneof![
        activations().prop_map(Gating::Product),
        (0.5f32..2.0, 0.2f32..3.0).prop_map(|(alpha, limit)| Gating::Clamped { alpha, limit }),
    ]
}

fn embeddings() -> impl Strategy<Value = EmbeddingPlan> {
    let positions = prop::option::of(0usize..3);
    (0.5f32..2.0, any::<bool>(), positions).prop_map(|(factor, norm, first)| EmbeddingPlan {
        token_types: None,
        factor,
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
    ];
    (kind, order, prop_oneof![Just(1.0), 0.5f32..1.0])
        .prop_map(|(kind, (place, residual), factor)| (NormPlan { kind, place }, residual, factor))
}

/// Generates mixtures of experts with all combinations of options.
pub fn mixtures() -> impl Strategy<Value = ExpertsSpec> {
    let shared = prop::option::of((1usize..20, any::<bool>()));
    let groups = prop::option::of((1usize..4, any::<bool>()));
    let router = (1usize..4, 2usize..4, 1usize..5, any::<(bool, bool)>(), groups);
    let biases = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (router, biases, 1usize..20, gatings(), shared).prop_map(|(router, biases, width, gating, shared)| {
        let (router_bias, choice_bias, up_bias, down_bias) = biases;
        let (count, size, top_k, (sigmoid, normalize), groups) = router;
        let groups = groups.map(|(chosen, two)| ExpertGroups {
            count,
            chosen: chosen.min(count),
            score: if two { GroupScore::TwoBest } else { GroupScore::Best },
        });
        let router = RouterSpec {
            experts: count * size,
            top_k: top_k.min(groups.map_or(count, |groups| groups.chosen) * size),
            scores: if sigmoid { RouterScores::Sigmoid } else { RouterScores::Softmax },
            normalize,
            factor: 1.5,
            groups,
        };
        let shared = shared.map(|(width, gated)| SharedExpert { width, gated });
        ExpertsSpec { router, router_bias, choice_bias, width, gating, up_bias, down_bias, shared }
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

/// Returns heads with these projections, rotated by the first table.
fn with_latent(heads: AttentionHeads, latent: LatentPlan, rotary_dim: usize) -> AttentionHeads {
    let latent = LatentPlan { rotary_dim, ..latent };
    AttentionHeads {
        bidirectional: false,
        layout: QkvLayout { heads: heads.layout.heads, kv_heads: 1, head_dim: latent.row_dim() },
        qkv_bias: false,
        head_norm: HeadNormPlan::None,
        positions: Positions::Rotary { table: 0 },
        score_scale: 1.0 / (latent.query_dim() as f32).sqrt(),
        score_cap: None,
        sinks: false,
        out_bias: heads.out_bias,
        latent: Some(latent),
    }
}

/// Returns whether a layer caches latents.
pub fn has_latents(spec: &DecoderSpec) -> bool {
    spec.layers.iter().any(|layer| layer.attention.heads().is_some_and(|heads| heads.latent.is_some()))
}

/// Generates specifications with all combinations of options.
pub fn specs() -> impl Strategy<Value = DecoderSpec> {
    let head = (1usize..4, 1usize..4, 1usize..9).prop_map(|(kv_heads, group, half)| QkvLayout {
        heads: kv_heads * group,
        kv_heads,
        head_dim: 2 * half,
    });
    let query_scale = || prop::option::of((0.1f64..1.0, 1u8..20));
    let rope = move || (any::<bool>(), 1usize..9, scalings(), query_scale());
    let layer = (
        any::<(bool, bool, bool, bool)>(),
        head_norms(),
        positions(),
        prop::option::of(1usize..9),
        (1usize..40, any::<bool>(), activations(), prop::option::of(mixtures())),
        (prop::option::of(1f32..8.0), any::<bool>(), prop::option::weighted(0.25, latents())),
    );
    let layers = prop::collection::vec(layer, 1..4);
    let ends = (embeddings(), any::<bool>(), heads_of_models());
    (head, [rope(), rope()].prop_map(Vec::from), layers, 8usize..40, 8usize..40, ends, branches()).prop_map(
        |(
            layout,
            ropes,
            layers,
            hidden,
            vocab,
            (embedding, tied_head, head),
            (norm, residual, branch_factor),
        )| {
            let rotary_dim = (2 * ropes[0].1).min(layout.head_dim);
            DecoderSpec {
                model_type: "random".into(),
                vocab,
                vocab_rows: 0..vocab,
                hidden,
                max_positions: POSITIONS,
                embedding,
                norm,
                residual,
                branch_factor,
                head,
                ropes: ropes
                    .into_iter()
                    .enumerate()
                    .map(|(index, (half, pairs, scaling, query_scale))| RopeTable {
                        style: if half { RopeStyle::Half } else { RopeStyle::Interleaved },
                        rotary_dim: (2 * pairs).min(layout.head_dim),
                        theta: 100.0,
                        scaling,
                        // Latent attention has no such factors. It is rotated by the first table.
                        query_scale: query_scale
                            .filter(|_| index == 1)
                            .map(|(beta, interval)| QueryScale { beta, interval: interval.into() }),
                    })
                    .collect(),
                layers: layers
                    .into_iter()
                    .map(
                        |(
                            (qkv_bias, out_bias, up_bias, down_bias),
                            head_norm,
                            positions,
                            window,
                            mlp,
                            scores,
                        )| {
                            let ((width, is_gated, act, experts), (score_cap, sinks, latent)) = (mlp, scores);
                            let positions = match positions {
                                Positions::Linear(slopes) => {
                                    Positions::Linear(AlibiHeads { all: layout.heads, ..slopes })
                                }
                                other => other,
                            };
                            let heads = AttentionHeads {
                                layout,
                                qkv_bias,
                                head_norm,
                                positions,
                                score_scale: 1.0 / (layout.head_dim as f32).sqrt(),
                                score_cap,
                                sinks,
                                out_bias,
                                latent: None,
                                bidirectional: false,
                            };
                            if let Some(latent) = latent {
                                let heads = with_latent(heads, latent, rotary_dim);
                                let mlp = DenseMlp { width, act, up_bias, down_bias };
                                let mlp = if is_gated { Mlp::Gated(mlp) } else { Mlp::Plain(mlp) };
                                let mlp = experts.map_or(mlp, Mlp::Experts);
                                return LayerSpec { attention: Attention::Full(heads), mlp };
                            }
                            let attention = match window {
                                None => Attention::Full(heads),
                                Some(window) => Attention::Sliding { heads, window },
                            };
                            let mlp = DenseMlp { width, act, up_bias, down_bias };
                            let mlp = if is_gated { Mlp::Gated(mlp) } else { Mlp::Plain(mlp) };
                            let mlp = experts.map_or(mlp, Mlp::Experts);
                            LayerSpec { attention, mlp }
                        },
                    )
                    .collect(),
                tied_head,
            }
        },
    )
}

/// Returns an encoder with the other options of `spec`. Latent attention stays causal.
pub fn encoder(mut spec: DecoderSpec) -> DecoderSpec {
    for layer in &mut spec.layers {
        if let Some(heads) = layer.attention.heads().filter(|heads| heads.latent.is_none()) {
            let mut heads = heads.clone();
            heads.bidirectional = true;
            layer.attention = Attention::Full(heads);
        }
    }
    if spec.residual == Residual::Sequential {
        spec.norm.place = NormPlace::AfterSums;
    }
    spec
}

/// Returns one small Llama.
pub fn fixed_spec() -> DecoderSpec {
    let heads = AttentionHeads {
        layout: QkvLayout { heads: 2, kv_heads: 1, head_dim: 4 },
        qkv_bias: false,
        head_norm: HeadNormPlan::None,
        positions: Positions::Rotary { table: 0 },
        score_scale: 0.5,
        score_cap: None,
        sinks: false,
        out_bias: false,
        latent: None,
        bidirectional: false,
    };
    let mlp = DenseMlp { width: 12, act: Activation::Silu, up_bias: false, down_bias: false };
    let layer = LayerSpec { attention: Attention::Full(heads), mlp: Mlp::Gated(mlp) };
    let rope = RopeTable {
        style: RopeStyle::Half,
        rotary_dim: 4,
        theta: 1e4,
        scaling: RopeScaling::Default,
        query_scale: None,
    };
    DecoderSpec {
        model_type: "fixed".into(),
        vocab: 32,
        vocab_rows: 0..32,
        hidden: 8,
        max_positions: POSITIONS,
        embedding: EmbeddingPlan::default(),
        norm: NormPlan::rms_before_branches(1e-5),
        residual: Residual::Sequential,
        branch_factor: 1.0,
        ropes: vec![rope],
        layers: vec![layer.clone(), layer],
        tied_head: false,
        head: HeadPlan::default(),
    }
}

/// Returns limits that are large enough for all small tests.
pub fn limits(kv_format: impl Into<KvFormat>) -> ShardLimits {
    ShardLimits {
        max_step_tokens: 160,
        max_sequences: 160,
        max_sequence_tokens: POSITIONS,
        block_size: 16,
        num_blocks: 24,
        kv_format: kv_format.into(),
    }
}

/// The part of a step that belongs to one sequence.
pub struct Chunk<'a> {
    pub tokens: &'a [u32],
    pub start: usize,
    pub blocks: &'a [u32],
}

/// A decoder with its device.
pub struct Harness<'b, B: Backend> {
    backend: &'b B,
    pub decoder: Decoder<B>,
    block_size: usize,
    vocab: usize,
}

impl<'b, B: Backend> Harness<'b, B> {
    pub fn new(
        backend: &'b B,
        spec: &DecoderSpec,
        source: &dyn WeightSource,
        storage: impl Into<WeightStorage>,
        limits: &ShardLimits,
    ) -> Self {
        Harness::among(backend, spec, source, storage, limits, None)
    }

    /// Creates one of several ranks. `spec` and `source` are its share.
    pub fn among(
        backend: &'b B,
        spec: &DecoderSpec,
        source: &dyn WeightSource,
        storage: impl Into<WeightStorage>,
        limits: &ShardLimits,
        ranks: Option<Box<dyn Collective<B>>>,
    ) -> Self {
        let mut ignore = |_| Ok(());
        let positions = limits.max_sequence_tokens;
        let weights = Weights::load(backend, spec, source, storage, positions, &mut ignore).unwrap();
        let decoder = Decoder::new(backend, spec.clone(), weights, limits, ranks).unwrap();
        Harness { backend, decoder, block_size: limits.block_size, vocab: spec.vocab }
    }

    /// Runs a step and returns the logits of all its tokens.
    pub fn step(&mut self, chunks: &[Chunk<'_>]) -> Vec<Vec<f32>> {
        let n = chunks.iter().map(|chunk| chunk.tokens.len()).sum::<usize>();
        let _ = self.forward(chunks, &(0..n as u32).collect::<Vec<_>>());
        let logits = self.decoder.logits(self.backend, n).unwrap();
        logits.chunks_exact(self.vocab).map(<[f32]>::to_vec).collect()
    }

    /// Runs the forward pass of a step.
    pub fn forward(&mut self, chunks: &[Chunk<'_>], outputs: &[u32]) -> SubmittedStep<'_, B> {
        let tokens: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.tokens).copied().collect();
        let rows: Vec<SeqRow<'_>> = chunks
            .iter()
            .enumerate()
            .map(|(slot, chunk)| {
                let (start, count) = (chunk.start, chunk.tokens.len());
                let blocks = &chunk.blocks[..(start + count).div_ceil(self.block_size)];
                SeqRow::prefill(slot, start..start + count, blocks)
            })
            .collect();
        let input = StepInput { tokens: &tokens, rows: &rows, outputs, samples: &[] };
        self.decoder.forward(self.backend, &input).unwrap()
    }

    /// Returns the states of the last step's tokens after the final norm.
    pub fn states(&self, n: usize) -> Vec<f32> {
        self.decoder.states(self.backend, n).unwrap()
    }
}

/// Returns the largest difference between two rows, relative to the largest element of the second.
pub fn row_error(found: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let largest = expected.iter().fold(0f64, |m, e| m.max(e.abs()));
    let difference = found.iter().zip(expected).map(|(f, e)| (f64::from(*f) - e).abs());
    // Unlike `f64::max`, this keeps a NaN.
    difference.fold(0f64, |m, d| if d > m || d.is_nan() { d } else { m }) / largest
}
