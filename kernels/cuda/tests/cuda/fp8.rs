//! Quantization of activations to FP8, and their products.

use millrace_cuda::ops::fp8::{
    QuantizeRows, ScaledMatmul, quantize_rows, quantize_rows_plain, scaled_matmul,
};
use millrace_cuda::weights::PackedWeight;
use millrace_cuda::{Elem, Memory};
use millrace_numbers::formats::fp8;

use crate::common::*;
use crate::quant_gemm::of_bytes;

/// Rows as the kernels write them.
struct Quantized {
    bytes: Memory,
    scales: Memory,
}

fn quantized(elem: Elem, rows: usize, cols: usize, depth: usize, x: &Memory, plain: bool) -> Quantized {
    let bytes = garbage(Elem::E4M3, rows * depth);
    let scales = garbage(Elem::F32, rows);
    let (out, s) = (bytes.view(Elem::E4M3), scales.view(Elem::F32));
    let run = if plain { quantize_rows_plain } else { quantize_rows };
    run(&DEVICE, &QuantizeRows { rows, cols, depth, x: x.view(elem), out, scales: s }).unwrap();
    Quantized { bytes, scales }
}

fn check(elem: Elem, cols: usize, values: &[f32]) {
    let (rows, depth) = (values.len() / cols, cols.next_multiple_of(64));
    let x = put(elem, values);
    let mut want = vec![0; rows * depth];
    let scales: Vec<f32> = values
        .chunks_exact(cols)
        .zip(want.chunks_exact_mut(depth))
        .map(|(row, to)| fp8::quantize(row, &mut to[..cols]).unwrap())
        .collect();
    for plain in [false, true] {
        let name = format!("{elem:?} {rows} x {cols}, plain: {plain}");
        let got = quantized(elem, rows, cols, depth, &x, plain);
        assert_eq!(DEVICE.read(got.bytes.view(Elem::E4M3)).unwrap(), want, "{name}");
        assert_eq!(get(got.scales.view(Elem::F32)), scales, "{name}");
    }
}

/// The kernels give the bits of the host's arithmetic, for rows of very different sizes.
#[test]
fn quantized_rows_match_the_host() {
    for_seeds(40, |rng| {
        let elem = rng.pick(&ACTIVATIONS);
        let (rows, cols) =
            (rng.pick(&[0, 1, 2, 7]), rng.pick(&[1, 3, 8, 64, 100, 128, 1000, 4096, 16384, 20488]));
        let mut values = rng.values(elem, rows * cols);
        for row in values.chunks_exact_mut(cols) {
            let size = rng.pick(&[0.0, 1e-3, 1.0, 300.0]);
            row.iter_mut().for_each(|value| *value = round(elem, *value * size));
            // The NaN is anywhere in the row and has either sign.
            row[rng.below(cols)] *= 2.0;
        }
        check(elem, cols, &values);
    });
}

#[test]
fn nan_stays_nan() {
    for bad in [f32::NAN, f32::INFINITY] {
        for plain in [false, true] {
            let x = put(Elem::BF16, &[1.0, bad, 0.5, 2.0, 1.0, 0.0, 0.0, 0.0]);
            let got = quantized(Elem::BF16, 1, 8, 16, &x, plain);
            let bytes = DEVICE.read(got.bytes.view(Elem::E4M3)).unwrap();
            assert_eq!(bytes[1] & 0x7f, 0x7f, "{bad}, plain: {plain}");
        }
    }
}

/// Products match sums in f64 of the numbers that the bytes and scales represent.
#[test]
fn products_match_the_reference() {
    if !DEVICE.multiplies_fp8() {
        eprintln!("skipped: the device's library has no such products");
        return;
    }
    for_seeds(12, |rng| {
        let elem = rng.pick(&ACTIVATIONS);
        let (rows, inputs, outputs) =
            (rng.pick(&[17, 24, 40]), rng.pick(&[16, 100, 328]), rng.pick(&[16, 48, 144]));
        let weight: PackedWeight = {
            let values: Vec<u8> =
                (0..outputs * inputs).map(|_| rng.below(0x7f) as u8 | (rng.below(2) as u8) << 7).collect();
            let scales: Vec<f32> = (0..outputs).map(|_| 0.001 * (rng.unit() + 1.5)).collect();
            of_bytes([outputs, inputs], true, values, &scales, [1, inputs]).packed
        };
        let (depth, loaded) = (weight.depth, weight.upload(&DEVICE).unwrap());
        let x = put(elem, &rng.values(elem, rows * inputs));
        let x = quantized(elem, rows, inputs, depth, &x, false);
        let out = garbage(elem, rows * outputs);
        let scaled = ScaledMatmul {
            rows,
            outputs,
            x: x.bytes.view(Elem::E4M3),
            scales: x.scales.view(Elem::F32),
            weight: loaded.weight(),
            out: out.view(elem),
        };
        scaled_matmul(&DEVICE, &scaled, None).unwrap();
        let (bytes, scales) = (DEVICE.read(scaled.x).unwrap(), get(scaled.scales));
        let want: Vec<f32> = (0..rows * outputs)
            .map(|at| {
                let (row, output) = (at / outputs, at % outputs);
                let products = (0..depth).map(|k| {
                    let (x, w) = (bytes[row * depth + k], weight.data[output * depth + k]);
                    f64::from(fp8::widen(x)) * f64::from(fp8::widen(w))
                });
                let factor = f64::from(scales[row]) * f64::from(f32::from_bits(weight.scales[output]));
                (products.sum::<f64>() * factor) as f32
            })
            .collect();
        // The tensor cores keep 14 bits of a sum, whose terms may be larger than it.
        let name = format!("{elem:?} {rows} x {inputs} x {outputs}");
        assert_close(&name, &get(scaled.out), &want, precision(elem) * 1.01 + 1e-6, 5e-3);
    });
}

#[test]
fn other_weights_are_refused() {
    let weight = of_bytes([16, 64], false, vec![1; 16 * 64], &[1.0], [16, 64]).packed;
    let loaded = weight.upload(&DEVICE).unwrap();
    let (x, scales, out) = (garbage(Elem::E4M3, 64), garbage(Elem::F32, 1), garbage(Elem::BF16, 16));
    let scaled = ScaledMatmul {
        rows: 1,
        outputs: 16,
        x: x.view(Elem::E4M3),
        scales: scales.view(Elem::F32),
        weight: loaded.weight(),
        out: out.view(Elem::BF16),
    };
    let said = scaled_matmul(&DEVICE, &scaled, None).unwrap_err().to_string();
    assert!(said.contains("Int8 in groups"), "{said}");
    let short = ScaledMatmul { rows: 2, ..scaled };
    assert!(scaled_matmul(&DEVICE, &short, None).is_err());
    let (x, out, scales) = (out.view(Elem::BF16), x.view(Elem::E4M3), scales.view(Elem::F32));
    let rows = |cols, depth| QuantizeRows { rows: 1, cols, depth, x, out, scales };
    assert!(quantize_rows(&DEVICE, &rows(16, 8)).unwrap_err().to_string().contains("as rows of 8"));
    assert!(quantize_rows(&DEVICE, &rows(17, 64)).unwrap_err().to_string().contains("x has 16 elements"));
    assert!(quantize_rows(&DEVICE, &rows(16, 64)).is_ok());
}
