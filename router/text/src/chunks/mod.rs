//! Encoding of texts in parts.
//!
//! The library needs about a hundred bytes of memory for each byte of a text. A long text is
//! therefore split at places that do not change its tokens (see [`SplitPoint`] and
//! [`CutMarks`](super::cut_marks::CutMarks)), and its *chunks* can be encoded one after the other.
//!
//! *Pieces* are smaller chunks, whose token ids can be kept for other texts. The place at which a
//! piece ends depends only on the text before it and on the few bytes behind it. Therefore a text
//! that has grown at its end has the same pieces as before, and additional ones.

use std::ops::Range;

use super::conversation::RenderedPrompt;
use super::encoded::EncodedText;
use super::error::TextError;
use super::split_points::SplitPoint;
use super::tokenizer::Tokenizer;

/// A part of a text that is encoded by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextChunk {
    from: SplitPoint,
    to: usize,
}

/// The lengths of pieces in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceSizes {
    /// The minimum length of a piece that ends in front of a mark, such as the beginning of a turn.
    pub to_mark: usize,
    /// The minimum length of a piece that ends between two words or lines.
    pub to_word: usize,
}

impl TextChunk {
    /// Returns the number of bytes of the text that the chunk covers.
    pub fn bytes(self) -> usize {
        self.to - self.from.begin
    }

    /// Returns the chunk's part of its text.
    pub fn text(self, text: &RenderedPrompt) -> &str {
        &text.text[self.from.begin..self.to]
    }

    /// Returns the ranges of the chunk's part that are encoded as ordinary text.
    pub fn literal(self, text: &RenderedPrompt) -> impl Iterator<Item = Range<usize>> {
        let TextChunk { from: SplitPoint { begin, .. }, to } = self;
        let first = text.literal.partition_point(|range| range.end <= begin);
        let inside = text.literal[first..].iter().take_while(move |range| range.start < to);
        inside.map(move |range| range.start.max(begin) - begin..range.end.min(to) - begin)
    }
}

impl Tokenizer {
    /// Encodes a chunk of this text on the current thread, without the tokens that are added to a
    /// whole text. The tokens of all chunks are those of the text (see [`EncodedText::append`]).
    ///
    /// The ids depend on nothing but the chunk's text, its literal ranges, and whether the whole
    /// text has any of these.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot represent the text.
    pub fn encode_chunk(&self, text: &RenderedPrompt, chunk: TextChunk) -> Result<EncodedText, TextError> {
        // A chunk is encoded by the same steps as the whole text, even if it has no literal range.
        let mut encoded = match text.literal.is_empty() {
            true => self.library_encode(chunk.text(text), false)?,
            false => {
                let literal: Vec<_> = chunk.literal(text).collect();
                self.encode_literal(chunk.text(text), &literal, false)?
            }
        };
        chunk.from.shift(&mut encoded);
        Ok(encoded)
    }

    /// Splits a text into chunks of at least `min_bytes` bytes each, except the last one. A text in
    /// which no split point was found is one chunk.
    pub fn chunks(&self, text: &str, min_bytes: usize) -> Vec<TextChunk> {
        let mut splitter = Splitter::new(self, text);
        splitter.cut_words(min_bytes, text.len());
        splitter.finish()
    }

    /// Splits a text into pieces: in front of marks and between words or lines. The last piece may
    /// be shorter than `sizes`, and pieces without a place to split are longer. If
    /// [`Tokenizer::has_exact_pieces`], the tokens of all pieces are those of the text.
    pub fn pieces(&self, text: &RenderedPrompt, sizes: PieceSizes) -> Vec<TextChunk> {
        let mut splitter = Splitter::new(self, &text.text);
        for mark in self.cut_marks().places(&text.text, &text.literal) {
            splitter.cut_words(sizes.to_word, mark);
            splitter.cut_mark(sizes.to_mark, mark);
        }
        splitter.cut_words(sizes.to_word, text.text.len());
        splitter.finish()
    }
}

/// The chunks of a text up to a place that moves on. The text is searched once for split points.
struct Splitter<'a> {
    tokenizer: &'a Tokenizer,
    text: &'a str,
    chunks: Vec<TextChunk>,
    /// The beginning of the next chunk.
    from: SplitPoint,
    /// The place up to which the text has been searched for split points.
    searched: usize,
}

impl<'a> Splitter<'a> {
    fn new(tokenizer: &'a Tokenizer, text: &'a str) -> Self {
        Splitter { tokenizer, text, chunks: Vec::new(), from: SplitPoint::default(), searched: 0 }
    }

    /// Splits between words or lines, up to a place of the text.
    fn cut_words(&mut self, min_bytes: usize, to: usize) {
        let split_points = self.tokenizer.split_points();
        loop {
            let begin = self.searched.max(self.from.begin + min_bytes);
            let Some(point) = split_points.first(self.text, begin..to) else { break };
            self.cut(point);
        }
        self.searched = self.searched.max(to);
    }

    /// Splits in front of a mark, unless the chunk would be too short.
    fn cut_mark(&mut self, min_bytes: usize, mark: usize) {
        if mark >= self.from.begin + min_bytes.max(1) {
            self.cut(SplitPoint::at_mark(mark));
        }
    }

    fn cut(&mut self, point: SplitPoint) {
        self.chunks.push(TextChunk { from: self.from, to: point.end });
        self.from = point;
    }

    fn finish(mut self) -> Vec<TextChunk> {
        self.chunks.push(TextChunk { from: self.from, to: self.text.len() });
        self.chunks
    }
}

#[cfg(test)]
mod piece_tests;
#[cfg(test)]
mod tests;
