//! The formats of integers in groups that devices keep.

use super::group::{self, Group};
use crate::{Error, Result};

/// A format of weights as integers in groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IntFormat {
    /// 8 bits. Each row is one group with an f32 scale, `max(|weights|) / 127`; the offset is 128.
    Int8,
    /// The block type `Q8_0` of GGUF: 8 bits, groups of 32 columns with an f16 scale,
    /// `max(|weights|) / 127`. The offset is 128: codes are the signed numbers of GGUF plus 128.
    Q8_0,
    /// The block type `Q4_0` of GGUF: 4 bits, groups of 32 columns with an f16 scale; the offset is
    /// 8. The weight of largest magnitude has code 0.
    Q4_0,
    /// 4 bits, groups of 128, 64 or 32 columns, of which the largest that divides the columns is
    /// used. Each group has an f16 scale and an offset of 4 bits (Frantar et al., "GPTQ", without
    /// the correction of errors).
    Int4,
    /// Integers as a checkpoint stores them.
    Stored(StoredGroups),
}

impl IntFormat {
    /// All formats that weights can be quantized to.
    pub const ALL: [IntFormat; 4] = [IntFormat::Int8, IntFormat::Q8_0, IntFormat::Q4_0, IntFormat::Int4];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            IntFormat::Int8 => "int8",
            IntFormat::Q8_0 => "q8_0",
            IntFormat::Q4_0 => "q4_0",
            IntFormat::Int4 => "int4",
            IntFormat::Stored(StoredGroups { bits: 4, .. }) => "stored integers of 4 bits",
            IntFormat::Stored(_) => "stored integers of 8 bits",
        }
    }

    /// Returns the bits of a code.
    pub const fn bits(self) -> usize {
        match self {
            IntFormat::Int8 | IntFormat::Q8_0 => 8,
            IntFormat::Q4_0 | IntFormat::Int4 => 4,
            IntFormat::Stored(groups) => groups.bits,
        }
    }

    /// Returns the offset that all groups have, or none if each group has its own.
    pub const fn offset(self) -> Option<u8> {
        match self {
            IntFormat::Int8 | IntFormat::Q8_0 => Some(128),
            IntFormat::Q4_0 => Some(8),
            IntFormat::Int4 => None,
            IntFormat::Stored(StoredGroups { has_offsets: true, .. }) => None,
            IntFormat::Stored(groups) => Some(1 << (groups.bits - 1)),
        }
    }

    /// Returns the columns of a group in rows of `cols` columns.
    pub const fn group_cols(self, cols: usize) -> usize {
        match self {
            IntFormat::Int8 => cols,
            IntFormat::Q8_0 | IntFormat::Q4_0 => 32,
            IntFormat::Int4 if cols.is_multiple_of(128) => 128,
            IntFormat::Int4 if cols.is_multiple_of(64) => 64,
            IntFormat::Int4 => 32,
            IntFormat::Stored(groups) => groups.cols,
        }
    }

    /// Returns the columns of activations that share a scale when they are multiplied by a weight
    /// with rows of `cols` columns. They are a multiple of 32.
    pub const fn activation_cols(self, cols: usize) -> usize {
        match self {
            IntFormat::Int8 => 128,
            _ => self.group_cols(cols),
        }
    }

    /// Returns the columns that a device keeps of rows of `cols` columns.
    pub const fn packed_cols(self, cols: usize) -> usize {
        match self {
            IntFormat::Stored(groups) => cols + groups.padding,
            _ => cols,
        }
    }

    /// Tells whether rows of `cols` columns consist of whole groups.
    pub const fn fits(self, cols: usize) -> bool {
        cols == 0 || self.packed_cols(cols).is_multiple_of(self.group_cols(cols))
    }

    /// Checks that rows of `cols` columns consist of whole groups.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if they do not.
    pub fn check_cols(self, cols: usize) -> Result<()> {
        if !self.fits(cols) {
            let (name, group) = (self.name(), self.group_cols(cols));
            return Err(Error::Unsupported(format!(
                "a matrix of {cols} columns as {name}, which needs a multiple of {group}"
            )));
        }
        Ok(())
    }

    /// Returns the bytes of a matrix `[out, cols]` without padding.
    pub const fn bytes(self, out: usize, cols: usize) -> usize {
        let scale = match self {
            IntFormat::Int8 => size_of::<f32>(),
            IntFormat::Q8_0 | IntFormat::Q4_0 => size_of::<u16>(),
            IntFormat::Int4 => 2 * size_of::<u16>(),
            IntFormat::Stored(groups) => {
                groups.scale_bytes() + if groups.has_offsets { size_of::<u16>() } else { 0 }
            }
        };
        let (cols, group) = (self.packed_cols(cols), self.group_cols(cols));
        let groups = if group == 0 { 0 } else { cols.div_ceil(group) };
        out.saturating_mul((cols * self.bits()).div_ceil(8) + groups * scale)
    }

    /// Quantizes the weights of one group to `codes`, one per byte, and returns the group's scale
    /// and offset.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a NaN, an infinity, and a weight so large that its scale exceeds
    /// the scale's type, and for [`IntFormat::Stored`].
    ///
    /// # Panics
    /// If the lengths differ.
    // Inlined, so that its loops are vectorized for the instruction set of the caller.
    #[inline(always)]
    pub fn quantize(self, weights: &[f32], codes: &mut [u8]) -> Result<Group> {
        assert_eq!(weights.len(), codes.len());
        let range = group::Range::of(weights)?;
        let quantized = match self {
            IntFormat::Int8 => group::bytes(weights, codes, range.largest(), |scale| scale),
            IntFormat::Q8_0 => group::bytes(weights, codes, range.largest(), group::round_to_f16),
            IntFormat::Q4_0 => group::q4_0(weights, codes, range),
            IntFormat::Int4 => group::int4(weights, codes, range),
            IntFormat::Stored(_) => {
                return Err(Error::Unsupported(format!("other weights as {}", self.name())));
            }
        };
        if !quantized.scale.is_finite() {
            return Err(Error::Unsupported(format!("a weight of {:e} as {}", range.largest(), self.name())));
        }
        Ok(quantized)
    }

    /// Quantizes a row of whole groups to `codes`, and returns the scales and offsets in `groups`.
    ///
    /// # Errors
    /// As [`IntFormat::quantize`].
    ///
    /// # Panics
    /// If the lengths differ.
    #[inline(always)]
    pub fn quantize_row(self, weights: &[f32], codes: &mut [u8], groups: &mut [Group]) -> Result<()> {
        assert_eq!(weights.len(), codes.len());
        let cols = self.group_cols(weights.len()).max(1);
        for ((weights, codes), group) in weights.chunks(cols).zip(codes.chunks_mut(cols)).zip(groups) {
            *group = self.quantize(weights, codes)?;
        }
        Ok(())
    }

    /// Rounds rows of `cols` weights to the values of the format, in place.
    ///
    /// # Errors
    /// As [`IntFormat::check_cols`] and [`IntFormat::quantize`].
    pub fn round(self, weights: &mut [f32], cols: usize) -> Result<()> {
        self.check_cols(cols)?;
        let group_cols = self.group_cols(cols).max(1);
        let mut codes = vec![0; group_cols];
        for weights in weights.chunks_exact_mut(group_cols) {
            let group = self.quantize(weights, &mut codes)?;
            weights.iter_mut().zip(&codes).for_each(|(weight, code)| *weight = group.value(*code));
        }
        Ok(())
    }
}

/// Integers in groups with their codes, scales and offsets as a checkpoint stores them. No weights
/// are quantized to such a format: see [`super::exact_integers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoredGroups {
    /// Bits of a code: 4 or 8.
    pub bits: usize,
    /// Columns of a group: 32, 64 or 128.
    pub cols: usize,
    /// Whether scales are of type f32. Otherwise they are of type f16.
    pub wide_scales: bool,
    /// Whether each group has an offset. Otherwise it is 8 or 128, the middle of the codes.
    pub has_offsets: bool,
    /// Columns of zeros that are added to each row so that its groups are whole.
    pub padding: usize,
}

impl StoredGroups {
    /// Returns the format that can hold the weights of both formats, which have the same padding.
    #[must_use]
    pub fn common(self, other: StoredGroups) -> StoredGroups {
        StoredGroups {
            bits: self.bits.max(other.bits),
            cols: self.cols.min(other.cols),
            wide_scales: self.wide_scales || other.wide_scales,
            // The middle of 4 bits is not the middle of 8 bits.
            has_offsets: self.has_offsets || other.has_offsets || self.bits != other.bits,
            padding: self.padding,
        }
    }

    /// Returns the format that is used for the weights of this one. Codes of 8 bits that have wide
    /// scales or offsets have both, which costs little and saves products.
    #[must_use]
    pub fn simplified(self) -> StoredGroups {
        let has_both = self.bits == 8 && (self.wide_scales || self.has_offsets);
        StoredGroups {
            wide_scales: self.wide_scales || has_both,
            has_offsets: self.has_offsets || has_both,
            ..self
        }
    }

    /// Returns the bytes of a scale.
    pub const fn scale_bytes(self) -> usize {
        if self.wide_scales { size_of::<f32>() } else { size_of::<u16>() }
    }
}
