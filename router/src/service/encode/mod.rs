//! Encoding on blocking threads, fairly and in bounded memory.
//!
//! The library needs about a hundred bytes of memory for each byte of a text. Therefore a long text
//! is split at places that do not change its tokens (see [`Tokenizer::chunks`]), and its chunks are
//! encoded one after the other. Short texts have their own turns and never wait for long ones. Long
//! texts end their turn after each chunk, so that no text waits for the end of another one. Tenants
//! that wait get turns one after the other. A text without split points is one chunk. Only one
//! large chunk is encoded at a time.

use std::sync::Arc;

use millrace_scheduler::Tenant;
use millrace_text::{EncodedText, RenderedPrompt, SpecialTokens, TextChunk, TextError, Tokenizer};

use crate::turns::TenantTurns;
use cache::PieceCache;

pub(super) use cached::{NeededTokens, TextToEncode};

mod cache;
mod cached;

/// The minimum length of a chunk in bytes. A text of at most two chunks is short and is not split.
const CHUNK_BYTES: usize = 32 << 10;
/// A chunk of more bytes is large: no other large chunk is encoded at the same time.
const LARGE_CHUNK_BYTES: usize = 8 * CHUNK_BYTES;

/// The turns of tenants for the three kinds of encoding work.
#[derive(Debug)]
struct EncodeLanes {
    /// Bounds the short texts that are encoded at the same time.
    short: TenantTurns,
    /// Bounds the chunks of long texts that are encoded at the same time.
    long: TenantTurns,
    /// Allows one large chunk at a time. A chunk is large if the text has no split points in it.
    large: TenantTurns,
}

impl EncodeLanes {
    fn new(workers: usize) -> Self {
        EncodeLanes {
            short: TenantTurns::new(workers),
            long: TenantTurns::new(workers),
            large: TenantTurns::new(1),
        }
    }
}

/// The turns that a part of a text needs, and the tenant that needs them.
#[derive(Clone, Copy)]
struct EncodeTurns<'a> {
    lane: &'a TenantTurns,
    tenant: &'a Tenant,
}

/// The input that is encoded in one turn.
#[derive(Clone, Copy)]
enum TextPart {
    /// The whole text, with or without the tokens that are added to it.
    Whole(SpecialTokens),
    Chunk(TextChunk),
}

/// Encodes texts with a tokenizer, in turns of tenants. Clones share the turns.
#[derive(Debug, Clone)]
pub(super) struct TextEncoder {
    tokenizer: Tokenizer,
    lanes: Arc<EncodeLanes>,
    /// The ids of pieces of earlier texts, if they are kept.
    cache: Option<Arc<PieceCache>>,
}

impl TextEncoder {
    /// Creates an encoder. At most `workers` short and `workers` long texts are encoded at the same
    /// time. The ids of prompts are kept in at most `cache_bytes` bytes.
    pub(super) fn new(tokenizer: Tokenizer, workers: usize, cache_bytes: usize) -> Self {
        let cache = PieceCache::new(&tokenizer, cache_bytes);
        TextEncoder { tokenizer, lanes: Arc::new(EncodeLanes::new(workers)), cache }
    }

    /// Encodes at least the last `keep` tokens of a text, or all of them if there are fewer, on
    /// blocking threads and in turns of the tenant. If the text can be split, the text before these
    /// tokens is not encoded.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot represent the text.
    pub(super) async fn encode_last(
        &self,
        text: impl Into<RenderedPrompt>,
        specials: SpecialTokens,
        keep: usize,
        tenant: &Tenant,
    ) -> Result<EncodedText, TextError> {
        if keep == usize::MAX {
            return self.encode_first(text, specials, keep, tenant).await;
        }
        let text = Arc::new(text.into());
        let turns = |lane| EncodeTurns { lane, tenant };
        let long = turns(&self.lanes.long);
        if text.text.len() <= 2 * CHUNK_BYTES {
            return self.encode_in_turn(turns(&self.lanes.short), text, TextPart::Whole(specials)).await;
        }
        let Some((before, after)) = self.tokenizer.affixes(specials) else {
            return self.encode_in_turn(long, text, TextPart::Whole(specials)).await;
        };
        let (tokenizer, shared) = (self.tokenizer.clone(), text.clone());
        let mut chunks = blocking(move || Ok(tokenizer.chunks(&shared.text, CHUNK_BYTES))).await?;
        // Chunks are encoded from the end of the text backwards.
        let mut parts = Vec::new();
        let mut count = after.ids.len();
        while count < keep {
            let Some(chunk) = chunks.pop() else { break };
            let part = self.encode_in_turn(long, text.clone(), TextPart::Chunk(chunk)).await?;
            count += part.ids.len();
            parts.push(part);
        }
        let mut end = if chunks.is_empty() { before } else { EncodedText::default() };
        parts.into_iter().rev().for_each(|part| end.append(part));
        end.append(after);
        Ok(end)
    }

    /// Encodes more than the first `keep` tokens of a text, or all of them if there are not more,
    /// like [`TextEncoder::encode_last`]. If the text can be split, the text after these tokens is
    /// not encoded.
    ///
    /// # Errors
    /// The same as [`TextEncoder::encode_last`].
    pub(super) async fn encode_first(
        &self,
        text: impl Into<RenderedPrompt>,
        specials: SpecialTokens,
        keep: usize,
        tenant: &Tenant,
    ) -> Result<EncodedText, TextError> {
        let text = Arc::new(text.into());
        let turns = |lane| EncodeTurns { lane, tenant };
        let affixes = self.tokenizer.affixes(specials);
        let (Some((before, after)), true) = (affixes, text.text.len() > 2 * CHUNK_BYTES) else {
            let is_short = text.text.len() <= 2 * CHUNK_BYTES;
            let lane = if is_short { &self.lanes.short } else { &self.lanes.long };
            return self.encode_in_turn(turns(lane), text, TextPart::Whole(specials)).await;
        };
        let (tokenizer, shared) = (self.tokenizer.clone(), text.clone());
        let chunks = blocking(move || Ok(tokenizer.chunks(&shared.text, CHUNK_BYTES))).await?;
        let long = turns(&self.lanes.long);
        let mut first = before;
        for chunk in chunks {
            if first.ids.len() > keep {
                return Ok(first);
            }
            first.append(self.encode_in_turn(long, text.clone(), TextPart::Chunk(chunk)).await?);
        }
        first.append(after);
        Ok(first)
    }

    /// Waits for turns and encodes a part of a text.
    async fn encode_in_turn(
        &self,
        turns: EncodeTurns<'_>,
        text: Arc<RenderedPrompt>,
        part: TextPart,
    ) -> Result<EncodedText, TextError> {
        let bytes = match part {
            TextPart::Whole(_) => text.text.len(),
            TextPart::Chunk(chunk) => chunk.bytes(),
        };
        let encode = move |tokenizer: &Tokenizer| match part {
            TextPart::Whole(specials) => tokenizer.encode_rendered_now(&text, specials),
            TextPart::Chunk(chunk) => tokenizer.encode_chunk(&text, chunk),
        };
        self.in_turn(turns, bytes, encode).await
    }

    /// Waits for turns and runs work on `bytes` bytes of text.
    async fn in_turn<T: Send + 'static>(
        &self,
        EncodeTurns { lane, tenant }: EncodeTurns<'_>,
        bytes: usize,
        work: impl FnOnce(&Tokenizer) -> Result<T, TextError> + Send + 'static,
    ) -> Result<T, TextError> {
        let large = match bytes > LARGE_CHUNK_BYTES {
            true => Some(self.lanes.large.take(tenant.clone()).await),
            false => None,
        };
        let turn = lane.take(tenant.clone()).await;
        let tokenizer = self.tokenizer.clone();
        blocking(move || {
            // The work itself holds the turns. If the client disconnects, they stay taken until the
            // thread is done.
            let _held = (turn, large);
            work(&tokenizer)
        })
        .await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, TextError> + Send + 'static,
) -> Result<T, TextError> {
    let stopped = |_| TextError::Encode("worker has stopped".into());
    tokio::task::spawn_blocking(work).await.map_err(stopped)?
}

#[cfg(test)]
mod cache_tests;
#[cfg(test)]
mod tests;
