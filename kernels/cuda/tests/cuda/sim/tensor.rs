//! ldmatrix and mma against a plain product.

use super::shared::sim_tests::{MatricesParams, MatrixProductParams};
use super::*;
use crate::common::{Rng, for_seeds};

#[test]
fn matrices_are_spread_over_the_lanes() {
    let input: Vec<u16> = (0..256).map(|i| i * 7 + 3).collect();
    let bytes: Vec<u8> = input.iter().flat_map(|x| x.to_le_bytes()).collect();
    in_all_orders(|sim| {
        let from = sim.device.upload(&bytes).unwrap();
        for transposed in [false, true] {
            let out = sim.words(6 * 32);
            let params = MatricesParams {
                out: at(&out),
                from: at(&from),
                transposed: i32::from(transposed),
                stray: 0,
            };
            sim.run("matrices", block(32).with_shared(512), &params).unwrap();
            for (i, got) in sim.get(&out).into_iter().enumerate() {
                // Loads of four and of two matrices give the same first two.
                let (matrix, lane) = (i / 32 % 4, i % 32);
                let pair = |j| {
                    let (a, b) = (lane / 4, lane % 4 * 2 + j);
                    let (row, col) = if transposed { (b, a) } else { (a, b) };
                    u32::from(input[matrix * 64 + row * 8 + col])
                };
                assert_eq!(got, pair(0) | pair(1) << 16, "{i} transposed: {transposed} {:?}", sim.order);
            }
        }
    });
}

#[test]
fn misused_tensor_instructions_are_refused() {
    let sim = Sim::new(FiberSchedule::Forward);
    let from = sim.words(128);
    let out = sim.words(6 * 32);
    let with = |stray| MatricesParams { out: at(&out), from: at(&from), transposed: 0, stray };
    assert!(sim.refusal("matrices", block(32).with_shared(512), &with(1)).contains("misaligned row"));
    assert!(sim.refusal("matrices", block(32).with_shared(512), &with(8)).contains("outside the block's"));
    assert!(sim.refusal("matrices", block(31).with_shared(512), &with(0)).contains("needs all 32 lanes"));
}

/// Name, type of the factors, and number of products in a sum.
const PRODUCTS: [(&str, Elem, usize); 3] =
    [("product_bf16", Elem::BF16, 16), ("product_f16", Elem::F16, 16), ("product_e4m3", Elem::E4M3, 32)];

/// Bits of a random number of the type, and its value.
fn random(elem: Elem, rng: &mut Rng) -> (Vec<u8>, f64) {
    match elem {
        Elem::BF16 => {
            let x = half::bf16::from_f32(rng.unit());
            (x.to_le_bytes().to_vec(), x.to_f64())
        }
        Elem::F16 => {
            let x = half::f16::from_f32(rng.unit());
            (x.to_le_bytes().to_vec(), x.to_f64())
        }
        _ => {
            // A finite e4m3 by the definition: sign, exponent with a bias of 7, mantissa of
            // 3 bits.
            let bits = rng.pick(&[0u8, 0x80]) | rng.below(0x7f) as u8;
            let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f64::from(bits & 7));
            let magnitude = match exponent {
                0 => mantissa / 8.0 * 2f64.powi(-6),
                e => (1.0 + mantissa / 8.0) * 2f64.powi(e - 7),
            };
            (vec![bits], if bits & 0x80 != 0 { -magnitude } else { magnitude })
        }
    }
}

#[test]
fn products_match_the_definition() {
    in_all_orders(|sim| {
        for (name, elem, depth) in PRODUCTS {
            for_seeds(10, |rng| {
                let a: Vec<_> = (0..16 * depth).map(|_| random(elem, rng)).collect();
                // [8, depth]
                let b: Vec<_> = (0..8 * depth).map(|_| random(elem, rng)).collect();
                let want: Vec<(f64, f64)> = (0..16 * 8)
                    .map(|i| {
                        let terms = (0..depth).map(|k| a[i / 8 * depth + k].1 * b[i % 8 * depth + k].1);
                        let (sum, size) = terms.fold((0.0, 0.0), |(s, m), t: f64| (s + t, m + t.abs()));
                        (1.0 + sum, 1.0 + size)
                    })
                    .collect();
                let bytes = |all: &[&(Vec<u8>, f64)]| -> Vec<u8> {
                    all.iter().flat_map(|x| x.0.iter().copied()).collect()
                };
                for by_rows in [false, true] {
                    let ordered: Vec<_> = match by_rows {
                        true => (0..8 * depth).map(|i| &b[i % 8 * depth + i / 8]).collect(),
                        false => b.iter().collect(),
                    };
                    let left = sim.device.upload(&bytes(&a.iter().collect::<Vec<_>>())).unwrap();
                    let right = sim.device.upload(&bytes(&ordered)).unwrap();
                    let out = sim.words(16 * 8);
                    if elem == Elem::E4M3 && by_rows {
                        continue;
                    }
                    let params = MatrixProductParams {
                        out: at(&out),
                        a: at(&left),
                        b: at(&right),
                        by_rows: i32::from(by_rows),
                    };
                    sim.run(name, block(32), &params).unwrap();
                    for (i, (&got, want)) in sim.get(&out).iter().zip(&want).enumerate() {
                        let error = (f64::from(f32::from_bits(got)) - want.0).abs();
                        assert!(error <= 1e-6 * want.1, "{name} by rows: {by_rows}, element {i}: {error}");
                    }
                }
            });
        }
    });
}
