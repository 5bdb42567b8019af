//! Products with the K-quants of GGUF files.

use half::f16;
use millrace_cuda::ops::quant::{QuantGemmPath, quant_gemm};
use millrace_cuda::weights::PackedWeight;
use millrace_numbers::formats::ggml::{SUPER_BLOCK, SuperBlock};
use millrace_numbers::{BlockType, Encoding, HostTensor, KFormat, Part, WeightFormat};

use super::{HALVES, QuantizedWeight, check_weight, run};
use crate::common::*;
use crate::gemv::{Case, Room};

/// Columns of a group on the device.
const GROUP: usize = 32;

/// A random super-block with weights of at most about 1. Zero points are between 0 and 62.
fn super_block(rng: &mut Rng, format: KFormat) -> SuperBlock {
    let size = if format == KFormat::Q6K { 2e-4 } else { 1e-3 };
    let half = |rng: &mut Rng| f16::from_f32(size * (1.5 + rng.unit())).to_f32();
    let mut block = SuperBlock {
        scale: half(rng),
        min: 0.0,
        scales: std::array::from_fn(|_| rng.below(256) as u8 as i8),
        mins: [0; 8],
        codes: std::array::from_fn(|_| rng.below(64) as u8),
    };
    if format.has_minima() {
        block.min = half(rng);
        block.scales = std::array::from_fn(|at| if at < 8 { 8 + rng.below(56) as i8 } else { 0 });
        block.mins = std::array::from_fn(|_| rng.below(64) as u8);
        let most = if format == KFormat::Q4K { 15 } else { 31 };
        block.codes.iter_mut().for_each(|code| *code &= most);
    }
    block
}

/// A weight of a block as the kernels compute it: `Q4_K` has scales of 10 bits of mantissa, `Q5_K`
/// of 16, and both have zero points in 128ths.
fn kept(format: KFormat, block: &SuperBlock, col: usize) -> f64 {
    if format == KFormat::Q6K {
        return f64::from(format.value(block, col));
    }
    let group = col / GROUP;
    let scale = f64::from(block.scale) * f64::from(block.scales[group]);
    let zero = f64::from(block.min) * f64::from(block.mins[group]) / scale;
    let unit = scale.log2().floor().exp2() / if format == KFormat::Q4K { 1024.0 } else { 65536.0 };
    (scale / unit).round() * unit * (f64::from(block.codes[col]) - (zero * 128.0).round() / 128.0)
}

/// Random weights of `count` matrices `[outputs, inputs]` of a GGUF file.
pub(crate) fn blocks(
    rng: &mut Rng,
    format: KFormat,
    count: usize,
    inputs: usize,
    outputs: usize,
) -> QuantizedWeight {
    let all: Vec<SuperBlock> =
        (0..count * outputs * inputs / SUPER_BLOCK).map(|_| super_block(rng, format)).collect();
    let dense = all.iter().flat_map(|block| (0..SUPER_BLOCK).map(|col| kept(format, block, col))).collect();
    let bytes: Vec<u8> = all.iter().flat_map(|block| format.to_file(block)).collect();
    let kind = match format {
        KFormat::Q4K => BlockType::Q4K,
        KFormat::Q5K => BlockType::Q5K,
        KFormat::Q6K => BlockType::Q6K,
    };
    let (encoding, rows) = (Encoding::Blocks(kind), count * outputs);
    let part = Part::whole(HostTensor { encoding, rows, cols: inputs, bytes: bytes.into() });
    QuantizedWeight { packed: PackedWeight::pack(&[part], count, WeightFormat::K(format)).unwrap(), dense }
}

#[test]
fn k_quants_match_the_reference() {
    for_seeds(12, |rng| {
        let (inputs, outputs) = (rng.pick(&[256, 768]), rng.pick(&[8, 24, 136]));
        let format = rng.pick(&KFormat::ALL);
        let weight = blocks(rng, format, 1, inputs, outputs);
        let (rows, path) = rng.pick(&[
            (1, QuantGemmPath::Few),
            (9, QuantGemmPath::Few),
            (20, QuantGemmPath::Few),
            (17, QuantGemmPath::Many),
            (150, QuantGemmPath::Many),
        ]);
        let elem = rng.pick(&ACTIVATIONS);
        check_weight(&Case::random(rng, elem, rows, inputs, outputs), path, &weight);
    });
}

/// Each compiled variant runs, whatever the random shapes are.
#[test]
fn every_variant_of_k_quants_matches_the_reference() {
    let rng = &mut Rng(6);
    for format in KFormat::ALL {
        let weight = blocks(rng, format, 1, 256, 24);
        for elem in ACTIVATIONS {
            for (rows, path) in [(5, QuantGemmPath::Few), (12, QuantGemmPath::Few), (17, QuantGemmPath::Many)]
            {
                check_weight(&Case::random(rng, elem, rows, 256, 24).between([8, 16]), path, &weight);
            }
        }
    }
}

/// Every weight is rounded to the type of x and no more: x picks one column after the other.
#[test]
fn every_weight_of_k_quants_is_rounded_once() {
    let (inputs, outputs) = (512, 32);
    for format in KFormat::ALL {
        let weight = blocks(&mut Rng(7), format, 1, inputs, outputs);
        for elem in HALVES {
            let case = Case::identity(elem, inputs, outputs);
            let want = case.reference(|o, i| weight.dense[o * inputs + i]);
            for path in [QuantGemmPath::Few, QuantGemmPath::Many] {
                // The weight itself is rounded, and so is the result.
                let relative = precision(elem) * 2.02;
                let name = format!("{format:?} {elem:?} {path:?}");
                assert_close(&name, &run(&case, &weight.packed, path), &want, relative, 1e-7);
            }
        }
    }
}

/// A row has the same bits alone and with others, and on GPUs with little shared memory.
#[test]
fn rows_of_k_quants_have_the_same_bits_anywhere() {
    let (inputs, outputs) = (512, 40);
    for (format, elem) in KFormat::ALL.into_iter().flat_map(|format| HALVES.map(|elem| (format, elem))) {
        let rng = &mut Rng(8);
        let weight = blocks(rng, format, 1, inputs, outputs);
        for (path, rows) in [(QuantGemmPath::Few, 18), (QuantGemmPath::Many, 130)] {
            let all = Case::random(rng, elem, rows, inputs, outputs).between([8, 16]);
            let whole = run(&all, &weight.packed, path);
            for rows in [1, 9] {
                let name = all.name(&format!("{path:?} {format:?}, first {rows}"));
                assert_eq!(run(&all.first(rows), &weight.packed, path), whole[..rows * outputs], "{name}");
            }
            let Some(devices) = small_and_large_gpu() else { continue };
            let loaded = weight.packed.upload(&DEVICE).unwrap();
            let room = Room::new(all.rows, inputs, outputs);
            for device in &devices {
                let got = all.run(|p| {
                    quant_gemm(device, path, &loaded.weight(), p, &room.workspace(), None).unwrap();
                });
                assert_eq!(got, whole, "{}", all.name(&format!("{path:?} {format:?}")));
            }
        }
    }
}
