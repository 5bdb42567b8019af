//! Tests of attention over latents, and of products with a matrix of each head.

use millrace_backend::reference::Reference;
use millrace_backend::{
    Backend, Error, HeadRows, KvFormat, KvSpec, LatentPrologue, LatentSpec, ModelLoading, RopeSpec,
    RopeStyle, SamplingParams, SeqRow, StepInput, StepSize,
};
use millrace_numbers::{DType, Part};
use proptest::prelude::{prop, prop_compose, prop_oneof, proptest};

use crate::common::*;

/// A product with a matrix of each head.
#[derive(Debug, Clone)]
pub(crate) struct Product {
    pub(crate) tokens: usize,
    pub(crate) heads: usize,
    pub(crate) carried: usize,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) dtype: DType,
    pub(crate) seed: u64,
}

impl Product {
    /// Returns the result, from matrices whose rows are `rows`.
    pub(crate) fn run<B: Backend>(&self, device: &B, rows: HeadRows) -> Vec<f32> {
        let &Product { tokens, heads, carried, inputs, outputs, dtype, seed } = self;
        let mut rng = Rng(seed);
        let x = rng.values(tokens * heads * (inputs + carried));
        let of_head = |values: Vec<f32>| {
            // The values are by input, then by output.
            let (values, cols) = match rows {
                HeadRows::Inputs => (values, outputs),
                HeadRows::Outputs => {
                    let by_output = (0..outputs).flat_map(|o| values.iter().skip(o).step_by(outputs));
                    (by_output.copied().collect(), inputs)
                }
            };
            vec![Part::whole(tensor(&bytes(&values), values.len() / cols, cols))]
        };
        let parts: Vec<Vec<Part>> = (0..heads).map(|_| of_head(rng.values(inputs * outputs))).collect();
        let w = device.head_matrices(&parts, rows, dtype).unwrap();
        let x = upload(device, &x, heads * (inputs + carried));
        let mut out = device.buf(tokens, heads * (carried + outputs)).unwrap();
        device.linear_heads(tokens, &x, &w, &mut out).unwrap();
        device.read(&out, tokens).unwrap()
    }
}

prop_compose! {
    pub(crate) fn products()(
        tokens in prop_oneof![1usize..20, 40usize..110], heads in 1usize..6, carried in 0usize..20,
        inputs in 1usize..40, outputs in 1usize..70,
        dtype in prop::sample::select(DTYPES.to_vec()), seed: u64,
    ) -> Product {
        Product { tokens, heads, carried, inputs, outputs, dtype, seed }
    }
}

/// Sequences whose tokens attend to latents.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    heads: usize,
    key_dim: usize,
    value_dim: usize,
    rope: (RopeStyle, usize),
    pub(crate) format: KvFormat,
    block_size: usize,
    lengths: Vec<usize>,
    /// The cache is filled with this value first, if it is not zero.
    garbage: f32,
    /// Whether queries are scaled by their position.
    pub(crate) query_scale: bool,
    seed: u64,
}

/// The rows of one step: sequence, start, count.
type Plan = Vec<Vec<(usize, usize, usize)>>;

prop_compose! {
    pub(crate) fn attention_cases()(
        heads in prop::sample::select(vec![1usize, 2, 3, 8, 16, 50]),
        (key_dim, value_dim, rotary) in prop::sample::select(vec![
            (6usize, 4usize, 2usize), (9, 5, 4), (24, 16, 8), (48, 32, 16), (41, 33, 8), (576, 512, 64), (10, 10, 4),
        ]),
        interleaved: bool,
        dtype in prop::sample::select(DTYPES.to_vec()),
        block_size in prop::sample::select(vec![16usize, 16, 48]),
        lengths in prop::collection::vec(prop_oneof![1usize..6, 1usize..50, 120usize..160], 1..4),
        seed: u64,
    ) -> Case {
        let style = if interleaved { RopeStyle::Interleaved } else { RopeStyle::Half };
        Case {
            heads, key_dim, value_dim, rope: (style, rotary), format: dtype.into(), block_size, lengths,
            garbage: 0.0, query_scale: false, seed,
        }
    }
}

impl Case {
    /// Returns the attention of all sequences, `[sum of lengths, heads * value_dim]`.
    pub(crate) fn run<B: Backend>(&self, device: &B, plan: &Plan) -> Vec<f32> {
        let &Case { heads, key_dim, value_dim, rope: (style, rotary_dim), block_size, .. } = self;
        let mut rng = Rng(self.seed);
        let total: usize = self.lengths.iter().sum();
        let (queries, latents) = (rng.values(total * heads * key_dim), rng.values(total * key_dim));
        let longest = self.lengths.iter().copied().max().unwrap();
        let needed: Vec<usize> = self.lengths.iter().map(|n| n.div_ceil(block_size)).collect();
        let blocks = needed.iter().sum::<usize>() + 2;
        let mut free = rng.shuffled(blocks);
        let tables: Vec<Vec<u32>> = needed.iter().map(|&n| free.split_off(free.len() - n)).collect();
        let angles: Vec<f32> = (0..blocks * block_size)
            .flat_map(|p| (0..rotary_dim / 2).map(move |i| p as f32 * 0.7 / (i + 1) as f32))
            .collect();
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.iter().map(|a| (a.cos(), a.sin())).unzip();
        let rope = RopeSpec {
            style,
            rotary_dim,
            cos: vector(device, &cos),
            sin: vector(device, &sin),
            two_axes: false,
        };
        let scales: Vec<f32> = (0..longest).map(|position| 1.0 + (position / 7) as f32 / 9.0).collect();
        let scales = vector(device, &scales);
        let plain = LatentPrologue { rope: &rope, query_scale: None };
        let prologue = LatentPrologue { query_scale: self.query_scale.then_some(&scales), ..plain };
        let spec = LatentSpec { heads, key_dim, value_dim, scale: 3.0 / (key_dim as f32).sqrt() };
        let mut kv = device
            .kv(KvSpec { blocks, block_size, heads: 1, key_dim, value_dim: 0, format: self.format })
            .unwrap();
        if self.garbage != 0.0 {
            let (n, all) = (blocks * block_size, (0..blocks as u32).collect::<Vec<_>>());
            let mut queue = device.queue(&StepSize { block_size, ..step_size(n, 1, n) }).unwrap();
            device.admit(&mut queue, 0, &vec![0; n], &SamplingParams::default()).unwrap();
            let (tokens, rows) = (vec![0; n], [SeqRow::prefill(0, 0..n, &all)]);
            let input =
                StepInput { tokens: &tokens, rows: &rows, outputs: &[], samples: &[], ..StepInput::EMPTY };
            let step = open(device, &mut queue, &input);
            let mut garbage =
                [heads, 1].map(|h| upload(device, &vec![self.garbage; n * h * key_dim], h * key_dim));
            let [queries, latents] = &mut garbage;
            device.latent_prologue(&step, queries, latents, &plain, &mut kv).unwrap();
        }
        let attention = [spec.attention()];
        let size = StepSize {
            block_size,
            blocks,
            kv_format: self.format,
            attention: &attention,
            ..step_size(total, self.lengths.len(), longest.next_multiple_of(block_size))
        };
        let mut queue = device.queue(&size).unwrap();
        for (slot, &length) in self.lengths.iter().enumerate() {
            device.admit(&mut queue, slot, &vec![0; length], &SamplingParams::default()).unwrap();
        }
        let offset = |s: usize| self.lengths[..s].iter().sum::<usize>();
        let mut result = vec![f32::NAN; total * heads * value_dim];
        for rows in plan {
            let of_rows = |values: &[f32], cols: usize| -> Vec<f32> {
                let of = |&(s, start, count): &(usize, usize, usize)| {
                    let at = offset(s) + start;
                    values[at * cols..(at + count) * cols].to_vec()
                };
                rows.iter().flat_map(of).collect()
            };
            let n: usize = rows.iter().map(|row| row.2).sum();
            let tokens = vec![0; n];
            let of_step: Vec<SeqRow<'_>> = rows
                .iter()
                .map(|&(s, start, count)| {
                    let blocks = &tables[s][..(start + count).div_ceil(block_size)];
                    SeqRow::prefill(s, start..start + count, blocks)
                })
                .collect();
            let input =
                StepInput { tokens: &tokens, rows: &of_step, outputs: &[], samples: &[], ..StepInput::EMPTY };
            let step = open(device, &mut queue, &input);
            let mut queries = upload(device, &of_rows(&queries, heads * key_dim), heads * key_dim);
            let mut latents = upload(device, &of_rows(&latents, key_dim), key_dim);
            device.latent_prologue(&step, &mut queries, &mut latents, &prologue, &mut kv).unwrap();
            let mut out = device.buf(n, heads * value_dim).unwrap();
            device.latent_attention(&step, &queries, &kv, &spec, &mut out).unwrap();
            let (out, width) = (device.read(&out, n).unwrap(), heads * value_dim);
            let mut from = 0;
            for &(s, start, count) in rows {
                let to = (offset(s) + start) * width;
                result[to..to + count * width].copy_from_slice(&out[from..from + count * width]);
                from += count * width;
            }
        }
        result
    }

    /// All sequences in one step.
    pub(crate) fn whole(&self) -> Plan {
        vec![self.lengths.iter().enumerate().map(|(s, &n)| (s, 0, n)).collect()]
    }

    /// Each sequence alone, in random chunks.
    pub(crate) fn chunked(&self, rng: &mut Rng) -> Plan {
        let mut plan = Vec::new();
        for (s, &length) in self.lengths.iter().enumerate() {
            let mut start = 0;
            while start < length {
                let count = if rng.below(2) == 0 { 1 } else { 1 + rng.below(length - start) };
                plan.push(vec![(s, start, count)]);
                start += count;
            }
        }
        plan
    }
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn products_of_heads_match_the_reference(case in products()) {
        let want = case.run(&Reference, HeadRows::Inputs);
        assert_same_bits("rows", &case.run(&Reference, HeadRows::Outputs), &want);
        for cpu in CPUS.iter() {
            let got = case.run(cpu, HeadRows::Inputs);
            assert_close(&cpu.name(), &got, &want, 3e-6);
            assert_same_bits(&cpu.name(), &case.run(cpu, HeadRows::Outputs), &got);
            // The first token alone.
            let width = got.len() / case.tokens;
            let alone = Product { tokens: 1, ..case.clone() };
            if case.tokens == 1 {
                assert_same_bits(&cpu.name(), &alone.run(cpu, HeadRows::Inputs), &got[..width]);
            }
        }
        for pair in CPUS.chunks(2) {
            let threads = pair.iter().map(|cpu| case.run(cpu, HeadRows::Inputs)).collect::<Vec<_>>();
            assert_same_bits("threads", &threads[0], &threads[threads.len() - 1]);
        }
    }

    #[test]
    fn attention_over_latents_matches_the_reference(mut case in attention_cases(), scaled: bool) {
        case.query_scale = scaled;
        let want = case.run(&Reference, &case.whole());
        for cpu in CPUS.iter().chain(EXACT_CPUS.iter()).step_by(2) {
            // After the rotation, rounding to fewer bits may go either way.
            let exact = case.format == KvFormat::Dense(DType::F32);
            assert_close(&cpu.name(), &case.run(cpu, &case.whole()), &want, if exact { 5e-6 } else { 2e-2 });
        }
    }

    #[test]
    fn chunks_and_threads_do_not_change_attention_over_latents(case in attention_cases(), seed: u64) {
        for pair in CPUS.chunks(2) {
            let whole = case.run(&pair[0], &case.whole());
            let plan = case.chunked(&mut Rng(seed));
            let chunked = case.run(&pair[pair.len() - 1], &plan);
            assert_same_bits(&pair[0].name(), &chunked, &whole);
        }
    }

    #[test]
    fn unwritten_latents_do_not_matter(mut case in attention_cases(), inf: bool, seed: u64) {
        let clean = case.clone();
        case.garbage = if inf { f32::INFINITY } else { f32::NAN };
        for cpu in CPUS.iter().skip(1).step_by(2) {
            let plan = case.chunked(&mut Rng(seed));
            assert_same_bits(&cpu.name(), &case.run(cpu, &plan), &clean.run(cpu, &plan));
        }
    }
}

/// Several ranges of 4096 keys are merged.
#[test]
fn long_sequences_attend_to_all_latents() {
    let case = Case {
        heads: 3,
        key_dim: 24,
        value_dim: 16,
        rope: (RopeStyle::Interleaved, 8),
        format: DType::F32.into(),
        block_size: 16,
        lengths: vec![4200],
        garbage: 0.0,
        query_scale: false,
        seed: 5,
    };
    // The last token alone, so that the reference takes little time.
    let plan = vec![vec![(0, 0, 4100)], vec![(0, 4100, 100)]];
    let want = case.run(&Reference, &case.whole());
    let mut found = Vec::new();
    for cpu in CPUS.iter() {
        let got = case.run(cpu, &plan);
        assert_close(&cpu.name(), &got, &want, 5e-6);
        found.push(got);
    }
    for pair in found.chunks(2) {
        assert_same_bits("threads", &pair[0], &pair[pair.len() - 1]);
    }
}

#[test]
fn a_cache_of_latents_is_half_as_large_and_never_int8() {
    let spec = KvSpec {
        blocks: 2,
        block_size: 16,
        heads: 1,
        key_dim: 576,
        value_dim: 0,
        format: DType::BF16.into(),
    };
    for cpu in CPUS.iter() {
        use millrace_backend::Sizing;
        assert_eq!(cpu.kv_bytes(&spec), 2 * 16 * 576 * 2);
        let error = cpu.kv(KvSpec { format: KvFormat::Int8, ..spec }).unwrap_err();
        assert!(matches!(&error, Error::Unsupported(what) if what.contains("latents")), "{error}");
    }
}
