//! Attention of steps with any number of queries per sequence.

use millrace_backend::KeyWindow;
use millrace_cuda::ops::attention::{PagedAttention, attention_plain};
use millrace_cuda::ops::paged::SequenceBatch;
use millrace_cuda::ops::prefill::{PrefillKernel, prefill, prefill_by};
use millrace_cuda::{Elem, Memory};

use crate::common::*;
use crate::reference::attention::{Cache, Features, Row, Shape, Step};

/// The types that the fast kernels know.
const HALVES: [Elem; 2] = [Elem::F16, Elem::BF16];
const ALL_CACHED: [Elem; 5] = [Elem::F32, Elem::F16, Elem::BF16, Elem::E4M3, Elem::I8];

/// The operands of the attention of `step`.
fn attention<'a>(cache: &'a Cache, step: &'a Step, out: &'a Memory) -> PagedAttention<'a> {
    PagedAttention {
        heads: cache.shape.heads,
        qkv: step.qkv_view(),
        stride: cache.shape.stride(),
        kv: cache.paged(),
        batch: step.batch(),
        scores: step.scores(),
        out: out.view(cache.shape.activations),
    }
}

/// Runs a step and returns its output.
fn run(kernel: PrefillKernel, cache: &Cache, step: &Step) -> Vec<f32> {
    let Shape { heads, head_dim, activations, .. } = cache.shape;
    let out = garbage(activations, step.tokens() * heads * head_dim);
    prefill_by(&DEVICE, kernel, &attention(cache, step, &out)).unwrap();
    get(out.view(activations))
}

/// Sequences of random lengths with some keys of earlier steps. Some have no query and some have
/// one.
fn random_rows(rng: &mut Rng, max_rows: usize, max_queries: usize, max_past: usize) -> Vec<Row> {
    let rows = 1 + rng.below(max_rows);
    (0..rows)
        .map(|sequence| {
            let queries = match rng.below(5) {
                0 => rng.below(2),
                1 => max_queries,
                _ => 1 + rng.below(max_queries),
            };
            let past = if rng.below(3) == 0 { 0 } else { rng.below(max_past + 1) };
            let context = (past + queries).max(1);
            Row { sequence, queries, context, prefix: rng.below(context + 8) }
        })
        .collect()
}

fn contexts(rows: &[Row]) -> Vec<usize> {
    rows.iter().map(|r| r.context).collect()
}

/// The tolerance of a result: the rounding of weights and of the result to the type of activations,
/// and the sums in f32.
fn tolerance(shape: Shape, kernel: PrefillKernel) -> f32 {
    match kernel {
        PrefillKernel::Plain => 1e-5,
        // The error of a sum with rounded weights is at most one rounding of the largest value.
        _ => 1.0 * precision(shape.activations) + 1e-5,
    }
}

fn check(rng: &mut Rng, shape: Shape, rows: &[Row], features: Features, kernels: &[PrefillKernel]) {
    let cache = Cache::random(rng, shape, &contexts(rows));
    let step = Step::random(rng, &cache, rows, features);
    let want = step.reference(&cache);
    for &kernel in kernels {
        let got = run(kernel, &cache, &step);
        let name = format!("{kernel:?} {shape:?} {rows:?} {:?}", step.features);
        assert_close(&name, &got, &want, precision(shape.activations) * 1.01, tolerance(shape, kernel));
    }
}

#[test]
fn the_plain_kernel_matches_the_reference_for_any_shape() {
    for_seeds(40, |rng| {
        let kv_heads = rng.pick(&[1, 2, 3]);
        let shape = Shape {
            heads: kv_heads * rng.pick(&[1, 2, 4]),
            kv_heads,
            head_dim: rng.pick(&[1, 8, 20, 64, 72, 128]),
            block_size: rng.pick(&[1, 3, 16, 32]),
            activations: rng.pick(&ACTIVATIONS),
            cached: rng.pick(&ALL_CACHED),
        };
        let rows = random_rows(rng, 4, 20, 50);
        let features = Features::random(rng, shape.heads, shape.head_dim);
        check(rng, shape, &rows, features, &[PrefillKernel::Plain]);
    });
}

/// Each compiled variant of the plain kernel runs, whatever the random shapes are.
#[test]
fn the_plain_kernel_reads_every_type() {
    for activations in ACTIVATIONS {
        for cached in ALL_CACHED {
            let shape = Shape { heads: 2, kv_heads: 1, head_dim: 20, block_size: 3, activations, cached };
            let rows = [Row { sequence: 0, queries: 2, context: 9, prefix: 0 }];
            check(&mut Rng(11), shape, &rows, Features::plain(20), &[PrefillKernel::Plain]);
        }
    }
}

/// A shape with 64 features per head and the same type everywhere.
fn small_shape(heads: usize, kv_heads: usize, elem: Elem) -> Shape {
    Shape { heads, kv_heads, head_dim: 64, block_size: 16, activations: elem, cached: elem }
}

/// A random shape that the fast kernels take.
fn fast_shape(rng: &mut Rng, head_dim: usize) -> Shape {
    let kv_heads = rng.pick(&[1, 2]);
    let elem = rng.pick(&HALVES);
    Shape {
        heads: kv_heads * rng.pick(&[1, 2]),
        kv_heads,
        head_dim,
        block_size: 16,
        activations: elem,
        cached: elem,
    }
}

/// A step's first sequences may be left out, as those that decode are. The others get the same
/// result.
#[test]
fn the_first_sequences_may_be_left_out() {
    for_seeds(8, |rng| {
        let head_dim = rng.pick(&[64, 128]);
        let shape = fast_shape(rng, head_dim);
        let mut rows = random_rows(rng, 4, 70, 40);
        // Up to more sequences of one query than a block has queries.
        let singles = rng.pick(&[1, 3, 130, 300]);
        let others = rows.len();
        rows.iter_mut().enumerate().for_each(|(i, row)| row.sequence = singles.min(1) + i);
        rows.splice(0..0, (0..singles).map(|_| Row { sequence: 0, queries: 1, context: 1, prefix: 0 }));
        assert_eq!(rows.len(), singles + others);
        let contexts: Vec<usize> =
            [1].into_iter().chain(rows[singles..].iter().map(|row| row.context)).collect();
        let cache = Cache::random(rng, shape, &contexts);
        let step = Step::random(rng, &cache, &rows, Features::plain(head_dim));
        let width = shape.heads * shape.head_dim;
        for kernel in [PrefillKernel::Plain, PrefillKernel::Mma] {
            let want = run(kernel, &cache, &step);
            let got = run_without_first(kernel, &cache, &step, singles);
            assert_eq!(got[singles * width..], want[singles * width..], "{kernel:?}");
            assert!(got[..singles * width].iter().all(|x| x.is_nan()), "{kernel:?}: others were touched");
        }
    });
}

/// The output of a step whose first `left_out` rows, of one query each, are left out. These are
/// NaN.
fn run_without_first(kernel: PrefillKernel, cache: &Cache, step: &Step, left_out: usize) -> Vec<f32> {
    let Shape { heads, head_dim, activations, .. } = cache.shape;
    let out = garbage(activations, step.tokens() * heads * head_dim);
    let all = attention(cache, step, &out);
    let (rows, stride) = (step.rows.len(), all.batch.table_stride);
    let batch = SequenceBatch {
        rows: rows - left_out,
        query_start: all.batch.query_start.slice(left_out..rows + 1),
        context: all.batch.context.slice(left_out..rows),
        tables: all.batch.tables.slice(left_out * stride..rows * stride),
        ..all.batch
    };
    prefill_by(&DEVICE, kernel, &PagedAttention { batch, ..all }).unwrap();
    get(out.view(activations))
}

/// The kernel for Hopper matches the reference and the kernel for all GPUs. Only a Hopper GPU and
/// the PTX interpreter can run it.
#[test]
fn the_hopper_kernel_matches_the_reference() {
    if !DEVICE.properties().runs_hopper_kernels {
        return;
    }
    for_seeds(40, |rng| {
        let head_dim = rng.pick(&[64, 128, 256]);
        let shape = fast_shape(rng, head_dim);
        let rows = random_rows(rng, 5, 600, 900);
        let mut features = Features::random(rng, shape.heads, head_dim);
        (features.soft_cap, features.alibi) = (None, None);
        check(rng, shape, &rows, features, &[PrefillKernel::Hopper, PrefillKernel::Mma]);
    });
}

/// Five tiles of keys, the last of which ends within a block, and two of queries; one tile alone;
/// and a window that begins within a tile.
#[test]
fn the_hopper_kernel_at_the_edges_of_tiles() {
    if !DEVICE.properties().runs_hopper_kernels {
        return;
    }
    for (which, head_dim) in [64, 128, 256, 64, 128, 256].into_iter().enumerate() {
        let mut rng = Rng(which as u64);
        let shape = Shape {
            heads: 1,
            kv_heads: 1,
            head_dim,
            block_size: 16,
            activations: HALVES[which % 2],
            cached: HALVES[which % 2],
        };
        let tile = if head_dim > 128 { 64 } else { 128 };
        let row = |sequence, queries, context| Row { sequence, queries, context, prefix: 0 };
        let rows = [row(0, 130, 4 * tile + 19), row(1, 5, tile - 3), row(2, 1, 2 * tile)];
        let mut features = Features::plain(head_dim);
        check(&mut rng, shape, &rows, features.clone(), &[PrefillKernel::Hopper]);
        features.window = Some(KeyWindow::Last(tile + 40));
        check(&mut rng, shape, &rows[..1], features, &[PrefillKernel::Hopper]);
    }
}

#[test]
fn the_fast_kernel_matches_the_reference_with_all_features() {
    for_seeds(25, |rng| {
        let head_dim = [64, 80, 96, 128, 256][rng.below(5)];
        let shape = fast_shape(rng, head_dim);
        let rows = random_rows(rng, 3, 150, 150);
        let features = Features::random(rng, shape.heads, head_dim);
        check(rng, shape, &rows, features, &[PrefillKernel::Mma, PrefillKernel::Plain]);
    });
}

/// Every pair of head size and type runs in both compiled variants, with lengths around the edges
/// of tiles.
#[test]
fn the_fast_kernel_matches_the_reference_at_the_edges_of_tiles() {
    let mut which = 0;
    for head_dim in [64, 80, 96, 128, 256] {
        for elem in HALVES {
            for biased in [false, true] {
                which += 1;
                let mut rng = Rng(which);
                let shape = Shape {
                    heads: 1,
                    kv_heads: 1,
                    head_dim,
                    block_size: 16,
                    activations: elem,
                    cached: elem,
                };
                let queries = [63, 64, 65, 127, 128, 129][which as usize % 6];
                let row = Row { sequence: 0, queries, context: queries + which as usize % 3, prefix: 0 };
                let mut features = Features::plain(head_dim);
                features.alibi = biased.then(|| vec![0.1]);
                check(&mut rng, shape, &[row], features, &[PrefillKernel::Mma]);
            }
        }
    }
}

/// There are more sequences than a block looks at in one round of the search for its own.
#[test]
fn many_short_sequences_match_the_reference() {
    let mut rng = Rng(7);
    let rows: Vec<Row> = (0..75)
        .map(|sequence| {
            let queries = [1, 0, 3, 2, 1, 130][if sequence % 25 == 6 { 5 } else { sequence % 5 }];
            Row { sequence, queries, context: queries.max(1) + sequence % 3, prefix: 0 }
        })
        .collect();
    let shape = small_shape(1, 1, Elem::BF16);
    check(&mut rng, shape, &rows, Features::plain(64), &[PrefillKernel::Mma, PrefillKernel::Plain]);
}

/// A query's result has the same bits whether its prompt comes whole, in chunks, after a cached
/// prefix, or beside others.
#[test]
fn chunks_and_other_sequences_make_no_difference() {
    for_seeds(6, |rng| {
        let hopper = DEVICE.properties().runs_hopper_kernels;
        let kernel = rng.pick(&[
            if hopper { PrefillKernel::Hopper } else { PrefillKernel::Mma },
            PrefillKernel::Mma,
            PrefillKernel::Plain,
        ]);
        let head_dim = rng.pick(&[64, 128, 256]);
        let shape = fast_shape(rng, head_dim);
        let length = 150 + rng.below(100);
        let mut features = Features::random(rng, shape.heads, head_dim);
        // With a prefix, queries of an earlier chunk would have to see keys of a later one.
        features.prefix = false;
        if kernel == PrefillKernel::Hopper {
            (features.soft_cap, features.alibi) = (None, None);
        }
        let cache = Cache::random(rng, shape, &[40, length, 70]);
        let width = shape.heads * head_dim;
        let queries = rng.values(shape.activations, length * width);
        let row = |from: usize, to: usize| Row { sequence: 1, queries: to - from, context: to, prefix: 0 };
        let part = |from: usize, to: usize| {
            let step =
                Step::new(&cache, &[row(from, to)], features.clone(), &queries[from * width..to * width]);
            run(kernel, &cache, &step)
        };
        let whole = part(0, length);
        assert!(whole.iter().all(|x| x.is_finite()));
        let cuts = [0, 1, 17 + rng.below(20), 64 + rng.below(80), length - 1, length];
        for cut in cuts.windows(2) {
            let expected = &whole[cut[0] * width..cut[1] * width];
            assert!(part(cut[0], cut[1]) == expected, "{kernel:?} {shape:?} cut {cut:?} {features:?}");
        }
        let others = [
            Row { sequence: 0, queries: 7, context: 40, prefix: 0 },
            row(0, length),
            Row { sequence: 2, queries: 70, context: 70, prefix: 0 },
        ];
        let mut all = rng.values(shape.activations, 7 * width);
        all.extend(&queries);
        all.extend(rng.values(shape.activations, 70 * width));
        let together = run(kernel, &cache, &Step::new(&cache, &others, features.clone(), &all));
        assert!(together[7 * width..(7 + length) * width] == whole[..], "{kernel:?} {shape:?} beside others");
    });
}

/// Three queries stand at the end of a long context.
#[test]
fn a_long_context_matches_the_reference() {
    let mut rng = Rng(3);
    let shape = small_shape(1, 1, Elem::BF16);
    let rows = [Row { sequence: 0, queries: 3, context: 9000, prefix: 0 }];
    check(&mut rng, shape, &rows, Features::plain(64), &[PrefillKernel::Mma, PrefillKernel::Plain]);
    let windowed = Features { window: Some(KeyWindow::Last(100)), ..Features::plain(64) };
    check(&mut rng, shape, &rows, windowed, &[PrefillKernel::Mma, PrefillKernel::Plain]);
}

/// Large scores of both signs do not overflow, and the largest one wins.
#[test]
fn large_scores_match_the_reference() {
    let mut rng = Rng(4);
    let shape = small_shape(2, 1, Elem::BF16);
    let rows = [Row { sequence: 0, queries: 70, context: 80, prefix: 0 }];
    let features = Features { scale: 40.0, sinks: Some(vec![300.0, -1e4]), ..Features::default() };
    // With such scores, weights change with the last bits of the scores.
    let cache = Cache::random(&mut rng, shape, &[80]);
    let step = Step::random(&mut rng, &cache, &rows, features);
    for kernel in [PrefillKernel::Mma, PrefillKernel::Plain] {
        assert_close("large scores", &run(kernel, &cache, &step), &step.reference(&cache), 0.01, 0.01);
    }
}

#[test]
fn the_fastest_kernel_is_chosen() {
    let mut rng = Rng(5);
    let (cache, step) = small_step(&mut rng);
    let out = garbage(Elem::F16, 3 * 128);
    prefill(&DEVICE, &attention(&cache, &step, &out)).unwrap();
    let fastest =
        if DEVICE.properties().runs_hopper_kernels { PrefillKernel::Hopper } else { PrefillKernel::Mma };
    assert!(get(out.view(Elem::F16)) == run(fastest, &cache, &step));
}

/// A step of one sequence with three queries.
fn small_step(rng: &mut Rng) -> (Cache, Step) {
    let cache = Cache::random(rng, small_shape(2, 2, Elem::F16), &[5]);
    let rows = [Row { sequence: 0, queries: 3, context: 5, prefix: 0 }];
    let step = Step::random(rng, &cache, &rows, Features::plain(64));
    (cache, step)
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let mut rng = Rng(5);
    let (cache, step) = small_step(&mut rng);
    let out = garbage(Elem::F16, 3 * 128);
    let good = attention(&cache, &step, &out);
    let refused = |a: PagedAttention<'_>| {
        let plain = attention_plain(&DEVICE, &a).unwrap_err().to_string();
        assert_eq!(plain, prefill(&DEVICE, &a).unwrap_err().to_string());
        plain
    };
    assert!(refused(PagedAttention { heads: 3, ..good }).contains("3 heads cannot share 2"));
    assert!(refused(PagedAttention { stride: 100, ..good }).contains("rows of 100"));
    assert!(
        refused(PagedAttention { out: out.view(Elem::F16).slice(0..300), ..good }).contains("out has 300")
    );
    let mut long = good;
    long.batch.max_context = 1000;
    assert!(refused(long).contains("hold no 1000 keys"));
    let mut zero = good;
    zero.scores.scale = 0.0;
    assert!(refused(zero).contains("a scale of 0"));
    let mut narrow = good;
    narrow.scores.window = Some(KeyWindow::Last(0));
    assert!(refused(narrow).contains("a window of no keys"));
    let mut capped = good;
    capped.scores.soft_cap = Some(f32::NAN);
    assert!(refused(capped).contains("a soft cap of NaN"));
    let mut blocks = good;
    blocks.kv.block_size = 1;
    let refusal = prefill_by(&DEVICE, PrefillKernel::Mma, &blocks).unwrap_err().to_string();
    assert!(refusal.contains("blocks of 1"));
}
