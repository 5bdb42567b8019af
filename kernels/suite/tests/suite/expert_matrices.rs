//! Tests of the layouts in which gpt-oss stores the matrices of all experts, against writers that
//! follow their description, and of products by MXFP4.

use millrace_backend::reference::Reference;
use millrace_backend::{Backend, Error, Segment, Sizing, WeightLoading};
use millrace_numbers::codes::{CodeType, StoredCodes};
use millrace_numbers::experts::{ExpertColumns, ExpertRows};
use millrace_numbers::formats::{exact_format, mxfp4};
use millrace_numbers::{DType, Encoding, HostTensor, Part, WeightFormat};
use proptest::prelude::{prop, prop_assert_eq, proptest};

use crate::common::*;
use crate::stored::{product, range, read};

/// Matrices of experts, each `[rows, cols]`.
struct Experts {
    count: usize,
    rows: usize,
    cols: usize,
    paired: bool,
}

impl Experts {
    fn order(&self) -> ExpertRows {
        ExpertRows { rows: self.rows, paired: self.paired }
    }

    fn all_rows(&self) -> usize {
        self.count * self.rows
    }

    /// Returns rows in the order in which they are stored, `[count * rows, each]`.
    fn stored_order<T: Copy>(&self, rows: &[T], each: usize) -> Vec<T> {
        let half = self.rows / 2;
        let mut stored = Vec::new();
        for expert in rows.chunks(self.rows * each) {
            let row = |row: usize| &expert[row * each..(row + 1) * each];
            match self.paired {
                true => (0..half).for_each(|pair| stored.extend([row(pair), row(half + pair)].concat())),
                false => stored.extend(expert),
            }
        }
        stored
    }

    /// Random numbers of type `dtype`, `[count * rows, cols]`, and the tensor that stores them by
    /// column.
    fn by_column(&self, dtype: DType, seed: u64) -> (Vec<f32>, HostTensor) {
        let numbers = Rng(seed).values(self.all_rows() * self.cols).into_iter().map(|x| dtype.round(x));
        let numbers: Vec<f32> = numbers.collect();
        let mut bytes = Vec::new();
        for expert in self.stored_order(&numbers, self.cols).chunks(self.rows * self.cols) {
            for col in 0..self.cols {
                (0..self.rows).for_each(|row| dtype.push(expert[row * self.cols + col], &mut bytes));
            }
        }
        let encoding = Encoding::ExpertColumns(ExpertColumns { dtype, rows: self.order() });
        (numbers, HostTensor::new(encoding, self.all_rows(), self.cols, bytes.into()).unwrap())
    }

    /// Random MXFP4, `[count * rows, cols]`, and the tensor that stores it.
    fn mxfp4(&self, seed: u64) -> (Vec<f32>, HostTensor) {
        let (mut rng, blocks) = (Rng(seed), self.cols / 32);
        let codes: Vec<u8> = (0..self.all_rows() * self.cols).map(|_| rng.below(16) as u8).collect();
        let scales: Vec<u8> = (0..self.all_rows() * blocks).map(|_| 117 + rng.below(20) as u8).collect();
        // A sign, two bits of exponent and one of mantissa.
        let e2m1 = |code: u8| {
            let (exponent, mantissa) = (f32::from(code >> 1 & 3), f32::from(code & 1));
            let size = if exponent == 0.0 {
                mantissa / 2.0
            } else {
                (1.0 + mantissa / 2.0) * (exponent - 1.0).exp2()
            };
            if code & 8 == 0 { size } else { -size }
        };
        let weight = |at: usize| e2m1(codes[at]) * (f32::from(scales[at / 32]) - 127.0).exp2();
        let weights = (0..codes.len()).map(weight).collect();
        let bytes: Vec<u8> = codes.chunks(2).map(|pair| pair[0] | pair[1] << 4).collect();
        let bytes = self.stored_order(&bytes, self.cols / 2);
        let scales = self.stored_order(&scales, blocks);
        let tensor = mxfp4::matrix(self.all_rows(), self.cols, self.order(), bytes.into(), scales.into());
        (weights, tensor.unwrap())
    }
}

/// The numbers of a part of a matrix with `cols` columns.
fn numbers_of(part: &Part, all: &[f32], cols: usize) -> Vec<f32> {
    part.rows.clone().flat_map(|row| all[row * cols..][part.cols.clone()].to_vec()).collect()
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn experts_are_read_as_they_were_written(
        count in 1usize..4, half in 1usize..20, cols in 1usize..40, paired: bool, dtype in 0usize..3,
        cuts: [[prop::sample::Index; 2]; 2], seed: u64,
    ) {
        let experts = Experts { count, rows: 2 * half, cols, paired };
        let (numbers, tensor) = experts.by_column([DType::F32, DType::F16, DType::BF16][dtype], seed);
        let part = Part { tensor, rows: range(cuts[0], experts.all_rows()), cols: range(cuts[1], cols) };
        prop_assert_eq!(read(&part), numbers_of(&part, &numbers, cols));

        let experts = Experts { cols: 32 * cols, ..experts };
        let (weights, tensor) = experts.mxfp4(seed);
        let part = Part { tensor, rows: part.rows, cols: range(cuts[1], experts.cols) };
        prop_assert_eq!(read(&part), numbers_of(&part, &weights, experts.cols));
    }

    /// Codes and scales are kept, on every CPU.
    #[test]
    fn products_by_mxfp4_are_exact(
        n in 1usize..6, half in 1usize..30, blocks in 2usize..6, paired: bool, share in 0usize..2, seed: u64,
    ) {
        let experts = Experts { count: 2, rows: 2 * half, cols: 32 * blocks, paired };
        let (weights, tensor) = experts.mxfp4(seed);
        // A share of the rows of both experts, and of the columns.
        let cols = share * 32..experts.cols;
        let parts = [0, experts.rows + half]
            .map(|first| Part { tensor: tensor.clone(), rows: first..first + half, cols: cols.clone() });
        let numbers: Vec<f32> =
            parts.iter().flat_map(|part| numbers_of(part, &weights, experts.cols)).collect();
        let dense = [Part::whole(crate::common::tensor(&bytes(&numbers), 2 * half, cols.len()))];
        // Activations that bf16 holds, so that no CPU rounds them.
        let x: Vec<f32> = Rng(seed).values(n * cols.len()).iter().map(|x| DType::BF16.round(*x)).collect();
        let want = product(&Reference, &x, &dense, DType::F32.into());
        let format = exact_format(&parts).unwrap();
        prop_assert_eq!(format, WeightFormat::Codes(StoredCodes { codes: CodeType::FourBits, cols: 32, by_row: false }));
        for cpu in CPUS.iter() {
            assert_eq!(cpu.stored_format(&parts), Some(format));
            assert_close(&cpu.name(), &product(cpu, &x, &parts, format), &want, 1e-5);
        }
    }
}

/// A share that begins within a block has no scales of its own, and is converted.
#[test]
fn shares_within_blocks_have_no_exact_format() {
    let (_, tensor) = Experts { count: 1, rows: 4, cols: 64, paired: false }.mxfp4(1);
    assert_eq!(exact_format(&[Part { tensor: tensor.clone(), rows: 0..4, cols: 20..64 }]), None);
    assert!(exact_format(&[Part { tensor, rows: 0..4, cols: 32..64 }]).is_some());
}

#[test]
fn scales_that_are_no_numbers_are_refused() {
    let order = ExpertRows { rows: 4, paired: true };
    let mut scales = vec![127; 8];
    scales[3] = 255; // Of the second block of the first row of up.
    let tensor = mxfp4::matrix(4, 64, order, vec![0; 128].into(), scales.into()).unwrap();
    let parts = [Part::whole(tensor)];
    let format = exact_format(&parts).unwrap();
    for cpu in CPUS.iter() {
        let error = cpu.matrix(&[Segment::new(&parts, format)]).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Numbers(millrace_numbers::Error::StoredNumber { part: 0, row: 2, col: 32 })
            ),
            "{error}"
        );
    }
}

#[test]
fn tensors_of_wrong_lengths_are_errors() {
    let order = |rows, paired| ExpertRows { rows, paired };
    let blocks = |(rows, cols), order, bytes, scales| {
        mxfp4::matrix(rows, cols, order, vec![0; bytes].into(), vec![0; scales].into())
    };
    assert!(blocks((4, 64), order(2, true), 128, 8).is_ok());
    assert!(blocks((4, 64), order(2, true), 127, 8).is_err());
    assert!(blocks((4, 64), order(2, true), 128, 7).is_err());
    assert!(blocks((4, 40), order(2, true), 80, 4).is_err());
    assert!(blocks((3, 64), order(2, false), 96, 6).is_err());
    assert!(blocks((3, 64), order(3, true), 96, 6).is_err());
    assert!(blocks((3, 64), order(0, false), 96, 6).is_err());
    let columns = |(rows, cols), rows_of_experts, bytes: usize| {
        let columns = ExpertColumns { dtype: DType::F16, rows: rows_of_experts };
        HostTensor::new(Encoding::ExpertColumns(columns), rows, cols, vec![0; bytes].into())
    };
    assert!(columns((4, 5), order(2, true), 40).is_ok());
    assert!(columns((4, 5), order(2, true), 38).is_err());
    assert!(columns((4, 5), order(3, false), 40).is_err());
    assert!(columns((3, 5), order(3, true), 30).is_err());
}
