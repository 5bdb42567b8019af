//! Encoding of long texts in chunks.
//!
//! The library needs about a hundred bytes of memory for each byte of a text. A long text is
//! therefore split at places that do not change its tokens (see [`SplitPoint`]), and its chunks can
//! be encoded one after the other.

use super::encoded::EncodedText;
use super::error::TextError;
use super::rendered::RenderedPrompt;
use super::split_points::SplitPoint;
use super::tokenizer::Tokenizer;

/// A part of a text that is encoded by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextChunk {
    from: SplitPoint,
    to: usize,
}

impl TextChunk {
    /// Returns the number of bytes of the text that the chunk covers.
    pub fn bytes(self) -> usize {
        self.to - self.from.begin
    }
}

impl Tokenizer {
    /// Encodes a chunk of this text on the current thread, without the tokens that are added to a
    /// whole text. The tokens of all chunks are those of the text (see [`EncodedText::append`]).
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot represent the text.
    pub fn encode_chunk(
        &self,
        text: &RenderedPrompt,
        TextChunk { from, to }: TextChunk,
    ) -> Result<EncodedText, TextError> {
        let first = text.literal.partition_point(|range| range.end <= from.begin);
        let inside = text.literal[first..].iter().take_while(|range| range.start < to);
        let literal: Vec<_> = inside
            .map(|range| range.start.max(from.begin) - from.begin..range.end.min(to) - from.begin)
            .collect();
        let mut encoded = self.encode_part(&text.text[from.begin..to], &literal, false)?;
        from.shift(&mut encoded);
        Ok(encoded)
    }

    /// Splits a text into chunks of at least `min_bytes` bytes each, except the last one. A text in
    /// which no split point was found is one chunk.
    pub fn chunks(&self, text: &str, min_bytes: usize) -> Vec<TextChunk> {
        let split_points = self.split_points();
        let (mut chunks, mut from) = (Vec::new(), SplitPoint::default());
        while let Some(point) = split_points.first(text, from.begin + min_bytes) {
            chunks.push(TextChunk { from, to: point.end });
            from = point;
        }
        chunks.push(TextChunk { from, to: text.len() });
        chunks
    }
}

#[cfg(test)]
mod tests;
