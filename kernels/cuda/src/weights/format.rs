//! The formats of packed numbers, and the sizes of their layout.

use crate::Elem;

/// Outputs of one tile.
pub(crate) const OUTPUTS: usize = 16;
/// Columns of the smallest group of integers.
pub(super) const GROUP: usize = 32;
/// The number of columns of a packed weight is padded to a multiple of this.
pub(crate) const DEPTH: usize = 64;

/// How a packed weight stores one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PackedFormat {
    /// `scale * (q - zero)` with q in 0..=15 and zero in 0..=16.
    Int4,
    /// `scale * q` with a signed 8-bit q.
    Int8,
    /// `scale * q` with q in FP8 (e4m3).
    Fp8,
    /// `scale * table[q]` with q in 0..=15 and a table of signed bytes: MXFP4, `IQ4_NL` and
    /// `IQ4_XS`.
    Codes4,
    /// `scale * (q - zero)` with q in 0..=15 and a zero point that is not a whole number, in groups
    /// of 32 columns: blocks of GGUF's `Q4_K`.
    Q4K,
    /// `scale * (q - zero)` with a signed 8-bit q and a fraction of a zero point, in groups of 32
    /// columns: blocks of GGUF's `Q5_K`.
    Q5K,
    /// `scale * s * q` with signed 8-bit q and s, and an s for 16 columns, in groups of 32 columns:
    /// blocks of GGUF's `Q6_K` and `Q3_K`.
    Q6K,
}

impl PackedFormat {
    /// All formats.
    pub const ALL: [PackedFormat; 7] = [
        PackedFormat::Int4,
        PackedFormat::Int8,
        PackedFormat::Fp8,
        PackedFormat::Codes4,
        PackedFormat::Q4K,
        PackedFormat::Q5K,
        PackedFormat::Q6K,
    ];

    /// Bits per number.
    pub const fn bits(self) -> usize {
        match self {
            PackedFormat::Int4 | PackedFormat::Codes4 | PackedFormat::Q4K => 4,
            PackedFormat::Int8 | PackedFormat::Fp8 | PackedFormat::Q5K | PackedFormat::Q6K => 8,
        }
    }

    /// Columns of the smallest group that shares a scale.
    pub(crate) const fn least_group(self) -> usize {
        match self {
            PackedFormat::Fp8 => 64,
            _ => GROUP,
        }
    }

    /// Columns of the largest group that shares a scale.
    pub(crate) const fn largest_group(self) -> usize {
        match self {
            PackedFormat::Q4K | PackedFormat::Q5K | PackedFormat::Q6K => GROUP,
            _ => 1 << 30,
        }
    }
}

/// The signed bytes that codes of four bits stand for; zeros for other formats.
pub type CodeTable = [i8; 16];

/// The numbers of a packed weight that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SharedScale {
    /// All numbers of a row, as the device's library takes FP8.
    Row,
    /// Groups of columns.
    Group,
}

/// How a weight lies in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightLayout {
    /// Row after row, with numbers of this type.
    Dense(Elem),
    /// As an [`super::UploadedWeight`], with numbers in this format.
    Packed(PackedFormat, SharedScale),
}

impl WeightLayout {
    /// The layout of FP8 numbers that the device's library multiplies by.
    pub(crate) const FP8_ROWS: WeightLayout = WeightLayout::Packed(PackedFormat::Fp8, SharedScale::Row);

    /// Returns the layout of a packed weight of `depth` columns in groups of `group`.
    pub(crate) fn packed(format: PackedFormat, depth: usize, group: usize) -> WeightLayout {
        let shared = if group < depth { SharedScale::Group } else { SharedScale::Row };
        WeightLayout::Packed(format, shared)
    }
}
