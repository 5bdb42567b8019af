//! RMSNorm and LayerNorm, with and without a residual.

use millrace_backend::RowParts;
use millrace_cuda::Elem;
use millrace_cuda::ops::norm::{NormKind, NormRows, PartRows, norm, norm_parts, norm_plain};

use crate::common::*;

#[derive(Debug, Clone, Copy)]
struct Case {
    elem: Elem,
    rows: usize,
    cols: usize,
    layer: bool,
    bias: bool,
    residual: bool,
    in_place: bool,
    offset: f32,
}

/// The result by the definition in f64: the new residual (rounded, as it is stored) and the
/// normalized rows.
fn reference(c: &Case, x: &[f32], residual: &[f32], weight: &[f32], bias: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let sums: Vec<f32> =
        x.iter().zip(residual).map(|(x, r)| if c.residual { round(c.elem, x + r) } else { *x }).collect();
    let mut out = Vec::new();
    for row in sums.chunks_exact(c.cols) {
        let n = c.cols as f64;
        let mean = if c.layer { row.iter().map(|&v| f64::from(v)).sum::<f64>() / n } else { 0.0 };
        let square: f64 = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum();
        let scale = 1.0 / (square / n + 1e-5).sqrt();
        out.extend(row.iter().zip(weight).zip(bias).map(|((&v, &w), &b)| {
            let bias = if c.layer && c.bias { f64::from(b) } else { 0.0 };
            ((f64::from(v) - mean) * scale * f64::from(w) + bias) as f32
        }));
    }
    (sums, out)
}

fn check(c: Case, rng: &mut Rng) {
    let n = c.rows * c.cols;
    let x: Vec<f32> = rng.values(c.elem, n).iter().map(|v| round(c.elem, v + c.offset)).collect();
    let residual = rng.values(c.elem, n);
    let weight = rng.values(Elem::F32, c.cols);
    let bias = rng.values(Elem::F32, c.cols);
    let (sums, want) = reference(&c, &x, &residual, &weight, &bias);
    let (w, b) = (put(Elem::F32, &weight), put(Elem::F32, &bias));
    let which = if c.layer {
        NormKind::Layer { weight: w.view(Elem::F32), bias: c.bias.then(|| b.view(Elem::F32)) }
    } else {
        NormKind::Rms { weight: w.view(Elem::F32) }
    };
    for plain in [false, true] {
        let (on_x, on_residual, on_out) = (put(c.elem, &x), put(c.elem, &residual), garbage(c.elem, n));
        let rows = NormRows {
            rows: c.rows,
            cols: c.cols,
            eps: 1e-5,
            x: on_x.view(c.elem),
            residual: c.residual.then(|| on_residual.view(c.elem)),
            out: if c.in_place { on_x.view(c.elem) } else { on_out.view(c.elem) },
        };
        let run = if plain { norm_plain } else { norm };
        run(&DEVICE, which, &rows).unwrap();
        let name = format!("{c:?} plain: {plain}");
        // The tolerance has three parts: the rounding of the result, the error of the f32 sums, and
        // the error of a mean far from zero.
        let absolute = 2e-5 + c.offset * 1e-6;
        assert_close(&name, &get(rows.out), &want, precision(c.elem) * 1.01 + 1e-5, absolute);
        if c.residual {
            assert_close(&name, &get(on_residual.view(c.elem)), &sums, 0.0, 0.0);
        }
    }
}

fn random(rng: &mut Rng) -> Case {
    Case {
        elem: rng.pick(&ACTIVATIONS),
        rows: rng.pick(&[0, 1, 2, 7]),
        cols: rng.pick(&[1, 3, 8, 64, 100, 128, 1000, 1024, 4096, 5120, 8192, 20480]),
        layer: rng.below(2) == 1,
        bias: rng.below(2) == 1,
        residual: rng.below(2) == 1,
        in_place: rng.below(2) == 1,
        offset: 0.0,
    }
}

#[test]
fn random_shapes_match_the_reference() {
    for_seeds(40, |rng| check(random(rng), rng));
}

/// Each compiled variant runs, whatever the random shapes are.
#[test]
fn every_kind_and_type_matches_the_reference() {
    for elem in ACTIVATIONS {
        for (layer, residual) in [(false, false), (false, true), (true, false), (true, true)] {
            for cols in [96, 1023] {
                let case =
                    Case { elem, rows: 2, cols, layer, bias: layer, residual, in_place: false, offset: 0.0 };
                check(case, &mut Rng(cols as u64));
            }
        }
    }
}

/// Parts of rows are normalized by themselves, and the rest of a row stays as it is.
#[test]
fn parts_of_rows_match_the_reference() {
    for seed in 0..12 {
        let rng = &mut Rng(seed);
        let elem = ACTIVATIONS[seed as usize % 3];
        let (layer, own) = (seed % 2 == 1, seed % 4 > 1);
        let (rows, first, count, cols) =
            (1 + rng.below(3), rng.below(10), 1 + rng.below(4), 1 + rng.below(300));
        let row_cols = first + count * cols + rng.below(10);
        let x = rng.values(elem, rows * row_cols);
        let scales = if own { count * cols } else { cols };
        let (weight, bias) = (rng.values(Elem::F32, scales), rng.values(Elem::F32, scales));
        let mut want = x.clone();
        for row in want.chunks_exact_mut(row_cols) {
            for (part, values) in row[first..first + count * cols].chunks_exact_mut(cols).enumerate() {
                let of_part = if own { part * cols..(part + 1) * cols } else { 0..cols };
                let one = Case {
                    elem,
                    rows: 1,
                    cols,
                    layer,
                    bias: layer,
                    residual: false,
                    in_place: true,
                    offset: 0.0,
                };
                let (_, normed) = reference(&one, values, values, &weight[of_part.clone()], &bias[of_part]);
                values.copy_from_slice(&normed);
            }
        }
        let (w, b, on_x) = (put(Elem::F32, &weight), put(Elem::F32, &bias), put(elem, &x));
        let which = match layer {
            true => NormKind::Layer { weight: w.view(Elem::F32), bias: Some(b.view(Elem::F32)) },
            false => NormKind::Rms { weight: w.view(Elem::F32) },
        };
        let parts = RowParts { first, count, cols };
        let of = PartRows { rows, row_cols, parts, eps: 1e-5, x: on_x.view(elem) };
        norm_parts(&DEVICE, which, &of).unwrap();
        let name = format!("{elem:?} {parts:?} of {row_cols}, layer: {layer}, own: {own}");
        assert_close(&name, &get(of.x), &want, precision(elem) * 1.01 + 1e-5, 2e-5);
    }
}

/// The variance of values far from zero is not lost in their squares.
#[test]
fn layer_norm_is_accurate_far_from_zero() {
    for_seeds(4, |rng| {
        let far = Case { layer: true, elem: Elem::F32, rows: 2, cols: 512, offset: 300.0, ..random(rng) };
        let far = Case { residual: false, ..far };
        check(far, rng);
    });
}

/// Weights or biases that 16 bytes cannot be loaded of at once are read one by one.
#[test]
fn weights_may_start_anywhere() {
    let mut rng = Rng(5);
    let c = Case {
        elem: Elem::BF16,
        rows: 2,
        cols: 64,
        layer: true,
        bias: true,
        residual: false,
        in_place: false,
        offset: 0.0,
    };
    let (x, weight, bias) = (rng.values(c.elem, 128), rng.values(Elem::F32, 64), rng.values(Elem::F32, 64));
    let (_, want) = reference(&c, &x, &x, &weight, &bias);
    let on_x = put(c.elem, &x);
    for (weight_at, bias_at) in [(1, 0), (0, 1), (4, 4)] {
        let shifted = |at: usize, values: &[f32]| put(Elem::F32, &[&vec![f32::NAN; at], values].concat());
        let (w, b) = (shifted(weight_at, &weight), shifted(bias_at, &bias));
        let which = NormKind::Layer {
            weight: w.view(Elem::F32).slice(weight_at..weight_at + 64),
            bias: Some(b.view(Elem::F32).slice(bias_at..bias_at + 64)),
        };
        let out = garbage(c.elem, 128);
        let (view, x) = (out.view(c.elem), on_x.view(c.elem));
        let rows = NormRows { rows: 2, cols: 64, eps: 1e-5, x, residual: None, out: view };
        norm(&DEVICE, which, &rows).unwrap();
        let name = format!("weights from {weight_at}, biases from {bias_at}");
        assert_close(&name, &get(view), &want, precision(c.elem) * 1.01 + 1e-5, 2e-5);
    }
}

#[test]
fn short_views_are_refused() {
    let (x, w) = (garbage(Elem::F32, 16), garbage(Elem::F32, 8));
    let which = NormKind::Rms { weight: w.view(Elem::F32) };
    let rows = |rows, cols| NormRows {
        rows,
        cols,
        eps: 0.0,
        x: x.view(Elem::F32),
        residual: None,
        out: x.view(Elem::F32),
    };
    assert!(norm(&DEVICE, which, &rows(2, 8)).is_ok());
    let refused = |r: NormRows<'_>| norm(&DEVICE, which, &r).unwrap_err().to_string();
    assert!(refused(rows(3, 8)).contains("x has 16 elements, not 24"));
    assert!(refused(rows(1, 16)).contains("weight has 8 elements, not 16"));
    assert!(refused(rows(1, 0)).contains("no columns"));
}
