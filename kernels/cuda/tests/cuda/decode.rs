//! Decode attention: every feature and type over random steps, and the same bits beside any other
//! sequences.

use millrace_backend::KeyWindow;
use millrace_cuda::ops::decode::{
    AttentionHeads, DecodeAttention, DecodeLimits, PlanDecode, arrivals_len, decode, plan, plan_len,
    split_tokens, splits, supports, workspace_len,
};
use millrace_cuda::ops::paged::{AttentionScores, PagedKv, SequenceBatch};
use millrace_cuda::{Elem, Memory, View};

use crate::common::*;
use crate::reference::attention::{Cache, Features, Row, Shape, Step};
use crate::words::get_i32;

fn heads_of(shape: &Shape) -> AttentionHeads {
    AttentionHeads {
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        head_dim: shape.head_dim,
        activations: shape.activations,
        cache: shape.cached,
    }
}

/// The least limits for the rows of up to `queries` queries.
fn limits_of(shape: &Shape, rows: &[Row], queries: usize) -> DecodeLimits {
    let taken = rows.iter().filter(|r| r.queries <= queries);
    let splits = taken.map(|r| splits(shape.cached, r.context)).sum();
    DecodeLimits { rows: rows.len(), queries, splits }
}

/// Memory for `len` words of a plan.
fn plan_memory(len: usize) -> Memory {
    garbage(Elem::I32, len)
}

/// The counters that layers share, before the first layer.
fn arrivals_memory(heads: &AttentionHeads, limits: &DecodeLimits) -> Memory {
    put_u32(&vec![0; arrivals_len(heads, limits)])
}

/// The step's output. Rows that are not in the plan are NaN.
fn run_on(kv: PagedKv<'_>, shape: &Shape, step: &Step, limits: DecodeLimits) -> Vec<f32> {
    let heads = heads_of(shape);
    let list = plan_memory(plan_len(&limits));
    let workspace = garbage(Elem::F32, workspace_len(&heads, &limits));
    let arrivals = arrivals_memory(&heads, &limits);
    let out = garbage(shape.activations, step.tokens() * shape.heads * shape.head_dim);
    let (batch, scores) = (step.batch(), step.scores());
    let list = list.view(Elem::I32);
    let splits = limits.splits;
    plan(&DEVICE, &PlanDecode { batch, scores, cache: shape.cached, limits, splits, plan: list }).unwrap();
    let layer = DecodeAttention {
        heads,
        limits,
        queries: step.qkv_view(),
        query_stride: shape.stride(),
        kv,
        batch,
        scores,
        plan: list,
        workspace: workspace.view(Elem::F32),
        arrivals: arrivals.view(Elem::U32),
        out: out.view(shape.activations),
    };
    // Two layers use the same plan, the same workspace and the same counters.
    decode(&DEVICE, &layer).unwrap();
    let first = get(out.view(shape.activations));
    DEVICE.fill(out.view(shape.activations), 0xFF).unwrap();
    decode(&DEVICE, &layer).unwrap();
    let second = get(out.view(shape.activations));
    assert!(first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits()), "the second layer differs");
    let left = get_i32(arrivals.view(Elem::I32)).iter().filter(|&&count| count != 0).count();
    assert_eq!(left, 0, "counters are not zero");
    second
}

fn run(cache: &Cache, step: &Step, queries: usize) -> Vec<f32> {
    run_on(cache.paged(), &cache.shape, step, limits_of(&cache.shape, &step.rows, queries))
}

fn check(cache: &Cache, step: &Step, queries: usize) {
    let shape = cache.shape;
    let mut want = step.reference(cache);
    // Sequences with more queries are left to the prefill kernel.
    let width = shape.heads * shape.head_dim;
    let mut token = 0;
    for row in &step.rows {
        if row.queries > queries {
            want[token * width..(token + row.queries) * width].fill(f32::NAN);
        }
        token += row.queries;
    }
    let name = format!("{shape:?} {:?} {:?}", step.rows, step.features);
    // The result is rounded, and so are the weights, whose errors add up to less than that of the
    // largest value.
    let precision = precision(shape.activations);
    assert_close(&name, &run(cache, step, queries), &want, precision * 1.01, precision);
}

/// A shape with 64 features per head and bf16 everywhere.
fn bf16_shape(heads: usize, kv_heads: usize) -> Shape {
    Shape { heads, kv_heads, head_dim: 64, block_size: 16, activations: Elem::BF16, cached: Elem::BF16 }
}

fn random_shape(rng: &mut Rng) -> Shape {
    let activations = rng.pick(&[Elem::F16, Elem::BF16]);
    let kv_heads = rng.pick(&[1, 1, 2, 3]);
    Shape {
        heads: kv_heads * rng.pick(&[1, 2, 4, 7, 8, 9, 16]),
        kv_heads,
        head_dim: rng.pick(&[16, 64, 64, 80, 96, 128, 128, 256]),
        block_size: 16,
        activations,
        cached: rng.pick(&[activations, Elem::E4M3, Elem::I8]),
    }
}

#[test]
fn random_steps_match_the_reference() {
    for_seeds(40, |rng| {
        let shape = random_shape(rng);
        let s = split_tokens(shape.cached);
        let lengths = [1, 2, 15, 16, 17, 40, 63, 64, 65, 100, s - 1, s, s + 1, 2 * s - 1, 2 * s + 17];
        let contexts: Vec<usize> = (0..rng.below(5)).map(|_| rng.pick(&lengths)).collect();
        let cache = Cache::random(rng, shape, &contexts);
        let most = rng.pick(&[1, 1, 2, 4]);
        let rows: Vec<Row> = contexts
            .iter()
            .enumerate()
            .map(|(sequence, &context)| Row {
                sequence,
                // Some rows have no query, and some more than the limits.
                queries: rng.below(most + 2).min(context),
                context,
                prefix: if rng.below(2) == 0 { 0 } else { rng.below(context + 20) },
            })
            .collect();
        let features = Features::random(rng, shape.heads, shape.head_dim);
        let step = Step::random(rng, &cache, &rows, features);
        check(&cache, &step, most);
    });
}

/// Every kernel runs with lengths at the edges of blocks and splits.
#[test]
fn every_kernel_matches_the_reference_at_edges() {
    let mut rng = Rng(7);
    for activations in [Elem::F16, Elem::BF16] {
        for cached in [activations, Elem::E4M3, Elem::I8] {
            for (group, head_dim) in [(4, 64), (16, 64), (2, 96), (5, 128), (12, 128), (3, 256)] {
                let shape =
                    Shape { heads: group, kv_heads: 1, head_dim, block_size: 16, activations, cached };
                let s = split_tokens(cached);
                let contexts = [1, 15, 16, 17, s - 1, s, s + 1, 3 * s + 31];
                let cache = Cache::random(&mut rng, shape, &contexts);
                let rows: Vec<Row> = (0..contexts.len()).map(|i| row(i, 1, contexts[i])).collect();
                let step = Step::random(&mut rng, &cache, &rows, Features::plain(head_dim));
                check(&cache, &step, 1);
            }
        }
    }
}

fn row(sequence: usize, queries: usize, context: usize) -> Row {
    Row { sequence, queries, context, prefix: 0 }
}

/// Scores are so large that one key takes nearly all weight, and some sinks are larger still.
#[test]
fn large_scores_do_not_overflow() {
    for_seeds(6, |rng| {
        let shape = Shape { head_dim: 64, ..random_shape(rng) };
        let contexts = [300, 1100, 40];
        let cache = Cache::random(rng, shape, &contexts);
        let sinks = (0..shape.heads).map(|_| 200.0 * rng.unit()).collect();
        let features = Features { scale: 20.0, sinks: Some(sinks), ..Features::plain(64) };
        let rows: Vec<Row> = (0..3).map(|i| row(i, 1, contexts[i])).collect();
        check(&cache, &Step::random(rng, &cache, &rows, features), 1);
    });
}

#[test]
fn a_context_of_128k_matches_the_reference() {
    let mut rng = Rng(1);
    let shape = bf16_shape(1, 1);
    let context = 128 << 10;
    let cache = Cache::random(&mut rng, shape, &[context]);
    let features = Features { scale: 0.5, ..Features::default() };
    let step = Step::random(&mut rng, &cache, &[row(0, 1, context)], features);
    let want = step.reference(&cache);
    // The mean of so many values is small, and the rounding errors of the weights average out.
    assert_close("128k", &run(&cache, &step, 1), &want, precision(Elem::BF16) * 1.01, 1e-4);
}

/// Splits are added up in groups of 16, at fixed places: one group, two, a group of one split at
/// either end, and more groups than are added up at once.
#[test]
fn groups_of_splits_match_the_reference() {
    let mut rng = Rng(11);
    for (cached, heads) in [(Elem::BF16, 2), (Elem::E4M3, 9)] {
        let shape = Shape { cached, ..bf16_shape(heads, 1) };
        let s = split_tokens(cached);
        let contexts = [15 * s + 3, 16 * s, 16 * s + 1, 33 * s, 150 * s + 7];
        let cache = Cache::random(&mut rng, shape, &contexts);
        let rows: Vec<Row> = (0..contexts.len()).map(|i| row(i, 1, contexts[i])).collect();
        // The rounding errors of the weights average out over many keys.
        let long = Some(KeyWindow::Last(17 * s + s / 2));
        for (window, absolute) in [(None, 2e-4), (Some(KeyWindow::Last(s + s / 2)), 1e-3), (long, 2e-4)] {
            let sinks = Some((0..heads).map(|_| rng.unit()).collect());
            let features = Features { scale: 0.5, window, sinks, ..Features::default() };
            let step = Step::random(&mut rng, &cache, &rows, features);
            let got = run(&cache, &step, 1);
            assert_close(
                &format!("{cached:?} {window:?}"),
                &got,
                &step.reference(&cache),
                precision(Elem::BF16) * 1.01,
                absolute,
            );
        }
    }
}

/// A sequence beyond the plan's memory has no output, and leaves no trace in the counters.
#[test]
fn sequences_beyond_the_plan_are_left_out() {
    let mut rng = Rng(12);
    let shape = bf16_shape(2, 1);
    let s = split_tokens(shape.cached);
    let contexts = [3 * s, 2 * s + 1, 20];
    let cache = Cache::random(&mut rng, shape, &contexts);
    let rows: Vec<Row> = (0..3).map(|i| row(i, 1, contexts[i])).collect();
    let step = Step::random(&mut rng, &cache, &rows, Features::plain(64));
    let whole = run(&cache, &step, 1);
    for splits in [4, 5] {
        let limits = DecodeLimits { rows: 3, queries: 1, splits };
        let part = run_on(cache.paged(), &shape, &step, limits);
        assert_eq!(part[..128], whole[..128]);
        assert!(part[128..].iter().all(|x| x.is_nan()), "{splits} splits");
    }
}

/// A sequence's output has the same bits alone, with others before and behind it, and with other
/// limits.
#[test]
fn other_sequences_make_no_difference() {
    for_seeds(8, |rng| {
        let shape = random_shape(rng);
        let s = split_tokens(shape.cached);
        let contexts: Vec<usize> = (0..4).map(|_| 1 + rng.below(2 * s + 100)).collect();
        let cache = Cache::random(rng, shape, &contexts);
        let features = Features::random(rng, shape.heads, shape.head_dim);
        let width = shape.heads * shape.head_dim;
        let queries = rng.values(shape.activations, 4 * width);
        let run_some = |which: &[usize]| {
            let rows: Vec<Row> = which.iter().map(|&i| row(i, 1, contexts[i])).collect();
            let of: Vec<f32> =
                which.iter().flat_map(|&i| queries[i * width..(i + 1) * width].to_vec()).collect();
            run(&cache, &Step::new(&cache, &rows, features.clone(), &of), 1)
        };
        let order: Vec<usize> = rng.shuffled(4).iter().map(|&i| i as usize).collect();
        let together = run_some(&order);
        for (at, &i) in order.iter().enumerate() {
            let alone = run_some(&[i]);
            assert_eq!(alone, together[at * width..(at + 1) * width], "{shape:?} {contexts:?} {features:?}");
        }
    });
}

/// The places of blocks in the pool make no difference.
#[test]
fn places_of_blocks_make_no_difference() {
    for_seeds(4, |rng| {
        let shape = random_shape(rng);
        let context = 700;
        let mut cache = Cache::random(rng, shape, &[context]);
        let features = Features::plain(shape.head_dim);
        let queries = rng.values(shape.activations, shape.heads * shape.head_dim);
        let limits = limits_of(&shape, &[row(0, 1, context)], 1);
        let step = Step::new(&cache, &[row(0, 1, context)], features.clone(), &queries);
        let before = run_on(cache.paged(), &shape, &step, limits);

        let to = rng.shuffled(cache.paged().blocks);
        let old = cache.paged();
        let (keys, values) = (move_blocks(old.keys, &to), move_blocks(old.values, &to));
        let scales = old.scales.map(|(k, v)| (move_blocks(k, &to), move_blocks(v, &to)));
        let scale_views = scales.as_ref().map(|(k, v)| (k.view(Elem::F32), v.view(Elem::F32)));
        let blocks = old.blocks;
        for block in &mut cache.tables[0] {
            *block = to[*block as usize];
        }
        let kv = PagedKv {
            keys: keys.view(shape.cached),
            values: values.view(shape.cached),
            scales: scale_views,
            blocks,
            block_size: 16,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
        };
        let step = Step::new(&cache, &[row(0, 1, context)], features, &queries);
        assert_eq!(before, run_on(kv, &shape, &step, limits), "{shape:?}");
    });
}

/// A copy of the memory in which block i lies at place `to[i]`.
fn move_blocks(view: View<'_>, to: &[u32]) -> Memory {
    let bytes = DEVICE.read(view).unwrap();
    let size = bytes.len() / to.len();
    let mut moved = bytes.clone();
    for (block, &place) in bytes.chunks_exact(size).zip(to) {
        moved[place as usize * size..][..size].copy_from_slice(block);
    }
    DEVICE.upload(&moved).unwrap()
}

/// The last of several queries has the same bits as alone.
#[test]
fn queries_before_make_no_difference() {
    for_seeds(6, |rng| {
        let shape = random_shape(rng);
        let context = 3 + rng.below(2 * split_tokens(shape.cached));
        let cache = Cache::random(rng, shape, &[context]);
        let features = Features { prefix: false, ..Features::random(rng, shape.heads, shape.head_dim) };
        let width = shape.heads * shape.head_dim;
        let queries = rng.values(shape.activations, 3 * width);
        let three = run(&cache, &Step::new(&cache, &[row(0, 3, context)], features.clone(), &queries), 3);
        let one = Step::new(&cache, &[row(0, 1, context)], features.clone(), &queries[2 * width..]);
        assert_eq!(run(&cache, &one, 1), three[2 * width..], "{shape:?} {context} {features:?}");
    });
}

/// A query has the same bits if the ones before it see a split that it does not see, alone in its
/// group.
#[test]
fn queries_before_in_another_group_make_no_difference() {
    let mut rng = Rng(13);
    let shape = bf16_shape(2, 1);
    let s = split_tokens(shape.cached);
    let context = 36 * s + 10;
    let cache = Cache::random(&mut rng, shape, &[context]);
    let window = Some(KeyWindow::Last(context - 16 * s));
    let features = Features { window, ..Features::plain(64) };
    let queries = rng.values(shape.activations, 3 * 128);
    let three = run(&cache, &Step::new(&cache, &[row(0, 3, context)], features.clone(), &queries), 3);
    let one = Step::new(&cache, &[row(0, 1, context)], features, &queries[2 * 128..]);
    assert_eq!(run(&cache, &one, 1), three[2 * 128..]);
}

/// A sequence of a plan's test.
#[derive(Debug, Clone, Copy)]
struct PlannedRow {
    queries: u32,
    context: u32,
}

/// The lowest position that a query of a row sees.
fn lowest_position(row: PlannedRow, window: Option<KeyWindow>) -> u32 {
    let first = row.context - row.queries;
    match window {
        None => 0,
        Some(KeyWindow::Last(window) | KeyWindow::Around(window)) => {
            (first + 1).saturating_sub(window as u32)
        }
        Some(KeyWindow::Chunk(size)) => first - first % size as u32,
    }
}

/// The splits of all rows as (row, split), and where each row's begin in the list, by the
/// definition.
fn expected_plan(
    rows: &[PlannedRow],
    window: Option<KeyWindow>,
    max_queries: u32,
) -> (Vec<(u32, u32)>, Vec<u32>) {
    let split = split_tokens(Elem::BF16) as u32;
    let (mut list, mut starts) = (Vec::new(), Vec::new());
    for (r, &PlannedRow { queries, context }) in rows.iter().enumerate() {
        starts.push(list.len() as u32);
        if queries == 0 || queries > max_queries {
            continue;
        }
        let lowest = lowest_position(rows[r], window);
        list.extend((lowest / split..context.div_ceil(split)).map(|split| (r as u32, split)));
    }
    starts.push(list.len() as u32);
    (list, starts)
}

/// The plan matches the definition, also for more rows than the kernel scans at once.
#[test]
fn plans_match_their_definition() {
    for_seeds(6, |rng| {
        let n = rng.pick(&[0, 1, 33, 1500]);
        let last = [1, 300, 5000].map(|len| Some(KeyWindow::Last(len)));
        let chunks = [1, 300, 700].map(|len| Some(KeyWindow::Chunk(len)));
        let window = rng.pick(&[&[None], &last[..], &chunks].concat());
        let rows: Vec<PlannedRow> = (0..n)
            .map(|_| PlannedRow { queries: rng.below(4) as u32, context: 4 + rng.below(3000) as u32 })
            .collect();
        let mut query_start = vec![0u32];
        for row in &rows {
            query_start.push(query_start[query_start.len() - 1] + row.queries);
        }
        let (list, starts) = expected_plan(&rows, window, 2);

        let limits = DecodeLimits { rows: n + 2, queries: 2, splits: list.len() + 3 };
        let memory = plan_memory(plan_len(&limits));
        let contexts: Vec<u32> = rows.iter().map(|row| row.context).collect();
        let (starts_on, contexts_on, tables) = (put_u32(&query_start), put_u32(&contexts), put_u32(&[]));
        let batch = SequenceBatch {
            rows: n,
            tokens: query_start[n] as usize,
            query_start: starts_on.view(Elem::I32),
            context: contexts_on.view(Elem::I32),
            tables: tables.view(Elem::I32),
            table_stride: 0,
            max_queries: 3,
            max_context: 3003,
        };
        let scores =
            AttentionScores { scale: 1.0, soft_cap: None, window, alibi: None, sinks: None, prefix: None };
        let view = memory.view(Elem::I32);
        let splits = list.len();
        plan(&DEVICE, &PlanDecode { batch, scores, cache: Elem::BF16, limits, splits, plan: view }).unwrap();
        let words: Vec<u32> = get_i32(view).into_iter().map(|word| word as u32).collect();
        assert_eq!(words[0], list.len() as u32);
        let records = words[4..][..8 * list.len()].chunks_exact(8);
        let want = list.iter().map(|&(row, split)| {
            let (r, context) = (row as usize, rows[row as usize].context);
            let lowest = lowest_position(rows[r], window);
            [row, split, query_start[r], rows[r].queries, context, lowest, 0, starts[r]]
        });
        assert!(records.eq(want), "{rows:?} with {window:?}");
        assert_eq!(words[4 + 8 * limits.splits..][..=n], starts);
    });
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let shape = bf16_shape(4, 2);
    let mut rng = Rng(3);
    let cache = Cache::random(&mut rng, shape, &[600, 20]);
    let rows = [row(0, 1, 600), row(1, 1, 20)];
    let step = Step::random(&mut rng, &cache, &rows, Features::plain(64));
    let (heads, limits) = (heads_of(&shape), limits_of(&shape, &rows, 1));
    assert_eq!(limits.splits, 3);
    let list = plan_memory(plan_len(&limits));
    let workspace = garbage(Elem::F32, workspace_len(&heads, &limits));
    let arrivals = arrivals_memory(&heads, &limits);
    let out = garbage(Elem::BF16, 2 * 4 * 64);
    let planned = |limits: &DecodeLimits, splits| {
        let (batch, scores) = (step.batch(), step.scores());
        let plan_view = list.view(Elem::I32);
        let operands =
            PlanDecode { batch, scores, cache: Elem::BF16, limits: *limits, splits, plan: plan_view };
        plan(&DEVICE, &operands).map_err(|e| e.to_string())
    };
    assert_eq!(planned(&limits, 3), Ok(()));
    assert!(planned(&limits, 4).unwrap_err().contains("4 splits"));
    assert!(planned(&DecodeLimits { rows: 1, ..limits }, 3).unwrap_err().contains("2 sequences"));
    assert!(planned(&DecodeLimits { splits: 9, ..limits }, 3).unwrap_err().contains("plan has"));

    let layer = DecodeAttention {
        heads,
        limits,
        queries: step.qkv_view(),
        query_stride: shape.stride(),
        kv: cache.paged(),
        batch: step.batch(),
        scores: step.scores(),
        plan: list.view(Elem::I32),
        workspace: workspace.view(Elem::F32),
        arrivals: arrivals.view(Elem::U32),
        out: out.view(Elem::BF16),
    };
    assert!(decode(&DEVICE, &layer).is_ok());
    let refused = |d: DecodeAttention<'_>| decode(&DEVICE, &d).unwrap_err().to_string();
    let short = workspace.view(Elem::F32).slice(0..100);
    assert!(refused(DecodeAttention { workspace: short, ..layer }).contains("workspace has 100"));
    assert!(refused(DecodeAttention { query_stride: 100, ..layer }).contains("rows of 100"));
    let short = arrivals.view(Elem::U32).slice(0..11);
    assert!(refused(DecodeAttention { arrivals: short, ..layer }).contains("arrivals has 11"));
    assert!(refused(DecodeAttention { query_stride: 1000, ..layer }).contains("queries has"));
    let kv = PagedKv { block_size: 8, ..layer.kv };
    assert!(refused(DecodeAttention { kv, ..layer }).contains("blocks of 8"));
    let other = AttentionHeads { head_dim: 32, ..heads };
    assert!(refused(DecodeAttention { heads: other, ..layer }).contains("another shape"));
    let workspace = workspace.view(Elem::F32).slice(1..workspace_len(&heads, &limits));
    assert!(
        refused(DecodeAttention { workspace, limits: DecodeLimits { splits: 2, ..limits }, ..layer })
            .contains("multiples")
    );
}

#[test]
fn supported_heads_and_costs_are_known() {
    let heads =
        AttentionHeads { heads: 32, kv_heads: 8, head_dim: 128, activations: Elem::BF16, cache: Elem::BF16 };
    assert!(supports(&heads, 16));
    assert!(supports(&AttentionHeads { cache: Elem::I8, ..heads }, 16));
    assert!(!supports(&heads, 32));
    assert!(!supports(&AttentionHeads { cache: Elem::F16, ..heads }, 16));
    assert!(!supports(&AttentionHeads { activations: Elem::F32, cache: Elem::F32, ..heads }, 16));
    assert!(!supports(&AttentionHeads { head_dim: 72, ..heads }, 16));
    assert!(!supports(&AttentionHeads { head_dim: 272, ..heads }, 16));
    assert!(!supports(&AttentionHeads { kv_heads: 5, ..heads }, 16));
}
