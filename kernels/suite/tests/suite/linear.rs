//! Tests of the matrix product and the embedding.

use millrace_backend::reference::Reference;
use millrace_backend::{Backend, ForwardOps, ModelLoading, Segment, WeightLoading};
use millrace_numbers::{DType, HostTensor, IntFormat, Part, WeightFormat};
use proptest::prelude::{prop, proptest};

use crate::common::*;
use crate::product::Case;

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn linear_matches_the_reference(
        n in 1usize..60, cols in 1usize..200, out in 1usize..150, bias: bool, dtype in 0usize..3, seed: u64,
    ) {
        let case = Case::new((n, cols, out), bias, DTYPES[dtype], seed);
        check(&case);
    }

    #[test]
    fn a_row_does_not_depend_on_the_others(
        n in 2usize..80, cols in 500usize..1100, out in 1usize..140, bias: bool, dtype in 0usize..3, seed: u64,
    ) {
        let case = Case::new((n, cols, out), bias, DTYPES[dtype], seed);
        for pair in CPUS.chunks(2).chain(EXACT_CPUS.chunks(2)) {
            case.check_rows_and_threads(pair);
        }
    }

    #[test]
    fn embed_matches_the_reference(
        tokens in prop::collection::vec(0u32..70, 1..40), cols in 1usize..80, dtype in 0usize..3, first in 0usize..69,
    ) {
        let table = Rng(1).values(70 * cols);
        let want = embed(&Reference, (&table, 0), cols, DTYPES[dtype], &tokens);
        // A slice of the rows returns the rows that it contains, and zeros for the others.
        let held = first..(first + 20).min(70);
        let slice = (&table[held.start * cols..held.end * cols], first);
        let of_slice = embed(&Reference, slice, cols, DTYPES[dtype], &tokens);
        for (t, token) in tokens.iter().enumerate() {
            let (row, whole) = (&of_slice[t * cols..][..cols], &want[t * cols..][..cols]);
            let is_held = held.contains(&(*token as usize));
            assert!(if is_held { row == whole } else { row.iter().all(|x| *x == 0.0) }, "token {token}");
        }
        for cpu in CPUS.iter() {
            assert_same_bits(&cpu.name(), &embed(cpu, (&table, 0), cols, DTYPES[dtype], &tokens), &want);
            assert_same_bits(&cpu.name(), &embed(cpu, slice, cols, DTYPES[dtype], &tokens), &of_slice);
        }
    }
}

/// A table has the rows of a matrix, with every type of the stored and of the wanted numbers.
#[test]
fn rows_of_an_embedding_are_those_of_a_matrix() {
    let (mut rng, cols, tokens) = (Rng(5), 37, [3, 0, 11, 8, 3, 12]);
    let encode = |dtype: DType, x: f32| match dtype {
        DType::F32 => x.to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
    };
    let parts = DTYPES.map(|dtype| {
        let bytes: Vec<u8> = rng.values(6 * cols).into_iter().flat_map(|x| encode(dtype, x)).collect();
        Part { tensor: HostTensor::dense(dtype, 6, cols, bytes.into()), rows: 1..5, cols: 0..cols }
    });
    for cpu in CPUS.iter() {
        for dtype in DTYPES {
            let matrix = cpu.matrix(&[Segment::new(&parts, dtype)]).unwrap();
            let embedding = cpu.embedding(&parts, dtype).unwrap();
            let [found, expected] = [&embedding, &matrix].map(|rows| gather(cpu, rows, 1, cols, &tokens));
            assert_same_bits(&cpu.name(), &found, &expected);
            assert!(found[..cols].iter().any(|x| *x != 0.0), "a row of the embedding");
            assert!(found[cols..2 * cols].iter().all(|x| *x == 0.0), "a row of another rank");
            let (x, mut out) = (cpu.buf(1, cols).unwrap(), cpu.buf(1, 12).unwrap());
            let error = cpu.linear(1, &x, &embedding, None, &mut out).unwrap_err();
            assert!(error.to_string().contains("a product by an embedding"), "{error}");
        }
        let wrong = Part { rows: 0..7, ..parts[0].clone() };
        assert!(cpu.embedding(&[wrong], DType::F32).is_err());
    }
}

/// Compares all backends with the reference, which gets rounded inputs where the backend rounds
/// them.
fn check(case: &Case) {
    let tolerance = 3e-6 * (case.cols as f32).sqrt();
    let (exact, rounded) = (case.run(&Reference), case.rounded(|x| DType::BF16.round(x)).run(&Reference));
    for cpu in CPUS.iter() {
        let want = if rounds(cpu, case.format) { &rounded } else { &exact };
        assert_close(&cpu.name(), &case.run(cpu), want, tolerance);
    }
    for cpu in EXACT_CPUS.iter() {
        assert_close(&format!("{}, exact", cpu.name()), &case.run(cpu), &exact, tolerance);
    }
}

/// Products whose panels are cut into blocks, with several tiles of rows, groups of panels, and
/// outputs that are no multiple of a panel. Rows are the same alone and together.
#[test]
fn blocks_of_inputs_continue_the_sums() {
    for (n, cols, out, dtype) in [
        (14, 8_195, 35, DType::BF16),
        (25, 16_500, 33, DType::BF16),
        (25, 2_100, 70, DType::F16),
        (13, 4_200, 40, DType::F32),
        (14, 300, 600, DType::BF16),
    ] {
        let case = Case::new((n, cols, out), true, dtype, 11);
        check(&case);
        for pair in CPUS.chunks(2).chain(EXACT_CPUS.chunks(2)) {
            case.check_rows_and_threads(pair);
        }
    }
}

/// Rounding goes to the even neighbor, which an identity matrix shows. NaN stays NaN and infinity
/// stays infinity, and both stay in their row, although missing weights are computed with.
#[test]
fn inputs_are_rounded_to_the_nearest_even_number() {
    let format = WeightFormat::from(DType::BF16);
    let step = 1.0 / 128.0; // between neighbors from 1 to 2
    let values = [
        [1.0 + 0.5 * step, 1.0],
        [1.0 + 1.5 * step, 1.0 + 2.0 * step],
        [-1.0 - 0.501 * step, -1.0 - step],
        [3.389e38, 3.389_531_4e38],
        [f32::MAX, f32::INFINITY],
        [-0.0, 0.0],
    ];
    for cpu in CPUS.iter().filter(|cpu| rounds(cpu, DType::BF16)) {
        for [x, want] in values {
            let case = Case { n: 1, cols: 1, x: vec![x], w: vec![1.0], bias: None, format };
            assert_eq!(case.run(cpu), [want], "{x:e} on {}", cpu.name());
        }
        for special in [f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff), f32::INFINITY] {
            let mut case = Case::new((14, 3, 5), false, format, 3);
            case.x[7 * 3 + 2] = special;
            case.w.iter_mut().for_each(|w| *w = w.abs() + 0.5);
            let got = case.run(cpu);
            for (t, row) in got.chunks_exact(5).enumerate() {
                let expected: fn(&f32) -> bool = match t {
                    7 if special.is_nan() => |y| y.is_nan(),
                    7 => |y| *y == f32::INFINITY,
                    _ => |y| y.is_finite(),
                };
                assert!(row.iter().all(expected), "{special} in row 7, row {t} on {}: {row:?}", cpu.name());
            }
        }
    }
}

/// The instruction may treat denormal numbers as zeros. The error is then smaller than the smallest
/// normal number, times the other factor.
#[test]
fn denormal_numbers_cost_no_more_than_themselves() {
    let (tiny, cols) = (f32::MIN_POSITIVE / 4.0, 33);
    let mut rng = Rng(9);
    let x: Vec<f32> = (0..2 * cols).map(|i| if i % 3 == 0 { tiny } else { rng.unit() }).collect();
    let w: Vec<f32> = (0..7 * cols).map(|i| if i % 5 == 0 { tiny } else { rng.unit() }).collect();
    let format = WeightFormat::from(DType::BF16);
    let case = Case { n: 2, cols, x, w, bias: None, format };
    check(&case);
    let alone = Case { n: 1, cols, x: vec![tiny; cols], w: vec![1.0; cols], bias: None, format };
    for cpu in CPUS.iter().chain(EXACT_CPUS.iter()) {
        let sum = alone.run(cpu)[0];
        let exact = tiny * cols as f32;
        assert!((sum - exact).abs() <= exact * 1.01, "{sum:e} is not about {exact:e} on {}", cpu.name());
        assert!(rounds(cpu, DType::BF16) || sum == exact, "{sum:e} on {}", cpu.name());
    }
}

pub(crate) fn embed<B: Backend>(
    device: &B,
    (table, first): (&[f32], usize),
    cols: usize,
    dtype: DType,
    tokens: &[u32],
) -> Vec<f32> {
    gather(device, &matrix(device, table, cols, dtype), first, cols, tokens)
}

/// Returns the rows of `tokens` from a table whose first row is that of token `first`.
fn gather<B: Backend>(device: &B, table: &B::Matrix, first: usize, cols: usize, tokens: &[u32]) -> Vec<f32> {
    let n = tokens.len();
    let mut queue = queue(device, n);
    let step = opened(device, &mut queue, tokens, &[]);
    let mut out = device.buf(n, cols).unwrap();
    device.embed(&step, table, first, 1.0, &mut out).unwrap();
    device.read(&out, n).unwrap()
}

/// Parts are cut out of their tensors, converted from any type, and stacked.
#[test]
fn parts_are_stacked_into_one_matrix() {
    let mut rng = Rng(7);
    let (a, b) = (rng.values(5 * 8), rng.values(4 * 6));
    let half: Vec<u8> = b.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    let full = bytes(&a);
    let parts = [
        Part { tensor: tensor(&full, 5, 8), rows: 1..4, cols: 2..7 },
        Part { tensor: HostTensor::dense(DType::F16, 4, 6, half.into()), rows: 0..2, cols: 1..6 },
    ];
    let mut want = Vec::new();
    want.extend((1..4).flat_map(|r| a[r * 8 + 2..r * 8 + 7].to_vec()));
    want.extend(
        (0..2).flat_map(|r| b[r * 6 + 1..r * 6 + 6].iter().map(|v| DType::F16.round(*v)).collect::<Vec<_>>()),
    );
    let identity: Vec<f32> = (0..25).map(|i| if i % 6 == 0 { 1.0 } else { 0.0 }).collect();
    fn columns<B: Backend>(device: &B, parts: &[Part], identity: &[f32]) -> Vec<f32> {
        let w = device.matrix(&[Segment::new(parts, DType::F32)]).unwrap();
        let x = upload(device, identity, 5);
        let mut out = device.buf(5, 5).unwrap();
        device.linear(5, &x, &w, None, &mut out).unwrap();
        device.read(&out, 5).unwrap() // the transpose
    }
    let transposed: Vec<f32> = (0..25).map(|i| want[i % 5 * 5 + i / 5]).collect();
    assert_same_bits("reference", &columns(&Reference, &parts, &identity), &transposed);
    for cpu in CPUS.iter() {
        assert_same_bits(&cpu.name(), &columns(cpu, &parts, &identity), &transposed);
    }
}

#[test]
fn invalid_shapes_are_errors() {
    let data = bytes(&[0.0; 12]);
    let whole = Part::whole(tensor(&data, 3, 4));
    let narrow = Part { cols: 0..3, ..whole.clone() };
    let outside = Part { rows: 1..4, ..whole.clone() };
    let truncated = Part::whole(tensor(&data[..44], 3, 4));
    let huge = Part::whole(tensor(&data, usize::MAX, 4));
    let cpu = &CPUS[0];
    for parts in [vec![], vec![whole.clone(), narrow], vec![outside], vec![truncated], vec![huge]] {
        let segment = [Segment::new(&parts, DType::F32)];
        assert!(cpu.matrix(&segment).is_err() && Reference.matrix(&segment).is_err());
    }
    assert!(cpu.matrix(&[]).is_err() && Reference.matrix(&[]).is_err());
    let twice = [whole.clone(), whole];
    assert!(cpu.matrix(&[Segment::new(&twice, DType::BF16)]).is_ok());
}

/// A matrix of several segments is the same as one of all their rows, where the formats are equal.
/// Other tests have rows of different formats.
#[test]
fn segments_make_one_matrix() {
    let values = Rng(5).values(6 * 32);
    let data = bytes(&values);
    let rows = |rows| Part { tensor: tensor(&data, 6, 32), rows, cols: 0..32 };
    let (whole, first, rest) = ([rows(0..6)], [rows(0..2)], [rows(2..3), rows(3..6)]);
    fn product<B: Backend>(device: &B, segments: &[Segment<'_>], x: &[f32]) -> Vec<f32> {
        let (w, mut out) = (device.matrix(segments).unwrap(), device.buf(1, 6).unwrap());
        device.linear(1, &upload(device, x, 32), &w, None, &mut out).unwrap();
        device.read(&out, 1).unwrap()
    }
    let x = &values[..32];
    for cpu in CPUS.iter() {
        let q8_0 = WeightFormat::Int(IntFormat::Q8_0);
        let segments = [Segment::new(&first, q8_0), Segment::new(&rest, q8_0)];
        let want = product(cpu, &[Segment::new(&whole, q8_0)], x);
        assert_same_bits(&cpu.name(), &product(cpu, &segments, x), &want);
    }
    // The reference mixes all formats.
    let mixed = [Segment::new(&first, DType::F32), Segment::new(&rest, DType::F16)];
    let got = product(&Reference, &mixed, x);
    assert_eq!(got[..2], product(&Reference, &[Segment::new(&whole, DType::F32)], x)[..2]);
    assert_eq!(got[2..], product(&Reference, &[Segment::new(&whole, DType::F16)], x)[2..]);
}
