//! Sampling on the device and by the host's sampler, which choose the same tokens for the same
//! seeds.

use millrace_backend::reference::Reference;
use millrace_backend::{
    HostMemory, ModelLoading, Result, SampleRow, Sampled, SamplingParams, ScoreRow, Scored, StepInput,
    StepQueue, Watermark,
};
use millrace_cuda::ops::sample::{
    COLUMNS, RowSampling, SampleBounds, SampleOutputs, SampleRows, encode, encode_given, sample,
    sample_plain, score, workspace,
};
use millrace_cuda::{Device, Elem, Memory};

use crate::common::*;

const VOCABULARIES: [usize; 10] = [1, 7, 32, 33, 1000, 2047, 4096, 4100, 12345, 32000];

#[derive(Debug, Clone)]
struct Row {
    params: SamplingParams,
    tokens: Vec<u32>,
    prompt_len: usize,
    mask: Option<Vec<u32>>,
    logits: Vec<f32>,
}

/// The results of the host's sampler. It has no masks: a forbidden token gets a bias of minus
/// infinity.
fn reference(vocab: usize, rows: &[Row]) -> Vec<Sampled> {
    let (mut chosen, mut queue) = (Vec::new(), millrace_backend::reference::Queue::default());
    for row in rows {
        let mut params = row.params.clone();
        for id in 0..vocab {
            if row.mask.as_ref().is_some_and(|mask| mask[id / 32] >> (id % 32) & 1 == 0) {
                params.logit_bias.push((id as u32, f32::NEG_INFINITY));
            }
        }
        let mut buf = Reference.buf(1, vocab).unwrap();
        Reference.host_mut(&mut buf, 1).copy_from_slice(&row.logits);
        let input =
            SampleRow { params: &params, tokens: &row.tokens, prompt_len: row.prompt_len, allowed: None };
        let mut step = Reference.prepare(Reference.begin(&mut queue, &StepInput::EMPTY).unwrap()).unwrap();
        Reference.sample(&mut step, &mut buf, &[input]).unwrap();
        let mut sampled = Reference.sampled(&mut step).remove(0);
        // A row without a finite logit gives the first allowed token.
        if let (true, Some(mask)) = (sampled.logprob.is_nan(), &row.mask) {
            sampled.token =
                (0..vocab as u32).find(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1).unwrap_or(0);
        }
        chosen.push(sampled);
    }
    chosen
}

fn put_f32(values: &[f32]) -> Memory {
    put(Elem::F32, values)
}

fn words(memory: &Memory) -> Vec<u32> {
    let bytes = DEVICE.read(memory.view(Elem::U32)).unwrap();
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// The results of the device.
fn on_device(
    run: fn(&Device, &SampleRows<'_>) -> Result<()>,
    vocab: usize,
    rows: &[Row],
    rng: &mut Rng,
) -> Vec<Sampled> {
    let n = rows.len();
    let logits: Vec<f32> = rows.iter().flat_map(|row| row.logits.iter().copied()).collect();
    // Sequences lie in the history in another order than in the batch, between garbage.
    let slots = rng.shuffled(n + 2);
    let longest = rows.iter().map(|row| row.tokens.len()).max().unwrap_or(0) + rng.below(3);
    let mut history = vec![u32::MAX; slots.len() * longest];
    let (mut mask_words, mut masks, mask_stride) = (Vec::new(), 0, vocab.div_ceil(32) + rng.below(2));
    let (mut bias_ids, mut biases) = (vec![0u32], vec![1e9f32]);
    let mut choices = Vec::new();
    for (row, &slot) in rows.iter().zip(&slots) {
        let slot = slot as usize;
        history[slot * longest..][..row.tokens.len()].copy_from_slice(&row.tokens);
        let mask = row.mask.as_ref().map(|mask| {
            mask_words.extend_from_slice(mask);
            mask_words.resize((masks + 1) * mask_stride, 0);
            masks += 1;
            masks - 1
        });
        let first = bias_ids.len();
        bias_ids.extend(row.params.logit_bias.iter().map(|b| b.0));
        biases.extend(row.params.logit_bias.iter().map(|b| b.1));
        choices.push(RowSampling {
            params: &row.params,
            tokens: row.tokens.len(),
            prompt_len: row.prompt_len,
            slot,
            mask,
            biases: (first, row.params.logit_bias.len()),
        });
    }
    let top_stride = rows.iter().map(|row| row.params.top_n as usize).max().unwrap_or(0) + rng.below(2);
    let bounds =
        SampleBounds { history: (slots.len(), longest), masks, biases: biases.len(), top_n: top_stride };
    let stride = n + rng.below(3);
    let mut table = vec![u32::MAX; COLUMNS * stride];
    encode(choices.iter().copied(), &bounds, stride, &mut table).unwrap();

    let (logits, table, history) = (put_f32(&logits), put_u32(&table), put_u32(&history));
    let (bias_ids, biases, mask_words) = (put_u32(&bias_ids), put_f32(&biases), put_u32(&mask_words));
    let space = garbage(Elem::U8, workspace(n, vocab));
    let (tokens, logprobs, counts) = (garbage(Elem::U32, n), garbage(Elem::F32, n), garbage(Elem::U32, n));
    let (top_ids, top_logprobs) = (garbage(Elem::U32, n * top_stride), garbage(Elem::F32, n * top_stride));
    let rows = SampleRows {
        rows: n,
        vocab,
        logits: logits.view(Elem::F32),
        table: table.view(Elem::U32),
        table_stride: stride,
        history: (longest > 0).then(|| (history.view(Elem::U32), longest)),
        biases: Some((bias_ids.view(Elem::U32), biases.view(Elem::F32))),
        masks: (masks > 0).then(|| (mask_words.view(Elem::U32), mask_stride)),
        workspace: space.view(Elem::U8),
        chosen: SampleOutputs {
            tokens: tokens.view(Elem::U32),
            logprobs: logprobs.view(Elem::F32),
            top_ids: top_ids.view(Elem::U32),
            top_logprobs: top_logprobs.view(Elem::F32),
            top_counts: counts.view(Elem::U32),
            top_stride,
        },
    };
    run(&DEVICE, &rows).unwrap();
    let (tokens, counts, top_ids) = (words(&tokens), words(&counts), words(&top_ids));
    let (logprobs, top_logprobs) = (get(logprobs.view(Elem::F32)), get(top_logprobs.view(Elem::F32)));
    let one = |r: usize| {
        let all = r * top_stride..r * top_stride + counts[r] as usize;
        let top = top_ids[all.clone()].iter().copied().zip(top_logprobs[all].iter().copied());
        Sampled { token: tokens[r], logprob: logprobs[r], top: top.collect() }
    };
    (0..n).map(one).collect()
}

/// Asserts that ids are equal and log-probabilities are close.
fn assert_same(what: &str, got: &Sampled, want: &Sampled) {
    let close =
        |g: f32, w: f32| g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= 1e-5 + 3e-7 * w.abs();
    let tops = got.top.len() == want.top.len()
        && got.top.iter().zip(&want.top).all(|(g, w)| g.0 == w.0 && close(g.1, w.1));
    assert!(
        got.token == want.token && close(got.logprob, want.logprob) && tops,
        "{what}: {got:?}, not {want:?}"
    );
}

fn check(vocab: usize, rows: &[Row], rng: &mut Rng) {
    let want = reference(vocab, rows);
    for (name, run) in
        [("fast", sample as fn(&Device, &SampleRows<'_>) -> Result<()>), ("plain", sample_plain)]
    {
        for ((got, want), row) in on_device(run, vocab, rows, rng).iter().zip(&want).zip(rows) {
            let masked = row.mask.is_some();
            let what = format!(
                "{name}, {vocab} tokens, masked {masked}, {} seen, {:?}",
                row.tokens.len(),
                row.params
            );
            assert_same(&what, got, want);
        }
    }
}

/// A number from a roughly normal distribution.
fn normal(rng: &mut Rng) -> f32 {
    (0..6).map(|_| rng.unit()).sum::<f32>() * 0.7
}

fn logits(vocab: usize, rng: &mut Rng) -> Vec<f32> {
    let scale = rng.pick(&[0.01, 1.0, 2.0, 4.0]);
    let mut all: Vec<f32> = (0..vocab).map(|_| normal(rng) * scale).collect();
    match rng.below(6) {
        // As with a language model, a few tokens stand out.
        0 | 1 => (0..rng.below(30)).for_each(|_| all[rng.below(vocab)] += 8.0 + 4.0 * rng.unit()),
        // Many logits are equal, and there are zeros of both signs.
        2 => all.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0),
        3 => all.iter_mut().for_each(|x| *x = round(Elem::BF16, *x)),
        // The logits are extreme, and sometimes one is NaN or infinite and makes the row invalid.
        4 => {
            let few = rng.below(2) == 0;
            for _ in 0..1 + vocab / 3 {
                let odd = [f32::NEG_INFINITY, f32::MAX, -f32::MAX, 1e-40, -0.0];
                all[rng.below(vocab)] = rng.pick(&odd[..if few { 1 } else { 5 }]);
            }
            if rng.below(3) == 0 {
                all[rng.below(vocab)] = rng.pick(&[f32::NAN, -f32::NAN, f32::INFINITY]);
            }
        }
        _ => {}
    }
    all
}

/// Returns `off` or a value of `on`, each in half of the cases.
fn maybe<T>(rng: &mut Rng, off: T, on: impl FnOnce(&mut Rng) -> T) -> T {
    if rng.below(2) == 0 { off } else { on(rng) }
}

fn random_row(vocab: usize, rng: &mut Rng) -> Row {
    let mut params = SamplingParams {
        do_sample: rng.below(4) > 0,
        temperature: rng.pick(&[1.0, 0.7, 1.3, 0.2, 2.5, 1e-3]),
        top_k: maybe(rng, 0, |rng| rng.pick(&[1, 2, 5, 40, 64, 300, 3000])),
        top_p: maybe(rng, 1.0, |rng| rng.pick(&[0.01, 0.5, 0.9, 0.95, 0.999])),
        min_p: maybe(rng, 0.0, |rng| rng.pick(&[0.02, 0.1, 0.9, 1e-6])),
        typical_p: maybe(rng, 1.0, |rng| rng.pick(&[0.1, 0.5, 0.9, 0.99])),
        seed: rng.next(),
        top_n: maybe(rng, 0, |rng| rng.below(21) as u32),
        warped_logprobs: rng.below(2) == 1,
        ..SamplingParams::default()
    };
    if rng.below(3) == 0 {
        params = SamplingParams { top_k: 0, top_p: 1.0, typical_p: 1.0, ..params };
    }
    let tokens = (0..rng.below(60)).map(|_| rng.below(vocab.min(50) + 1) as u32);
    let mut tokens: Vec<u32> =
        tokens.map(|t| if t % 3 == 0 { t } else { (t * 977) % (vocab as u32 + 1) }).collect();
    if rng.below(3) == 0 {
        params.repetition_penalty = rng.pick(&[0.5, 1.3, 1.0]);
        params.frequency_penalty = rng.pick(&[0.0, 0.3, -0.7]);
        params.presence_penalty = rng.pick(&[0.0, 0.5, -0.2]);
    }
    if rng.below(4) == 0 {
        params.logit_bias = (0..rng.below(12))
            .map(|_| (rng.below(vocab.min(20) + 1) as u32 * 601 % (vocab as u32 + 1), 6.0 * rng.unit()))
            .collect();
    }
    if rng.below(8) == 0 {
        // End tokens that would come too early have such biases.
        params.logit_bias.push((rng.below(vocab) as u32, f32::NEG_INFINITY));
    }
    let mask = (rng.below(4) == 0).then(|| {
        let kind = rng.below(4);
        let mut mask: Vec<u32> = (0..vocab.div_ceil(32))
            .map(|_| match kind {
                0 => rng.next() as u32,
                1 if rng.below(20) == 0 => rng.next() as u32 & rng.next() as u32,
                2 => u32::MAX,
                _ => 0,
            })
            .collect();
        if kind == 3 {
            let id = rng.below(vocab);
            mask[id / 32] |= u32::from(rng.below(3) > 0) << (id % 32);
        }
        if !vocab.is_multiple_of(32) {
            mask[vocab / 32] &= (1 << (vocab % 32)) - 1;
        }
        mask
    });
    if rng.below(30) == 0 {
        tokens.clear();
    }
    let prompt_len = rng.below(tokens.len() + 1);
    let logits = if rng.below(25) == 0 {
        vec![rng.pick(&[f32::NAN, f32::NEG_INFINITY, f32::INFINITY]); vocab]
    } else {
        logits(vocab, rng)
    };
    if rng.below(4) == 0 {
        params.watermark =
            Some(Watermark { gamma: rng.pick(&[0.1, 0.5, 0.9]), delta: rng.pick(&[2.0, -3.0, 8.0]) });
    }
    Row { params, tokens, prompt_len, mask, logits }
}

#[test]
fn random_rows_match_the_host() {
    for_seeds(60, |rng| {
        let vocab = rng.pick(&VOCABULARIES);
        let n = rng.below(if vocab > 4096 { 4 } else { 12 });
        let rows: Vec<Row> = (0..n).map(|_| random_row(vocab, rng)).collect();
        check(vocab, &rows, rng);
    });
}

/// The vocabulary of Qwen has more segments than candidates come from, and nuclei of many tokens.
#[test]
fn a_large_vocabulary_matches_the_host() {
    for_seeds(3, |rng| {
        let vocab = 151_936;
        let mut row = random_row(vocab, rng);
        row.params.do_sample = true;
        row.params.top_n = 20;
        let want = reference(vocab, std::slice::from_ref(&row));
        let got = on_device(sample, vocab, std::slice::from_ref(&row), rng);
        assert_same(&format!("{:?}", row.params), &got[0], &want[0]);
    });
}

/// Candidates by segment do not suffice for a flat distribution, thousands of ties, and more tokens
/// than the list holds.
#[test]
fn wide_filters_match_the_host() {
    let base = SamplingParams { do_sample: true, top_n: 20, ..SamplingParams::default() };
    let cases = [
        SamplingParams { top_p: 0.95, warped_logprobs: true, ..base.clone() },
        SamplingParams { top_k: 4000, warped_logprobs: true, ..base.clone() },
        SamplingParams {
            top_k: 3000,
            top_p: 0.9,
            min_p: 0.01,
            typical_p: 0.9,
            warped_logprobs: true,
            ..base.clone()
        },
        SamplingParams { typical_p: 0.5, ..base.clone() },
        SamplingParams { typical_p: 0.7, warped_logprobs: true, min_p: 0.001, ..base.clone() },
        SamplingParams { do_sample: false, ..base.clone() },
    ];
    for_seeds(2, |rng| {
        for ties in [false, true] {
            let vocab = 8200;
            let one = |params: &SamplingParams, rng: &mut Rng| {
                let all = (0..vocab).map(|_| normal(rng));
                let logits: Vec<f32> =
                    if ties { all.map(|x| (x * 0.7).round()).collect() } else { all.collect() };
                let params = SamplingParams { seed: rng.next(), ..params.clone() };
                Row { params, tokens: vec![3; 5], prompt_len: 5, mask: None, logits }
            };
            let rows: Vec<Row> = cases.iter().map(|params| one(params, rng)).collect();
            check(vocab, &rows, rng);
        }
    });
}

/// A nucleus ends within a long tail, whose tokens are each very unlikely and together have a third
/// of the mass.
#[test]
fn a_long_tail_matches_the_host() {
    for_seeds(2, |rng| {
        let vocab = 8200;
        let mut logits: Vec<f32> = (0..vocab).map(|_| rng.unit() * 0.2 - 9.6).collect();
        logits[rng.below(vocab)] = 0.0;
        let params = |top_p, rng: &mut Rng| SamplingParams {
            do_sample: true,
            top_p,
            warped_logprobs: true,
            top_n: 1,
            seed: rng.next(),
            ..SamplingParams::default()
        };
        let row = |top_p, rng: &mut Rng| Row {
            params: params(top_p, rng),
            tokens: vec![3; 5],
            prompt_len: 5,
            mask: None,
            logits: logits.clone(),
        };
        let rows: Vec<Row> = [0.7, 0.8, 0.95].into_iter().map(|top_p| row(top_p, rng)).collect();
        check(vocab, &rows, rng);
    });
}

/// A row's result does not depend on other rows.
#[test]
fn other_rows_make_no_difference() {
    for_seeds(3, |rng| {
        let rows: Vec<Row> = (0..5).map(|_| random_row(5000, rng)).collect();
        let together = on_device(sample, 5000, &rows, rng);
        for (row, want) in rows.iter().zip(&together) {
            let alone = on_device(sample, 5000, std::slice::from_ref(row), rng).remove(0);
            let bits = |s: &Sampled| {
                let top: Vec<_> = s.top.iter().map(|t| (t.0, t.1.to_bits())).collect();
                (s.token, s.logprob.to_bits(), top)
            };
            assert_eq!(bits(&alone), bits(want), "{:?}", row.params);
        }
    });
}

/// The frequencies of draws at successive positions follow the distribution. The bound is the
/// 99.99% quantile of chi-square.
#[test]
fn draws_follow_the_distribution() {
    let mut rng = Rng(7);
    let logits: Vec<f32> = (0..12).map(|_| rng.unit() * 2.0).collect();
    let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
    let (rows, seeds) = (250, 6);
    let mut counts = [0usize; 12];
    for seed in 0..seeds {
        let params = SamplingParams { do_sample: true, seed: seed << 33, ..SamplingParams::default() };
        let all: Vec<Row> = (0..rows)
            .map(|n| Row {
                params: params.clone(),
                tokens: vec![0; n],
                prompt_len: 0,
                mask: None,
                logits: logits.clone(),
            })
            .collect();
        on_device(sample, logits.len(), &all, &mut rng).iter().for_each(|s| counts[s.token as usize] += 1);
    }
    let draws = (rows * seeds as usize) as f64;
    let chi: f64 = logits
        .iter()
        .zip(counts)
        .map(|(x, count)| {
            let expected = draws * f64::from(*x).exp() / total;
            (count as f64 - expected).powi(2) / expected
        })
        .sum();
    // 11 degrees of freedom.
    assert!(chi < 37.4, "chi-square {chi:.1} of {counts:?}");
}

/// The scores of given tokens on the device, each by a row of logits.
fn scored_on_device(vocab: usize, rows: &[ScoreRow], logits: &[f32]) -> Vec<Scored> {
    let n = rows.len();
    let top_stride = rows.iter().map(|row| row.top_n as usize).max().unwrap_or(0);
    let mut table = vec![0; (COLUMNS + 1) * n];
    encode_given(rows, vocab, top_stride, &mut table).unwrap();
    let (logits, table, space) = (put_f32(logits), put_u32(&table), garbage(Elem::U8, workspace(n, vocab)));
    let (ranks, logprobs, counts) = (garbage(Elem::U32, n), garbage(Elem::F32, n), garbage(Elem::U32, n));
    let (top_ids, top_logprobs) = (garbage(Elem::U32, n * top_stride), garbage(Elem::F32, n * top_stride));
    let all = SampleRows {
        rows: n,
        vocab,
        logits: logits.view(Elem::F32),
        table: table.view(Elem::U32).slice(0..COLUMNS * n),
        table_stride: n,
        history: None,
        biases: None,
        masks: None,
        workspace: space.view(Elem::U8),
        chosen: SampleOutputs {
            tokens: ranks.view(Elem::U32),
            logprobs: logprobs.view(Elem::F32),
            top_ids: top_ids.view(Elem::U32),
            top_logprobs: top_logprobs.view(Elem::F32),
            top_counts: counts.view(Elem::U32),
            top_stride,
        },
    };
    score(&DEVICE, &all, table.view(Elem::U32).slice(COLUMNS * n..(COLUMNS + 1) * n)).unwrap();
    let (ranks, logprobs) = (words(&ranks), get(logprobs.view(Elem::F32)));
    let (counts, ids, tops) = (words(&counts), words(&top_ids), get(top_logprobs.view(Elem::F32)));
    let top = |r: usize| {
        let count = if top_stride > 0 { counts[r] as usize } else { 0 };
        (0..count).map(|i| (ids[r * top_stride + i], tops[r * top_stride + i])).collect()
    };
    (0..n).map(|r| Scored { rank: ranks[r], logprob: logprobs[r], top: top(r) }).collect()
}

#[test]
fn scores_match_the_host() {
    for_seeds(60, |rng| {
        let vocab = rng.pick(&VOCABULARIES);
        let n = 1 + rng.below(if vocab > 4096 { 4 } else { 12 });
        let most = rng.pick(&[0, 1, 5, 128]).min(vocab);
        let (mut given, mut all) = (Vec::new(), Vec::new());
        for _ in 0..n {
            let mut row = logits(vocab, rng);
            if rng.below(25) == 0 {
                row.fill(rng.pick(&[f32::NAN, f32::NEG_INFINITY, f32::INFINITY]));
            }
            // Half of the given tokens are likely.
            let mut token = rng.below(vocab);
            for _ in 0..if rng.below(2) == 0 { vocab } else { 0 } {
                let other = rng.below(vocab);
                token = if row[other] > row[token] { other } else { token };
            }
            given.push(ScoreRow { token: token as u32, top_n: rng.below(most + 1) as u32 });
            all.extend(row);
        }
        let (mut buf, mut want) = (Reference.buf(n, vocab).unwrap(), Vec::new());
        Reference.host_mut(&mut buf, n).copy_from_slice(&all);
        let mut queue = millrace_backend::reference::Queue::default();
        let begun = Reference.begin(&mut queue, &StepInput::EMPTY).unwrap();
        let mut step = Reference.prepare(begun).unwrap().without_sampling();
        Reference.score(&mut step, &mut buf, &given, &mut want).unwrap();
        for ((got, want), row) in scored_on_device(vocab, &given, &all).into_iter().zip(want).zip(&given) {
            let alike = |of: Scored| Sampled { token: of.rank, logprob: of.logprob, top: of.top };
            assert_same(&format!("{row:?} of {vocab} tokens"), &alike(got), &alike(want));
        }
    });
}

#[test]
fn bad_input_is_refused() {
    let encoded = |token, top_n| encode_given(&[ScoreRow { token, top_n }], 9, 3, &mut [0; COLUMNS + 1]);
    assert!(encoded(8, 3).is_ok() && encoded(9, 3).is_err() && encoded(8, 4).is_err());
    assert!(encode_given(&[], 9, 3, &mut [0]).is_err());
    let params = SamplingParams { repetition_penalty: 1.2, top_n: 3, ..SamplingParams::default() };
    let good =
        RowSampling { params: &params, tokens: 5, prompt_len: 2, slot: 1, mask: Some(0), biases: (2, 3) };
    let bounds = SampleBounds { history: (2, 5), masks: 1, biases: 5, top_n: 3 };
    let refused = |choice: RowSampling<'_>, bounds: &SampleBounds| {
        let mut table = vec![0; COLUMNS];
        encode([choice].into_iter(), bounds, 1, &mut table).unwrap_err().to_string()
    };
    assert!(encode([good].into_iter(), &bounds, 1, &mut [0; COLUMNS]).is_ok());
    assert!(encode([good].into_iter(), &bounds, 1, &mut [0; COLUMNS - 1]).is_err());
    assert!(refused(RowSampling { slot: 2, ..good }, &bounds).contains("history"));
    assert!(refused(RowSampling { tokens: 6, ..good }, &bounds).contains("history"));
    assert!(refused(RowSampling { mask: Some(1), ..good }, &bounds).contains("mask"));
    assert!(refused(RowSampling { biases: (3, 3), ..good }, &bounds).contains("biases"));
    assert!(refused(RowSampling { biases: (usize::MAX, 3), ..good }, &bounds).contains("biases"));
    assert!(refused(good, &SampleBounds { top_n: 2, ..bounds }).contains("top"));
}
