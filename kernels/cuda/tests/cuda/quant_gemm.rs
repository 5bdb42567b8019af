//! Products with weights of 4 and 8 bits: from the layouts of checkpoints through packing to the
//! result.

pub(crate) mod k_quants;

use millrace_cuda::Elem;
use millrace_cuda::ops::quant::{QuantGemmPath, quant_gemm, quant_gemm_plain};
use millrace_cuda::weights::{PackedFormat, PackedWeight};
use millrace_numbers::formats::awq::{self, AwqTensors};
use millrace_numbers::formats::compressed_tensors::{self, ByteTensors};
use millrace_numbers::formats::exact_format;
use millrace_numbers::formats::fp8;
use millrace_numbers::formats::gptq::{self, GptqTensors};
use millrace_numbers::scales::{NumberType, Numbers};
use millrace_numbers::{BlockType, DType, Encoding, HostTensor, Part};

use crate::common::*;
use crate::gemv::{Case, Room};

/// The types that kernels with tensor cores know.
const HALVES: [Elem; 2] = [Elem::F16, Elem::BF16];

/// A packed weight, and its numbers by the checkpoint's definition, `[outputs][inputs]`.
pub(crate) struct QuantizedWeight {
    pub(crate) packed: PackedWeight,
    pub(crate) dense: Vec<f64>,
}

/// A random scale that f16 holds, of a size that keeps results near 1.
fn scale(rng: &mut Rng) -> f32 {
    round(Elem::F16, 0.01 + 0.02 * (rng.unit() + 1.0))
}

/// The assignment of a GPTQ weight's inputs to groups.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Groups {
    /// In order.
    Natural,
    /// Shuffled: activation order.
    Shuffled,
    /// A slice of a larger weight in activation order: groups of any sizes.
    Slice,
}

/// Scales as a checkpoint stores them.
fn numbers(scales: &[f32]) -> Numbers {
    let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    Numbers::new(NumberType::Dense(DType::F32), bytes.into()).unwrap()
}

fn words(all: &[u32]) -> Vec<u8> {
    all.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Packs the stacked parts of `count` matrices as they are stored.
pub(crate) fn pack(parts: &[Part], count: usize) -> PackedWeight {
    let format = exact_format(parts).expect("a format that devices keep");
    PackedWeight::pack(parts, count, format).unwrap()
}

/// A random weight in GPTQ's layout; the definition is evaluated on the numbers before they go into
/// words.
pub(crate) fn gptq(
    rng: &mut Rng,
    inputs: usize,
    outputs: usize,
    group_size: usize,
    groups: Groups,
) -> QuantizedWeight {
    let (part, dense) = gptq_part(rng, inputs, outputs, group_size, groups);
    match exact_format(std::slice::from_ref(&part)) {
        Some(_) => QuantizedWeight { packed: pack(&[part], 1), dense },
        // A slice of many groups would need too much padding.
        None => gptq(rng, inputs, outputs, group_size, Groups::Natural),
    }
}

/// The same before it is packed.
pub(crate) fn gptq_part(
    rng: &mut Rng,
    inputs: usize,
    outputs: usize,
    group_size: usize,
    groups: Groups,
) -> (Part, Vec<f64>) {
    let count = inputs.div_ceil(group_size);
    let mut g_idx: Vec<u32> = (0..inputs).map(|i| (i / group_size) as u32).collect();
    match groups {
        Groups::Natural => {}
        Groups::Shuffled => g_idx = rng.shuffled(inputs).iter().map(|&i| g_idx[i as usize]).collect(),
        Groups::Slice => g_idx = (0..inputs).map(|_| rng.below(count) as u32).collect(),
    }
    let plus_one = rng.below(2) == 1;
    let q: Vec<u32> = (0..inputs * outputs).map(|_| rng.below(16) as u32).collect();
    let zeros: Vec<u32> = (0..count * outputs).map(|_| rng.below(16) as u32).collect();
    let scales: Vec<f32> = (0..count * outputs).map(|_| scale(rng)).collect();
    let mut dense = vec![0.0; inputs * outputs];
    let mut qweight = vec![0u32; inputs / 8 * outputs];
    for i in 0..inputs {
        for o in 0..outputs {
            let g = g_idx[i] as usize;
            let zero = (zeros[g * outputs + o] + u32::from(plus_one)) & 15;
            dense[o * inputs + i] =
                f64::from(scales[g * outputs + o]) * (f64::from(q[i * outputs + o]) - f64::from(zero));
            qweight[i / 8 * outputs + o] |= q[i * outputs + o] << (4 * (i % 8));
        }
    }
    let mut qzeros = vec![0u32; count * outputs / 8];
    for (at, zero) in zeros.iter().enumerate() {
        qzeros[at / 8] |= zero << (4 * (at % 8));
    }
    let in_order = matches!(groups, Groups::Natural);
    let tensors = GptqTensors {
        bits: 4,
        group_cols: group_size,
        plus_one,
        qweight: words(&qweight).into(),
        qzeros: words(&qzeros).into(),
        scales: numbers(&scales),
        g_idx: (!in_order || rng.below(2) == 1).then(|| words(&g_idx).into()),
    };
    (Part::whole(gptq::matrix(outputs, inputs, tensors).unwrap()), dense)
}

/// A random weight in AWQ's layout.
fn awq(rng: &mut Rng, inputs: usize, outputs: usize, group_size: usize) -> QuantizedWeight {
    let count = inputs.div_ceil(group_size);
    let scales: Vec<f32> = (0..count * outputs).map(|_| scale(rng)).collect();
    let codes = |rng: &mut Rng, n: usize| (0..n).map(|_| rng.below(16) as u32).collect::<Vec<u32>>();
    let (q, zeros) = (codes(rng, inputs * outputs), codes(rng, count * outputs));
    // Nibble i of a word holds column [0, 2, 4, 6, 1, 3, 5, 7][i] of eight.
    let interleaved = |all: &[u32]| -> Vec<u8> {
        let word = |w: &[u32]| (0..8).fold(0, |bits, i| bits | w[[0, 2, 4, 6, 1, 3, 5, 7][i]] << (4 * i));
        words(&all.chunks_exact(8).map(word).collect::<Vec<u32>>())
    };
    let (qweight, qzeros) = (interleaved(&q).into(), interleaved(&zeros).into());
    let dense = (0..outputs * inputs).map(|at| {
        let (o, i) = (at / inputs, at % inputs);
        let g = i / group_size * outputs + o;
        f64::from(scales[g]) * (f64::from(q[i * outputs + o]) - f64::from(zeros[g]))
    });
    let dense = dense.collect();
    let tensors =
        AwqTensors { group_cols: group_size, gemv: false, qweight, qzeros, scales: numbers(&scales) };
    QuantizedWeight { packed: pack(&[Part::whole(awq::matrix(outputs, inputs, tensors).unwrap())], 1), dense }
}

/// FP8 by its definition.
fn from_e4m3(bits: u8) -> f64 {
    let (sign, exponent, mantissa) = (bits >> 7, i32::from(bits >> 3 & 15), f64::from(bits & 7));
    let magnitude = match exponent {
        0 => mantissa / 8.0 * (-6f64).exp2(),
        e => (1.0 + mantissa / 8.0) * f64::from(e - 7).exp2(),
    };
    if sign == 1 { -magnitude } else { magnitude }
}

/// A weight of signed bytes or FP8 numbers, with a scale for each block. A block of bytes has one
/// row, or all.
pub(crate) fn of_bytes(
    [outputs, inputs]: [usize; 2],
    fp8: bool,
    bytes: Vec<u8>,
    scales: &[f32],
    block: [usize; 2],
) -> QuantizedWeight {
    let across = inputs.div_ceil(block[1]);
    let dense = bytes.iter().enumerate().map(|(at, &byte)| {
        let (o, i) = (at / inputs, at % inputs);
        let factor = scales[o / block[0] * across + i / block[1]];
        f64::from(factor) * if fp8 { from_e4m3(byte) } else { f64::from(byte as i8) }
    });
    let dense = dense.collect();
    let tensor = if fp8 {
        fp8::matrix(outputs, inputs, bytes.into(), numbers(scales), block)
    } else {
        let (weight, scales) = (bytes.into(), numbers(scales));
        let tensors = ByteTensors { weight, scales, zero_points: None, group_cols: block[1], divisor: 1.0 };
        compressed_tensors::signed_bytes(outputs, inputs, tensors)
    };
    QuantizedWeight { packed: pack(&[Part::whole(tensor.unwrap())], 1), dense }
}

/// A random weight of signed bytes or FP8 numbers.
pub(crate) fn bytes(rng: &mut Rng, inputs: usize, outputs: usize, fp8: bool) -> QuantizedWeight {
    let values: Vec<u8> = (0..outputs * inputs)
        .map(|_| {
            let byte = rng.below(256) as u8;
            if fp8 && byte & 0x7f == 0x7f { 0x78 } else { byte }
        })
        .collect();
    let size = if fp8 { 0.02 } else { 0.1 };
    let rows = if fp8 { rng.pick(&[1, 32, 128]) } else { 1 };
    let columns = rng.pick(&[if fp8 { 64 } else { 32 }, 128]);
    // Groups of bytes that are not whole would bring columns in an order of their own.
    let grouped = if fp8 || inputs.is_multiple_of(32) { [rows, columns] } else { [1, inputs] };
    let block = rng.pick(&[[outputs, inputs], [1, inputs], grouped]);
    let count = outputs.div_ceil(block[0]) * inputs.div_ceil(block[1]);
    let scales: Vec<f32> = (0..count).map(|_| size * scale(rng)).collect();
    of_bytes([outputs, inputs], fp8, values, &scales, block)
}

/// A random weight of codes of four bits, in blocks of MXFP4 or IQ4_XS.
pub(crate) fn codes(rng: &mut Rng, inputs: usize, outputs: usize) -> QuantizedWeight {
    let kind = if inputs.is_multiple_of(256) { BlockType::IQ4_XS } else { BlockType::MXFP4 };
    let mut bytes = Vec::new();
    for _ in 0..outputs * inputs / kind.cols() {
        let mut block: Vec<u8> = (0..kind.bytes()).map(|_| rng.below(256) as u8).collect();
        match kind {
            // A power of two.
            BlockType::MXFP4 => block[0] = 122 + rng.below(4) as u8,
            _ => block[..2].copy_from_slice(&half::f16::from_f32(1e-4 * (1.5 + rng.unit())).to_le_bytes()),
        }
        bytes.extend(block);
    }
    let part = Part::whole(HostTensor {
        encoding: Encoding::Blocks(kind),
        rows: outputs,
        cols: inputs,
        bytes: bytes.into(),
    });
    let mut row = vec![0.0; inputs];
    let mut dense = Vec::new();
    for output in 0..outputs {
        part.read_row(output, &mut row);
        dense.extend(row.iter().map(|&weight| f64::from(weight)));
    }
    QuantizedWeight { packed: pack(&[part], 1), dense }
}

fn random_weight(rng: &mut Rng) -> (usize, usize, QuantizedWeight) {
    let outputs = rng.pick(&[8, 24, 128, 136, 272]);
    let inputs: usize = rng.pick(&[40, 64, 160, 328, 512, 648]);
    let group_size = rng.pick(&[16, 32, 64, 96, 128, inputs]);
    let weight = match rng.below(7) {
        6 if inputs.is_multiple_of(32) => codes(rng, inputs, outputs),
        0 => gptq(rng, inputs, outputs, group_size, Groups::Natural),
        1 => gptq(rng, inputs, outputs, group_size, Groups::Shuffled),
        2 => gptq(rng, inputs, outputs, group_size, Groups::Slice),
        3 => awq(rng, inputs, outputs, group_size),
        kind => bytes(rng, inputs, outputs, kind % 2 == 0),
    };
    (inputs, outputs, weight)
}

fn run(case: &Case, packed: &PackedWeight, path: QuantGemmPath) -> Vec<f32> {
    let loaded = packed.upload(&DEVICE).unwrap();
    let room = Room::new(case.rows, packed.depth, case.outputs);
    let ordered = garbage(case.elem, case.rows * packed.depth);
    let got = case.run(|p| {
        let ordered =
            (path == QuantGemmPath::Many && packed.columns.is_some()).then(|| ordered.view(case.elem));
        quant_gemm(&DEVICE, path, &loaded.weight(), p, &room.workspace(), ordered).unwrap();
    });
    room.assert_counters_are_zero();
    got
}

/// The longest sum of a row of |x · w|, which is what errors of f32 sums are relative to.
fn size(case: &Case, dense: &[f64]) -> f32 {
    dense.iter().fold(0.0, |m: f64, w| m.max(w.abs())) as f32 * case.inputs as f32
}

/// The part of that size by which a result may be off. The weights of K-quants are rounded to the
/// type of x; a sum of such errors is much smaller than their bound.
pub(crate) fn of_size(format: PackedFormat, elem: Elem) -> f32 {
    match format {
        PackedFormat::Q4K | PackedFormat::Q5K | PackedFormat::Q6K if elem != Elem::F32 => {
            precision(elem) / 8.0
        }
        _ => 1e-7,
    }
}

fn check(rng: &mut Rng, rows: usize, path: QuantGemmPath) {
    let (inputs, outputs, weight) = random_weight(rng);
    let elem = rng.pick(&ACTIVATIONS);
    check_weight(&Case::random(rng, elem, rows, inputs, outputs), path, &weight);
}

fn check_weight(case: &Case, path: QuantGemmPath, weight: &QuantizedWeight) {
    let (elem, inputs) = (case.elem, case.inputs);
    let want = case.reference(|o, i| weight.dense[o * inputs + i]);
    let PackedWeight { format, group, ref columns, .. } = weight.packed;
    let absolute = size(case, &weight.dense) * of_size(format, elem) + 1e-6;
    let relative = precision(elem) * 1.01 + 1e-6;
    let name = |what: &str| {
        let columns = columns.is_some();
        format!("{what} {format:?} in groups of {group}, ordered: {columns}; {}", case.name(""))
    };
    assert_close(&name("fast"), &run(case, &weight.packed, path), &want, relative, absolute);
    let loaded = weight.packed.upload(&DEVICE).unwrap();
    let plain = case.run(|p| quant_gemm_plain(&DEVICE, &loaded.weight(), p).unwrap());
    assert_close(&name("plain"), &plain, &want, relative, absolute);
}

#[test]
fn few_rows_match_the_reference() {
    for_seeds(40, |rng| {
        let rows = rng.pick(&[0, 1, 2, 8, 9, 16, 20]);
        check(rng, rows, QuantGemmPath::Few);
    });
}

#[test]
fn many_rows_match_the_reference() {
    for_seeds(16, |rng| {
        let rows = rng.pick(&[1, 17, 64, 128, 150]);
        check(rng, rows, QuantGemmPath::Many);
    });
}

/// Each compiled variant runs, whatever the random shapes are.
#[test]
fn every_format_and_type_matches_the_reference() {
    let (inputs, outputs) = (96, 24);
    let rng = &mut Rng(5);
    let formats = [
        gptq(rng, inputs, outputs, 32, Groups::Natural),
        gptq(rng, inputs, outputs, 32, Groups::Shuffled),
        bytes(rng, inputs, outputs, false),
        bytes(rng, inputs, outputs, true),
        codes(rng, inputs, outputs),
    ];
    for weight in &formats {
        for elem in ACTIVATIONS {
            for (rows, path) in [(5, QuantGemmPath::Few), (12, QuantGemmPath::Few), (17, QuantGemmPath::Many)]
            {
                check_weight(&Case::random(rng, elem, rows, inputs, outputs).between([8, 16]), path, weight);
            }
        }
    }
}

/// Rows of a result that do not begin at multiples of 16 bytes are written element by element.
#[test]
fn rows_that_begin_anywhere_match_the_reference() {
    let rng = &mut Rng(9);
    let weight = gptq(rng, 96, 24, 32, Groups::Natural);
    for (elem, path) in
        HALVES.into_iter().flat_map(|elem| [(elem, QuantGemmPath::Few), (elem, QuantGemmPath::Many)])
    {
        check_weight(&Case::random(rng, elem, 17, 96, 24).between([8, 3]), path, &weight);
    }
}

/// A row has the same bits alone and with others, in each of the paths.
#[test]
fn rows_do_not_depend_on_their_number() {
    for path in [QuantGemmPath::Few, QuantGemmPath::Many] {
        for_seeds(3, |rng| {
            let (inputs, outputs, weight) = random_weight(rng);
            let elem = rng.pick(&[Elem::F16, Elem::BF16]);
            let all =
                Case::random(rng, elem, if path == QuantGemmPath::Few { 18 } else { 130 }, inputs, outputs);
            let whole = run(&all, &weight.packed, path);
            for rows in [1, 8, 9] {
                let name = all.name(&format!("{path:?} {:?}, first {rows}", weight.packed.format));
                assert_eq!(run(&all.first(rows), &weight.packed, path), whole[..rows * outputs], "{name}");
            }
        });
    }
}

/// GPUs whose blocks have little shared memory use kernels with fewer stages, which give the same
/// bits.
#[test]
fn products_have_the_same_bits_on_gpus_with_little_shared_memory() {
    let Some(devices) = small_and_large_gpu() else { return };
    let rng = &mut Rng(2);
    for (elem, fp8) in HALVES.into_iter().flat_map(|elem| [(elem, false), (elem, true)]) {
        let (inputs, outputs) = (rng.pick(&[8, 200, 400]), rng.pick(&[16, 150]));
        let weight = bytes(rng, inputs, outputs, fp8);
        let case = Case::random(rng, elem, 130, inputs, outputs).between([8, 16]);
        let loaded = weight.packed.upload(&DEVICE).unwrap();
        let room = Room::new(case.rows, weight.packed.depth, outputs);
        let [small, large] = devices.each_ref().map(|device| {
            case.run(|p| {
                let (path, room) = (QuantGemmPath::Many, room.workspace());
                quant_gemm(device, path, &loaded.weight(), p, &room, None).unwrap();
            })
        });
        assert_eq!(small, large, "{}", case.name(""));
        let want = case.reference(|o, i| weight.dense[o * inputs + i]);
        let absolute = size(&case, &weight.dense) * 1e-7 + 1e-6;
        assert_close(&case.name("few stages"), &small, &want, precision(case.elem) * 1.01 + 1e-6, absolute);
    }
}

/// With many outputs, slices of k are long: they have more fragments than are in flight, and some
/// begin in the middle of a group.
#[test]
fn long_slices_match_the_reference() {
    let (inputs, outputs) = (1096, 16392);
    for_seeds(3, |rng| {
        let weight = match rng.0 % 3 {
            0 => gptq(rng, inputs, outputs, 128, Groups::Natural),
            kind => bytes(rng, inputs, outputs, kind == 1),
        };
        let elem = rng.pick(&[Elem::F16, Elem::BF16]);
        let case = Case::random(rng, elem, 1, inputs, outputs);
        let want = case.reference(|o, i| weight.dense[o * inputs + i]);
        let got = run(&case, &weight.packed, QuantGemmPath::Few);
        let absolute = size(&case, &weight.dense) * 1e-7 + 1e-6;
        assert_close(&case.name("long slices"), &got, &want, precision(case.elem) * 1.01 + 1e-6, absolute);
    });
}

/// Every byte of the formats of eight bits is exact: x picks one column after the other.
#[test]
fn every_byte_is_exact() {
    let (inputs, outputs) = (256, 16);
    let values: Vec<u8> = (0..outputs * inputs).map(|at| (at % inputs) as u8).collect();
    let tame: Vec<u8> = values.iter().map(|&b| if b & 0x7f == 0x7f { 0 } else { b }).collect();
    for (fp8, values) in [(false, values), (true, tame)] {
        let weight = of_bytes([outputs, inputs], fp8, values, &[1.0], [outputs, inputs]);
        for elem in [Elem::F16, Elem::BF16] {
            let case = Case::identity(elem, inputs, outputs);
            let want = case.reference(|o, i| weight.dense[o * inputs + i]);
            for path in [QuantGemmPath::Few, QuantGemmPath::Many] {
                let got = run(&case, &weight.packed, path);
                assert_close(&format!("{elem:?} {path:?}"), &got, &want, 0.0, 0.0);
            }
        }
    }
}

/// Parts that are stacked, such as q, k and v, are one weight, whose rows need not be whole tiles.
#[test]
fn stacked_parts_are_the_whole_weight() {
    let mut rng = Rng(3);
    let parts = [24, 48].map(|outputs| gptq_part(&mut rng, 128, outputs, 32, Groups::Natural));
    let dense = parts.each_ref().map(|(_, dense)| &dense[..]).concat();
    let both = pack(&parts.map(|(part, _)| part), 1);
    let case = Case::random(&mut rng, Elem::F16, 3, 128, 72);
    let want = case.reference(|o, i| dense[o * 128 + i]);
    assert_close("stacked", &run(&case, &both, QuantGemmPath::Few), &want, precision(Elem::F16) * 1.01, 1e-4);
}

#[test]
fn scales_that_are_not_finite_are_refused() {
    let tensors = GptqTensors {
        bits: 4,
        group_cols: 32,
        plus_one: true,
        qweight: vec![0; 64 * 4].into(),
        qzeros: vec![0; 2 * 4].into(),
        scales: numbers(&[f32::NAN; 16]),
        g_idx: None,
    };
    let parts = [Part::whole(gptq::matrix(8, 64, tensors).unwrap())];
    let error = PackedWeight::pack(&parts, 1, exact_format(&parts).unwrap()).unwrap_err().to_string();
    assert!(error.contains("a scale of NaN"), "{error}");
}
