//! Encoding in pieces whose ids are kept (see [`PieceCache`]).
//!
//! The prompt of an agent is mostly that of its last turn. Its pieces are the same again, because
//! they end at places that depend only on the text around them (see
//! [`Tokenizer::pieces`](millrace_text::Tokenizer::pieces)). Pieces that are known need no turn:
//! finding them takes little more time than hashing the text.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use millrace_scheduler::Tenant;
use millrace_text::{RenderedPrompt, SpecialTokens, TextChunk, TextError, Tokenizer};

use super::cache::{PieceCache, PieceKey};
use super::{CHUNK_BYTES, EncodeTurns, TextEncoder, blocking};
use crate::metrics;

/// A text to be encoded.
#[derive(Debug, Clone)]
pub(in crate::service) struct TextToEncode {
    pub(in crate::service) text: RenderedPrompt,
    pub(in crate::service) specials: SpecialTokens,
    /// Ids are shared only with texts of the same salt.
    pub(in crate::service) salt: Option<Arc<str>>,
}

/// The tokens of a text that are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum NeededTokens {
    /// At least this many tokens from the end.
    Last(usize),
    /// More than this many tokens from the beginning.
    First(usize),
}

/// A text with its pieces.
pub(super) struct SplitText {
    text: RenderedPrompt,
    pieces: Vec<(TextChunk, PieceKey)>,
}

/// Consecutive pieces.
pub(super) enum Group {
    Known(Arc<[u32]>),
    /// Pieces that are encoded in one turn, by their numbers.
    Missing(Range<usize>),
}

impl TextEncoder {
    /// Returns the ids of a text as [`TextEncoder::encode_last`] and [`TextEncoder::encode_first`]
    /// do, from the cache where it has them.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot represent the text.
    pub(in crate::service) async fn ids(
        &self,
        asked: TextToEncode,
        needed: NeededTokens,
        tenant: &Tenant,
    ) -> Result<Vec<u32>, TextError> {
        let TextToEncode { text, specials, salt } = asked;
        let cache = self.cache.clone().filter(|cache| text.text.len() >= cache.min_text_bytes);
        let text = match (cache, self.tokenizer.affixes(specials)) {
            (Some(cache), Some((before, after))) => {
                let (split, groups) = self.look_up(cache.clone(), text, salt).await?;
                let groups = PieceGroups { encoder: self, cache, split: &split, groups, tenant };
                match groups.ids(needed, (before.ids, after.ids)).await {
                    Ok(ids) => return Ok(ids),
                    // Whether the text can be represented is decided by the whole of it.
                    Err(_) => split.text.clone(),
                }
            }
            _ => text,
        };
        let encoded = match needed {
            NeededTokens::Last(keep) => self.encode_last(text, specials, keep, tenant).await,
            NeededTokens::First(keep) => self.encode_first(text, specials, keep, tenant).await,
        };
        Ok(encoded?.ids)
    }

    /// Splits a text into pieces and finds those that are known.
    pub(super) async fn look_up(
        &self,
        cache: Arc<PieceCache>,
        text: RenderedPrompt,
        salt: Option<Arc<str>>,
    ) -> Result<(Arc<SplitText>, VecDeque<Group>), TextError> {
        let tokenizer = self.tokenizer.clone();
        blocking(move || {
            let keys = cache.tokens.keys(salt.as_deref(), !text.literal.is_empty());
            let pieces = tokenizer.pieces(&text, cache.sizes).into_iter();
            let pieces: Vec<_> =
                pieces.map(|piece| (piece, keys.key(piece.text(&text), piece.literal(&text)))).collect();
            let known = cache.tokens.get(pieces.iter().map(|(_, key)| *key));
            let groups = group(&pieces, known);
            Ok((Arc::new(SplitText { text, pieces }), groups))
        })
        .await
    }
}

/// Joins missing pieces that follow each other, up to the length of a chunk.
fn group(pieces: &[(TextChunk, PieceKey)], known: Vec<Option<Arc<[u32]>>>) -> VecDeque<Group> {
    let mut groups = VecDeque::new();
    let mut bytes = 0;
    for (number, (known, (piece, _))) in known.into_iter().zip(pieces).enumerate() {
        match (known, groups.back_mut()) {
            (Some(ids), _) => groups.push_back(Group::Known(ids)),
            (None, Some(Group::Missing(numbers))) if bytes + piece.bytes() <= CHUNK_BYTES => {
                numbers.end = number + 1;
                bytes += piece.bytes();
            }
            (None, _) => {
                groups.push_back(Group::Missing(number..number + 1));
                bytes = piece.bytes();
            }
        }
    }
    groups
}

/// The groups of a text that are still to be encoded or copied.
struct PieceGroups<'a> {
    encoder: &'a TextEncoder,
    cache: Arc<PieceCache>,
    split: &'a Arc<SplitText>,
    groups: VecDeque<Group>,
    tenant: &'a Tenant,
}

impl PieceGroups<'_> {
    /// Returns the needed ids, with those that are added before and after the text.
    async fn ids(
        mut self,
        needed: NeededTokens,
        (before, after): (Vec<u32>, Vec<u32>),
    ) -> Result<Vec<u32>, TextError> {
        let mut parts: VecDeque<Arc<[u32]>> = VecDeque::new();
        match needed {
            NeededTokens::Last(keep) => {
                let mut count = after.len();
                parts.push_back(after.into());
                while count < keep
                    && let Some(group) = self.groups.pop_back()
                {
                    for ids in self.encode(group).await?.into_iter().rev() {
                        count += ids.len();
                        parts.push_front(ids);
                    }
                }
                if self.groups.is_empty() {
                    parts.push_front(before.into());
                }
            }
            NeededTokens::First(keep) => {
                let mut count = before.len();
                parts.push_back(before.into());
                while count <= keep
                    && let Some(group) = self.groups.pop_front()
                {
                    let encoded = self.encode(group).await?;
                    count += encoded.iter().map(|ids| ids.len()).sum::<usize>();
                    parts.extend(encoded);
                }
                if self.groups.is_empty() {
                    parts.push_back(after.into());
                }
            }
        }
        Ok(parts.make_contiguous().concat())
    }

    /// Returns the ids of the pieces of a group. Missing ones are encoded in turns of the tenant.
    async fn encode(&self, group: Group) -> Result<Vec<Arc<[u32]>>, TextError> {
        let numbers = match group {
            Group::Known(ids) => {
                metrics::tokenizer_cache_found(ids.len());
                return Ok(vec![ids]);
            }
            Group::Missing(numbers) => numbers,
        };
        let bytes = self.split.pieces[numbers.clone()].iter().map(|(piece, _)| piece.bytes()).sum();
        let lanes = &self.encoder.lanes;
        let is_short = self.split.text.text.len() <= 2 * CHUNK_BYTES;
        let lane = if is_short { &lanes.short } else { &lanes.long };
        let (cache, split) = (self.cache.clone(), self.split.clone());
        let turns = EncodeTurns { lane, tenant: self.tenant };
        let encode = move |tokenizer: &Tokenizer| {
            let pieces = split.pieces[numbers].iter();
            pieces.map(|&(piece, key)| cache.encode(tokenizer, &split.text, piece, key)).collect()
        };
        self.encoder.in_turn(turns, bytes, encode).await
    }
}
