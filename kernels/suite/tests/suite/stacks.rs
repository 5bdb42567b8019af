//! Tests of matrices whose rows have different formats, as files store query, key and value.

use half::f16;
use millrace_backend::reference::Reference;
use millrace_backend::{Backend, Error, Segment, Sizing, WeightLoading};
use millrace_numbers::{BlockType, DType, HostTensor, Part, WeightFormat};
use proptest::prelude::{prop, proptest};

use crate::blocks::{matrix, weights};
use crate::common::*;
use crate::product::{Case, announced_stack};

/// Types of blocks that all devices keep, and those that only the CPU keeps.
const ON_GPUS: [BlockType; 9] = [
    BlockType::IQ4_XS,
    BlockType::MXFP4,
    BlockType::Q4K,
    BlockType::Q5K,
    BlockType::Q6K,
    BlockType::Q3K,
    BlockType::Q4_0,
    BlockType::Q8_0,
    BlockType::Q5_0,
];
const ON_CPUS: [BlockType; 1] = [BlockType::NVFP4];

/// Returns parts of different types, one after the other, and a product with them.
fn stack(kinds: &[BlockType], n: usize, cols: usize, seed: u64, dtype: DType) -> (Vec<Part>, Case) {
    let of_kind = |(index, &kind): (usize, &BlockType)| {
        let rows = [40, 7, 16, 33][(index + seed as usize) % 4];
        Part::whole(matrix(kind, rows, cols, seed ^ index as u64))
    };
    let parts: Vec<Part> = kinds.iter().enumerate().map(of_kind).collect();
    let rows = parts.iter().map(|part| part.rows.len()).sum();
    let mut case = Case::new((n, cols, rows), true, DType::F32, seed).rounded(|x| dtype.round(x));
    case.w = weights(&parts);
    (parts, case)
}

fn product<B: Backend>(device: &B, dtype: DType, parts: &[Part], case: &Case) -> Vec<f32> {
    let format = |part: &Part| device.stored_format(std::slice::from_ref(part)).unwrap();
    let segments: Vec<Segment<'_>> =
        parts.iter().map(|part| Segment::new(std::slice::from_ref(part), format(part))).collect();
    assert!(segments.iter().all(|segment| device.stacks(segment.format)));
    announced_stack(device, dtype, &case.x, &segments, case.bias.as_deref())
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn rows_in_different_formats_match_the_reference_on_cpus(
        kinds in prop::collection::vec(prop::sample::select([&ON_GPUS[..], &ON_CPUS].concat()), 2..5),
        n in 1usize..20, blocks in 1usize..3, seed: u64,
    ) {
        let (parts, case) = stack(&kinds, n, 256 * blocks, seed, DType::F32);
        let want = product(&Reference, DType::F32, &parts, &case);
        for (cpus, bound) in [(&EXACT_CPUS, 1e-5), (&CPUS, 2e-2)] {
            for cpu in cpus.iter() {
                let found = product(cpu, DType::F32, &parts, &case);
                assert_close(&format!("{kinds:?} on {}", cpu.name()), &found, &want, bound);
            }
        }
    }
}

/// Rows of 16 bits are not kept beside others: the caller converts all of them.
#[test]
fn dense_rows_among_others_are_refused_by_name() {
    let parts =
        [Part::whole(matrix(BlockType::Q8_0, 4, 64, 1)), Part::whole(matrix(BlockType::Q8_0, 4, 64, 2))];
    let [first, second] = parts.each_ref().map(std::slice::from_ref);
    let format = exact(first);
    let segments = [Segment::new(first, format), Segment::new(second, DType::BF16)];
    for cpu in CPUS.iter() {
        assert!(!cpu.stacks(DType::BF16.into()));
        let error = cpu.matrix(&segments).unwrap_err().to_string();
        assert!(error.contains("rows of bfloat16 among others"), "{error}");
    }
    #[cfg(feature = "cpu-sim")]
    {
        let device = crate::fp8::gpu(DType::BF16, false);
        assert!(!device.stacks(DType::BF16.into()) && !device.stacks(WeightFormat::Fp8));
        let error = device.matrix(&segments).unwrap_err().to_string();
        assert!(error.contains("rows of bfloat16 among others"), "{error}");
    }
}

fn exact(parts: &[Part]) -> WeightFormat {
    Reference.stored_format(parts).expect("a format that devices keep")
}

/// An error counts the parts of all segments.
#[test]
fn a_scale_that_is_not_finite_is_found_in_any_segment() {
    let good = matrix(BlockType::Q4K, 8, 256, 1);
    let mut bytes = matrix(BlockType::Q6K, 8, 256, 2).bytes.to_vec();
    bytes[5 * 210 + 208..][..2].copy_from_slice(&f16::NAN.to_le_bytes());
    let bad = HostTensor { bytes: bytes.into(), ..matrix(BlockType::Q6K, 8, 256, 2) };
    let (first, second) = ([Part::whole(good.clone()), Part::whole(good)], [Part::whole(bad)]);
    let segments = [Segment::new(&first, exact(&first)), Segment::new(&second, exact(&second))];
    let is_found = |error: &Error| {
        matches!(error, Error::Numbers(millrace_numbers::Error::StoredNumber { part: 2, row: 5, col: 0 }))
    };
    for cpu in CPUS.iter() {
        let error = cpu.matrix(&segments).unwrap_err();
        assert!(is_found(&error), "{error}");
    }
    #[cfg(feature = "cpu-sim")]
    {
        let error = crate::fp8::gpu(DType::BF16, false).matrix(&segments).unwrap_err();
        assert!(is_found(&error), "{error}");
    }
}

#[cfg(feature = "cpu-sim")]
mod on_gpus {
    use proptest::prelude::{any, prop_assert};

    use super::*;
    use crate::fp8::{assert_near_by, gpu};

    proptest! {
        #![proptest_config(cases(24))]

        /// Results of a part lie between those of others, and begin at any multiple of the row's
        /// elements.
        #[test]
        fn rows_in_different_formats_match_the_reference_on_a_gpu(
            kinds in prop::collection::vec(prop::sample::select(&ON_GPUS[..]), 2..5),
            n in 1usize..80, blocks in 1usize..3, dtype in 0usize..3, invariant in any::<bool>(), seed: u64,
        ) {
            let dtype = DTYPES[dtype];
            let (parts, case) = stack(&kinds, n, 256 * blocks, seed, dtype);
            let want = product(&Reference, DType::F32, &parts, &case);
            let found = product(&gpu(dtype, invariant), dtype, &parts, &case);
            prop_assert!(found.len() == want.len());
            assert_near_by(&case, &found, &want, dtype, if dtype == DType::BF16 { 1.0 / 256.0 } else { 1.0 / 512.0 });
        }
    }
}
