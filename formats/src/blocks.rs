//! The block types of GGML: the layouts in which GGUF and its ancestors store quantized weights.

use std::fmt::{self, Display, Formatter};

/// Declares the block types with their names, elements and bytes.
macro_rules! block_types {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $elements:literal, $bytes:literal;)*) => {
        /// A type of blocks: some successive elements of a row, with what they share.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(non_camel_case_types, reason = "the names are those of the format")]
        pub enum BlockType {
            $($(#[$doc])* $name,)*
        }

        impl BlockType {
            /// All types.
            pub const ALL: &[BlockType] = &[$(BlockType::$name),*];

            /// Returns the name.
            pub const fn name(self) -> &'static str {
                match self { $(BlockType::$name => $text,)* }
            }

            /// Returns the elements of a block.
            pub const fn elements(self) -> usize {
                match self { $(BlockType::$name => $elements,)* }
            }

            /// Returns the bytes of a block.
            pub const fn bytes(self) -> usize {
                match self { $(BlockType::$name => $bytes,)* }
            }
        }
    };
}

block_types! {
    /// 4 bits, `(code - 8) * scale`.
    Q4_0 = "Q4_0", 32, 18;
    /// 4 bits, `code * scale + minimum`.
    Q4_1 = "Q4_1", 32, 20;
    /// 5 bits, `(code - 16) * scale`.
    Q5_0 = "Q5_0", 32, 22;
    /// 5 bits, `code * scale + minimum`.
    Q5_1 = "Q5_1", 32, 24;
    /// 8 bits, `code * scale`.
    Q8_0 = "Q8_0", 32, 34;
    /// 2 bits in super-blocks, with scales and minima of 4 bits.
    Q2K = "Q2_K", 256, 84;
    /// 3 bits in super-blocks, with scales of 6 bits.
    Q3K = "Q3_K", 256, 110;
    /// 4 bits in super-blocks, with scales and minima of 6 bits.
    Q4K = "Q4_K", 256, 144;
    /// 5 bits in super-blocks, with scales and minima of 6 bits.
    Q5K = "Q5_K", 256, 176;
    /// 6 bits in super-blocks, with scales of 8 bits.
    Q6K = "Q6_K", 256, 210;
    /// 4 bits that index a table of integers, times a scale.
    IQ4_NL = "IQ4_NL", 32, 18;
    /// 4 bits that index a table of integers, in super-blocks with scales of 6 bits.
    IQ4_XS = "IQ4_XS", 256, 136;
    /// 4-bit floating-point numbers, times a power of two.
    MXFP4 = "MXFP4", 32, 17;
    /// Codes of 8 bits for eight elements, in super-blocks.
    IQ2_XXS = "IQ2_XXS", 256, 66;
    /// Codes of 9 bits for eight elements, in super-blocks.
    IQ2_XS = "IQ2_XS", 256, 74;
    /// Codes of 10 bits for eight elements, in super-blocks.
    IQ2_S = "IQ2_S", 256, 82;
    /// Codes of 8 bits for four elements, in super-blocks.
    IQ3_XXS = "IQ3_XXS", 256, 98;
    /// Codes of 9 bits for four elements, in super-blocks.
    IQ3_S = "IQ3_S", 256, 110;
    /// Codes of 11 bits for eight elements that are -1, 0 or 1, in super-blocks.
    IQ1_S = "IQ1_S", 256, 50;
    /// As `IQ1_S`, with more scales.
    IQ1_M = "IQ1_M", 256, 56;
}

impl BlockType {
    /// Returns the bytes of `elements` elements, or `None` if they are not whole blocks.
    pub fn bytes_of(self, elements: usize) -> Option<usize> {
        let blocks = elements.is_multiple_of(self.elements()).then(|| elements / self.elements())?;
        blocks.checked_mul(self.bytes())
    }
}

impl Display for BlockType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
