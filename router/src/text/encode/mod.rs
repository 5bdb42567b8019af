//! Encoding on blocking threads, fairly and in bounded memory.
//!
//! The library needs about a hundred bytes of memory for each byte of a text. Therefore a long text
//! is split at places that do not change its tokens (see [`SplitPoint`]), and its chunks are
//! encoded one after the other. Short texts have their own turns and never wait for long ones. Long
//! texts end their turn after each chunk, so that no text waits for the end of another one. Tenants
//! that wait get turns one after the other. A text without split points is one chunk. Only one
//! large chunk is encoded at a time.

use std::sync::Arc;

use millrace_scheduler::Tenant;

use super::encoded::{EncodedText, SpecialTokens};
use super::error::TextError;
use super::rendered::RenderedPrompt;
use super::split_points::SplitPoint;
use super::tokenizer::Tokenizer;
use crate::turns::TenantTurns;

/// The minimum length of a chunk in bytes. A text of at most two chunks is short and is not split.
const CHUNK_BYTES: usize = 32 << 10;
/// A chunk of more bytes is large: no other large chunk is encoded at the same time.
const LARGE_CHUNK_BYTES: usize = 8 * CHUNK_BYTES;

/// The turns that a part of a text needs, and the tenant that needs them.
#[derive(Clone, Copy)]
struct EncodeTurns<'a> {
    lane: &'a TenantTurns,
    tenant: &'a Tenant,
}

/// A part of a text that is encoded by itself: `text[from.begin..to]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TextChunk {
    from: SplitPoint,
    to: usize,
}

impl Tokenizer {
    /// Encodes a text on blocking threads, in turns of the tenant.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot represent the text.
    pub async fn encode(
        &self,
        text: impl Into<RenderedPrompt>,
        specials: SpecialTokens,
        tenant: &Tenant,
    ) -> Result<EncodedText, TextError> {
        self.encode_last(text, specials, usize::MAX, tenant).await
    }

    /// Encodes at least the last `keep` tokens of a text, or all of them if there are fewer, like
    /// [`Tokenizer::encode`]. If the text can be split, the text before these tokens is not
    /// encoded.
    ///
    /// # Errors
    /// The same as [`Tokenizer::encode`].
    pub async fn encode_last(
        &self,
        text: impl Into<RenderedPrompt>,
        specials: SpecialTokens,
        keep: usize,
        tenant: &Tenant,
    ) -> Result<EncodedText, TextError> {
        let text = Arc::new(text.into());
        let whole = TextChunk { from: SplitPoint::default(), to: text.text.len() };
        let turns = |lane| EncodeTurns { lane, tenant };
        let long = turns(&self.lanes().long);
        if text.text.len() <= 2 * CHUNK_BYTES {
            return self.encode_in_turn(turns(&self.lanes().short), text, whole, Some(specials)).await;
        }
        let Some((before, after)) = self.affixes(specials) else {
            return self.encode_in_turn(long, text, whole, Some(specials)).await;
        };
        let (tokenizer, shared) = (self.clone(), text.clone());
        let mut chunks = blocking(move || Ok(tokenizer.chunks(&shared.text, CHUNK_BYTES))).await?;
        if keep == usize::MAX {
            let mut all = before;
            for chunk in chunks {
                all.append(self.encode_in_turn(long, text.clone(), chunk, None).await?);
            }
            all.append(after);
            return Ok(all);
        }
        // Chunks are encoded from the end of the text backwards.
        let mut parts = Vec::new();
        let mut count = after.ids.len();
        while count < keep {
            let Some(chunk) = chunks.pop() else { break };
            let part = self.encode_in_turn(long, text.clone(), chunk, None).await?;
            count += part.ids.len();
            parts.push(part);
        }
        let mut end = if chunks.is_empty() { before } else { EncodedText::default() };
        parts.into_iter().rev().for_each(|part| end.append(part));
        end.append(after);
        Ok(end)
    }

    /// Encodes more than the first `keep` tokens of a text, or all of them if there are not more,
    /// like [`Tokenizer::encode`]. If the text can be split, the text after these tokens is not
    /// encoded.
    ///
    /// # Errors
    /// The same as [`Tokenizer::encode`].
    pub async fn encode_first(
        &self,
        text: impl Into<RenderedPrompt>,
        specials: SpecialTokens,
        keep: usize,
        tenant: &Tenant,
    ) -> Result<EncodedText, TextError> {
        let text = Arc::new(text.into());
        let whole = TextChunk { from: SplitPoint::default(), to: text.text.len() };
        let turns = |lane| EncodeTurns { lane, tenant };
        let affixes = self.affixes(specials);
        let (Some((before, after)), true) = (affixes, text.text.len() > 2 * CHUNK_BYTES) else {
            let is_short = text.text.len() <= 2 * CHUNK_BYTES;
            let lane = if is_short { &self.lanes().short } else { &self.lanes().long };
            return self.encode_in_turn(turns(lane), text, whole, Some(specials)).await;
        };
        let (tokenizer, shared) = (self.clone(), text.clone());
        let chunks = blocking(move || Ok(tokenizer.chunks(&shared.text, CHUNK_BYTES))).await?;
        let long = turns(&self.lanes().long);
        let mut first = before;
        for chunk in chunks {
            if first.ids.len() > keep {
                return Ok(first);
            }
            first.append(self.encode_in_turn(long, text.clone(), chunk, None).await?);
        }
        first.append(after);
        Ok(first)
    }

    /// Waits for turns and encodes a chunk. `affixes` is set if the chunk is the whole text.
    async fn encode_in_turn(
        &self,
        EncodeTurns { lane, tenant }: EncodeTurns<'_>,
        text: Arc<RenderedPrompt>,
        chunk: TextChunk,
        affixes: Option<SpecialTokens>,
    ) -> Result<EncodedText, TextError> {
        let large = match chunk.to - chunk.from.begin > LARGE_CHUNK_BYTES {
            true => Some(self.lanes().large.take(tenant.clone()).await),
            false => None,
        };
        let turn = lane.take(tenant.clone()).await;
        let tokenizer = self.clone();
        blocking(move || {
            // The work itself holds the turns. If the client disconnects, they stay taken until the
            // thread is done.
            let _held = (turn, large);
            match affixes {
                Some(specials) => tokenizer.encode_rendered_now(&text, specials),
                None => tokenizer.encode_chunk(&text, chunk),
            }
        })
        .await
    }

    fn encode_chunk(
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

    /// Splits a text into chunks of at least `min_bytes` bytes each, except the last one.
    fn chunks(&self, text: &str, min_bytes: usize) -> Vec<TextChunk> {
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

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TextError> + Send + 'static,
) -> Result<T, TextError> {
    let stopped = |_| TextError::Encode("worker has stopped".into());
    tokio::task::spawn_blocking(work).await.map_err(stopped)?
}

#[cfg(test)]
mod tests;
