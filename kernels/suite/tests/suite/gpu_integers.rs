//! Tests of weights of 4 and 8 bits in groups on the GPU under test, integers, K-quants and FP8,
//! against the reference, whose weights are the numbers that the codes stand for.

use millrace_backend::reference::Reference;
use millrace_backend::{ProductShape, RouterScores, RouterSpec, Segment, Sizing, WeightLoading};
use millrace_numbers::formats::fp8;
use millrace_numbers::formats::ggml::SUPER_BLOCK;
use millrace_numbers::integers::exact_integers;
use millrace_numbers::{BlockType, DType, HostTensor, IntFormat, KFormat, Part, WeightFormat};
use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

use crate::common::*;
use crate::fp8::{assert_near, assert_near_by, gpu, run};
use crate::product::{Case, announced};
use crate::stored::{Quantized, numbers};
use crate::stored_codes::Coded;
use crate::{blocks, experts};

/// The formats that weights are quantized to for a GPU.
const QUANTIZED: [IntFormat; 4] = IntFormat::ALL;

proptest! {
    #![proptest_config(cases(24))]

    /// Few rows, many rows, and one method for all rows; activations are never rounded.
    #[test]
    fn quantized_weights_match_the_reference(
        n in 1usize..40, blocks in 1usize..10, fewer in 0usize..32, out in 3usize..60, bias: bool, format in 0usize..4,
        dtype in 0usize..3, invariant: bool, seed: u64,
    ) {
        let (format, dtype) = (QUANTIZED[format], DTYPES[dtype]);
        let cols = if format == IntFormat::Int8 { 32 * blocks - fewer } else { 32 * blocks };
        let case = Case::new((n, cols, out), bias, WeightFormat::Int(format), seed).rounded(|x| dtype.round(x));
        let got = run(&case, &gpu(dtype, invariant), dtype);
        assert_near(&case, &got, &run(&case, &Reference, DType::F32), dtype);
    }

    /// Every layout of every checkpoint that the kernels multiply by as it is: a whole matrix and a
    /// rank's share, with columns in order and with columns that activation order has moved.
    #[test]
    fn stored_weights_match_the_reference(
        n in 1usize..40, rows in 1usize..8, blocks in 2usize..9, bits in 0usize..3, group in 0usize..3, half: bool,
        symmetric: bool, shuffled: bool, share: bool, dtype in 0usize..3, seed: u64,
    ) {
        let (rows, cols, bits, group) = (32 * rows, 32 * blocks, [4, 4, 8][bits], [32, 64, 128][group]);
        let scales = if half { DType::F16 } else { DType::BF16 };
        let dtype = DTYPES[dtype];
        let matrix = Quantized::new(rows, cols, bits, group, scales, seed);
        let matrix = if symmetric || bits == 8 { matrix.symmetric() } else { matrix };
        let matrix = if shuffled { matrix.shuffled(seed ^ 1) } else { matrix };
        let device = gpu(dtype, seed % 2 == 0);
        let cut = if share { cols / 64 * 32..cols } else { 0..cols };
        for (name, tensor) in matrix.stored() {
            let part = |rows| Part { tensor: tensor.clone(), rows, cols: cut.clone() };
            let parts = [part(0..5), part(5..rows)];
            let Some(format) = device.stored_format(&parts) else {
                // A share of shuffled columns may need too much padding.
                assert!(bits == 8 || shuffled && share, "{name}: {bits} bits in groups of {group} are not kept");
                continue;
            };
            prop_assert!(shuffled || device.stored_expert_format(&parts) == Some(format));
            let w = matrix.weights(0..rows, cut.clone());
            let mut case = Case::new((n, cut.len(), rows), false, DType::F32, seed).rounded(|x| dtype.round(x));
            case.w = w;
            let got = announced(&device, dtype, &case.x, &parts, format, None);
            assert_near(&case, &got, &run(&case, &Reference, DType::F32), dtype);
        }
    }
}

/// Signed bytes with scales of rows and of groups are kept, whatever the type of the scales.
#[test]
fn signed_bytes_are_kept() {
    for (group, dtype) in [(256, DType::F32), (128, DType::F16), (64, DType::BF16), (32, DType::F32)] {
        let matrix = Quantized::new(24, 256, 8, group, dtype, 3).symmetric();
        let parts = [Part::whole(matrix.signed_bytes(true, 1.0))];
        let device = gpu(DType::BF16, false);
        let format = device.stored_format(&parts).unwrap();
        let mut case = Case::new((19, 256, 24), false, DType::F32, 5).rounded(|x| DType::BF16.round(x));
        case.w = matrix.weights(0..24, 0..256);
        let got = announced(&device, DType::BF16, &case.x, &parts, format, None);
        assert_near(&case, &got, &run(&case, &Reference, DType::F32), DType::BF16);
    }
}

/// Blocks of GGUF are kept with their numbers, also where types are mixed.
#[test]
fn blocks_of_gguf_match_the_reference() {
    use BlockType::{IQ4_NL, Q4_0, Q5_0, Q8_0};
    let formats = [
        ([Q4_0, Q4_0], IntFormat::Q4_0),
        ([Q8_0, Q8_0], IntFormat::Q8_0),
        ([Q5_0, Q5_0], IntFormat::Q8_0),
        ([Q4_0, Q8_0], IntFormat::Q8_0),
        ([IQ4_NL, Q5_0], IntFormat::Q8_0),
    ];
    for (index, (kinds, want)) in formats.into_iter().enumerate() {
        for (dtype, n) in DTYPES.into_iter().flat_map(|dtype| [(dtype, 3), (dtype, 70)]) {
            let (rows, cols, seed) = (21, 32 * (index + 1), index as u64);
            let parts = kinds.map(|kind| Part::whole(blocks::matrix(kind, rows, cols, seed)));
            let device = gpu(dtype, false);
            let format = device.stored_format(&parts).unwrap();
            assert_eq!(format, WeightFormat::Int(want), "{kinds:?}");
            let mut case =
                Case::new((n, cols, 2 * rows), false, DType::F32, seed).rounded(|x| dtype.round(x));
            case.w = blocks::weights(&parts);
            let got = announced(&device, dtype, &case.x, &parts, format, None);
            assert_near(&case, &got, &run(&case, &Reference, DType::F32), dtype);
        }
    }
}

/// The part of all magnitudes by which a product with K-quants may be off. Scale and zero point of
/// `Q4_K` are rounded, and then each weight is, as in a matrix of 16 bits.
fn of_terms(dtype: DType) -> f32 {
    match dtype {
        DType::F32 | DType::F16 => 1.0 / 512.0,
        DType::BF16 => 1.0 / 256.0,
    }
}

proptest! {
    #![proptest_config(cases(24))]

    /// Blocks of K-quants of a GGUF file, whole and cut, and weights that are quantized to them.
    #[test]
    fn k_quants_match_the_reference(
        n in 1usize..80, blocks in 1usize..4, rows in 3usize..40, kind in 0usize..7, dtype in 0usize..3,
        invariant: bool, cut: bool, seed: u64,
    ) {
        let (dtype, whole) = (DTYPES[dtype], SUPER_BLOCK * blocks);
        let device = gpu(dtype, invariant);
        let kinds = [BlockType::Q4K, BlockType::Q5K, BlockType::Q6K, BlockType::Q3K];
        let Some(kind) = kinds.get(kind) else {
            let format = WeightFormat::K(KFormat::ALL[kind - kinds.len()]);
            let case = Case::new((n, whole, rows), false, format, seed).rounded(|x| dtype.round(x));
            let want = run(&case, &Reference, DType::F32);
            assert_near_by(&case, &run(&case, &device, dtype), &want, dtype, of_terms(dtype));
            return Ok(());
        };
        let cols = if cut { whole - SUPER_BLOCK..whole } else { 0..whole };
        let part = |seed| Part { cols: cols.clone(), ..Part::whole(blocks::matrix(*kind, rows, whole, seed)) };
        let parts = [part(seed), part(seed ^ 1)];
        let format = device.stored_format(&parts).unwrap();
        prop_assert_eq!(device.stored_expert_format(&parts), Some(format));
        let mut case =
            Case::new((n, cols.len(), 2 * rows), false, DType::F32, seed).rounded(|x| dtype.round(x));
        case.w = blocks::weights(&parts);
        let got = announced(&device, dtype, &case.x, &parts, format, None);
        assert_near_by(&case, &got, &run(&case, &Reference, DType::F32), dtype, of_terms(dtype));
    }
}

/// Codes of four bits that stand for signed bytes, or halves of them, are exact.
#[test]
fn codes_of_four_bits_match_the_reference() {
    use BlockType::{IQ4_NL, IQ4_XS, MXFP4};
    for (index, kind) in [MXFP4, IQ4_NL, IQ4_XS].into_iter().enumerate() {
        for (dtype, n) in DTYPES.into_iter().flat_map(|dtype| [(dtype, 3), (dtype, 70)]) {
            let (rows, cols, seed) = (21, 256 * (index + 1), index as u64);
            let parts = [1, 2].map(|more| Part::whole(blocks::matrix(kind, rows, cols, seed + more)));
            let device = gpu(dtype, false);
            let format = device.stored_format(&parts).unwrap();
            assert_eq!(device.stored_expert_format(&parts), Some(format), "{kind:?}");
            assert_eq!(device.matrix_bytes(32, 256, format), 32 * 256 * 5 / 8, "{kind:?}");
            let mut case =
                Case::new((n, cols, 2 * rows), false, DType::F32, seed).rounded(|x| dtype.round(x));
            case.w = blocks::weights(&parts);
            let got = announced(&device, dtype, &case.x, &parts, format, None);
            assert_near(&case, &got, &run(&case, &Reference, DType::F32), dtype);
        }
    }
}

proptest! {
    #![proptest_config(cases(24))]

    /// FP8 numbers keep the scales of their blocks, and activations 16 bits. If a row has one
    /// scale, many rows of activations may become FP8 too, so that such weights have few rows here.
    #[test]
    fn stored_fp8_matches_the_reference(
        n in 1usize..17, more in 0usize..60, blocks in 1usize..5, fewer in 0usize..64, kind in 0usize..4,
        dtype in 0usize..3, invariant: bool, seed: u64,
    ) {
        let (rows, cols, dtype) = (150, 128 * blocks - fewer, DTYPES[dtype]);
        let block = [[1, cols], [128, 128], [32, 64], [150, cols]][kind];
        let matrix = Coded::fp8(rows, cols, block, DType::BF16, seed);
        let parts = [matrix.part(0..20, 0..cols), matrix.part(20..rows, 0..cols)];
        let device = gpu(dtype, invariant);
        let format = device.stored_format(&parts).unwrap();
        prop_assert_eq!(device.stored_expert_format(&parts), Some(format));
        let n = if cols > block[1] { n + more } else { n };
        let mut case = Case::new((n, cols, rows), false, DType::F32, seed).rounded(|x| dtype.round(x));
        case.w = parts.iter().flat_map(|part| matrix.weights(part, |x| x)).collect();
        let got = announced(&device, dtype, &case.x, &parts, format, None);
        assert_near(&case, &got, &run(&case, &Reference, DType::F32), dtype);
    }
}

/// Experts of checkpoints in FP8, whose matrices have padding, and the two kinds of FP8 on the
/// device.
#[test]
fn experts_in_stored_fp8_match_the_reference() {
    let (hidden, width) = (200, 72);
    let matrices = |rows, cols, block: [usize; 2], seed| {
        [0u64, 1, 2].map(|expert| {
            let matrix = Coded::fp8(rows, cols, block, DType::F32, seed + expert);
            vec![matrix.part(0..rows, 0..cols)]
        })
    };
    let gate_up = matrices(2 * width, hidden, [128, 128], 1);
    let down = matrices(hidden, width, [1, width], 7);
    let case = experts::Case::new((23, hidden, width), router(3), false, DType::F32, 5);
    let device = gpu(DType::F32, false);
    let formats = [&gate_up, &down].map(|parts| device.stored_expert_format(&parts.concat()).unwrap());
    let got = case.run_by(&device, [(&gate_up, formats[0]), (&down, formats[1])]);
    let dense = WeightFormat::Dense(DType::F32);
    assert_close("fp8", &got, &case.run_by(&Reference, [(&gate_up, dense), (&down, dense)]), 1e-4);
}

/// Blocks that the kernels lack are not kept: of other than powers of two, and of less than 64
/// columns. A NaN is an error.
#[test]
fn other_blocks_of_fp8_are_not_kept() {
    let device = gpu(DType::BF16, false);
    for (block, is_kept) in [([128, 128], true), ([4, 256], true), ([128, 96], false), ([16, 32], false)] {
        let matrix = Coded::fp8(32, 384, block, DType::F32, 1);
        assert_eq!(device.stored_format(&[matrix.part(0..32, 0..384)]).is_some(), is_kept, "{block:?}");
    }
    let nan = fp8::matrix(1, 64, vec![0x7f; 64].into(), numbers(&[1.0], DType::F32), [1, 64]).unwrap();
    let parts = [Part::whole(nan)];
    let format = device.stored_format(&parts).unwrap();
    let error = device.matrix(&[Segment::new(&parts, format)]).unwrap_err().to_string();
    assert!(error.contains("is a NaN or an infinity"), "{error}");
}

/// The plan counts a byte for each number, and four for each scale.
#[test]
fn stored_fp8_takes_few_bytes() {
    let device = gpu(DType::BF16, false);
    for (block, bits) in [([128, 128], 8.25), ([1, 1024], 8.03125)] {
        let parts = [Coded::fp8(64, 1024, block, DType::F32, 1).part(0..64, 0..1024)];
        let format = device.stored_format(&parts).unwrap();
        assert_eq!(device.matrix_bytes(64, 1024, format) as f64 * 8.0 / (64.0 * 1024.0), bits, "{block:?}");
        let product = ProductShape { inputs: 1024, outputs: 64, format, logits: false, rows: 40 };
        // Only where a row has one scale, activations may be quantized.
        let scratch = if block[0] == 1 { 40 * (1024 + 4) } else { 0 };
        assert!([0, scratch].contains(&device.scratch_bytes(&[product])), "{block:?}");
    }
}

/// A router of `experts` experts.
fn router(experts: usize) -> RouterSpec {
    RouterSpec {
        experts,
        top_k: 2,
        scores: RouterScores::Softmax,
        normalize: true,
        factor: 1.0,
        weighs_inputs: false,
        groups: None,
    }
}

proptest! {
    #![proptest_config(cases(12))]

    /// Experts that are quantized while they are loaded. Sizes are not always multiples of 16, so
    /// that each expert has padding.
    #[test]
    fn experts_in_few_bits_match_the_reference(
        n in 1usize..60, sizes in (1usize..4, 1usize..4), fewer in 0usize..32, format in 0usize..8, biased: bool,
        seed: u64,
    ) {
        let format = match format {
            4 => WeightFormat::Fp8,
            5..8 => WeightFormat::K(KFormat::ALL[format - 5]),
            _ => WeightFormat::Int(QUANTIZED[format]),
        };
        let (unit, fewer) = match format {
            WeightFormat::Fp8 | WeightFormat::Int(IntFormat::Int8) => (32, fewer),
            WeightFormat::K(_) => (SUPER_BLOCK, 0),
            _ => (32, 0),
        };
        let sizes = (n, unit * sizes.0.div_ceil(unit / 32) - fewer, unit * sizes.1.div_ceil(unit / 32) - fewer);
        let case = experts::Case::new(sizes, router(4), false, format, seed);
        let case = if biased { case.biased(seed) } else { case };
        let want = case.run(&Reference);
        let bound = if matches!(format, WeightFormat::K(_)) { 2e-3 } else { 1e-4 };
        assert_close(format.name(), &case.run(&gpu(DType::F32, false)), &want, bound);
        // Activations are rounded three times.
        assert_close(format.name(), &case.run(&gpu(DType::F16, false)), &want, 1e-2);
    }
}

/// The experts of a file share a format, although one of them could have another by itself.
#[test]
fn experts_in_blocks_match_the_reference() {
    use BlockType::{Q4_0, Q5_0, Q8_0};
    let (hidden, width) = (64, 40);
    let part = |kind, rows, cols, seed| Part::whole(blocks::matrix(kind, rows, cols, seed));
    let up = |kinds: [BlockType; 2], seed| kinds.map(|kind| part(kind, width, hidden, seed)).to_vec();
    let gate_up = [up([Q4_0, Q4_0], 1), up([Q5_0, Q8_0], 2), up([Q8_0, Q4_0], 3)];
    let down = [4, 5, 6].map(|seed| vec![part(Q4_0, hidden, 64, seed)]);
    let down =
        down.map(|parts| parts.into_iter().map(|part| Part { cols: 0..32, ..part }).collect::<Vec<_>>());
    let case = experts::Case::new((9, hidden, 32), router(3), false, DType::F32, 5);
    // Gate and up have more rows than down has columns, so that each is cut to a share.
    let gate_up =
        gate_up.map(|parts| parts.into_iter().map(|part| Part { rows: 3..35, ..part }).collect::<Vec<_>>());
    let device = gpu(DType::F32, false);
    let formats = [&gate_up, &down].map(|parts| device.stored_expert_format(&parts.concat()).unwrap());
    assert_eq!(formats, [IntFormat::Q8_0, IntFormat::Q4_0].map(WeightFormat::Int));
    let got = case.run_by(&device, [(&gate_up, formats[0]), (&down, formats[1])]);
    let dense = WeightFormat::Dense(DType::F32);
    assert_close("blocks", &got, &case.run_by(&Reference, [(&gate_up, dense), (&down, dense)]), 1e-4);
}

/// In batch-invariant mode a row has the same bits alone as in a batch, with columns in any order.
#[test]
fn batch_invariant_rows_have_the_same_bits_alone() {
    let parts = [Part::whole(Quantized::new(32, 128, 4, 32, DType::F16, 7).shuffled(8).gptq(true, true))];
    let device = || gpu(DType::F16, true);
    let format = device().stored_format(&parts).unwrap();
    let x: Vec<f32> = Rng(9).values(40 * 128).into_iter().map(|x| DType::F16.round(x)).collect();
    let product = |x: &[f32]| announced(&device(), DType::F16, x, &parts, format, None);
    let all = product(&x);
    for row in [0, 39] {
        assert_same_bits("row alone", &product(&x[row * 128..][..128]), &all[row * 32..][..32]);
    }
}

/// Weights that the kernels cannot multiply by exactly are not kept as they are.
#[test]
fn weights_that_the_kernels_cannot_hold_are_not_kept() {
    let device = gpu(DType::BF16, false);
    let kept = |tensor: HostTensor| device.stored_format(&[Part::whole(tensor)]).is_some();
    let matrix = |bits, group, dtype| Quantized::new(32, 128, bits, group, dtype, 2);
    assert!(kept(matrix(4, 32, DType::BF16).gptq(true, false)));
    assert!(!kept(matrix(4, 32, DType::F32).gptq(true, false)), "scales of 23 bits of mantissa");
    assert!(!kept(matrix(8, 64, DType::F16).signed_bytes(false, 1.0)), "zero points of bytes");
    let blocks = [BlockType::Q2K, BlockType::Q5_1, BlockType::Q4_1, BlockType::NVFP4]
        .map(|kind| kept(blocks::matrix(kind, 4, 256, 1)));
    assert_eq!(blocks, [false; 4], "blocks with other minima, and codes in groups of 16");
    let mixed = [BlockType::Q4K, BlockType::Q6K].map(|kind| Part::whole(blocks::matrix(kind, 4, 256, 1)));
    assert_eq!(device.stored_format(&mixed), None, "a matrix has one format");
    let shuffled = [Part::whole(matrix(4, 32, DType::F16).shuffled(3).gptq(true, true))];
    assert!(device.stored_format(&shuffled).is_some());
    assert_eq!(device.stored_expert_format(&shuffled), None, "the columns of experts are in order");
}

#[test]
fn other_formats_are_refused_by_name() {
    let device = gpu(DType::BF16, false);
    let refused = |values: &[f32], cols, format| {
        let parts = [Part::whole(tensor(&bytes(values), values.len() / cols, cols))];
        device.matrix(&[Segment::new(&parts, format)]).unwrap_err().to_string()
    };
    let nf4 = refused(&[1.0; 256], 256, WeightFormat::Nf4);
    assert!(nf4.contains("nf4 weights; only the CPU has them"), "{nf4}");
    let short = refused(&[1.0; 96], 96, WeightFormat::K(KFormat::Q4K));
    assert!(short.contains("a matrix of 96 columns as q4_k"), "{short}");
    let huge = refused(&[2e9; 256], 256, WeightFormat::K(KFormat::Q6K));
    assert!(huge.contains("a weight of 2e9 as q6_k"), "{huge}");
    let mut stored = blocks::matrix(BlockType::Q4K, 1, 256, 1);
    stored.bytes = [&[0x00, 0x7c], &stored.bytes[2..]].concat().into();
    let parts = [Part::whole(stored)];
    let error =
        device.matrix(&[Segment::new(&parts, WeightFormat::K(KFormat::Q4K))]).unwrap_err().to_string();
    assert!(error.contains("is a NaN or an infinity"), "{error}");
    let odd = refused(&[1.0; 48], 48, WeightFormat::Int(IntFormat::Int4));
    assert!(odd.contains("48 columns as int4"), "{odd}");
    let nan = refused(&[f32::NAN; 32], 32, WeightFormat::Int(IntFormat::Int4));
    assert!(nan.contains("a NaN or an infinity"), "{nan}");
    let wide = [Part::whole(Quantized::new(32, 64, 4, 32, DType::F32, 1).gptq(true, false))];
    let format = WeightFormat::Int(exact_integers(&wide).unwrap());
    let error = device.matrix(&[Segment::new(&wide, format)]).unwrap_err().to_string();
    assert!(error.contains("more than 18 bits of mantissa"), "{error}");
    let dense = [Part::whole(tensor(&bytes(&[1.0; 64]), 1, 64))];
    let error = device.matrix(&[Segment::new(&dense, format)]).unwrap_err().to_string();
    assert!(error.contains("other weights as stored integers of 4 bits"), "{error}");
}

/// The plan counts the codes, and four bytes for the scale and zero point of each group.
#[test]
fn matrices_take_few_bytes() {
    let device = gpu(DType::BF16, false);
    for (format, bits) in QUANTIZED.into_iter().zip([8.0 + 32.0 / 2048.0, 9.0, 5.0, 4.25]) {
        let bytes = device.matrix_bytes(512, 2048, WeightFormat::Int(format));
        assert_eq!(bytes as f64 * 8.0 / (512.0 * 2048.0), bits, "{}", format.name());
    }
    for (format, bits) in KFormat::ALL.into_iter().zip([5, 9, 9]) {
        let bytes = device.matrix_bytes(512, 2048, WeightFormat::K(format));
        assert_eq!(bytes, 512 * 2048 * bits / 8, "{}", format.name());
    }
    let parts = [Part::whole(Quantized::new(32, 256, 4, 128, DType::F16, 1).shuffled(2).gptq(true, true))];
    let format = device.stored_format(&parts).unwrap();
    assert_eq!(device.matrix_bytes(32, 256, format), 32 * 256 / 2 + 32 * 2 * 4 + 256 * 4);
    // Activations are ordered for the kernel of many rows.
    let product = ProductShape { inputs: 256, outputs: 32, format, logits: false, rows: 40 };
    assert_eq!(device.scratch_bytes(&[product]), 40 * 256 * 2);
}
