//! Tests of the prologue and of attention over the paged KV cache.

use millrace_backend::reference::Reference;
use millrace_backend::{
    AttentionSpec, Backend, DistanceBias, HeadNorm, KeyWindow, KvFormat, KvSpec, ModelLoading, Norm,
    Prologue, QkvLayout, RopeSpec, RopeStyle, SamplingParams, ScoreTerms, SeqRow, SequencePrefix, StepInput,
    StepSize,
};
use millrace_cpu::Cpu;
use millrace_numbers::DType;
use proptest::prelude::{Strategy, any, prop, prop_compose, prop_oneof, proptest};

use crate::common::*;

/// Sequences that run through prologue and attention, position by position or in chunks.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    layout: QkvLayout,
    pub(crate) format: KvFormat,
    block_size: usize,
    window: Option<KeyWindow>,
    head_norm: bool,
    rope: Option<(RopeStyle, usize)>,
    /// Whether queries are scaled by their position.
    query_scale: bool,
    soft_cap: Option<f32>,
    /// Whether heads have linear biases, and attention sinks.
    alibi: bool,
    /// The reach of biases by distance.
    distance: Option<usize>,
    sinks: bool,
    /// The number of tokens of each sequence.
    lengths: Vec<usize>,
    /// The cache is filled with this value first: results must not depend on unwritten slots.
    garbage: f32,
    /// The token of the first sequence whose values are infinite.
    infinite: Option<usize>,
    /// Whether rows of one token count as decoding.
    decodes: bool,
    /// The prefix of each sequence, if tokens attend to those after them in it.
    prefixes: Option<Vec<SequencePrefix>>,
    /// Whether the rotation has two axes.
    two_axes: bool,
    seed: u64,
}

/// The rows of one step: sequence, start, count.
pub(crate) type Plan = Vec<Vec<(usize, usize, usize)>>;

impl Case {
    /// Attention outputs of all sequences, `[sum of lengths, heads * head_dim]`.
    pub(crate) fn run<B: Backend>(&self, device: &B, plan: &Plan) -> Vec<f32> {
        let QkvLayout { heads, kv_heads, head_dim } = self.layout;
        let mut rng = Rng(self.seed);
        let cols = self.layout.cols();
        let total: usize = self.lengths.iter().sum();
        let mut projections = rng.values(total * cols);
        if let Some(token) = self.infinite {
            projections[token * cols..(token + 1) * cols][(heads + kv_heads) * head_dim..]
                .fill(f32::INFINITY);
        }
        let weights = [rng.values(head_dim), rng.values(head_dim)];
        let longest = self.lengths.iter().copied().max().unwrap();
        let needed: Vec<usize> = self.lengths.iter().map(|n| n.div_ceil(self.block_size)).collect();
        let blocks = needed.iter().sum::<usize>() + 3;
        let mut free = rng.shuffled(blocks);
        let tables: Vec<Vec<u32>> = needed.iter().map(|&n| free.split_off(free.len() - n)).collect();

        let head_norm = HeadNorm {
            q: Norm::rms(vector(device, &weights[0]), 1e-6),
            k: Norm::rms(vector(device, &weights[1]), 1e-5),
        };
        let rope = self.rope.map(|(style, rotary_dim)| {
            let angle = |i: usize| {
                let (position, i) = (i / (rotary_dim / 2), i % (rotary_dim / 2));
                position as f32 * 100f32.powf(-2.0 * i as f32 / rotary_dim as f32)
            };
            let angles: Vec<f32> = (0..(longest + 1) * rotary_dim / 2).map(angle).collect();
            let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
            let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
            let (cos, sin, two_axes) = (vector(device, &cos), vector(device, &sin), self.two_axes);
            RopeSpec { style, rotary_dim, two_axes, cos, sin }
        });
        let scales: Vec<f32> = (0..longest).map(|position| 1.0 + (position / 7) as f32 / 9.0).collect();
        let scales = vector(device, &scales);
        let spec = AttentionSpec {
            layout: self.layout,
            scale: (head_dim as f32).powf(-0.5) * 3.0,
            window: self.window,
            soft_cap: self.soft_cap,
            bidirectional: self.prefixes.is_some(),
        };
        let slopes: Vec<f32> = (1..=heads).map(|i| (-8.0 * i as f32 / heads as f32).exp2()).collect();
        // Some sinks exceed all scores, and some do not matter.
        let sinks: Vec<f32> = rng.values(heads).iter().map(|v| v * 20.0).collect();
        let (slopes, sinks) = (vector(device, &slopes), vector(device, &sinks));
        let reach = self.distance.unwrap_or(0);
        let biases: Vec<f32> = rng.values(heads * (2 * reach + 1)).iter().map(|v| v * 3.0).collect();
        let biases = vector(device, &biases);
        let terms = ScoreTerms {
            alibi: self.alibi.then_some(&slopes),
            distance: self.distance.map(|reach| DistanceBias { table: &biases, reach }),
            sinks: self.sinks.then_some(&sinks),
        };
        let kv_spec = KvSpec {
            blocks,
            block_size: self.block_size,
            heads: kv_heads,
            key_dim: head_dim,
            value_dim: head_dim,
            format: self.format,
        };
        let mut kv = device.kv(kv_spec).unwrap();
        if self.garbage != 0.0 {
            let all: Vec<u32> = (0..blocks as u32).collect();
            let n = blocks * self.block_size;
            let plain = Prologue { layout: self.layout, head_norm: None, rope: None, query_scale: None };
            let size = StepSize { block_size: self.block_size, ..step_size(n, 1, n) };
            let mut queue = device.queue(&size).unwrap();
            let tokens = vec![0; n];
            device.admit(&mut queue, 0, &tokens, &SamplingParams::default()).unwrap();
            let rows = [SeqRow::prefill(0, 0..n, &all)];
            let input =
                StepInput { tokens: &tokens, rows: &rows, outputs: &[], samples: &[], ..StepInput::EMPTY };
            let step = open(device, &mut queue, &input);
            let mut garbage = upload(device, &vec![self.garbage; n * cols], cols);
            device.prologue(&step, &mut garbage, &plain, &mut kv).unwrap();
        }

        let prologue = Prologue {
            layout: self.layout,
            head_norm: self.head_norm.then_some(&head_norm),
            rope: rope.as_ref(),
            query_scale: self.query_scale.then_some(&scales),
        };
        let size = StepSize {
            block_size: self.block_size,
            // The size of a pool in which all sequences share their keys. A GPU then has memory for
            // fewer splits than the step has, and runs them in several passes.
            blocks: if self.decodes { 1 } else { blocks },
            kv_format: self.format,
            attention: &[spec],
            ..step_size(total, self.lengths.len(), longest * self.block_size)
        };
        let mut queue = device.queue(&size).unwrap();
        for (slot, &length) in self.lengths.iter().enumerate() {
            device.admit(&mut queue, slot, &vec![0; length], &SamplingParams::default()).unwrap();
        }
        let mut result = vec![f32::NAN; total * heads * head_dim];
        let offset = |s: usize| self.lengths[..s].iter().sum::<usize>();
        for rows in plan {
            let mut input = Vec::new();
            for &(s, start, count) in rows {
                let at = (offset(s) + start) * cols;
                input.extend_from_slice(&projections[at..at + count * cols]);
            }
            let n = input.len() / cols;
            let tokens = vec![0; n];
            let rows_of: Vec<SeqRow<'_>> = rows
                .iter()
                .map(|&(s, start, count)| {
                    let blocks = &tables[s][..(start + count).div_ceil(self.block_size)];
                    let prefix = self.prefixes.as_ref().map_or(SequencePrefix::default(), |all| all[s]);
                    let row = if self.decodes && count == 1 {
                        SeqRow::decode(s, start, blocks)
                    } else {
                        SeqRow::prefill(s, start..start + count, blocks)
                    };
                    row.with_prefix(prefix)
                })
                .collect();
            let of_step =
                StepInput { tokens: &tokens, rows: &rows_of, outputs: &[], samples: &[], ..StepInput::EMPTY };
            let step = open(device, &mut queue, &of_step);
            let mut qkv = upload(device, &input, cols);
            device.prologue(&step, &mut qkv, &prologue, &mut kv).unwrap();
            let mut out = device.buf(n, heads * head_dim).unwrap();
            device.attention(&step, &qkv, &kv, &spec, terms, &mut out).unwrap();
            let out = device.read(&out, n).unwrap();
            let (mut from, width) = (0, heads * head_dim);
            // Queries alone attend to a cache that holds their tokens, with the same result. Some
            // of the cases are enough, because this doubles their time.
            if self.seed.is_multiple_of(4) {
                let queries: Vec<f32> = input.chunks(cols).flat_map(|row| row[..width].to_vec()).collect();
                let mut queries = upload(device, &queries, width);
                let layout = QkvLayout { kv_heads: 0, ..self.layout };
                device.prologue(&step, &mut queries, &Prologue { layout, ..prologue }, &mut kv).unwrap();
                let mut alone = device.buf(n, width).unwrap();
                device.attention(&step, &queries, &kv, &spec, terms, &mut alone).unwrap();
                let alone = device.read(&alone, n).unwrap();
                let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&alone), bits(&out), "queries alone");
            }
            for &(s, start, count) in rows {
                let to = (offset(s) + start) * width;
                result[to..to + count * width].copy_from_slice(&out[from..from + count * width]);
                from += count * width;
            }
        }
        result
    }

    /// Sequences without norms, rotation and window.
    fn plain(layout: QkvLayout, format: impl Into<KvFormat>, lengths: Vec<usize>) -> Case {
        Case {
            layout,
            format: format.into(),
            block_size: 16,
            window: None,
            head_norm: false,
            rope: None,
            query_scale: false,
            soft_cap: None,
            alibi: false,
            distance: None,
            sinks: false,
            lengths,
            garbage: 0.0,
            infinite: None,
            decodes: false,
            prefixes: None,
            two_axes: false,
            seed: 11,
        }
    }

    /// Asserts that a CPU computes what the reference does, up to rounding.
    fn assert_close(&self, cpu: &Cpu, got: &[f32], want: &[f32]) {
        // After a rotation, rounding to fewer bits may go either way. Without one the cached
        // numbers are equal.
        let f32 = self.format == KvFormat::Dense(DType::F32);
        let exact = f32 || (self.rope.is_none() && !self.head_norm);
        let rounds = self.format.dense().is_ok_and(|dtype| rounds(cpu, dtype));
        assert_close(&cpu.name(), got, want, if exact && !rounds { 5e-6 } else { 2e-2 });
    }

    /// Sequences with head sizes for which GPUs have a decode kernel; some have several splits.
    pub(crate) fn decoding(seed: u64) -> Case {
        let mut rng = Rng(seed);
        let (kv_heads, group, head_dim) =
            (1 + rng.below(2), [1, 4, 12][seed as usize % 3], [64, 96, 128][rng.below(3)]);
        Case {
            layout: QkvLayout { heads: kv_heads * group, kv_heads, head_dim },
            format: DType::BF16.into(),
            block_size: 16,
            window: [None, Some(KeyWindow::Last(40)), Some(KeyWindow::Chunk(70))][rng.below(3)],
            head_norm: false,
            rope: None,
            query_scale: false,
            soft_cap: None,
            alibi: false,
            distance: None,
            sinks: false,
            lengths: [6, 40 + rng.below(200), 300 + rng.below(300)].into(),
            garbage: 0.0,
            infinite: None,
            decodes: true,
            prefixes: None,
            two_axes: false,
            seed,
        }
    }

    /// Two plans: all but the last five tokens of each sequence as a prompt, then these one by one.
    /// The first plan runs all sequences together, the second each alone.
    pub(crate) fn prompts_then_decoding(&self) -> (Plan, Plan) {
        let of = |s: usize| {
            let prompt = self.lengths[s] - 5;
            let first = std::iter::once((s, 0, prompt));
            first.chain((prompt..self.lengths[s]).map(move |at| (s, at, 1))).collect::<Vec<_>>()
        };
        let all: Vec<_> = (0..self.lengths.len()).map(of).collect();
        // The last sequence begins while the others decode.
        let last = self.lengths.len() - 1;
        let mut together: Plan = vec![(0..last).map(|s| all[s][0]).collect()];
        together.extend((0..=5).map(|i| {
            let decoding = (0..last).filter_map(|s| all[s].get(i + 1)).copied();
            let late = all[last][i];
            if i == 0 {
                decoding.chain([late]).collect()
            } else {
                [late].into_iter().chain(decoding).collect()
            }
        }));
        (together, all.concat().into_iter().map(|row| vec![row]).collect())
    }

    /// All sequences in one step.
    pub(crate) fn whole(&self) -> Plan {
        vec![self.lengths.iter().enumerate().map(|(s, &n)| (s, 0, n)).collect()]
    }

    /// A row of each sequence that covers its prefix, then random chunks in random batches.
    pub(crate) fn prefixes_first(&self, rng: &mut Rng) -> Plan {
        let prefixes = self.prefixes.as_ref().expect("the case has prefixes");
        let mut first = Vec::new();
        for (s, (prefix, length)) in prefixes.iter().zip(&self.lengths).enumerate() {
            first.push((s, 0, (prefix.len + rng.below(3)).clamp(1, *length)));
        }
        let done = first.iter().map(|row| row.2).collect();
        let rest = self.chunked_from(done, rng);
        std::iter::once(first).chain(rest).collect()
    }

    /// Random chunks in random batches.
    pub(crate) fn chunked(&self, rng: &mut Rng) -> Plan {
        self.chunked_from(vec![0; self.lengths.len()], rng)
    }

    /// Random chunks of the tokens from `done` on.
    fn chunked_from(&self, mut done: Vec<usize>, rng: &mut Rng) -> Plan {
        let mut plan = Vec::new();
        while done != self.lengths {
            let mut rows = Vec::new();
            for s in rng.shuffled(done.len()) {
                let (s, left) = (s as usize, self.lengths[s as usize] - done[s as usize]);
                if left > 0 && rng.below(3) > 0 {
                    let count = if rng.below(2) == 0 { 1 } else { 1 + rng.below(left) };
                    rows.push((s, done[s], count));
                    done[s] += count;
                }
            }
            if !rows.is_empty() {
                plan.push(rows);
            }
        }
        plan
    }
}

fn windows() -> impl Strategy<Value = KeyWindow> {
    (1usize..200, any::<bool>())
        .prop_map(|(len, last)| if last { KeyWindow::Last(len) } else { KeyWindow::Chunk(len) })
}

prop_compose! {
    fn case()(
        kv_heads in 1usize..4,
        group in prop::sample::select(vec![1usize, 1, 2, 3, 7, 8, 30]),
        head_dim in prop::sample::select(vec![4usize, 8, 9, 10, 16, 24, 48, 64, 80, 96, 128, 256]),
        format in prop::sample::select(KvFormat::ALL.to_vec()),
        block_size in prop::sample::select(vec![16usize, 16, 32, 48]),
        window in prop::option::of(windows()),
        lengths in prop::collection::vec(prop_oneof![1usize..6, 1usize..50, 100usize..300], 1..4),
        seed: u64,
    ) -> Case {
        Case {
            layout: QkvLayout { heads: kv_heads * group, kv_heads, head_dim },
            format, block_size, window, head_norm: false, rope: None, query_scale: false,
            soft_cap: None, alibi: false, distance: None, sinks: false, lengths, garbage: 0.0, infinite: None, decodes: false,
            prefixes: None, two_axes: false, seed,
        }
    }
}

prop_compose! {
    pub(crate) fn case_with_prologue()(
        mut case in case(), head_norm: bool, interleaved: bool, share in 0usize..3, query_scale: bool,
        soft_cap in prop::option::of(0.5f32..50.0), alibi: bool, sinks: bool,
    ) -> Case {
        (case.soft_cap, case.alibi, case.sinks) = (soft_cap, alibi, sinks);
        let style = if interleaved { RopeStyle::Interleaved } else { RopeStyle::Half };
        let dim = case.layout.head_dim / 2 * 2;
        case.rope = (share > 0).then_some((style, if share == 1 { dim } else { dim / 4 * 2 }));
        (case.head_norm, case.query_scale) = (head_norm, query_scale);
        case
    }
}

prop_compose! {
    /// Sequences whose first tokens attend to each other in both directions: often all of them.
    /// `on_cpu` allows windows in both directions and biases by distance.
    pub(crate) fn bidirectional_case(on_cpu: bool)(
        mut case in case_with_prologue(), shares in prop::collection::vec(0usize..20, 4), two_axes: bool,
        distance in prop::option::of(1usize..120), reach in prop::option::of(1usize..150),
    ) -> Case {
        let prefix = |(&length, share): (&usize, &usize)| {
            let len = (length * share).div_ceil(10).min(length);
            SequencePrefix { len, anchor: len.saturating_sub(1 + share % 3) }
        };
        case.prefixes = Some(case.lengths.iter().zip(&shares).map(prefix).collect());
        if two_axes && let Some((style, _)) = case.rope {
            let dim = case.layout.head_dim / 4 * 2;
            (case.rope, case.two_axes) = (Some((style, dim)), true);
        }
        // A linear bias would favour the tokens after a query by their distance. No model has
        // both, and scores of such a size cannot be compared so closely.
        // GPUs have neither windows nor biases by distance.
        case.distance = reach.filter(|_| on_cpu);
        Case { window: distance.filter(|_| on_cpu).map(KeyWindow::Around), alibi: false, garbage: f32::NAN, ..case }
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn bidirectional_attention_matches_the_reference(case in bidirectional_case(true)) {
        let want = case.run(&Reference, &case.whole());
        for pair in CPUS.chunks(2) {
            let whole = case.run(&pair[0], &case.whole());
            case.assert_close(&pair[0], &whole, &want);
            assert_same_bits("threads", &case.run(&pair[1], &case.whole()), &whole);
            let alone: Plan = case.whole()[0].iter().map(|row| vec![*row]).collect();
            assert_same_bits("alone", &case.run(&pair[1], &alone), &whole);
            let plan = case.prefixes_first(&mut Rng(case.seed));
            assert_same_bits("prefixes first", &case.run(&pair[0], &plan), &whole);
        }
    }

    #[test]
    fn attention_matches_the_reference(case in case_with_prologue()) {
        let want = case.run(&Reference, &case.whole());
        for cpu in CPUS.iter().chain(EXACT_CPUS.iter()).step_by(2) {
            case.assert_close(cpu, &case.run(cpu, &case.whole()), &want);
        }
    }

    #[test]
    fn chunks_batches_and_threads_do_not_change_bits(case in case_with_prologue(), seed: u64) {
        for pair in CPUS.chunks(2) {
            let whole = case.run(&pair[0], &case.whole());
            assert_same_bits("threads", &case.run(&pair[1], &case.whole()), &whole);
            let plan = case.chunked(&mut Rng(seed));
            assert_same_bits(&pair[1].name(), &case.run(&pair[1], &plan), &whole);
        }
    }

    #[test]
    fn unwritten_cache_slots_do_not_matter(mut case in case(), inf: bool, seed: u64) {
        let clean = case.clone();
        case.garbage = if inf { f32::INFINITY } else { f32::NAN };
        for cpu in CPUS.iter().skip(1).step_by(2) {
            let plan = case.chunked(&mut Rng(seed));
            assert_same_bits(&cpu.name(), &case.run(cpu, &plan), &clean.run(cpu, &plan));
        }
    }
}

/// A token with infinite values changes nothing for the tokens before it in the same tile, nor for
/// those whose window begins after it. The others see it.
#[test]
fn only_queries_that_attend_to_a_token_read_its_values() {
    let layout = QkvLayout { heads: 4, kv_heads: 2, head_dim: 64 };
    for (format, window) in [
        (DType::F32, None),
        (DType::BF16, None),
        (DType::BF16, Some(KeyWindow::Last(9))),
        (DType::F32, Some(KeyWindow::Chunk(11))),
    ] {
        let clean = Case { window, ..Case::plain(layout, format, vec![60]) };
        for token in [0, 21, 47, 59] {
            let case = Case { infinite: Some(token), ..clean.clone() };
            let attends =
                |at: usize| at >= token && window.is_none_or(|window: KeyWindow| window.first(at) <= token);
            for cpu in CPUS.iter().step_by(2) {
                let (got, want) = (case.run(cpu, &case.whole()), clean.run(cpu, &clean.whole()));
                let width = layout.heads * layout.head_dim;
                for (at, (got, want)) in got.chunks(width).zip(want.chunks(width)).enumerate() {
                    if attends(at) {
                        assert!(got.iter().all(|x| !x.is_finite()), "{}: token {at}", cpu.name());
                    } else {
                        assert_same_bits(&cpu.name(), got, want);
                    }
                }
            }
        }
    }
}

/// The contexts have several segments, long enough for all threads.
#[test]
fn long_contexts_match_the_reference() {
    for (format, window) in [
        (DType::F32.into(), None),
        (DType::BF16.into(), Some(KeyWindow::Last(700))),
        (KvFormat::Int8, None),
        (DType::F32.into(), Some(KeyWindow::Chunk(600))),
    ] {
        let layout = QkvLayout { heads: 4, kv_heads: 2, head_dim: 32 };
        let case = Case { window, garbage: f32::NAN, ..Case::plain(layout, format, vec![1500, 40]) };
        let want = case.run(&Reference, &case.whole());
        for cpu in CPUS.iter() {
            case.assert_close(cpu, &case.run(cpu, &case.whole()), &want);
        }
    }
}

/// Keys are cut at positions 4096 and 8192. Threads compute the ranges of a decoded token apart,
/// a prompt is cut into chunks across the boundaries, and windows begin inside of a range.
#[test]
fn ranges_of_keys_do_not_change_bits() {
    for (format, window) in [
        (DType::F32.into(), None),
        (DType::BF16.into(), None),
        (DType::BF16.into(), Some(KeyWindow::Last(4321))),
        (KvFormat::Int8, Some(KeyWindow::Last(4321))),
    ] {
        // AMX computes heads of 32 features.
        let head_dim = if format == DType::BF16.into() { 32 } else { 16 };
        let layout = QkvLayout { heads: 2, kv_heads: 1, head_dim };
        let case = Case { window, garbage: f32::NAN, ..Case::plain(layout, format, vec![8205, 4100]) };
        let want = case.run(&Reference, &case.whole());
        let mut plan = vec![
            vec![(0, 0, 4000), (1, 0, 4095)],
            vec![(0, 4000, 4190), (1, 4095, 1)],
            vec![(1, 4096, 1)],
            vec![(0, 8190, 1), (1, 4097, 3)],
        ];
        plan.extend((8191..8205).map(|at| vec![(0, at, 1)]));
        for pair in CPUS.chunks(2) {
            let whole = case.run(&pair[0], &case.whole());
            case.assert_close(&pair[0], &whole, &want);
            assert_same_bits(&pair[1].name(), &case.run(&pair[1], &plan), &whole);
        }
    }
}

/// A cache of bytes is as close to exact keys and values as 8 bits with a scale allow.
#[test]
fn a_cache_of_bytes_is_close_to_an_exact_one() {
    let layout = QkvLayout { heads: 8, kv_heads: 2, head_dim: 64 };
    let exact = Case::plain(layout, DType::F32, vec![700]);
    let want = exact.run(&Reference, &exact.whole());
    for (format, bound) in [(DType::BF16.into(), 6e-3), (KvFormat::Int8, 2e-2)] {
        let case = Case { format, ..exact.clone() };
        let error = distance(&case.run(&EXACT_CPUS[0], &case.whole()), &want);
        println!("{}: {error:.1e}", format.name());
        assert!(error < bound, "{}: {error}", format.name());
    }
}

/// The root mean square of the differences, relative to that of the numbers.
fn distance(found: &[f32], want: &[f32]) -> f64 {
    let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let errors = squares(&mut found.iter().zip(want).map(|(a, b)| a - b));
    (errors / squares(&mut want.iter().copied())).sqrt()
}

/// How far rounded queries and weights are from exact ones.
#[test]
fn rounded_queries_and_weights_are_close_to_exact_ones() {
    let layout = QkvLayout { heads: 8, kv_heads: 2, head_dim: 64 };
    let case = Case::plain(layout, DType::BF16, vec![700]);
    let want = case.run(&Reference, &case.whole());
    for (rounded, exact) in CPUS.iter().zip(EXACT_CPUS.iter()).step_by(2) {
        let error = |cpu| distance(&case.run(cpu, &case.whole()), &want);
        let (rounded_error, exact_error) = (error(rounded), error(exact));
        println!("{}: {rounded_error:.1e} rounded, {exact_error:.1e} exact", rounded.name());
        assert!(exact_error < 1e-6, "{exact_error}");
        assert!(rounded_error < 4e-3, "{rounded_error}");
    }
}

#[test]
fn unsupported_block_sizes_are_errors() {
    let format = DType::F32.into();
    let spec = |block_size| KvSpec { blocks: 2, block_size, heads: 1, key_dim: 8, value_dim: 8, format };
    for size in [0, 1, 8, 17] {
        assert!(CPUS[0].kv(spec(size)).is_err());
    }
    assert!(CPUS[0].kv(spec(64)).is_ok());
}
