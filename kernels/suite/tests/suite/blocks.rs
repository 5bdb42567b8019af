//! Matrices in blocks of GGML: the formats in which CPUs keep them, and products by these.

use half::f16;
use millrace_backend::{Backend, Error, Segment, Sizing, WeightLoading};
use millrace_numbers::formats::exact_format;
use millrace_numbers::formats::ggml::exact_blocks;
use millrace_numbers::{BlockType, DType, Encoding, HostTensor, IntFormat, KFormat, Part, WeightFormat};
use proptest::prelude::{any, prop, proptest};

use crate::common::*;
use crate::stored::product;

/// Returns a matrix of random blocks whose scales are numbers near `scale`.
pub(crate) fn matrix(kind: BlockType, rows: usize, cols: usize, seed: u64) -> HostTensor {
    let size = kind.bytes();
    let count = rows * (cols / kind.cols());
    let mut bytes: Vec<u8> =
        (0..count * size).map(|at| (Rng(seed ^ at as u64).unit() * 1e4) as i32 as u8).collect();
    for (index, block) in bytes.chunks_mut(size).enumerate() {
        for at in halves(kind) {
            let scale = 0.01 + 0.01 * Rng(seed ^ (index * 5 + at) as u64).unit().abs();
            block[*at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
        if kind == BlockType::MXFP4 {
            block[0] = 118 + block[0] % 4;
        }
        if kind == BlockType::NVFP4 {
            block[..4].iter_mut().for_each(|scale| *scale = 8 + *scale % 16);
        }
    }
    HostTensor { encoding: Encoding::Blocks(kind), rows, cols, bytes: bytes.into() }
}

/// Returns the places of the f16 numbers of a block.
fn halves(kind: BlockType) -> &'static [usize] {
    match kind {
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => &[0, 2],
        BlockType::Q2K => &[80, 82],
        BlockType::Q3K => &[108],
        BlockType::Q6K => &[208],
        BlockType::MXFP4 | BlockType::NVFP4 => &[],
        _ => &[0],
    }
}

/// Returns the numbers of stacked parts.
pub(crate) fn weights(parts: &[Part]) -> Vec<f32> {
    let row = |part: &Part, row: usize| {
        let mut values = vec![0.0; part.cols.len()];
        part.read_row(row, &mut values);
        values
    };
    parts.iter().flat_map(|part| (0..part.rows.len()).flat_map(|index| row(part, index))).collect()
}

/// The kinds of two stacked parts, and the format that holds the numbers of both.
fn pairs() -> Vec<([BlockType; 2], Option<WeightFormat>)> {
    use BlockType::{
        IQ1_S, IQ2_XXS, IQ3_S, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q1_0, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1,
        Q5K, Q6K, Q8_0,
    };
    let int = |format| Some(WeightFormat::Int(format));
    let k = |format| Some(WeightFormat::K(format));
    vec![
        ([Q4_0, Q4_0], int(IntFormat::Q4_0)),
        ([Q8_0, Q8_0], int(IntFormat::Q8_0)),
        ([Q5_0, Q5_0], int(IntFormat::Q8_0)),
        ([Q4_0, Q8_0], int(IntFormat::Q8_0)),
        ([IQ4_NL, Q5_0], int(IntFormat::Q8_0)),
        ([Q4K, Q4K], k(KFormat::Q4K)),
        ([Q5K, Q5K], k(KFormat::Q5K)),
        ([Q6K, Q6K], k(KFormat::Q6K)),
        ([Q3K, Q3K], k(KFormat::Q6K)),
        ([Q6K, Q3K], k(KFormat::Q6K)),
        ([Q4K, Q6K], None),
        ([Q4_1, Q4_1], None),
        ([Q5_1, Q5_1], None),
        ([Q2K, Q2K], None),
        ([Q4K, Q5K], None),
        ([IQ4_NL, IQ4_NL], None),
        ([IQ4_XS, IQ4_XS], None),
        ([MXFP4, MXFP4], None),
        ([NVFP4, NVFP4], None),
        ([NVFP4, MXFP4], None),
        ([Q1_0, Q1_0], None),
        ([IQ2_XXS, IQ2_XXS], None),
        ([IQ3_S, IQ1_S], None),
    ]
}

/// Stored codes hold these types, whose blocks are no integers or take more bits as integers.
fn is_table(kind: BlockType) -> bool {
    matches!(kind, BlockType::IQ4_NL | BlockType::IQ4_XS | BlockType::MXFP4 | BlockType::NVFP4)
}

#[test]
fn blocks_are_kept_in_the_format_that_holds_their_numbers() {
    for (kinds, want) in pairs() {
        let parts = kinds.map(|kind| Part::whole(matrix(kind, 3, 512, 7)));
        assert_eq!(exact_blocks(&parts), want, "{kinds:?}");
        let has_format = want.is_some() || is_table(kinds[0]);
        assert_eq!(exact_format(&parts).is_some(), has_format, "{kinds:?}");
        // Columns that begin or end within a block.
        let cut =
            |cols: std::ops::Range<usize>| parts.clone().map(|part| Part { cols: cols.clone(), ..part });
        assert_eq!(exact_blocks(&cut(0..500)), None);
        assert_eq!(exact_blocks(&cut(8..512)), None);
        assert_eq!(exact_blocks(&cut(256..512)), want);
    }
    assert_eq!(exact_blocks(&[]), None);
    let dense = Part::whole(tensor(&bytes(&[1.0; 64]), 1, 64));
    assert_eq!(exact_blocks(&[Part::whole(matrix(BlockType::Q8_0, 3, 64, 1)), dense]), None);
}

proptest! {
    #![proptest_config(cases(24))]

    /// Inputs that are not rounded are multiplied by the weights that the blocks stand for, and so
    /// are rounded ones by a CPU that rounds them, but for the rounding.
    #[test]
    fn products_are_those_of_the_weights(
        pair in prop::sample::select(pairs()), n in 1usize..6, rows in 1usize..40, blocks in 1usize..4, seed: u64,
        from in any::<bool>(),
    ) {
        let (kinds, _) = pair;
        let stored = 256 * (blocks + 1);
        let cols = if from { 256..stored } else { 0..stored - 256 };
        let parts = kinds.map(|kind| Part { cols: cols.clone(), ..Part::whole(matrix(kind, rows, stored, seed)) });
        let format = exact_format(&parts).unwrap_or(DType::F32.into());
        let x: Vec<f32> = (0..n * cols.len()).map(|at| Rng(seed ^ at as u64).unit()).collect();
        let dense = weights(&parts);
        let whole = [Part::whole(tensor(&bytes(&dense), 2 * rows, cols.len()))];
        let want = product(&millrace_backend::reference::Reference, &x, &whole, DType::F32.into());
        for cpu in EXACT_CPUS.iter() {
            let found = product(cpu, &x, &parts, format);
            assert_close(&format!("{kinds:?}, {format:?}, exact on {}", cpu.name()), &found, &want, 1e-5);
        }
        for cpu in CPUS.iter() {
            let found = product(cpu, &x, &parts, format);
            assert_close(&format!("{kinds:?}, {format:?} on {}", cpu.name()), &found, &want, 2e-2);
        }
    }
}

/// The error says where the scale is.
#[test]
fn scales_that_are_not_finite_are_refused() {
    for (kind, at) in
        [(BlockType::Q8_0, 0), (BlockType::Q4K, 2), (BlockType::Q6K, 208), (BlockType::Q3K, 108)]
    {
        let good = matrix(kind, 8, 512, 1);
        let mut bytes = good.bytes.to_vec();
        let blocks = 512 / kind.cols();
        let place = (5 * blocks + blocks - 1) * kind.bytes() + at;
        bytes[place..place + 2].copy_from_slice(&f16::NAN.to_le_bytes());
        let parts = [good.clone(), HostTensor { bytes: bytes.into(), ..good }].map(Part::whole);
        let format = exact_format(&parts).unwrap();
        for cpu in CPUS.iter() {
            let error = cpu.matrix(&[Segment::new(&parts, format)]).unwrap_err();
            let col = 512 - kind.cols();
            assert!(
                matches!(error, Error::Numbers(millrace_numbers::Error::StoredNumber { part: 1, row: 5, col: found }) if found == col),
                "{kind:?}: {error}"
            );
        }
    }
}

#[test]
fn tensors_of_other_lengths_are_refused() {
    let mut short = matrix(BlockType::Q4_0, 4, 64, 1);
    short.bytes = short.bytes.slice(1..);
    let parts = [Part::whole(short)];
    for cpu in CPUS.iter() {
        let error = cpu.matrix(&[Segment::new(&parts, DType::F32)]).unwrap_err().to_string();
        assert!(error.contains("a Q4_0 matrix of 4 x 64 cannot have 143 bytes"), "{error}");
        assert!(cpu.stored_format(&[]).is_none());
    }
}
