//! The places of codes within the words that checkpoints store them in.

use std::ops::Range;

/// The layout of codes `[rows, cols]`: of the weights of a matrix, or of its zero points, whose
/// "columns" are groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeLayout {
    /// Signed bytes `[rows, cols]`. The code is the byte plus 128.
    SignedBytes {
        /// Columns of the matrix.
        cols: usize,
    },
    /// Little-endian words of 32 bits.
    Words(WordLayout),
}

/// The layout of codes in words of 32 bits. A line of codes is one stream of bits, from the lowest
/// bit of its first word on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordLayout {
    /// Bits of a code, at most 8.
    pub bits: usize,
    /// Whether a line is a column, so that successive rows follow each other in a word. Otherwise a
    /// line is a row.
    pub by_column: bool,
    /// Number of lines.
    pub lines: usize,
    /// Words of a line.
    pub words: usize,
    /// Whether the same word of successive lines follow each other, `[words, lines]`. Otherwise the
    /// words of a line do, `[lines, words]`.
    pub word_major: bool,
    /// The places of each eight codes of four bits in their word, if they are not in order.
    pub places: Option<[usize; 8]>,
}

impl WordLayout {
    /// Creates the layout of lines of codes in `[lines, words]` words.
    pub const fn lines(bits: usize, by_column: bool, lines: usize, words: usize) -> Self {
        WordLayout { bits, by_column, lines, words, word_major: false, places: None }
    }

    /// Creates the layout of lines of codes in `[words, lines]` words.
    pub const fn word_major(bits: usize, by_column: bool, words: usize, lines: usize) -> Self {
        WordLayout { bits, by_column, lines, words, word_major: true, places: None }
    }

    /// Returns the byte at which word `word` of line `line` begins.
    fn at(&self, line: usize, word: usize) -> usize {
        4 * if self.word_major { word * self.lines + line } else { line * self.words + word }
    }

    /// Returns code `index` of line `line`.
    #[inline]
    fn code(&self, bytes: &[u8], line: usize, index: usize) -> u8 {
        let first = index * self.bits;
        let (word, shift) = (first / 32, first % 32);
        let mut code = read_word(bytes, self.at(line, word)) >> shift;
        if shift + self.bits > 32 {
            code |= read_word(bytes, self.at(line, word + 1)) << (32 - shift);
        }
        (code & ((1 << self.bits) - 1)) as u8
    }

    fn holds(&self, rows: usize, cols: usize) -> bool {
        let (lines, codes) = if self.by_column { (cols, rows) } else { (rows, cols) };
        let codes = if self.places.is_some() { codes.next_multiple_of(8) } else { codes };
        lines <= self.lines && codes.saturating_mul(self.bits) <= self.words.saturating_mul(32)
    }
}

fn read_word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl CodeLayout {
    /// Returns the bits of a code.
    pub const fn bits(&self) -> usize {
        match self {
            CodeLayout::SignedBytes { .. } => 8,
            CodeLayout::Words(words) => words.bits,
        }
    }

    /// Returns whether `bytes` bytes in this layout hold exactly the words of the layout, and codes
    /// for a matrix `[rows, cols]`.
    pub fn fits(&self, rows: usize, cols: usize, bytes: usize) -> bool {
        match self {
            CodeLayout::SignedBytes { cols: stored } => *stored == cols && bytes == rows.saturating_mul(cols),
            CodeLayout::Words(words) => {
                words.holds(rows, cols) && bytes == words.lines.saturating_mul(words.words).saturating_mul(4)
            }
        }
    }

    /// Writes the codes of columns `cols` of a row to `out`, which is as long.
    ///
    /// # Panics
    /// If a place is outside `bytes`.
    pub fn read_row(&self, bytes: &[u8], row: usize, cols: Range<usize>, out: &mut [u8]) {
        match *self {
            CodeLayout::SignedBytes { cols: stored } => {
                let bytes = &bytes[row * stored + cols.start..row * stored + cols.end];
                out.iter_mut().zip(bytes).for_each(|(code, byte)| *code = byte ^ 0x80);
            }
            CodeLayout::Words(words) if words.by_column => {
                let place = words.places.map_or(row, |places| row / 8 * 8 + places[row % 8]);
                out.iter_mut().zip(cols).for_each(|(code, col)| *code = words.code(bytes, col, place));
            }
            CodeLayout::Words(words) => {
                out.iter_mut().zip(cols).for_each(|(code, col)| *code = words.code(bytes, row, col));
            }
        }
    }

    /// Returns the code at a row and a column.
    ///
    /// # Panics
    /// If the place is outside `bytes`.
    pub fn get(&self, bytes: &[u8], row: usize, col: usize) -> u8 {
        let mut code = [0];
        self.read_row(bytes, row, col..col + 1, &mut code);
        code[0]
    }
}

/// Returns the words that hold `codes` codes.
pub(crate) fn words(codes: usize, bits: usize) -> usize {
    codes.saturating_mul(bits).div_ceil(32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes `codes`, `[rows, cols]`, bit by bit, as the description of each layout reads.
    fn packed(codes: &[u8], cols: usize, layout: &WordLayout) -> Vec<u8> {
        let mut bits = vec![false; layout.lines * layout.words * 32];
        for (at, code) in codes.iter().enumerate() {
            let (row, col) = (at / cols, at % cols);
            let (line, mut index) = if layout.by_column { (col, row) } else { (row, col) };
            if layout.places.is_some() {
                // The word holds the codes 0, 2, 4, 6, 1, 3, 5, 7 in this order.
                let order = [0, 2, 4, 6, 1, 3, 5, 7];
                index = index / 8 * 8 + order.iter().position(|&code| code == index % 8).unwrap();
            }
            for bit in 0..layout.bits {
                let place = index * layout.bits + bit;
                let word = if layout.word_major {
                    place / 32 * layout.lines + line
                } else {
                    line * layout.words + place / 32
                };
                bits[word * 32 + place % 32] = code >> bit & 1 == 1;
            }
        }
        bits.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
    }

    proptest! {
        #[test]
        fn codes_are_found_where_a_bit_by_bit_writer_puts_them(
            (rows, cols) in (1usize..40, 1usize..40), bits in 0usize..4, by_column: bool, word_major: bool,
            awq: bool, spare in 0usize..3, seed: u64,
        ) {
            let bits = if awq { 4 } else { [2, 3, 4, 8][bits] };
            let (lines, codes) = if by_column { (cols, rows) } else { (rows, cols) };
            let places = if awq { codes.next_multiple_of(8) } else { codes };
            let words = (places * bits).div_ceil(32) + spare;
            let mut layout = if word_major {
                WordLayout::word_major(bits, by_column, words, lines)
            } else {
                WordLayout::lines(bits, by_column, lines, words)
            };
            layout.places = (awq && by_column).then_some([0, 4, 1, 5, 2, 6, 3, 7]);
            let code = |i: usize| (seed.rotate_left(i as u32 % 64) ^ i as u64) as u8 & ((1u16 << bits) - 1) as u8;
            let codes: Vec<u8> = (0..rows * cols).map(code).collect();
            let bytes = packed(&codes, cols, &layout);
            let layout = CodeLayout::Words(layout);
            prop_assert!(layout.fits(rows, cols, bytes.len()));
            prop_assert!(!layout.fits(rows, cols, bytes.len() - 4));
            prop_assert!(!layout.fits(rows + 33, cols + 33, bytes.len()));
            let mut found = vec![0; cols];
            for (row, want) in codes.chunks(cols).enumerate() {
                layout.read_row(&bytes, row, 0..cols, &mut found);
                prop_assert_eq!(&found, want);
                prop_assert_eq!(layout.get(&bytes, row, cols - 1), want[cols - 1]);
            }
        }
    }

    #[test]
    fn signed_bytes_are_shifted_to_unsigned_codes() {
        let layout = CodeLayout::SignedBytes { cols: 3 };
        assert!(layout.fits(2, 3, 6) && !layout.fits(2, 3, 5) && !layout.fits(3, 2, 6));
        let bytes = [0, 1, 255, 128, 127, 0];
        assert_eq!([0, 1, 2].map(|col| layout.get(&bytes, 0, col)), [128, 129, 127]);
        assert_eq!([0, 1].map(|col| layout.get(&bytes, 1, col)), [0, 255]);
    }
}
