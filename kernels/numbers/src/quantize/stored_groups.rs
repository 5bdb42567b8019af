//! The formats of integers that a checkpoint stores.

/// Integers in groups with their codes, scales and offsets as a checkpoint stores them. No weights
/// are quantized to such a format: see [`crate::stored::exact_integers`].
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
