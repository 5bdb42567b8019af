//! Describes files of FastLLM for a program that writes them, version 2.

use super::quantized::scale;

const VERSION: i32 = 2;

/// The types of tensors that are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlmKind {
    /// Single precision.
    F32,
    /// Half precision.
    F16,
    /// Bytes with a range for each row. Matrices only.
    Int8,
    /// 4 bits with a range for each row. Matrices only.
    Int4,
}

/// A token of the vocabulary.
#[derive(Debug, Clone, PartialEq)]
pub struct FlmToken {
    /// The text.
    pub text: String,
    /// The id.
    pub id: u32,
    /// The score, if the tokens of the file have scores.
    pub score: Option<f32>,
}

/// A tensor that will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlmTensor {
    /// The name in Hugging Face layout.
    pub name: String,
    /// Length of each axis.
    pub shape: Vec<usize>,
    /// Element type.
    pub kind: FlmKind,
}

impl FlmKind {
    const fn id(self) -> i32 {
        match self {
            FlmKind::F32 => 0,
            FlmKind::F16 => 7,
            FlmKind::Int8 => 3,
            // The type whose ranges begin at a code of their own ("no zero").
            FlmKind::Int4 => 8,
        }
    }

    /// Returns the bits of an element.
    pub const fn bits(self) -> usize {
        match self {
            FlmKind::F32 => 32,
            FlmKind::F16 => 16,
            FlmKind::Int8 => 8,
            FlmKind::Int4 => 4,
        }
    }

    /// Returns whether rows have ranges.
    pub const fn is_quantized(self) -> bool {
        matches!(self, FlmKind::Int8 | FlmKind::Int4)
    }

    /// Returns the code of a number in a row whose numbers are in a range.
    pub fn code(self, number: f32, (scale, zero_point): (f32, u8)) -> u8 {
        let largest = ((1u32 << self.bits().min(8)) - 1) as f32;
        if scale == 0.0 {
            return zero_point;
        }
        (number / scale + f32::from(zero_point)).round().clamp(0.0, largest) as u8
    }

    /// Returns the scale and the zero point that a reader computes from a range.
    pub fn scale(self, (min, max): (f32, f32)) -> (f32, u8) {
        scale(min, max, self.bits().min(8))
    }
}

impl FlmTensor {
    /// Returns the length of the tensor in the file, with its description.
    pub fn bytes(&self) -> usize {
        let rows = self.shape.first().copied().unwrap_or(0);
        let ranges = if self.kind.is_quantized() { 4 + 8 * rows } else { 0 };
        let elements: usize = self.shape.iter().product();
        4 + self.name.len()
            + 4
            + 4 * self.shape.len()
            + 4
            + ranges
            + (elements * self.kind.bits()).div_ceil(8)
    }

    /// Returns the bytes before the elements: name, shape, type, and the ranges of the rows.
    pub fn description(&self, ranges: &[(f32, f32)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        text(&mut bytes, &self.name);
        bytes.extend(word(self.shape.len()));
        self.shape.iter().for_each(|&size| bytes.extend(word(size)));
        bytes.extend(self.kind.id().to_le_bytes());
        if self.kind.is_quantized() {
            // The axis of the ranges.
            bytes.extend(word(0));
            for (min, max) in ranges {
                bytes.extend([min.to_le_bytes(), max.to_le_bytes()].concat());
            }
        }
        bytes
    }
}

/// Returns the bytes of a file before its first tensor. `keys` are sorted and have texts of Python
/// as values; the keys of the tokenizer are among them.
pub fn flm_header(
    keys: &[(String, String)],
    tokens: &[FlmToken],
    special: Option<&[String]>,
    tensors: usize,
) -> Vec<u8> {
    let mut bytes = VERSION.to_le_bytes().to_vec();
    bytes.extend(word(keys.len()));
    for (key, value) in keys {
        text(&mut bytes, key);
        text(&mut bytes, value);
    }
    bytes.extend(word(tokens.len()));
    for token in tokens {
        bytes.extend(word(token.text.len()));
        // Each byte is a word, with the sign that a char has in the original.
        bytes.extend(token.text.bytes().flat_map(|byte| i32::from(byte.cast_signed()).to_le_bytes()));
        bytes.extend(token.id.to_le_bytes());
        bytes.extend(token.score.iter().flat_map(|score| score.to_le_bytes()));
    }
    if let Some(special) = special {
        bytes.extend(word(special.len()));
        special.iter().for_each(|token| text(&mut bytes, token));
    }
    bytes.extend(word(tensors));
    bytes
}

fn word(number: usize) -> [u8; 4] {
    // Texts, lists and axes are bounded far below this by what can be read.
    i32::try_from(number).unwrap_or(i32::MAX).to_le_bytes()
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend(word(text.len()));
    bytes.extend(text.as_bytes());
}
