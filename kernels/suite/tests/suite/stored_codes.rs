//! Tests of matrices that a checkpoint stores as codes that stand for numbers (fp8, nf4, fp4): the
//! layouts against a writer that follows their description, and the products of the CPU against the
//! reference.

use half::bf16;
use millrace_backend::reference::Reference;
use millrace_backend::{Backend, Error, Segment, Sizing, WeightLoading};
use millrace_numbers::codes::{CodeType, StoredCodes, exact_codes};
use millrace_numbers::formats::bitsandbytes::{BlockScales, TableCodes};
use millrace_numbers::formats::{exact_format, fp8, nf4};
use millrace_numbers::integers::exact_integers;
use millrace_numbers::scales::{NumberType, Numbers};
use millrace_numbers::{DType, Encoding, HostTensor, Part, WeightFormat};
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

use crate::common::*;
use crate::stored::{DTYPES_OF_SCALES, numbers, product, range, read};

/// A matrix of codes: what a checkpoint says, before it is packed.
pub(crate) struct Coded {
    rows: usize,
    cols: usize,
    codes: Vec<u8>, // [rows, cols]
    values: Vec<f32>,
    /// The block of each weight.
    block_of: Vec<usize>,
    scales: Vec<f32>,
    tensor: HostTensor,
}

impl Coded {
    pub(crate) fn fp8(rows: usize, cols: usize, block: [usize; 2], dtype: DType, seed: u64) -> Coded {
        let mut rng = Rng(seed);
        let code = |_| loop {
            let byte = rng.below(256) as u8;
            if byte & 0x7f != 0x7f {
                break byte;
            }
        };
        let codes: Vec<u8> = (0..rows * cols).map(code).collect();
        let across = cols.div_ceil(block[1]);
        let scales: Vec<f32> =
            rng.values(rows.div_ceil(block[0]) * across).iter().map(|x| dtype.round(*x)).collect();
        let block_of =
            (0..rows * cols).map(|at| at / cols / block[0] * across + at % cols / block[1]).collect();
        let tensor = fp8::matrix(rows, cols, codes.clone().into(), numbers(&scales, dtype), block).unwrap();
        Coded { rows, cols, codes, values: (0..=255).map(fp8::widen).collect(), block_of, scales, tensor }
    }

    /// nf4 and fp4: blocks are cut from the sequence of all rows, and scales may be quantized
    /// themselves.
    fn four_bits(
        rows: usize,
        cols: usize,
        block: usize,
        values: [f32; 16],
        nested: bool,
        seed: u64,
    ) -> Coded {
        let (mut rng, all) = (Rng(seed), rows * cols);
        let codes: Vec<u8> = (0..all).map(|_| rng.below(16) as u8).collect();
        let bytes: Vec<u8> = codes.chunks(2).map(|two| two[0] << 4 | two.get(1).unwrap_or(&0)).collect();
        let blocks = all.div_ceil(block);
        let (scales, stored): (Vec<f32>, BlockScales) = if nested {
            let (table, outer) = (rng.values(256), rng.values(blocks.div_ceil(8)));
            let inner: Vec<u8> = (0..blocks).map(|_| rng.below(256) as u8).collect();
            let scales = (0..blocks).map(|i| table[inner[i] as usize] * outer[i / 8] + 0.25).collect();
            let (table, outer) = (numbers(&table, DType::F32), numbers(&outer, DType::F32));
            (
                scales,
                BlockScales::Nested { codes: inner.into(), table, block: 8, scales: outer, offset: 0.25 },
            )
        } else {
            let scales = rng.values(blocks);
            let stored = BlockScales::Numbers(numbers(&scales, DType::F32));
            (scales, stored)
        };
        let codes_of = TableCodes { table: values, block, scales: stored };
        let tensor = HostTensor::new(Encoding::codes(codes_of), rows, cols, bytes.into()).unwrap();
        let block_of = (0..all).map(|at| at / block).collect();
        Coded { rows, cols, codes, values: values.to_vec(), block_of, scales, tensor }
    }

    pub(crate) fn part(&self, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>) -> Part {
        Part { tensor: self.tensor.clone(), rows, cols }
    }

    /// The weights of a part, with the values of codes rounded by `round`.
    pub(crate) fn weights(&self, part: &Part, round: impl Fn(f32) -> f32) -> Vec<f32> {
        let columns = |row: usize| part.cols.clone().map(move |col| row * self.cols + col);
        let weight =
            |at: usize| round(self.values[usize::from(self.codes[at])]) * self.scales[self.block_of[at]];
        part.rows.clone().flat_map(columns).map(weight).collect()
    }
}

fn to_bf16(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

/// Compares the products of every CPU with those of the reference by the dequantized weights.
fn check_products(matrices: &[&Coded], parts: &[Part], n: usize, seed: u64) {
    let cols = parts[0].cols.len();
    let format = exact_format(parts).expect("a format");
    let x: Vec<f32> =
        (0..n * cols).map(|at| Rng(seed ^ at as u64).unit() * [1.0, 0.1, 4.0][at / 32 % 3]).collect();
    let by = |round: fn(f32) -> f32| {
        let weights = matrices.iter().zip(parts).map(|(matrix, part)| matrix.weights(part, round));
        let weights = weights.collect::<Vec<_>>().concat();
        let dense = [Part::whole(tensor(&bytes(&weights), weights.len() / cols, cols))];
        let x: Vec<f32> = x.iter().map(|x| round(*x)).collect();
        product(&Reference, &x, &dense, DType::F32.into())
    };
    let (exact, rounded) = (by(|x| x), by(to_bf16));
    assert_close("the reference", &product(&Reference, &x, parts, format), &exact, 1e-6);
    for cpu in CPUS.iter().chain(EXACT_CPUS.iter()) {
        assert_eq!(cpu.stored_format(parts), Some(format));
        let want = if rounds(cpu, format) { &rounded } else { &exact };
        assert_close(&format!("{format:?} on {}", cpu.name()), &product(cpu, &x, parts, format), want, 1e-5);
    }
}

/// The table of bitsandbytes for fp4: the numbers of one sign bit, two bits of exponent and one of
/// mantissa, divided by the largest one.
const FP4: [f32; 16] = {
    let positive = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];
    let mut all = [0.0; 16];
    let mut i = 0;
    while i < 8 {
        all[i] = positive[i] / 12.0;
        all[i + 8] = -all[i];
        i += 1;
    }
    all
};

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn codes_of_four_bits_read_what_was_written(
        (rows, cols) in (1usize..20, 1usize..200), block in 0usize..3, nested: bool,
        cut in any::<[[prop::sample::Index; 2]; 2]>(), seed: u64,
    ) {
        let values = std::array::from_fn(|code| Rng(seed ^ code as u64).unit());
        let matrix = Coded::four_bits(rows, cols, [16, 64, 256][block], values, nested, seed);
        let part = matrix.part(range(cut[0], rows), range(cut[1], cols));
        prop_assert_eq!(read(&part), matrix.weights(&part, |x| x));
        prop_assert!(exact_integers(&[part]).is_none());
    }

    #[test]
    fn fp8_blocks_read_what_was_written(
        (rows, cols) in (1usize..40, 1usize..700), block in 0usize..5, cut in any::<[[prop::sample::Index; 2]; 2]>(),
        dtype in 0usize..3, seed: u64,
    ) {
        let block = [[rows, cols], [1, cols], [8, 16], [128, 128], [1, 16]][block];
        let matrix = Coded::fp8(rows, cols, block, DTYPES_OF_SCALES[dtype], seed);
        let part = matrix.part(range(cut[0], rows), range(cut[1], cols));
        prop_assert_eq!(read(&part), matrix.weights(&part, |x| x));
    }

    /// The CPU multiplies by the stored codes and scales, for shares of ranks as well.
    #[test]
    fn products_by_fp8_are_exact(
        n in 1usize..40, (rows, cols) in (1usize..80, 1usize..1300), block in 0usize..4, dtype in 0usize..3,
        first in 0usize..3, seed: u64,
    ) {
        let block = [[rows, cols], [1, cols], [128, 128], [8, 48]][block];
        let matrix = Coded::fp8(rows, cols, block, DTYPES_OF_SCALES[dtype], seed);
        let part = matrix.part(rows / 3..rows, (first * 16).min(cols - 1)..cols);
        check_products(&[&matrix], &[part], n, seed);
    }

    #[test]
    fn products_by_codes_of_four_bits_are_exact(
        n in 1usize..40, rows in 1usize..80, sixteens in 1usize..60, block in 0usize..3, nested: bool, fp4: bool,
        first in 0usize..4, seed: u64,
    ) {
        let (cols, values) = (16 * sixteens, if fp4 { FP4 } else { nf4::TABLE });
        let matrix = Coded::four_bits(rows, cols, [64, 128, 4096][block], values, nested, seed);
        let part = matrix.part(rows / 3..rows, 16 * first.min(sixteens - 1)..cols);
        check_products(&[&matrix], &[part], n, seed);
    }
}

fn codes(codes: CodeType, cols: usize) -> Option<StoredCodes> {
    Some(StoredCodes { codes, cols, by_row: false })
}

/// Groups are as large as the blocks and the share of a rank allow.
#[test]
fn groups_divide_blocks_and_shares() {
    let fp8 = |block, cols| exact_codes(&[Coded::fp8(2, 1024, block, DType::F32, 1).part(0..2, cols)]);
    let e4m3 = |cols| codes(CodeType::E4m3, cols);
    let by_row = codes(CodeType::E4m3, 512).map(|format| StoredCodes { by_row: true, ..format });
    assert_eq!([fp8([2, 1024], 0..1024), fp8([1, 1024], 3..999)], [by_row, by_row]);
    assert_eq!([fp8([128, 128], 0..1024), fp8([128, 128], 192..1024)], [e4m3(128), e4m3(64)]);
    // A share within one block has one factor, wherever it begins.
    assert_eq!([fp8([128, 128], 130..250), fp8([128, 128], 130..300)], [by_row, None]);
    assert_eq!([fp8([1, 768], 0..1024), fp8([1, 8], 0..1024)], [e4m3(384), None]);
    let four = |cols: usize, block, taken| {
        exact_codes(&[Coded::four_bits(4, cols, block, FP4, false, 1).part(0..4, taken)])
    };
    let bits = |cols| codes(CodeType::FourBits, cols);
    assert_eq!(
        [four(512, 64, 0..512), four(512, 64, 32..512), four(96, 64, 0..96)],
        [bits(64), bits(32), bits(32)]
    );
    assert_eq!([four(4096, 4096, 0..4096), four(100, 64, 0..100)], [bits(512), None]);
}

/// The parts of a fused matrix share groups. Parts with other tables, or that are dense, do not.
#[test]
fn fused_parts_share_groups_and_a_table() {
    let rows = Coded::fp8(40, 256, [1, 256], DType::BF16, 1);
    let blocks = Coded::fp8(64, 256, [128, 128], DType::F32, 2);
    let parts = [&rows, &blocks].map(|matrix| matrix.part(0..matrix.rows, 0..256));
    assert_eq!(exact_codes(&parts), codes(CodeType::E4m3, 128));
    check_products(&[&rows, &blocks], &parts, 5, 3);
    let [one, two] = [FP4, nf4::TABLE].map(|values| Coded::four_bits(8, 256, 64, values, false, 4));
    let part = |matrix: &Coded| matrix.part(0..8, 0..256);
    assert!(exact_codes(&[part(&one), part(&one)]).is_some());
    assert!(
        exact_codes(&[part(&one), part(&two)]).is_none()
            && exact_codes(&[part(&one), parts[0].clone()]).is_none()
    );
    let dense = Part::whole(tensor(&bytes(&[1.0; 256]), 1, 256));
    assert!(exact_codes(&[part(&one), dense]).is_none() && exact_codes(&[]).is_none());
}

#[test]
fn planned_bytes_are_those_of_the_stored_numbers() {
    let bits = |matrix: &Coded, bits: f64| {
        let parts = [matrix.part(0..matrix.rows, 0..matrix.cols)];
        for cpu in CPUS.iter() {
            let format = cpu.stored_format(&parts).unwrap();
            let bytes = cpu.matrix_bytes(matrix.rows, matrix.cols, format);
            assert_eq!(bytes, format.bytes(matrix.rows, matrix.cols));
            assert_eq!(bytes as f64 * 8.0 / (matrix.rows * matrix.cols) as f64, bits);
        }
    };
    bits(&Coded::fp8(64, 1024, [1, 1024], DType::F32, 1), 8.0625);
    bits(&Coded::fp8(64, 1024, [128, 128], DType::F32, 1), 8.25);
    bits(&Coded::four_bits(64, 1024, 64, FP4, true, 1), 4.5);
}

/// A NaN would become another number in the registers, so that it is refused. The error says where
/// it is.
#[test]
fn numbers_that_are_not_finite_are_refused() {
    let mut matrix = Coded::fp8(40, 100, [1, 100], DType::F32, 1);
    let good = matrix.part(0..40, 0..100);
    for nan in [0x7f, 0xff] {
        let mut codes = matrix.codes.clone();
        codes[30 * 100 + 17] = nan;
        matrix.tensor.bytes = codes.into();
        let parts = [good.clone(), matrix.part(20..40, 10..100)].map(|part| Part { cols: 10..100, ..part });
        let format = exact_format(&parts).unwrap();
        for cpu in CPUS.iter() {
            let error = cpu.matrix(&[Segment::new(&parts, format)]).unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::Numbers(millrace_numbers::Error::StoredNumber { part: 1, row: 30, col: 17 })
                ),
                "{error}"
            );
        }
    }
    let values = std::array::from_fn(|code| if code == 3 { f32::INFINITY } else { 1.0 });
    let matrix = Coded::four_bits(8, 64, 64, values, false, 1);
    let parts = [matrix.part(0..8, 0..64)];
    let error =
        CPUS[0].matrix(&[Segment::new(&parts, exact_format(&parts).unwrap())]).unwrap_err().to_string();
    assert!(error.contains("is a NaN or an infinity"), "{error}");
}

#[test]
fn dense_weights_do_not_become_stored_codes() {
    let format = WeightFormat::Codes(StoredCodes { codes: CodeType::E4m3, cols: 128, by_row: false });
    let parts = [Part::whole(tensor(&bytes(&[1.0; 64]), 1, 64))];
    for error in [
        CPUS[0].matrix(&[Segment::new(&parts, format)]).map(|_| ()).unwrap_err(),
        Reference.matrix(&[Segment::new(&parts, format)]).map(|_| ()).unwrap_err(),
    ] {
        assert!(error.to_string().contains("other weights as stored codes"), "{error}");
    }
}

/// The tensors of a checkpoint may contradict each other.
#[test]
fn tensors_of_wrong_lengths_are_errors() {
    let half =
        |numbers: usize| Numbers::new(NumberType::Dense(DType::F16), vec![0; 2 * numbers].into()).unwrap();
    let zeros = |n: usize| bytes::Bytes::from(vec![0; n]);
    let of =
        |bytes: usize, scales: usize, block| fp8::matrix(32, 64, zeros(bytes), half(scales), block).is_ok();
    assert!(of(2048, 8, [8, 32]) && of(2048, 1, [32, 64]) && of(2048, 32, [1, 64]));
    assert!(!of(2047, 8, [8, 32]) && !of(2048, 7, [8, 32]) && !of(2048, 8, [0, 32]));
    let codes =
        |block, scales| TableCodes { table: [0.0; 16], block, scales: BlockScales::Numbers(half(scales)) };
    let table = |bytes: usize, block, scales| {
        HostTensor::new(Encoding::codes(codes(block, scales)), 3, 5, zeros(bytes)).is_ok()
    };
    assert!(table(8, 4, 4));
    assert!(!table(7, 4, 4) && !table(8, 4, 3) && !table(8, 0, 4));
}
