//! Tests of matrices that a checkpoint stores quantized: each layout against a writer that follows
//! its description one code at a time, and the products of the CPU against the reference.

use bytes::Bytes;
use half::{bf16, f16};
use millrace_backend::reference::Reference;
use millrace_backend::{Backend, ProductShape, Segment, Sizing, WeightLoading};
use millrace_numbers::formats::awq::{self, AwqTensors};
use millrace_numbers::formats::compressed_tensors::{ByteTensors, PackedTensors, packed, signed_bytes};
use millrace_numbers::formats::gptq::{self, GptqTensors};
use millrace_numbers::integers::exact_integers;
use millrace_numbers::scales::{NumberType, Numbers};
use millrace_numbers::{DType, HostTensor, IntFormat, Part, WeightFormat};
use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

use crate::common::*;
use crate::product::round_to_bytes;

/// A quantized matrix: what a checkpoint says, before it is packed.
pub(crate) struct Quantized {
    rows: usize,
    cols: usize,
    bits: usize,
    group: usize,
    codes: Vec<u8>,   // [rows, cols]
    zeros: Vec<u8>,   // [rows, groups]
    scales: Vec<f32>, // [rows, groups]
    group_of: Vec<usize>,
    dtype: DType,
}

impl Quantized {
    pub(crate) fn new(
        rows: usize,
        cols: usize,
        bits: usize,
        group: usize,
        dtype: DType,
        seed: u64,
    ) -> Quantized {
        let mut rng = Rng(seed);
        let groups = cols.div_ceil(group);
        let mut codes = |n: usize| -> Vec<u8> { (0..n).map(|_| rng.below(1 << bits) as u8).collect() };
        let (codes, zeros) = (codes(rows * cols), codes(rows * groups));
        let scales = (0..rows * groups).map(|_| dtype.round(0.001 + (rng.unit() + 1.0) * 0.02)).collect();
        let group_of = (0..cols).map(|col| col / group).collect();
        Quantized { rows, cols, bits, group, codes, zeros, scales, group_of, dtype }
    }

    /// The same codes with columns that are in groups of any order.
    pub(crate) fn shuffled(mut self, seed: u64) -> Quantized {
        let order = Rng(seed).shuffled(self.cols);
        self.group_of = order.iter().map(|&place| place as usize / self.group).collect();
        self
    }

    pub(crate) fn symmetric(mut self) -> Quantized {
        self.zeros.fill(1 << (self.bits - 1));
        self
    }

    fn groups(&self) -> usize {
        self.cols.div_ceil(self.group)
    }

    fn weight(&self, row: usize, col: usize) -> f32 {
        let at = row * self.groups() + self.group_of[col];
        (f32::from(self.codes[row * self.cols + col]) - f32::from(self.zeros[at])) * self.scales[at]
    }

    pub(crate) fn weights(&self, rows: std::ops::Range<usize>, cols: std::ops::Range<usize>) -> Vec<f32> {
        rows.flat_map(|row| cols.clone().map(move |col| (row, col))).map(|(r, c)| self.weight(r, c)).collect()
    }

    fn scales(&self, by_group: bool) -> Numbers {
        let (rows, groups) = (self.rows, self.groups());
        let at = |i: usize| if by_group { i % rows * groups + i / rows } else { i };
        numbers(&(0..rows * groups).map(|i| self.scales[at(i)]).collect::<Vec<_>>(), self.dtype)
    }

    fn g_idx(&self) -> Bytes {
        self.group_of.iter().flat_map(|&group| (group as i32).to_le_bytes()).collect::<Vec<u8>>().into()
    }

    pub(crate) fn gptq(&self, plus_one: bool, listed: bool) -> HostTensor {
        let Quantized { rows, cols, bits, group, .. } = *self;
        let mut qweight = Words::new(cols * bits / 32, rows);
        let mut qzeros = Words::new(self.groups(), rows * bits / 32);
        for row in 0..rows {
            for col in 0..cols {
                qweight.put(false, row, col, bits, self.codes[row * cols + col]);
            }
            for group in 0..self.groups() {
                let zero = self.zeros[row * self.groups() + group].wrapping_sub(u8::from(plus_one));
                qzeros.put(true, group, row, bits, zero);
            }
        }
        let tensors = GptqTensors {
            bits,
            group_cols: group,
            plus_one,
            qweight: qweight.bytes(),
            qzeros: qzeros.bytes(),
            scales: self.scales(true),
            g_idx: listed.then(|| self.g_idx()),
        };
        gptq::matrix(rows, cols, tensors).unwrap()
    }

    fn awq(&self, gemv: bool) -> HostTensor {
        let Quantized { rows, cols, group, .. } = *self;
        let groups = self.groups();
        let padded = groups.next_multiple_of(8) + 8;
        let (mut qweight, mut qzeros, scales);
        if gemv {
            (qweight, qzeros) = (Words::new(rows, cols / 8), Words::new(rows, padded / 8));
            let mut all = vec![9.0; rows * padded];
            for row in 0..rows {
                (0..cols).for_each(|col| qweight.put(true, row, col, 4, self.codes[row * cols + col]));
                for group in 0..groups {
                    qzeros.put(true, row, group, 4, self.zeros[row * groups + group]);
                    all[row * padded + group] = self.scales[row * groups + group];
                }
            }
            scales = numbers(&all, self.dtype);
        } else {
            (qweight, qzeros) = (Words::new(cols, rows / 8), Words::new(groups, rows / 8));
            // Word k of a column holds the rows 8k + 0, 2, 4, 6, 1, 3, 5, 7, lowest bits first.
            for (nibble, row_of_word) in [0, 2, 4, 6, 1, 3, 5, 7].into_iter().enumerate() {
                for word in 0..rows / 8 {
                    let row = 8 * word + row_of_word;
                    let place = 8 * word + nibble;
                    (0..cols).for_each(|col| qweight.put(true, col, place, 4, self.codes[row * cols + col]));
                    (0..groups).for_each(|g| qzeros.put(true, g, place, 4, self.zeros[row * groups + g]));
                }
            }
            scales = self.scales(true);
        }
        let (qweight, qzeros) = (qweight.bytes(), qzeros.bytes());
        awq::matrix(rows, cols, AwqTensors { group_cols: group, gemv, qweight, qzeros, scales }).unwrap()
    }

    fn packed(&self, symmetric: bool, listed: bool) -> HostTensor {
        let Quantized { rows, cols, bits, group, .. } = *self;
        let groups = self.groups();
        let mut weight = Words::new(rows, (cols * bits).div_ceil(32));
        let mut zero_point = Words::new((rows * bits).div_ceil(32), groups);
        for row in 0..rows {
            (0..cols).for_each(|col| weight.put(true, row, col, bits, self.codes[row * cols + col]));
            (0..groups).for_each(|g| zero_point.put(false, g, row, bits, self.zeros[row * groups + g]));
        }
        let tensors = PackedTensors {
            bits,
            group_cols: group,
            weight_packed: weight.bytes(),
            weight_scale: self.scales(false),
            weight_zero_point: (!symmetric).then(|| zero_point.bytes()),
            weight_g_idx: listed.then(|| self.g_idx()),
        };
        packed(rows, cols, tensors).unwrap()
    }

    pub(crate) fn signed_bytes(&self, symmetric: bool, divisor: f32) -> HostTensor {
        let signed =
            |codes: &[u8]| codes.iter().map(|code| code.wrapping_sub(128)).collect::<Vec<u8>>().into();
        let tensors = ByteTensors {
            weight: signed(&self.codes),
            scales: self.scales(false),
            zero_points: (!symmetric).then(|| signed(&self.zeros)),
            group_cols: self.group,
            divisor,
        };
        signed_bytes(self.rows, self.cols, tensors).unwrap()
    }

    /// Every layout that can store the matrix.
    pub(crate) fn stored(&self) -> Vec<(&'static str, HostTensor)> {
        let in_order = self.group_of.iter().enumerate().all(|(col, &group)| group == col / self.group);
        let symmetric = self.zeros.iter().all(|&zero| zero == 1 << (self.bits - 1));
        let whole_words = |n: usize| (n * self.bits).is_multiple_of(32);
        let mut all = vec![("pack-quantized", self.packed(symmetric, !in_order))];
        if whole_words(self.rows) && whole_words(self.cols) {
            all.push(("gptq", self.gptq(true, !in_order)));
            all.push(("gptq_v2", self.gptq(false, true)));
            if self.bits == 4 && in_order {
                all.extend([("awq gemm", self.awq(false)), ("awq gemv", self.awq(true))]);
            }
        }
        if self.bits == 8 && in_order {
            all.push(("int-quantized", self.signed_bytes(symmetric, 1.0)));
        }
        all
    }
}

/// An array of 32-bit words `[lines, words]`, into which codes are written one bit at a time.
struct Words {
    words: usize,
    all: Vec<u32>,
}

impl Words {
    fn new(lines: usize, words: usize) -> Words {
        Words { words, all: vec![0; lines * words] }
    }

    /// Writes code `index` of line `line` to successive words of a row of the array, or of a
    /// column if not `along`.
    fn put(&mut self, along: bool, line: usize, index: usize, bits: usize, code: u8) {
        for bit in 0..bits {
            let place = index * bits + bit;
            let word = if along { line * self.words + place / 32 } else { place / 32 * self.words + line };
            self.all[word] |= u32::from(code >> bit & 1) << (place % 32);
        }
    }

    fn bytes(self) -> Bytes {
        self.all.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>().into()
    }
}

pub(crate) fn numbers(values: &[f32], dtype: DType) -> Numbers {
    let bytes: Vec<u8> = match dtype {
        DType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect(),
        DType::BF16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
    };
    Numbers::new(NumberType::Dense(dtype), bytes.into()).unwrap()
}

/// Reads the weights of a part.
pub(crate) fn read(part: &Part) -> Vec<f32> {
    let mut all = vec![0.0; part.elements()];
    for (row, out) in all.chunks_mut(part.cols.len()).enumerate() {
        part.read_row(row, out);
    }
    all
}

pub(crate) fn range(cut: [prop::sample::Index; 2], len: usize) -> std::ops::Range<usize> {
    let (a, b) = (cut[0].index(len), cut[1].index(len));
    a.min(b)..a.max(b) + 1
}

/// Multiplies on a device.
pub(crate) fn product<B: Backend>(device: &B, x: &[f32], parts: &[Part], format: WeightFormat) -> Vec<f32> {
    let cols = parts[0].cols.len();
    let out = parts.iter().map(|part| part.rows.len()).sum();
    let n = x.len() / cols;
    let w = device.matrix(&[Segment::new(parts, format)]).unwrap();
    let (x, mut y) = (upload(device, x, cols), device.buf(n, out).unwrap());
    device.linear(n, &x, &w, None, &mut y).unwrap();
    device.read(&y, n).unwrap()
}

/// Rounds activations to what their bytes and scales stand for, in groups of columns that are in
/// this order.
fn rounded(x: &[f32], cols: usize, group: usize, order: &[usize]) -> Vec<f32> {
    let mut x = x.to_vec();
    for row in x.chunks_exact_mut(cols) {
        for group in order.chunks(group) {
            let mut values: Vec<f32> = group.iter().map(|&col| row[col]).collect();
            round_to_bytes(&mut values);
            group.iter().zip(values).for_each(|(&col, value)| row[col] = value);
        }
    }
    x
}

/// Compares the product of every CPU with that of the reference by the dequantized weights, with
/// activations that are rounded and with exact ones.
fn check_products(name: &str, parts: &[Part], dense: &[f32], order: &[usize], n: usize, seed: u64) {
    let cols = parts[0].cols.len();
    let format = exact_integers(parts).unwrap_or_else(|| panic!("{name}: no format"));
    let x: Vec<f32> =
        (0..n * cols).map(|at| Rng(seed ^ at as u64).unit() * [1.0, 0.1, 4.0][at / 32 % 3]).collect();
    let rounded = rounded(&x, cols, format.activation_cols(cols), order);
    let bytes = bytes(dense);
    let whole = [Part::whole(tensor(&bytes, dense.len() / cols, cols))];
    let want = product(&Reference, &rounded, &whole, DType::F32.into());
    let found = product(&Reference, &rounded, parts, WeightFormat::Int(format));
    assert_close(&format!("{name}, the reference"), &found, &want, 1e-6);
    for cpu in CPUS.iter() {
        assert_eq!(cpu.stored_format(parts), Some(WeightFormat::Int(format)));
        let found = product(cpu, &x, parts, WeightFormat::Int(format));
        assert_close(&format!("{name}, {format:?} on {}", cpu.name()), &found, &want, 2e-6);
    }
    let want = product(&Reference, &x, &whole, DType::F32.into());
    for cpu in EXACT_CPUS.iter() {
        let found = product(cpu, &x, parts, WeightFormat::Int(format));
        assert_close(&format!("{name}, {format:?}, exact on {}", cpu.name()), &found, &want, 1e-5);
    }
}

pub(crate) const DTYPES_OF_SCALES: [DType; 3] = [DType::F16, DType::BF16, DType::F32];

proptest! {
    #![proptest_config(cases(48))]

    /// Every layout gives back `(code - zero point) * scale`, for any rectangle of the matrix.
    #[test]
    fn every_layout_reads_what_was_written(
        (eights, blocks) in (1usize..6, 1usize..12), bits in 0usize..4, group in 0usize..6, dtype in 0usize..3,
        (shuffle, symmetric) in any::<(bool, bool)>(), cut in any::<[[prop::sample::Index; 2]; 2]>(), seed: u64,
    ) {
        let (rows, cols) = (32 * eights, 32 * blocks);
        let group = [8, 32, 48, 64, 128, cols][group];
        let mut matrix = Quantized::new(rows, cols, [2, 3, 4, 8][bits], group, DTYPES_OF_SCALES[dtype], seed);
        if symmetric {
            matrix = matrix.symmetric();
        }
        if shuffle {
            matrix = matrix.shuffled(seed);
        }
        let (rows, cols) = (range(cut[0], rows), range(cut[1], cols));
        let want = matrix.weights(rows.clone(), cols.clone());
        for (name, tensor) in matrix.stored() {
            let part = Part { tensor, rows: rows.clone(), cols: cols.clone() };
            prop_assert_eq!(&read(&part), &want, "{}", name);
            let last = (rows.len() - 1, cols.len() - 1);
            prop_assert_eq!(part.get(last.0, last.1), want[want.len() - 1]);
        }
    }

    /// Rows and columns need not fill whole words.
    #[test]
    fn pack_quantized_matrices_have_any_shape(
        (rows, cols) in (1usize..50, 1usize..90), bits in 0usize..4, group in 1usize..40, seed: u64,
    ) {
        let matrix = Quantized::new(rows, cols, [2, 3, 4, 8][bits], group, DType::BF16, seed);
        let part = Part::whole(matrix.packed(false, false));
        prop_assert_eq!(read(&part), matrix.weights(0..rows, 0..cols));
    }

    /// The CPU multiplies by the stored codes, scales and zero points: the result differs from that
    /// of the dequantized weights only by the rounding of the activations.
    #[test]
    fn products_are_exact_but_for_the_rounding_of_activations(
        n in 1usize..20, (eights, blocks) in (1usize..5, 1usize..9), bits in 0usize..3, group in 0usize..5,
        dtype in 0usize..3, (shuffle, symmetric) in any::<(bool, bool)>(), seed: u64,
    ) {
        let (rows, cols) = (32 * eights, 64 * blocks);
        let group = [32, 64, 96, 128, cols][group];
        let mut matrix = Quantized::new(rows, cols, [3, 4, 8][bits], group, DTYPES_OF_SCALES[dtype], seed);
        if symmetric {
            matrix = matrix.symmetric();
        }
        if shuffle && cols.is_multiple_of(group) {
            matrix = matrix.shuffled(seed);
        }
        let mut order: Vec<usize> = (0..cols).collect();
        order.sort_by_key(|&col| matrix.group_of[col]);
        let want = matrix.weights(0..rows, 0..cols);
        for (name, tensor) in matrix.stored() {
            check_products(name, &[Part::whole(tensor)], &want, &order, n, seed);
        }
    }

    /// Ranks have a share of the columns, from any multiple of 32 on, and some of the rows.
    #[test]
    fn shares_of_ranks_are_exact_too(
        n in 1usize..4, blocks in 1usize..5, (first, len) in (0usize..8, 1usize..8), group in 0usize..3, seed: u64,
    ) {
        let group = [64, 128, 512][group];
        let matrix = Quantized::new(64, 512, 4, group, DType::F16, seed);
        let cols = 32 * first..32 * (first + len);
        let rows = 8 * blocks..8 * blocks + 17;
        let order: Vec<usize> = (0..cols.len()).collect();
        let want = matrix.weights(rows.clone(), cols.clone());
        for (name, tensor) in matrix.stored() {
            let part = Part { tensor, rows: rows.clone(), cols: cols.clone() };
            check_products(name, &[part], &want, &order, n, seed);
        }
    }
}

proptest! {
    #![proptest_config(cases(48))]

    /// A rank's share of columns that are ordered by their activations has groups of any size,
    /// which are padded.
    #[test]
    fn shares_of_ordered_columns_are_padded(
        n in 1usize..10, (first, len) in (0usize..100, 1usize..412), group in 0usize..4, bits in 0usize..3, shuffle: bool,
        seed: u64,
    ) {
        let group = [16, 48, 64, 128][group];
        let mut matrix = Quantized::new(64, 512, [3, 4, 8][bits], group, DType::F16, seed);
        if shuffle {
            matrix = matrix.shuffled(seed);
        }
        let cols = first..first + len;
        let mut columns: Vec<usize> = (0..len).collect();
        columns.sort_by_key(|&col| matrix.group_of[first + col]);
        let mut filled = Vec::new();
        for run in columns.chunk_by(|&a, &b| matrix.group_of[first + a] == matrix.group_of[first + b]) {
            for columns in run.chunks(32) {
                filled.extend_from_slice(columns);
                filled.resize(filled.len().next_multiple_of(32), columns[0]);
            }
        }
        let bits = if bits == 2 { 8 } else { 4 };
        for (name, tensor) in matrix.stored() {
            let part = Part { tensor, rows: 3..50, cols: cols.clone() };
            let parts = [part];
            match exact_integers(&parts) {
                Some(IntFormat::Stored(format)) if format.padding > 0 => {
                    prop_assert_eq!((format.cols, format.padding), (32, filled.len() - len));
                    check_products(name, &parts, &matrix.weights(3..50, cols.clone()), &filled, n, seed);
                    let bytes = CPUS[0].matrix_bytes(47, len, WeightFormat::Int(IntFormat::Stored(format)));
                    prop_assert!(bytes < 64 * len * 2, "{} bytes of {} columns", bytes, len);
                }
                Some(_) => prop_assert_eq!(filled.len(), len),
                None => prop_assert!(filled.len() * bits > 11 * len),
            }
        }
    }
}

/// Parts that differ in bits, scales and zero points share the format that holds all of them.
#[test]
fn fused_parts_of_different_formats_have_a_common_one() {
    let four = Quantized::new(32, 256, 4, 128, DType::F16, 1).symmetric();
    let eight = Quantized::new(64, 256, 8, 64, DType::BF16, 2).symmetric();
    let rows = Quantized::new(32, 256, 8, 256, DType::F32, 3).symmetric();
    let parts =
        [four.gptq(true, false), eight.packed(true, false), rows.signed_bytes(true, 1.0)].map(Part::whole);
    let want = [&four, &eight, &rows].map(|matrix| matrix.weights(0..matrix.rows, 0..256)).concat();
    let Some(IntFormat::Stored(format)) = exact_integers(&parts) else { panic!("no format") };
    assert_eq!((format.bits, format.cols, format.wide_scales, format.has_offsets), (8, 64, true, true));
    let order: Vec<usize> = (0..256).collect();
    check_products("fused", &parts, &want, &order, 5, 7);
    assert_eq!(exact_integers(&parts[2..]), Some(IntFormat::Int8));
}

/// Rows of signed bytes may have any number of columns.
#[test]
fn rows_of_bytes_are_multiplied_by_their_own_scale() {
    for cols in [1, 31, 100, 333] {
        let matrix = Quantized::new(40, cols, 8, cols, DType::F32, cols as u64).symmetric();
        let parts = [Part::whole(matrix.signed_bytes(true, 1.0))];
        assert_eq!(exact_integers(&parts), Some(IntFormat::Int8));
        let order: Vec<usize> = (0..cols).collect();
        check_products("bytes", &parts, &matrix.weights(0..40, 0..cols), &order, 3, 5);
    }
    // bitsandbytes divides its scales by 127.
    let matrix = Quantized::new(8, 64, 8, 64, DType::F32, 4).symmetric();
    let tensor = matrix.signed_bytes(true, 127.0);
    let at = |i: usize| (f32::from(matrix.codes[i]) - 128.0) * (matrix.scales[i / 64] / 127.0);
    assert_eq!(read(&Part::whole(tensor)), (0..512).map(at).collect::<Vec<_>>());
}

#[test]
fn matrices_that_a_cpu_cannot_multiply_as_they_are_have_no_exact_format() {
    let matrix = |group| Quantized::new(32, 256, 4, group, DType::F16, 5);
    let whole = |tensor| [Part::whole(tensor)];
    assert!(exact_integers(&whole(matrix(16).gptq(true, false))).is_some());
    assert!(exact_integers(&whole(matrix(8).gptq(true, false))).is_none());
    let ragged = [Part { cols: 124..144, ..Part::whole(matrix(128).gptq(true, false)) }];
    assert!(exact_integers(&ragged).is_none());
    let whole_row = [Part { cols: 16..144, ..Part::whole(matrix(256).gptq(true, false)) }];
    assert!(exact_integers(&whole_row).is_some());
    // Two orders of columns need two gathers of the activations.
    let (one, two) = (matrix(64).shuffled(1), matrix(64).shuffled(2));
    let parts = [one.gptq(true, true), two.gptq(true, true)].map(Part::whole);
    assert!(exact_integers(&parts[..1]).is_some() && exact_integers(&parts).is_none());
    // An eighth of the columns in any order has few of each group.
    let eighth = [Part { cols: 0..32, ..parts[0].clone() }];
    assert!(exact_integers(&eighth).is_none());
    let dense = Part::whole(tensor(&bytes(&[1.0; 256]), 1, 256));
    assert!(exact_integers(&[parts[0].clone(), dense]).is_none());
    assert!(exact_integers(&[]).is_none());
}

#[test]
fn planned_bytes_are_those_of_the_stored_numbers() {
    let bits = |matrix: &Quantized, bits: f64| {
        let parts = [Part::whole(matrix.packed(matrix.zeros.iter().all(|&zero| zero == 8), false))];
        for cpu in CPUS.iter() {
            let format = cpu.stored_format(&parts).unwrap();
            let bytes = cpu.matrix_bytes(matrix.rows, matrix.cols, format);
            assert_eq!(bytes, format.bytes(matrix.rows, matrix.cols));
            assert_eq!(bytes as f64 * 8.0 / (matrix.rows * matrix.cols) as f64, bits);
            let product =
                ProductShape { inputs: matrix.cols, outputs: matrix.rows, format, logits: false, rows: 4 };
            assert!(cpu.scratch_bytes(&[product]) > 0);
        }
    };
    bits(&Quantized::new(128, 256, 4, 128, DType::F16, 1).symmetric(), 4.125);
    bits(&Quantized::new(128, 256, 4, 128, DType::F16, 1), 4.25);
    bits(&Quantized::new(128, 256, 4, 128, DType::BF16, 1).symmetric(), 4.25);
    bits(&Quantized::new(128, 256, 4, 32, DType::BF16, 1), 5.5);
}

#[test]
fn dense_weights_do_not_become_stored_integers() {
    let matrix = Quantized::new(32, 64, 4, 32, DType::F16, 1);
    let format = exact_integers(&[Part::whole(matrix.gptq(true, false))]).unwrap();
    let dense = bytes(&[1.0; 64]);
    let parts = [Part::whole(tensor(&dense, 1, 64))];
    for error in [
        CPUS[0].matrix(&[Segment::new(&parts, WeightFormat::Int(format))]).map(|_| ()).unwrap_err(),
        Reference.matrix(&[Segment::new(&parts, WeightFormat::Int(format))]).map(|_| ()).unwrap_err(),
    ] {
        assert!(error.to_string().contains("other weights as stored integers of 4 bits"), "{error}");
    }
}

/// The parts of a checkpoint may contradict each other.
#[test]
fn tensors_of_wrong_lengths_are_errors() {
    let matrix = Quantized::new(32, 64, 4, 32, DType::F16, 1);
    let half =
        |numbers: usize| Numbers::new(NumberType::Dense(DType::F16), vec![0; 2 * numbers].into()).unwrap();
    let zeros = |n: usize| Bytes::from(vec![0; n]);
    let of = |qweight, qzeros, scales, g_idx: Option<Bytes>| {
        let tensors = GptqTensors { bits: 4, group_cols: 32, plus_one: true, qweight, qzeros, scales, g_idx };
        gptq::matrix(32, 64, tensors).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(of(zeros(1024), zeros(32), half(64), Some(matrix.g_idx())), Ok(()));
    for (wrong, what) in [
        (of(zeros(1020), zeros(32), half(64), None), "number of codes"),
        (of(zeros(1024), zeros(28), half(64), None), "zero points"),
        (of(zeros(1024), zeros(32), half(63), None), "63 scales"),
        (of(zeros(1024), zeros(32), half(64), Some(zeros(252))), "groups of 64 columns"),
        (of(zeros(1024), zeros(32), half(64), Some(vec![1; 256].into())), "is in group 16843009 of 2"),
    ] {
        assert!(wrong.clone().unwrap_err().contains(what), "{wrong:?}");
    }
}
