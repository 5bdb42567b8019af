//! Tests of mixture of experts: the choice, the experts' MLPs, and the gated sum.

use millrace_backend::reference::Reference;
use millrace_backend::{
    Activation, Backend, ExpertGroups, ExpertMlp, Gating, GroupScore, MlpKind, RouterScores, RouterSpec,
    RouterTerms, RoutingSpec,
};
use millrace_cpu::Cpu;
use millrace_numbers::{DType, IntFormat, KFormat, Part, WeightFormat};
use proptest::prelude::*;

use crate::common::*;

/// Tokens, a router and the experts of a layer.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) n: usize,
    pub(crate) hidden: usize,
    pub(crate) width: usize,
    pub(crate) router: RouterSpec,
    pub(crate) format: WeightFormat,
    /// `[n, hidden]`.
    pub(crate) x: Vec<f32>,
    /// `[n, experts]`.
    pub(crate) logits: Vec<f32>,
    /// `[experts]`.
    pub(crate) bias: Option<Vec<f32>>,
    /// `[experts]`.
    pub(crate) scales: Option<Vec<f32>>,
    /// `[experts, 2 * width, hidden]`, or without gates `[experts, width, hidden]`.
    pub(crate) gate_up: Vec<f32>,
    /// `[experts, hidden, width]`.
    pub(crate) down: Vec<f32>,
    /// Biases of gate and up, `[experts, 2 * width]`, and of down, `[experts, hidden]`.
    pub(crate) biases: Option<[Vec<f32>; 2]>,
    pub(crate) kind: MlpKind,
}

impl Case {
    pub(crate) fn new(
        (n, hidden, width): (usize, usize, usize),
        router: RouterSpec,
        bias: bool,
        format: impl Into<WeightFormat>,
        seed: u64,
    ) -> Case {
        let (mut rng, experts) = (Rng(seed), router.experts);
        Case {
            n,
            hidden,
            width,
            router,
            format: format.into(),
            x: rng.values(n * hidden),
            logits: rng.values(n * experts).iter().map(|x| 4.0 * x).collect(),
            bias: bias.then(|| rng.values(experts)),
            scales: None,
            gate_up: rng.values(experts * 2 * width * hidden),
            down: rng.values(experts * hidden * width),
            biases: None,
            kind: MlpKind::Gated(Activation::Silu.into()),
        }
    }

    /// The case with factors on the weights of experts.
    pub(crate) fn scaled(self, seed: u64) -> Case {
        let scales = Rng(!seed).values(self.router.experts);
        Case { scales: Some(scales), ..self }
    }

    /// The case with biases of the experts, and with clamped gates.
    pub(crate) fn biased(self, seed: u64) -> Case {
        let (mut rng, experts) = (Rng(seed), self.router.experts);
        let biases = [rng.values(experts * 2 * self.width), rng.values(experts * self.hidden)];
        let kind = MlpKind::Gated(Gating::Clamped { alpha: 1.702, limit: 1.5 });
        Case { biases: Some(biases), kind, ..self }
    }

    /// The case without gates: up has their weights.
    fn plain(self) -> Case {
        let (of_expert, experts) = (self.width * self.hidden, self.router.experts);
        let gate_up = self.gate_up[..experts * of_expert].to_vec();
        Case { gate_up, kind: MlpKind::Plain(Activation::ReluSquared), ..self }
    }

    pub(crate) fn run<B: Backend>(&self, device: &B) -> Vec<f32> {
        let parts = |values: &[f32], cols: usize| -> Vec<Vec<Part>> {
            let of_expert =
                |values: &[f32]| vec![Part::whole(tensor(&bytes(values), values.len() / cols, cols))];
            values.chunks_exact(values.len() / self.router.experts).map(of_expert).collect()
        };
        let (gate_up, down) = (parts(&self.gate_up, self.hidden), parts(&self.down, self.width));
        self.run_by(device, [(&gate_up, self.format), (&down, self.format)])
    }

    /// Runs the case with other weights: for gate and up, and for down, the parts of each expert,
    /// and the format that the device keeps them in.
    pub(crate) fn run_by<B: Backend>(
        &self,
        device: &B,
        matrices: [(&[Vec<Part>], WeightFormat); 2],
    ) -> Vec<f32> {
        let RouterSpec { experts, .. } = self.router;
        let [gate_up, down] = matrices.map(|(parts, format)| device.experts(parts, format).unwrap());
        let spec =
            RoutingSpec { tokens: self.n, hidden: self.hidden, width: self.width, router: self.router };
        let mut routing = device.routing(&spec).unwrap();
        let terms = [&self.bias, &self.scales].map(|term| term.as_ref().map(|term| vector(device, term)));
        let (x, logits) = (upload(device, &self.x, self.hidden), upload(device, &self.logits, experts));
        let mut out = device.buf(self.n, self.hidden).unwrap();
        let mut queue = queue(device, self.n);
        let step = opened(device, &mut queue, &vec![0; self.n], &[]);
        let terms = RouterTerms { bias: terms[0].as_ref(), scales: terms[1].as_ref() };
        device.route(&step, self.n, &logits, terms, &mut routing).unwrap();
        let biases = self.biases.as_ref().map(|biases| biases.each_ref().map(|bias| vector(device, bias)));
        let [gate_up_bias, down_bias] = [0, 1].map(|place| biases.as_ref().map(|biases| &biases[place]));
        let kind = self.kind;
        let mlp = ExpertMlp { gate_up: &gate_up, gate_up_bias, down: &down, down_bias, kind };
        device.expert_mlp(self.n, &x, &mlp, &mut routing, &mut out).unwrap();
        device.read(&out, self.n).unwrap()
    }

    /// The case with one of its tokens.
    pub(crate) fn row(&self, t: usize) -> Case {
        let of = |values: &[f32], cols: usize| values[t * cols..(t + 1) * cols].to_vec();
        let (x, logits) = (of(&self.x, self.hidden), of(&self.logits, self.router.experts));
        Case { n: 1, x, logits, ..self.clone() }
    }

    fn check_rows_and_threads(&self, cpus: &[Cpu]) {
        let all = self.run(&cpus[0]);
        for cpu in cpus {
            assert_same_bits(&cpu.name(), &self.run(cpu), &all);
            for t in [0, self.n / 2, self.n - 1] {
                let alone = self.row(t).run(cpu);
                assert_same_bits(&cpu.name(), &alone, &all[t * self.hidden..(t + 1) * self.hidden]);
            }
        }
    }
}

/// Routers with all combinations of options. With `grouped`, some choose among groups.
pub(crate) fn routers(grouped: bool) -> impl Strategy<Value = RouterSpec> {
    let groups = prop::option::of((1usize..5, prop::bool::ANY));
    let flags = (prop::bool::ANY, prop::bool::ANY, prop::bool::ANY);
    let choice = (flags, prop::sample::select(vec![1.0f32, 2.5]));
    (1usize..5, 2usize..5, 1usize..6, choice, groups).prop_map(
        move |(count, size, top_k, ((sigmoid, normalize, weighs_inputs), factor), groups)| {
            let groups = groups.filter(|_| grouped).map(|(chosen, two)| ExpertGroups {
                count,
                chosen: chosen.min(count),
                score: if two { GroupScore::TwoBest } else { GroupScore::Best },
            });
            let among = groups.map_or(count, |groups| groups.chosen) * size;
            RouterSpec {
                experts: count * size,
                top_k: top_k.min(among),
                // GPUs have one expert for each token then, and no groups.
                weighs_inputs: weighs_inputs && (grouped || top_k == 1),
                scores: if sigmoid { RouterScores::Sigmoid } else { RouterScores::Softmax },
                normalize,
                factor,
                groups,
            }
        },
    )
}

const FORMATS: [WeightFormat; 9] = [
    WeightFormat::Dense(DType::F32),
    WeightFormat::Dense(DType::F16),
    WeightFormat::Dense(DType::BF16),
    WeightFormat::Fp8,
    WeightFormat::Nf4,
    WeightFormat::Int(IntFormat::Int8),
    WeightFormat::Int(IntFormat::Q4_0),
    WeightFormat::Int(IntFormat::Int4),
    WeightFormat::K(KFormat::Q6K),
];

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn experts_match_the_reference(
        n in 1usize..20, hidden in 1usize..50, width in 1usize..40, router in routers(true), bias: bool,
        biased: bool, plain: bool, scaled: bool, seed: u64,
    ) {
        let case = Case::new((n, hidden, width), router, bias, DType::F32, seed);
        let case = if plain { case.plain() } else if biased { case.biased(seed) } else { case };
        let case = if scaled { case.scaled(seed) } else { case };
        let want = case.run(&Reference);
        for cpu in CPUS.iter() {
            assert_close(&cpu.name(), &case.run(cpu), &want, 2e-5);
        }
    }

    #[test]
    fn a_token_does_not_depend_on_the_others(
        n in 2usize..40, router in routers(true), bias: bool, format in prop::sample::select(FORMATS.to_vec()),
        seed: u64,
    ) {
        let sizes = if matches!(format, WeightFormat::K(_)) { (256, 256) } else { (64, 96) };
        let case = Case::new((n, sizes.0, sizes.1), router, bias, format, seed);
        let case = if bias { case.biased(seed) } else { case };
        for pair in CPUS.chunks(2).chain(EXACT_CPUS.chunks(2)) {
            case.check_rows_and_threads(pair);
        }
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn sparse_mixers_match_the_reference(
        n in 1usize..20, experts in 2usize..9, top_k in 1usize..4, noise in 0.0f32..1.0, normalize: bool, seed: u64,
    ) {
        let router = RouterSpec {
            experts,
            top_k: top_k.min(experts),
            scores: RouterScores::SparseMixer { noise },
            normalize,
            factor: 1.5,
            weighs_inputs: false,
            groups: None,
        };
        let case = Case::new((n, 24, 16), router, false, DType::F32, seed);
        let want = case.run(&Reference);
        for cpu in CPUS.iter() {
            assert_close(&cpu.name(), &case.run(cpu), &want, 2e-5);
        }
    }
}

/// All formats of weights, with inputs that are not rounded.
#[test]
fn experts_have_all_formats_of_weights() {
    let router = RouterSpec {
        experts: 5,
        top_k: 2,
        scores: RouterScores::Softmax,
        normalize: true,
        factor: 1.0,
        weighs_inputs: false,
        groups: None,
    };
    for format in FORMATS {
        let case = Case::new((9, 256, 256), router, false, format, 8);
        let want = case.run(&Reference);
        for cpu in EXACT_CPUS.iter() {
            assert_close(&format!("{format:?} on {}", cpu.name()), &case.run(cpu), &want, 1e-4);
        }
    }
}

/// The weights of hand-computed choices. Expert e multiplies its inputs by e + 1.
#[test]
fn routers_choose_by_their_specification() {
    let base = RouterSpec {
        experts: 4,
        top_k: 2,
        scores: RouterScores::Softmax,
        normalize: false,
        factor: 1.0,
        weighs_inputs: false,
        groups: None,
    };
    let groups = |score| Some(ExpertGroups { count: 2, chosen: 1, score });
    let logits = [0.0, 1.0, 3.0, -2.0];
    let powers = logits.map(|x: f64| x.exp());
    let (all, sigmoid) = (powers.iter().sum::<f64>(), |x: f64| 1.0 / (1.0 + (-x).exp()));
    let (nan, bias) = (f32::NAN, Some(vec![0.9, 0.0, -1.0, 1.0]));
    /// A router, the logits, the bias, and the weights of the four experts.
    type RouterCase = (RouterSpec, [f32; 4], Option<Vec<f32>>, [f64; 4]);
    let mixer = RouterSpec { scores: RouterScores::SparseMixer { noise: 0.25 }, ..base };
    let cases: [RouterCase; 10] = [
        // An expert is near at a distance of up to half of the larger logit.
        (mixer, [0.0, 2.0, 3.0, -2.0], None, [0.0, 1.0, sigmoid(1.0), 0.0]),
        (
            mixer,
            [1.9, 2.0, 3.0, 1.6],
            None,
            [
                0.0,
                1.0 / (1.0 + (-0.1f64).exp() + (-0.4f64).exp()),
                { 1.0 / (1.0 + (-1.0f64).exp() + (-1.1f64).exp() + (-1.4f64).exp()) },
                0.0,
            ],
        ),
        (base, [0.0, 1.0, 3.0, -2.0], None, [0.0, powers[1] / all, powers[2] / all, 0.0]),
        (
            RouterSpec { normalize: true, factor: 2.5, ..base },
            [0.0, 1.0, 3.0, -2.0],
            None,
            [0.0, 2.5 * sigmoid(-2.0), 2.5 * sigmoid(2.0), 0.0],
        ),
        (
            RouterSpec { scores: RouterScores::Sigmoid, ..base },
            [0.0, 1.0, 3.0, -2.0],
            bias,
            [sigmoid(0.0), 0.0, 0.0, sigmoid(-2.0)],
        ),
        (
            RouterSpec { groups: groups(GroupScore::Best), normalize: true, ..base },
            [0.0, 1.0, 3.0, -9.0],
            None,
            [0.0, 0.0, 1.0, 0.0],
        ),
        (
            RouterSpec { groups: groups(GroupScore::TwoBest), normalize: true, ..base },
            [2.0, 2.0, 2.5, -9.0],
            None,
            [0.5, 0.5, 0.0, 0.0],
        ),
        // Among equal experts, the first are chosen.
        (base, [1.0; 4], None, [0.25, 0.25, 0.0, 0.0]),
        (base, [nan, nan, 0.0, 0.0], None, [0.0, 0.0, 0.5, 0.5]),
        (base, [nan; 4], None, [0.25, 0.25, 0.0, 0.0]),
    ];
    for (router, logits, bias, want) in cases {
        let expert = |e: usize| (e + 1) as f32;
        let case = Case {
            n: 1,
            hidden: 1,
            width: 1,
            router,
            format: DType::F32.into(),
            // The activation of 30 is 30.
            x: vec![30.0],
            logits: logits.to_vec(),
            bias,
            scales: None,
            gate_up: [1.0, 1.0 / 30.0].repeat(4),
            down: (0..4).map(expert).collect(),
            biases: None,
            kind: MlpKind::Gated(Activation::Silu.into()),
        };
        let want: f64 = want.iter().enumerate().map(|(e, weight)| weight * (e + 1) as f64 * 30.0).sum();
        assert_close("reference", &case.run(&Reference), &[want as f32], 1e-3);
        for cpu in CPUS.iter() {
            assert_close(&format!("{router:?} on {}", cpu.name()), &case.run(cpu), &[want as f32], 1e-3);
        }
    }
}

/// Adds `x`, with a gate for each row, to `out`.
pub(crate) fn add_gated<B: Backend>(device: &B, x: &[f32], gate: &[f32], out: &[f32]) -> Vec<f32> {
    let n = gate.len();
    let cols = x.len() / n;
    let router = RouterSpec {
        experts: 2,
        top_k: 1,
        scores: RouterScores::Softmax,
        normalize: true,
        factor: 1.0,
        weighs_inputs: false,
        groups: None,
    };
    let mut routing = device.routing(&RoutingSpec { tokens: n, hidden: cols, width: 1, router }).unwrap();
    let (x, gate, mut out) = (upload(device, x, cols), upload(device, gate, 1), upload(device, out, cols));
    device.add_gated(n, &x, &gate, &mut routing, &mut out).unwrap();
    device.read(&out, n).unwrap()
}

#[test]
fn gated_rows_are_added() {
    let mut rng = Rng(4);
    let (x, out) = (rng.values(3 * 37), rng.values(3 * 37));
    let gate = [-2.0f32, 0.0, 40.0];
    let factor = |row: usize| 1.0 / (1.0 + (-gate[row]).exp());
    let want: Vec<f32> =
        x.iter().zip(&out).enumerate().map(|(at, (x, out))| out + factor(at / 37) * x).collect();
    assert_close("reference", &add_gated(&Reference, &x, &gate, &out), &want, 1e-6);
    for cpu in CPUS.iter() {
        assert_close(&cpu.name(), &add_gated(cpu, &x, &gate, &out), &want, 1e-6);
    }
}
