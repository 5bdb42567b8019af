//! Tests of sampling against independent, naive computations in double precision.

use millrace_backend::reference::Reference;
use millrace_backend::sampling::watermark;
use millrace_backend::{
    Backend, SampleRow, Sampled, SampledRows, SamplingParams, ScoreRow, Scored, StepInput, Watermark,
};
use proptest::prelude::{Just, Strategy, prop, prop_assert, prop_assert_eq, prop_compose, proptest};

use crate::common::*;

fn sample<B: Backend>(device: &B, logits: &[f32], vocab: usize, rows: &[SampleRow<'_>]) -> Vec<Sampled> {
    let (mut buf, mut queue) = (upload(device, logits, vocab), queue(device, 1));
    let mut step = open(device, &mut queue, &StepInput::EMPTY);
    device.sample(&mut step, &mut buf, rows).unwrap();
    let step = device.append(step).unwrap();
    let step = device.finish(step).unwrap();
    let mut sampled = SampledRows::default();
    device.collect(&mut queue, step, &mut sampled).unwrap();
    assert_eq!(sampled.len(), rows.len());
    sampled.tokens().to_vec()
}

fn score<B: Backend>(device: &B, logits: &[f32], vocab: usize, rows: &[ScoreRow]) -> Vec<Scored> {
    let (mut queue, mut scored) = (queue(device, 1), Vec::new());
    let mut step = open(device, &mut queue, &StepInput::EMPTY).without_sampling();
    device.score(&mut step, &mut upload(device, logits, vocab), rows, &mut scored).unwrap();
    scored
}

fn one(logits: &[f32], params: &SamplingParams, tokens: &[u32], prompt_len: usize) -> Sampled {
    let row = SampleRow { params, tokens, prompt_len, allowed: None };
    sample(&Reference, logits, logits.len(), &[row]).remove(0)
}

/// The logits after penalties and biases, written after the definitions.
fn penalized(logits: &[f32], p: &SamplingParams, tokens: &[u32], prompt_len: usize) -> Vec<f64> {
    let mut all: Vec<f64> = logits.iter().map(|l| f64::from(*l)).collect();
    for (id, l) in all.iter_mut().enumerate() {
        let id = id as u32;
        if tokens.contains(&id) {
            let r = f64::from(p.repetition_penalty);
            *l = if *l > 0.0 { *l / r } else { *l * r };
        }
        let count = tokens[prompt_len..].iter().filter(|&&t| t == id).count();
        *l -= f64::from(p.frequency_penalty) * count as f64;
        *l -= if count > 0 { f64::from(p.presence_penalty) } else { 0.0 };
        *l += p.logit_bias.iter().filter(|(t, _)| *t == id).map(|(_, b)| f64::from(*b)).sum::<f64>();
    }
    all
}

/// The same, with the logits of tokens that may not be chosen at minus infinity.
fn possible(logits: &[f32], row: &SampleRow<'_>) -> Vec<f64> {
    let mut all = penalized(logits, row.params, row.tokens, row.prompt_len);
    let early = row.tokens.len() - row.prompt_len < row.params.min_new_tokens as usize;
    for (id, l) in all.iter_mut().enumerate() {
        let forbidden =
            row.allowed.is_some_and(|words| words.get(id / 32).is_none_or(|word| word >> (id % 32) & 1 == 0));
        if forbidden || early && row.params.end_tokens.contains(&(id as u32)) {
            *l = f64::NEG_INFINITY;
        }
    }
    all
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|l| (l - max).exp()).sum();
    logits.iter().map(|l| (l - max).exp() / total).collect()
}

/// Keeps the first tokens of `order` until their probability reaches `goal`, and renormalizes.
fn keep_until(probs: &mut [f64], order: &[usize], goal: f64) {
    let (mut mass, mut done) = (0.0, false);
    for &id in order {
        if done {
            probs[id] = 0.0;
        }
        mass += probs[id];
        done |= mass >= goal;
    }
    normalize(probs);
}

fn normalize(probs: &mut [f64]) {
    let total: f64 = probs.iter().sum();
    probs.iter_mut().for_each(|p| *p /= total);
}

/// The distribution that tokens are drawn from.
fn distribution(logits: &[f64], p: &SamplingParams) -> Vec<f64> {
    let mut probs = softmax(&logits.iter().map(|l| l / f64::from(p.temperature)).collect::<Vec<_>>());
    let ranked = |probs: &[f64]| {
        let mut order: Vec<usize> = (0..probs.len()).collect();
        order.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]).then(a.cmp(&b)));
        order
    };
    if p.top_k > 0 {
        ranked(&probs).iter().skip(p.top_k as usize).for_each(|&id| probs[id] = 0.0);
        normalize(&mut probs);
    }
    if p.top_p < 1.0 {
        let order = ranked(&probs);
        keep_until(&mut probs, &order, f64::from(p.top_p));
    }
    let max = probs.iter().copied().fold(0.0, f64::max);
    probs.iter_mut().for_each(|q| *q = if *q < f64::from(p.min_p) * max { 0.0 } else { *q });
    normalize(&mut probs);
    if p.typical_p < 1.0 {
        let entropy: f64 = probs.iter().filter(|q| **q > 0.0).map(|q| -q * q.ln()).sum();
        let mut order: Vec<usize> = (0..probs.len()).filter(|&id| probs[id] > 0.0).collect();
        order.sort_by(|&a, &b| {
            let distance = |id: usize| (-probs[id].ln() - entropy).abs();
            distance(a).total_cmp(&distance(b)).then(a.cmp(&b))
        });
        keep_until(&mut probs, &order, f64::from(p.typical_p));
    }
    probs
}

prop_compose! {
    fn filters()(
        temperature in 0.3f32..3.0,
        top_k in prop_oneof_off(0, 1u32..30),
        top_p in prop_oneof_off(1.0, 0.05f32..0.99),
        min_p in prop_oneof_off(0.0, 0.01f32..0.5),
        typical_p in prop_oneof_off(1.0, 0.05f32..0.99),
        seed: u64,
    ) -> SamplingParams {
        SamplingParams {
            do_sample: true, temperature, top_k, top_p, min_p, typical_p, seed,
            top_n: 1000, warped_logprobs: true, ..SamplingParams::default()
        }
    }
}

prop_compose! {
    fn penalties()(
        base in filters(),
        repetition_penalty in prop_oneof_off(1.0, 0.5f32..2.0),
        frequency_penalty in prop_oneof_off(0.0, -1.0f32..1.0),
        presence_penalty in prop_oneof_off(0.0, -1.0f32..1.0),
        logit_bias in prop::collection::vec((0u32..150, -5f32..5.0), 0..4),
    ) -> SamplingParams {
        SamplingParams { repetition_penalty, frequency_penalty, presence_penalty, logit_bias, ..base }
    }
}

/// Generates `off` in half of the cases, and `on` in the other half.
fn prop_oneof_off<T: Clone + std::fmt::Debug + 'static>(
    off: T,
    on: impl Strategy<Value = T> + 'static,
) -> impl Strategy<Value = T> {
    prop::strategy::Union::new([Just(off).boxed(), on.boxed()])
}

proptest! {
    #![proptest_config(cases(200))]

    /// Every token is reported, so `top` is the whole distribution.
    #[test]
    fn filters_match_their_definitions(
        params in penalties(), vocab in 1usize..120, scale in 0.5f32..8.0,
        tokens in prop::collection::vec(0u32..140, 0..30), share in 0.0f64..1.0, seed: u64,
    ) {
        let prompt_len = (tokens.len() as f64 * share) as usize;
        let logits: Vec<f32> = Rng(seed).values(vocab).iter().map(|l| l * scale).collect();
        let want = distribution(&penalized(&logits, &params, &tokens, prompt_len), &params);
        let got = one(&logits, &params, &tokens, prompt_len);
        let kept: Vec<usize> = (0..vocab).filter(|&id| want[id] > 0.0).collect();
        // In very rare cases rounding moves the last token of a nucleus over its edge;
        // .cargo/config.toml fixes the cases.
        let mut ids: Vec<usize> = got.top.iter().map(|t| t.0 as usize).collect();
        prop_assert!(got.top.is_sorted_by(|a, b| a.1 >= b.1));
        prop_assert!(ids.contains(&(got.token as usize)));
        ids.sort_unstable();
        prop_assert_eq!(ids, kept);
        for &(id, logprob) in &got.top {
            prop_assert!((f64::from(logprob) - want[id as usize].ln()).abs() < 1e-4, "token {}", id);
        }
    }

    /// Tokens that are ruled out are not part of the distribution. The model's own
    /// log-probabilities ignore the rule.
    #[test]
    fn ruled_out_tokens_are_never_chosen(
        params in penalties(), vocab in 1usize..120, seed: u64, words in prop::collection::vec(proptest::num::u32::ANY, 1..4),
        end_tokens in prop::collection::vec(0u32..120, 0..4), min_new_tokens in 0u32..4, new in 0usize..4,
    ) {
        let logits: Vec<f32> = Rng(seed).values(vocab).iter().map(|l| l * 3.0).collect();
        let params = SamplingParams { end_tokens, min_new_tokens, ..params };
        let tokens = vec![3; 10 + new];
        let row = SampleRow { params: &params, tokens: &tokens, prompt_len: 10, allowed: Some(&words) };
        let after = possible(&logits, &row);
        if !after.iter().any(|l| l.is_finite()) {
            return Ok(());
        }
        let want = distribution(&after, &params);
        let got = sample(&Reference, &logits, vocab, &[row]).remove(0);
        let mut ids: Vec<usize> = got.top.iter().map(|t| t.0 as usize).collect();
        ids.sort_unstable();
        prop_assert_eq!(ids, (0..vocab).filter(|&id| want[id] > 0.0).collect::<Vec<_>>());
        for do_sample in [false, true] {
            let params = SamplingParams { do_sample, warped_logprobs: false, top_n: 3, ..params.clone() };
            let got = sample(&Reference, &logits, vocab, &[SampleRow { params: &params, ..row }]).remove(0);
            prop_assert!(after[got.token as usize].is_finite());
            let raw: Vec<f64> = logits.iter().map(|l| f64::from(*l)).collect();
            let probs = softmax(&raw);
            prop_assert!((f64::from(got.logprob) - probs[got.token as usize].ln()).abs() < 1e-4);
            let free = SamplingParams { do_sample: false, top_n: 3, ..SamplingParams::default() };
            prop_assert_eq!(got.top, one(&logits, &free, &[], 0).top);
        }
    }

    #[test]
    fn greedy_takes_the_largest(
        params in penalties(), vocab in 1usize..120, warped: bool, top_n in 0u32..8,
        tokens in prop::collection::vec(0u32..140, 0..30), seed: u64,
    ) {
        let params = SamplingParams { do_sample: false, warped_logprobs: warped, top_n, ..params };
        // Few distinct values, so that ties occur.
        let logits: Vec<f32> = Rng(seed).values(vocab).iter().map(|l| (l * 4.0).round()).collect();
        let after = penalized(&logits, &params, &tokens, 0);
        let got = one(&logits, &params, &tokens, 0);
        let max = after.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        prop_assert!(after[got.token as usize] >= max - 1e-5);
        if params.repetition_penalty == 1.0 && params.frequency_penalty == 0.0 && params.presence_penalty == 0.0 {
            let first = after.iter().position(|l| *l == max).unwrap();
            prop_assert!(params.logit_bias.iter().any(|b| b.1 != 0.0) || got.token == first as u32);
        }
        let raw: Vec<f64> = logits.iter().map(|l| f64::from(*l)).collect();
        let probs = softmax(if warped { &after } else { &raw });
        prop_assert!((f64::from(got.logprob) - probs[got.token as usize].ln()).abs() < 1e-4);
        prop_assert_eq!(got.top.len(), vocab.min(top_n as usize));
        for pair in got.top.windows(2) {
            prop_assert!(pair[0].1 >= pair[1].1);
            // Logits whose difference is too small for the log-probabilities keep their own order.
            let tied = probs[pair[0].0 as usize] == probs[pair[1].0 as usize];
            prop_assert!(!tied || pair[0].0 < pair[1].0);
        }
        for (id, logprob) in got.top {
            prop_assert!((f64::from(logprob) - probs[id as usize].ln()).abs() < 1e-4);
        }
    }

    #[test]
    fn scores_match_their_definition(vocab in 1usize..2000, n in 1usize..6, top_n in 0u32..8, seed: u64) {
        let mut rng = Rng(seed);
        // Few distinct values, so that ties occur.
        let logits: Vec<f32> = rng.values(n * vocab).iter().map(|l| (l * 40.0).round() / 4.0).collect();
        let rows: Vec<ScoreRow> =
            (0..n).map(|_| ScoreRow { token: rng.below(vocab) as u32, top_n }).collect();
        let got = score(&Reference, &logits, vocab, &rows);
        for ((row, logits), got) in rows.iter().zip(logits.chunks(vocab)).zip(&got) {
            let probs = softmax(&logits.iter().map(|l| f64::from(*l)).collect::<Vec<_>>());
            let own = logits[row.token as usize];
            prop_assert!((f64::from(got.logprob) - probs[row.token as usize].ln()).abs() < 1e-4);
            prop_assert_eq!(got.rank as usize, 1 + logits.iter().filter(|l| **l > own).count());
            let mut order: Vec<u32> = (0..vocab as u32).collect();
            order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
            order.truncate(top_n as usize);
            prop_assert_eq!(got.top.iter().map(|top| top.0).collect::<Vec<_>>(), order);
            for &(id, logprob) in &got.top {
                prop_assert!((f64::from(logprob) - probs[id as usize].ln()).abs() < 1e-4);
            }
        }
        for cpu in &CPUS[..2] {
            prop_assert_eq!(&score(cpu, &logits, vocab, &rows), &got);
        }
    }

    #[test]
    fn devices_agree(params in penalties(), vocab in 1usize..3000, n in 1usize..6, seed: u64) {
        let mut rng = Rng(seed);
        let logits: Vec<f32> = rng.values(n * vocab).iter().map(|l| l * 9.0).collect();
        let tokens: Vec<u32> = (0..40).map(|_| rng.below(vocab) as u32).collect();
        let params = SamplingParams { top_n: 5, ..params };
        let row = SampleRow { params: &params, tokens: &tokens, prompt_len: 7, allowed: None };
        let rows = vec![row; n];
        let want = sample(&Reference, &logits, vocab, &rows);
        let last = sample(&Reference, &logits[(n - 1) * vocab..], vocab, &rows[..1]);
        prop_assert_eq!(&last[..], &want[n - 1..]);
        for cpu in &CPUS[..2] {
            prop_assert_eq!(&sample(cpu, &logits, vocab, &rows), &want);
        }
    }
}

/// Compares the frequencies of many draws, at successive positions and with successive seeds, with
/// the distribution. The bound is the 99.99% quantile of chi-square.
#[test]
fn draws_follow_the_distribution() {
    let logits: Vec<f32> = Rng(42).values(21).iter().map(|l| l * 2.0).collect();
    let cases = [
        SamplingParams::default(),
        SamplingParams { temperature: 0.5, ..SamplingParams::default() },
        SamplingParams { top_k: 7, ..SamplingParams::default() },
        SamplingParams { top_p: 0.8, temperature: 1.5, ..SamplingParams::default() },
    ];
    for case in cases {
        let case = SamplingParams { do_sample: true, ..case };
        let probs = distribution(&logits.iter().map(|l| f64::from(*l)).collect::<Vec<_>>(), &case);
        let mut counts = vec![0usize; logits.len()];
        let tokens = vec![0u32; 200];
        const SEEDS: u64 = 100;
        for seed in 0..SEEDS {
            let params = SamplingParams { seed: seed << 30, ..case.clone() };
            let rows: Vec<SampleRow<'_>> = (0..tokens.len())
                .map(|n| SampleRow { params: &params, tokens: &tokens[..n], prompt_len: n, allowed: None })
                .collect();
            for chosen in sample(&Reference, &logits.repeat(tokens.len()), logits.len(), &rows) {
                counts[chosen.token as usize] += 1;
            }
        }
        let draws = (SEEDS as usize * tokens.len()) as f64;
        let possible: Vec<usize> = (0..probs.len()).filter(|&id| probs[id] > 0.0).collect();
        assert_eq!(possible.iter().map(|&id| counts[id]).sum::<usize>() as f64, draws, "an impossible token");
        let chi: f64 = possible
            .iter()
            .map(|&id| (counts[id] as f64 - draws * probs[id]).powi(2) / (draws * probs[id]))
            .sum();
        // The approximation of the quantile by Wilson and Hilferty.
        let df = (possible.len() - 1) as f64;
        let bound = df * (1.0 - 2.0 / (9.0 * df) + 3.719 * (2.0 / (9.0 * df)).sqrt()).powi(3);
        assert!(chi < bound, "chi-square {chi:.1} of {df} degrees of freedom, bound {bound:.1}");
    }
}

#[test]
fn raw_log_probabilities_ignore_penalties() {
    let logits = [1.0, 3.0, 2.0];
    let params = SamplingParams {
        logit_bias: vec![(1, -100.0), (9, 5.0)],
        repetition_penalty: 1.5,
        top_n: 2,
        ..SamplingParams::default()
    };
    let got = one(&logits, &params, &[1, 1, 77], 3);
    let probs = softmax(&[1.0, 3.0, 2.0]);
    assert_eq!(got.token, 2);
    assert!((f64::from(got.logprob) - probs[2].ln()).abs() < 1e-6);
    assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
    let warped = one(&logits, &SamplingParams { warped_logprobs: true, ..params }, &[], 0);
    assert_eq!((warped.token, warped.top[0].0), (2, 2));
    assert!((f64::from(warped.logprob) - softmax(&[1.0, 2.0])[1].ln()).abs() < 1e-6);
}

#[test]
fn rows_with_nan_or_infinite_logits() {
    const INF: f32 = f32::INFINITY;
    for do_sample in [false, true] {
        for warped_logprobs in [false, true] {
            let params = SamplingParams { do_sample, warped_logprobs, top_n: 3, ..SamplingParams::default() };
            let got = one(&[-INF, 1.0, -INF], &params, &[], 0);
            assert_eq!((got.token, got.logprob, got.top), (1, 0.0, vec![(1, 0.0)]));
            // A single NaN or plus infinity makes the whole row invalid.
            let broken =
                [[f32::NAN, 1.0, -INF], [0.0, 1.0, f32::NAN], [0.0, INF, 1.0], [INF, -INF, f32::NAN]];
            for hopeless in broken.into_iter().chain([[f32::NAN; 3], [-INF; 3], [INF; 3]]) {
                let got = one(&hopeless, &params, &[], 0);
                assert!(
                    got.token == 0 && got.logprob.is_nan() && got.top.is_empty(),
                    "{hopeless:?}: {got:?}"
                );
            }
            // Penalties can make finite logits infinite; these become numbers again.
            let harsh = SamplingParams { repetition_penalty: 1e-38, ..params.clone() };
            let got = one(&[-5.0, 5.0, 1.0], &harsh, &[1], 1);
            assert!(got.token == 1 && got.logprob.is_finite(), "{got:?}");
            let cold = SamplingParams { temperature: 1e-38, top_p: 0.5, ..params };
            assert_eq!(one(&[3.0, 8.0, 8.5], &cold, &[], 0).token, 2);
        }
    }
}

#[test]
fn scores_of_rows_with_nan_or_infinite_logits() {
    const INF: f32 = f32::INFINITY;
    let row = |token| [ScoreRow { token, top_n: 2 }];
    let got = score(&Reference, &[-INF, 1.0, -INF], 3, &row(1)).remove(0);
    assert_eq!(got, Scored { logprob: 0.0, rank: 1, top: vec![(1, 0.0)] });
    let got = score(&Reference, &[-INF, 1.0, -INF], 3, &row(0)).remove(0);
    assert_eq!(got, Scored { logprob: -INF, rank: 2, top: vec![(1, 0.0)] });
    for broken in [[f32::NAN; 3], [0.0, 1.0, f32::NAN], [INF, 1.0, 0.0], [-INF; 3]] {
        let got = score(&Reference, &broken, 3, &row(2)).remove(0);
        assert!(got.logprob.is_nan() && got.rank == 1 && got.top.is_empty(), "{broken:?}: {got:?}");
    }
}

/// Draws a text with the watermark. Each token has logits of its own.
fn watermarked_text(watermark: Option<Watermark>, seed: u64) -> Vec<u32> {
    let params = SamplingParams {
        do_sample: true,
        temperature: 0.8,
        top_p: 0.95,
        seed,
        watermark,
        ..SamplingParams::default()
    };
    let mut tokens = vec![5];
    for step in 0..200 {
        let logits: Vec<f32> = Rng(step).values(500).iter().map(|l| l * 3.0).collect();
        tokens.push(one(&logits, &params, &tokens, 1).token);
    }
    tokens
}

#[test]
fn the_z_score_detects_the_watermark_and_nothing_else() {
    let mark = Watermark { gamma: 0.25, delta: 2.0 };
    let score = |watermark, seed, gamma| watermark::z_score(&watermarked_text(watermark, seed), gamma);
    for seed in 0..4 {
        assert!(score(Some(mark), seed, mark.gamma) > 6.0);
        assert!(score(None, seed, mark.gamma).abs() < 4.0);
        assert!(score(Some(Watermark { delta: -2.0, ..mark }), seed, mark.gamma) < -4.0);
    }
    assert_eq!(watermarked_text(Some(mark), 1), watermarked_text(Some(mark), 1));
}

proptest! {
    #![proptest_config(cases(64))]

    /// The logits of green tokens are raised before everything else. The model's own
    /// log-probabilities ignore that.
    #[test]
    fn a_watermark_raises_green_logits(
        params in penalties(), vocab in 2usize..200, gamma in 0.1f32..0.9, delta in -3f32..3.0, previous in 0u32..200, seed: u64,
    ) {
        let logits: Vec<f32> = Rng(seed).values(vocab).iter().map(|l| l * 3.0).collect();
        let green = |id: usize| watermark::is_green(previous, id as u32, gamma);
        let raised: Vec<f32> =
            logits.iter().enumerate().map(|(id, l)| if green(id) { l + delta } else { *l }).collect();
        let tokens = [3, previous];
        let with = SamplingParams { watermark: Some(Watermark { gamma, delta }), ..params.clone() };
        for do_sample in [false, true] {
            let [with, without] = [&with, &params].map(|params| SamplingParams { do_sample, ..params.clone() });
            prop_assert_eq!(one(&logits, &with, &tokens, 1), one(&raised, &without, &tokens, 1));
            let own = SamplingParams { warped_logprobs: false, top_n: 2, ..with };
            let got = one(&logits, &own, &tokens, 1);
            let probs = softmax(&logits.iter().map(|l| f64::from(*l)).collect::<Vec<_>>());
            prop_assert!((f64::from(got.logprob) - probs[got.token as usize].ln()).abs() < 1e-4);
        }
    }
}

/// Even a row without a valid logit yields a token that is allowed.
#[test]
fn the_only_allowed_token_is_chosen() {
    let params = SamplingParams::default();
    for logits in [[f32::NAN; 40], [f32::NEG_INFINITY; 40], [1.0; 40]] {
        let row = SampleRow { params: &params, tokens: &[], prompt_len: 0, allowed: Some(&[0, 0b10]) };
        assert_eq!(sample(&Reference, &logits, 40, &[row])[0].token, 33);
    }
}

/// A row may contain both zeros: they are equal, and the lower id wins.
#[test]
fn zeros_of_both_signs_are_tied() {
    let params = SamplingParams { top_n: 3, ..SamplingParams::default() };
    let got = one(&[-1.0, -0.0, 0.0, -0.0], &params, &[], 0);
    assert_eq!(got.token, 1);
    assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2, 3]);
}
