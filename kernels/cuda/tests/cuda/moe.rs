//! Routing, the order of rows by expert, and the weighted sum of their results.

use millrace_cuda::Elem;
use millrace_cuda::ops::embed::{GatherRows, gather_rows};
use millrace_cuda::ops::moe::{
    CombineExperts, RouteTokens, RouterScoreKind, SortPairs, combine, combine_plain, route, route_plain,
    sort, sort_plain,
};

use crate::common::*;
use crate::words::{get_i32, put_i32};

#[derive(Debug, Clone, Copy)]
struct Case {
    elem: Elem,
    tokens: usize,
    count: Option<usize>,
    experts: usize,
    top_k: usize,
    scores: RouterScoreKind,
    bias: bool,
    scaled: bool,
    normalize: bool,
    factor: f32,
}

/// Experts and weights of a row, in f64.
fn reference(c: &Case, logits: &[f32], bias: &[f32], scales: &[f32]) -> (Vec<i32>, Vec<f32>) {
    let logits: Vec<f64> = logits.iter().map(|x| f64::from(*x)).collect();
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let scores: Vec<f64> = match c.scores {
        RouterScoreKind::Softmax => {
            let sum: f64 = logits.iter().map(|x| (x - most).exp()).sum();
            logits.iter().map(|x| (x - most).exp() / sum).collect()
        }
        RouterScoreKind::Sigmoid => logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
    };
    let keys: Vec<f64> = if c.bias {
        scores.iter().zip(bias).map(|(s, b)| s + f64::from(*b)).collect()
    } else {
        logits.clone()
    };
    let mut order: Vec<usize> = (0..c.experts).collect();
    // The sort is stable: among equal keys, also 0 and -0, the lower number comes first.
    order.sort_by(|a, b| (keys[*b] + 0.0).total_cmp(&(keys[*a] + 0.0)));
    order.truncate(c.top_k);
    let sum: f64 = if c.normalize { order.iter().map(|e| scores[*e]).sum() } else { 1.0 };
    let scale = |e: usize| if c.scaled { f64::from(scales[e]) } else { 1.0 };
    let weights = order.iter().map(|e| (scores[*e] / sum * f64::from(c.factor) * scale(*e)) as f32).collect();
    (order.iter().map(|e| *e as i32).collect(), weights)
}

fn run(c: &Case, plain: bool, logits: &[f32], bias: &[f32], scales: &[f32]) -> (Vec<i32>, Vec<f32>) {
    let (on_logits, on_bias) = (put(c.elem, logits), put(Elem::F32, bias));
    let on_scales = put(Elem::F32, scales);
    let count = put_i32(&[c.count.unwrap_or(0) as i32]);
    let pairs = c.tokens * c.top_k;
    let (chosen, weights) = (garbage(Elem::I32, pairs), garbage(Elem::F32, pairs));
    let r = RouteTokens {
        tokens: c.tokens,
        count: c.count.map(|_| count.view(Elem::I32)),
        experts: c.experts,
        top_k: c.top_k,
        logits: on_logits.view(c.elem),
        scores: c.scores,
        bias: c.bias.then(|| on_bias.view(Elem::F32)),
        scales: c.scaled.then(|| on_scales.view(Elem::F32)),
        normalize: c.normalize,
        factor: c.factor,
        chosen: chosen.view(Elem::I32),
        weights: weights.view(Elem::F32),
    };
    if plain { route_plain(&DEVICE, &r) } else { route(&DEVICE, &r) }.unwrap();
    (get_i32(chosen.view(Elem::I32)), get(weights.view(Elem::F32)))
}

fn random(rng: &mut Rng) -> Case {
    let experts = rng.pick(&[1, 4, 8, 60, 128, 129, 256, 512, 600]);
    let tokens = rng.pick(&[0, 1, 3, 9]);
    Case {
        elem: rng.pick(&ACTIVATIONS),
        tokens,
        count: (rng.below(3) == 0).then(|| rng.below(tokens + 1)),
        experts,
        top_k: rng.pick(&[1, 2, 4, 8, 32, 40]).min(experts),
        scores: rng.pick(&[RouterScoreKind::Softmax, RouterScoreKind::Sigmoid]),
        bias: rng.below(2) == 1,
        scaled: rng.below(2) == 1,
        normalize: rng.below(2) == 1,
        factor: rng.pick(&[1.0, 2.5]),
    }
}

#[test]
fn routes_match_the_definition() {
    for_seeds(60, |rng| {
        let c = random(rng);
        // The logits lie on a grid, so that many are equal.
        let coarse = |x: f32| (x * 8.0).round() / 4.0;
        let logits: Vec<f32> = (0..c.tokens * c.experts).map(|_| coarse(rng.unit())).collect();
        let bias: Vec<f32> = (0..c.experts).map(|_| coarse(rng.unit())).collect();
        let scales: Vec<f32> = (0..c.experts).map(|_| rng.unit()).collect();
        let (mut experts, mut weights) = (Vec::new(), Vec::new());
        for (t, row) in logits.chunks_exact(c.experts).enumerate() {
            let (e, w) = if c.count.is_some_and(|count| t >= count) {
                (vec![-1; c.top_k], vec![0.0; c.top_k])
            } else {
                reference(&c, row, &bias, &scales)
            };
            experts.extend(e);
            weights.extend(w);
        }
        for plain in [false, true] {
            let got = run(&c, plain, &logits, &bias, &scales);
            assert_eq!(got.0, experts, "{c:?} plain: {plain}");
            assert_close(&format!("{c:?} plain: {plain}"), &got.1, &weights, 1e-5, 1e-9);
        }
    });
}

#[test]
fn rows_without_finite_logits_name_different_experts() {
    let (nan, low) = (f32::NAN, f32::NEG_INFINITY);
    let mut logits = vec![nan; 8];
    logits.extend([low; 8]);
    logits.extend([nan, 1.0, nan, 2.0, nan, nan, low, 3.0]);
    for (elem, scores, equal) in [
        (Elem::F32, RouterScoreKind::Softmax, 0.125),
        (Elem::F16, RouterScoreKind::Softmax, 0.125),
        (Elem::BF16, RouterScoreKind::Sigmoid, 0.5),
    ] {
        let c = Case {
            elem,
            tokens: 3,
            count: None,
            experts: 8,
            top_k: 4,
            scores,
            bias: false,
            scaled: false,
            normalize: false,
            factor: 1.0,
        };
        for plain in [false, true] {
            let (experts, weights) = run(&c, plain, &logits, &[], &[]);
            assert_eq!(experts[..8], [0, 1, 2, 3, 0, 1, 2, 3]);
            assert_close("equal parts", &weights[..8], &[equal; 8], 1e-6, 0.0);
            assert_eq!(experts[8..], [7, 3, 1, 0]);
            assert_eq!(weights[11], 0.0);
        }
    }
}

fn sorted(plain: bool, experts: usize, chosen: &[i32]) -> (Vec<i32>, Vec<i32>, Vec<i32>) {
    let pairs = chosen.len();
    let [offsets, rows, places] = [experts + 1, pairs, pairs].map(|n| garbage(Elem::I32, n));
    let on_chosen = put_i32(chosen);
    let s = SortPairs {
        pairs,
        experts,
        chosen: on_chosen.view(Elem::I32),
        expert_offsets: offsets.view(Elem::I32),
        sorted_rows: rows.view(Elem::I32),
        places: places.view(Elem::I32),
    };
    // The garbage must not look like a result.
    DEVICE.fill(s.sorted_rows, 0x55).unwrap();
    DEVICE.fill(s.places, 0x55).unwrap();
    if plain { sort_plain(&DEVICE, &s) } else { sort(&DEVICE, &s) }.unwrap();
    (get_i32(s.expert_offsets), get_i32(s.sorted_rows), get_i32(s.places))
}

#[test]
fn pairs_are_sorted_by_expert() {
    for_seeds(16, |rng| {
        let experts = rng.pick(&[1, 3, 8, 20]);
        let pairs = rng.pick(&[0, 1, 33, 256, 700, 4096, 5000]);
        let chosen: Vec<i32> = (0..pairs).map(|_| rng.below(experts + 1) as i32 - 1).collect();
        let mut rows: Vec<i32> = (0..pairs as i32).filter(|p| chosen[*p as usize] >= 0).collect();
        rows.sort_by_key(|p| chosen[*p as usize]);
        let mut places = vec![-1; pairs];
        rows.iter().enumerate().for_each(|(place, p)| places[*p as usize] = place as i32);
        let offsets: Vec<i32> = (0..=experts as i32)
            .map(|e| chosen.iter().filter(|c| **c >= 0 && **c < e).count() as i32)
            .collect();
        rows.resize(pairs, -1);
        let want = (offsets, rows, places);
        for plain in [false, true] {
            assert_eq!(
                sorted(plain, experts, &chosen),
                want,
                "{pairs} pairs, {experts} experts, plain: {plain}"
            );
        }
    });
}

#[test]
fn weighted_sums_match_the_definition() {
    for_seeds(30, |rng| {
        let elem = rng.pick(&ACTIVATIONS);
        let (tokens, top_k, cols) =
            (rng.pick(&[0, 1, 5]), rng.pick(&[1, 2, 6]), rng.pick(&[1, 9, 64, 1000, 4096]));
        let (with_places, with_base) = (rng.below(3) > 0, rng.below(2) == 1);
        let pairs = tokens * top_k;
        let places: Vec<i32> =
            rng.shuffled(pairs).into_iter().map(|p| if rng.below(5) == 0 { -1 } else { p as i32 }).collect();
        let (y, base) = (rng.values(elem, pairs * cols), rng.values(elem, tokens * cols));
        let weights = rng.values(Elem::F32, pairs);
        let want: Vec<f32> = (0..tokens * cols)
            .map(|i| {
                let (t, c) = (i / cols, i % cols);
                let mut sum = if with_base { f64::from(base[i]) } else { 0.0 };
                for pair in t * top_k..(t + 1) * top_k {
                    let place = if with_places { places[pair] } else { pair as i32 };
                    if place >= 0 {
                        sum += f64::from(weights[pair]) * f64::from(y[place as usize * cols + c]);
                    }
                }
                sum as f32
            })
            .collect();
        let (on_y, on_base) = (put(elem, &y), put(elem, &base));
        let (on_weights, on_places) = (put(Elem::F32, &weights), put_i32(&places));
        for run in [combine, combine_plain] {
            let out = garbage(elem, tokens * cols);
            let c = CombineExperts {
                tokens,
                cols,
                top_k,
                y: on_y.view(elem),
                places: with_places.then(|| on_places.view(Elem::I32)),
                weights: on_weights.view(Elem::F32),
                base: with_base.then(|| on_base.view(elem)),
                out: out.view(elem),
            };
            run(&DEVICE, &c).unwrap();
            let name = format!("{elem:?} {tokens} x {cols} of {top_k}");
            assert_close(&name, &get(out.view(elem)), &want, precision(elem) * 1.01, 1e-6);
        }
    });
}

/// After sorting, copying and combining, each token gets its own rows back.
#[test]
fn rows_come_back_to_their_tokens() {
    for_seeds(4, |rng| {
        let (tokens, experts, top_k, cols) = (7, 5, 3, 16);
        let chosen: Vec<i32> = (0..tokens)
            .flat_map(|_| rng.shuffled(experts).into_iter().take(top_k).map(|e| e as i32))
            .collect();
        let x = rng.values(Elem::F32, tokens * cols);
        let (_, rows, places) = sorted(false, experts, &chosen);
        let (on_x, on_rows, on_places) = (put(Elem::F32, &x), put_i32(&rows), put_i32(&places));
        let (y, out) = (garbage(Elem::F32, tokens * top_k * cols), garbage(Elem::F32, tokens * cols));
        let g = GatherRows {
            rows: tokens * top_k,
            cols,
            index: on_rows.view(Elem::I32),
            divisor: top_k,
            x: on_x.view(Elem::F32),
            out: y.view(Elem::F32),
        };
        gather_rows(&DEVICE, &g).unwrap();
        let weights = put(Elem::F32, &[0.5, 0.25, 0.25].repeat(tokens));
        let c = CombineExperts {
            tokens,
            cols,
            top_k,
            y: y.view(Elem::F32),
            places: Some(on_places.view(Elem::I32)),
            weights: weights.view(Elem::F32),
            base: None,
            out: out.view(Elem::F32),
        };
        combine(&DEVICE, &c).unwrap();
        assert_close("there and back", &get(out.view(Elem::F32)), &x, 1e-6, 0.0);
    });
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let (words, floats) = (garbage(Elem::I32, 64), garbage(Elem::F32, 64));
    let r = |experts, top_k| RouteTokens {
        tokens: 1,
        count: None,
        experts,
        top_k,
        logits: floats.view(Elem::F32),
        scores: RouterScoreKind::Softmax,
        bias: None,
        scales: None,
        normalize: false,
        factor: 1.0,
        chosen: words.view(Elem::I32),
        weights: floats.view(Elem::F32),
    };
    let refused = |r: RouteTokens<'_>| route(&DEVICE, &r).unwrap_err().to_string();
    assert!(refused(r(4, 5)).contains("5 of 4 experts"));
    assert!(refused(r(4, 0)).contains("0 of 4 experts"));
    assert!(refused(r(65, 2)).contains("logits has 64 elements, not 65"));
}
