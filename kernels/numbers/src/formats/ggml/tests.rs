//! The formulas of all types, bit by bit, and the weights that the package `gguf` makes.

use proptest::prelude::*;

use super::tables::half_power_of_two;
use super::words::IQ4_VALUES;
use super::*;
use crate::codes::CodedWeights;

/// The bits of a block, the lowest one of each byte first.
struct Bits<'a>(&'a [u8]);

impl Bits<'_> {
    fn number(&self, byte: usize, bit: usize, count: usize) -> i64 {
        let bit = |i: usize| i64::from(self.0[byte + (bit + i) / 8] >> ((bit + i) % 8) & 1);
        (0..count).map(|i| bit(i) << i).sum()
    }

    fn half(&self, byte: usize) -> f64 {
        let word = self.number(byte, 0, 16);
        let (sign, exponent, mantissa) = (word >> 15, word >> 10 & 31, (word & 1023) as f64);
        let magnitude = match exponent {
            0 => mantissa * (-24f64).exp2(),
            31 => f64::NAN,
            _ => (1.0 + mantissa / 1024.0) * ((exponent - 15) as f64).exp2(),
        };
        if sign == 1 { -magnitude } else { magnitude }
    }

    /// The code of column `col` of 32, of which two are a byte.
    fn nibble(&self, byte: usize, col: usize) -> i64 {
        self.number(byte + col % 16, col / 16 * 4, 4)
    }

    /// Scale and minimum of six bits of sub-block `j`, in the packing of `Q4_K`.
    fn pair(&self, byte: usize, j: usize) -> (f64, f64) {
        let (scale, minimum) = if j < 4 {
            (self.number(byte + j, 0, 6), self.number(byte + j + 4, 0, 6))
        } else {
            let scale = self.number(byte + j + 4, 0, 4) + 16 * self.number(byte + j - 4, 6, 2);
            (scale, self.number(byte + j + 4, 4, 4) + 16 * self.number(byte + j, 6, 2))
        };
        (scale as f64, minimum as f64)
    }

    /// The weight of a column, by the formulas of the format, in double precision.
    fn weight(&self, kind: BlockType, col: usize) -> f64 {
        let table = |values: &[f32], code: i64| f64::from(values[code as usize]);
        // Columns of super-blocks by runs of 128 and 32.
        let (run, at) = (col / 128, col % 128);
        match kind {
            BlockType::Q4_0 => (self.nibble(2, col) - 8) as f64 * self.half(0),
            BlockType::Q4_1 => self.nibble(4, col) as f64 * self.half(0) + self.half(2),
            BlockType::Q5_0 => (self.nibble(6, col) + 16 * self.number(2, col, 1) - 16) as f64 * self.half(0),
            BlockType::Q5_1 => {
                (self.nibble(8, col) + 16 * self.number(4, col, 1)) as f64 * self.half(0) + self.half(2)
            }
            BlockType::Q8_0 => f64::from(self.0[2 + col].cast_signed()) * self.half(0),
            BlockType::Q2K => {
                let code = self.number(16 + 32 * run + at % 32, at / 32 * 2, 2) as f64;
                let (scale, minimum) = (self.number(col / 16, 0, 4), self.number(col / 16, 4, 4));
                self.half(80) * scale as f64 * code - self.half(82) * minimum as f64
            }
            BlockType::Q3K => {
                let low = self.number(32 + 32 * run + at % 32, at / 32 * 2, 2);
                let code = low - if self.number(col % 32, col / 32, 1) == 1 { 0 } else { 4 };
                let s = col / 16;
                let low = self.number(96 + s % 8, s / 8 * 4, 4);
                let scale = low + 16 * self.number(104 + s % 4, s / 4 * 2, 2) - 32;
                self.half(108) * (scale * code) as f64
            }
            BlockType::Q4K | BlockType::Q5K => {
                let five = kind == BlockType::Q5K;
                let j = col / 32;
                let first = if five { 48 } else { 16 };
                let code = self.number(first + j / 2 * 32 + col % 32, j % 2 * 4, 4)
                    + if five { 16 * self.number(16 + col % 32, j, 1) } else { 0 };
                let (scale, minimum) = self.pair(4, j);
                self.half(0) * scale * code as f64 - self.half(2) * minimum
            }
            BlockType::Q6K => {
                let low = self.number(64 * run + at % 64, at / 64 * 4, 4);
                let code = low + 16 * self.number(128 + 32 * run + at % 32, at / 32 * 2, 2) - 32;
                self.half(208) * (i64::from(self.0[192 + col / 16].cast_signed()) * code) as f64
            }
            BlockType::IQ4_NL => table(&IQ4_VALUES, self.nibble(2, col)) * self.half(0),
            BlockType::IQ4_XS => {
                let j = col / 32;
                let scale = self.number(4, 4 * j, 4) + 16 * self.number(2, 2 * j, 2) - 32;
                let code = self.nibble(8 + 16 * j, col % 32);
                self.half(0) * scale as f64 * table(&IQ4_VALUES, code)
            }
            BlockType::MXFP4 => {
                let code = self.nibble(1, col);
                let (exponent, mantissa) = (code >> 1 & 3, (code & 1) as f64);
                let magnitude = match exponent {
                    0 => mantissa / 2.0,
                    _ => (1.0 + mantissa / 2.0) * ((exponent - 1) as f64).exp2(),
                };
                let scale = (f64::from(self.0[0]) - 127.0).exp2();
                if code >= 8 { -magnitude * scale } else { magnitude * scale }
            }
            BlockType::Q1_0 => (2 * self.number(2, col, 1) - 1) as f64 * self.half(0),
            _ => panic!("{kind:?} has a golden file"),
        }
    }
}

/// Bytes whose f16 numbers are finite.
fn block(kind: BlockType, mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(kind.bytes(), 0);
    let halves: &[usize] = match kind {
        BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => &[0, 2],
        BlockType::Q2K => &[80, 82],
        BlockType::Q3K => &[108],
        BlockType::Q6K => &[208],
        BlockType::MXFP4 | BlockType::NVFP4 => &[],
        _ => &[0],
    };
    halves.iter().for_each(|at| bytes[at + 1] &= 0xbf);
    if kind == BlockType::MXFP4 {
        bytes[0] = bytes[0].min(200);
    }
    bytes
}

/// The folder with random blocks and their weights.
fn golden_blocks() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/golden-blocks")
}

/// The types without a golden file, which have a formula in [`Bits::weight`].
fn with_formula() -> Vec<BlockType> {
    let folder = golden_blocks();
    BlockType::ALL.into_iter().filter(|kind| !folder.join(kind.name()).exists()).collect()
}

proptest! {
    #[test]
    fn every_type_is_decoded_by_its_formula(
        kind in prop::sample::select(with_formula()),
        bytes in prop::collection::vec(any::<u8>(), 210),
    ) {
        let bytes = block(kind, bytes);
        let mut found = vec![0.0; kind.cols()];
        (kind.decoder())(&bytes, &mut found);
        for (col, found) in found.into_iter().enumerate() {
            let want = Bits(&bytes).weight(kind, col);
            // Differences of two products lose digits.
            let slack = 1e-6 * (want.abs() + 16.0 * Bits(&bytes).half(2).abs().max(4096.0));
            let slack = if matches!(kind, BlockType::Q2K | BlockType::Q4K | BlockType::Q5K | BlockType::Q4_1 | BlockType::Q5_1) {
                slack
            } else {
                1e-6 * want.abs()
            };
            prop_assert!((f64::from(found) - want).abs() <= slack, "{kind:?} {col}: {found} {want}");
        }
    }

    #[test]
    fn any_columns_of_any_row_are_read(
        kind in prop::sample::select(BlockType::ALL.to_vec()), seed: u64, at in 0usize..400, len in 0usize..400,
    ) {
        let (rows, stored) = (3, 3 * kind.cols());
        let blocks = (0..rows * 3).flat_map(|index| {
            let byte = |i: usize| (seed.rotate_left((7 * i + index) as u32 % 64) ^ i as u64) as u8;
            block(kind, (0..kind.bytes()).map(byte).collect())
        });
        let bytes: Vec<u8> = blocks.collect();
        prop_assert!(kind.check(rows, stored, bytes.len()).is_ok());
        prop_assert!(kind.check(rows, stored, bytes.len() + 1).is_err());
        prop_assert!(kind.check(rows, stored + 8, bytes.len()).is_err());
        let row = CodeRow { bytes: &bytes, stored, row: 2 };
        let mut all = vec![0.0; stored];
        kind.read_weights(row, 0..stored, &mut all);
        let start = at.min(stored);
        let end = (start + len).min(stored);
        let mut some = vec![0.0; end - start];
        kind.read_weights(row, start..end, &mut some);
        // A scale may be no number, which is equal to nothing.
        let bits = |weights: &[f32]| weights.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&some), bits(&all[start..end]));
        if kind.has_table() {
            let mut coded = vec![0.0; end - start];
            kind.read_row(row, start..end, &mut coded);
            prop_assert_eq!(bits(&coded), bits(&some));
        }
    }
}

#[test]
fn powers_of_two_are_exact() {
    for exponent in 0..255u8 {
        let want = (f64::from(exponent) - 128.0).exp2();
        assert_eq!(f64::from(half_power_of_two(exponent)), want, "{exponent}");
    }
    assert!(half_power_of_two(255).is_nan());
}

#[test]
fn codebooks_give_the_weights_of_the_package_gguf() {
    let files = std::fs::read_dir(golden_blocks()).unwrap().count();
    assert!(files >= 10);
    let formulas = with_formula();
    let kinds: Vec<_> = BlockType::ALL.into_iter().filter(|kind| !formulas.contains(kind)).collect();
    assert_eq!(kinds.len(), files, "each file has the name of a type");
    for kind in kinds {
        let bytes = std::fs::read(golden_blocks().join(kind.name())).unwrap();
        let (blocks, weights) = bytes.split_at(4 * kind.bytes());
        let want: Vec<f32> = weights.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(want.len(), 4 * kind.cols());
        let row = CodeRow { bytes: blocks, stored: 4 * kind.cols(), row: 0 };
        let mut found = vec![0.0; want.len()];
        kind.read_weights(row, 0..want.len(), &mut found);
        for (col, (found, want)) in found.iter().zip(&want).enumerate() {
            assert!((found - want).abs() <= 1e-6 * want.abs(), "{kind:?} {col}: {found} for {want}");
        }
    }
}
