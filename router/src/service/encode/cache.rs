//! The token ids of pieces of texts, kept for later texts in bounded memory.
//!
//! The key of a piece is a keyed hash of all that determines its ids, so that a key stands for one
//! piece only. The secret of the process makes it impossible to prepare two pieces with one key.
//! The salt of a request is a part of the key: the time of a request tells nothing about pieces of
//! requests with other salts.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_text::{PieceSizes, RenderedPrompt, TextChunk, TextError, Tokenizer};

use crate::metrics;

/// The estimated memory of a piece without its ids in bytes: its entries in two maps, with their
/// share of unused places, and the headers of the allocation.
const ENTRY_BYTES: usize = 224;

/// The key of a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PieceKey([u8; 32]);

/// Computes the keys of the pieces of one text.
#[derive(Debug, Clone, Copy)]
pub(super) struct PieceKeys([u8; 32]);

impl PieceKeys {
    /// Returns the key of a piece whose `literal` ranges are encoded as ordinary text.
    pub(super) fn key(&self, piece: &str, literal: impl Iterator<Item = Range<usize>>) -> PieceKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        let mut count = 0u64;
        hasher.update(piece.as_bytes());
        for range in literal {
            // A usize has at most 64 bits.
            hasher.update(&(range.start as u64).to_le_bytes());
            hasher.update(&(range.end as u64).to_le_bytes());
            count += 1;
        }
        // The number at the end says where the text ends and the ranges begin.
        hasher.update(&count.to_le_bytes());
        PieceKey(*hasher.finalize().as_bytes())
    }
}

/// Keeps the ids of the pieces that were used last.
#[derive(Debug)]
pub(super) struct TokenCache {
    secret: [u8; 32],
    /// The maximum number of bytes of all pieces.
    limit: usize,
    pieces: Mutex<Pieces>,
}

#[derive(Debug, Default)]
struct Pieces {
    by_key: HashMap<PieceKey, Piece>,
    /// The keys in the order of their last use.
    by_use: BTreeMap<u64, PieceKey>,
    /// The number of uses so far.
    uses: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Piece {
    ids: Arc<[u32]>,
    last_use: u64,
}

impl TokenCache {
    /// Creates an empty cache that holds at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        TokenCache { secret: rand::random(), limit, pieces: Mutex::default() }
    }

    /// Returns the keys for a text of a request with this salt. `has_literal` says whether the text
    /// has any literal ranges, on which the way of encoding depends.
    pub(super) fn keys(&self, salt: Option<&str>, has_literal: bool) -> PieceKeys {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&[u8::from(has_literal), u8::from(salt.is_some())]);
        hasher.update(salt.unwrap_or_default().as_bytes());
        PieceKeys(*hasher.finalize().as_bytes())
    }

    /// Returns the ids of pieces, as far as they are known.
    pub(super) fn get(&self, keys: impl Iterator<Item = PieceKey>) -> Vec<Option<Arc<[u32]>>> {
        let mut pieces = self.pieces();
        keys.map(|key| pieces.get(key)).collect()
    }

    /// Keeps the ids of a piece, and forgets the pieces that were not used for the longest time.
    pub(super) fn insert(&self, key: PieceKey, ids: &Arc<[u32]>) {
        if piece_bytes(ids) > self.limit {
            return;
        }
        let mut pieces = self.pieces();
        pieces.insert(key, ids.clone());
        while pieces.bytes > self.limit && pieces.remove_oldest() {}
        metrics::tokenizer_cache_holds(pieces.by_key.len(), pieces.bytes);
    }

    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pieces {
    fn get(&mut self, key: PieceKey) -> Option<Arc<[u32]>> {
        let piece = self.by_key.get_mut(&key)?;
        self.uses += 1;
        self.by_use.remove(&piece.last_use);
        self.by_use.insert(self.uses, key);
        piece.last_use = self.uses;
        Some(piece.ids.clone())
    }

    fn insert(&mut self, key: PieceKey, ids: Arc<[u32]>) {
        self.uses += 1;
        self.bytes += piece_bytes(&ids);
        self.by_use.insert(self.uses, key);
        if let Some(before) = self.by_key.insert(key, Piece { ids, last_use: self.uses }) {
            self.by_use.remove(&before.last_use);
            self.bytes -= piece_bytes(&before.ids);
        }
    }

    /// Returns whether there was a piece to remove.
    fn remove_oldest(&mut self) -> bool {
        let oldest = self.by_use.pop_first().and_then(|(_, key)| self.by_key.remove(&key));
        self.bytes -= oldest.as_ref().map_or(0, |piece| piece_bytes(&piece.ids));
        oldest.is_some()
    }
}

fn piece_bytes(ids: &[u32]) -> usize {
    ENTRY_BYTES + size_of_val(ids)
}

/// The lengths of pieces. Shorter ones take more memory for their keys than for their ids.
const PIECE_SIZES: PieceSizes = PieceSizes { to_mark: 256, to_word: 1 << 10 };
/// The minimum length in bytes of a text that is encoded in pieces.
const MIN_TEXT_BYTES: usize = 2 << 10;

/// The cache and the sizes of what is kept in it.
#[derive(Debug)]
pub(super) struct PieceCache {
    pub(super) tokens: TokenCache,
    pub(super) sizes: PieceSizes,
    /// The minimum length in bytes of a text that is encoded in pieces.
    pub(super) min_text_bytes: usize,
}

impl PieceCache {
    /// Creates an empty cache of at most `limit` bytes for a tokenizer. `None` if the limit is 0,
    /// or if pieces could have other tokens than the whole text.
    pub(super) fn new(tokenizer: &Tokenizer, limit: usize) -> Option<Arc<Self>> {
        if limit > 0 && !tokenizer.has_exact_pieces() {
            tracing::info!(
                "--tokenizer-cache has no effect: the tokenizer is a unigram model that does not separate words, so \
                 the tokens of a text depend on all of it"
            );
            return None;
        }
        let sizes = PIECE_SIZES;
        let cache = || PieceCache { tokens: TokenCache::new(limit), sizes, min_text_bytes: MIN_TEXT_BYTES };
        (limit > 0).then(|| Arc::new(cache()))
    }

    /// Creates a cache with other sizes.
    #[cfg(test)]
    pub(super) fn with_sizes(limit: usize, sizes: PieceSizes) -> Arc<Self> {
        Arc::new(PieceCache { tokens: TokenCache::new(limit), sizes, min_text_bytes: 0 })
    }
}

impl PieceCache {
    /// Encodes a piece, unless another request has done so meanwhile, and keeps its ids.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &RenderedPrompt,
        piece: TextChunk,
        key: PieceKey,
    ) -> Result<Arc<[u32]>, TextError> {
        if let Some(ids) = self.tokens.get([key].into_iter()).remove(0) {
            metrics::tokenizer_cache_found(ids.len());
            return Ok(ids);
        }
        let ids: Arc<[u32]> = tokenizer.encode_chunk(text, piece)?.ids.into();
        metrics::tokenizer_cache_missed(ids.len());
        self.tokens.insert(key, &ids);
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> PieceKey {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_le_bytes());
        PieceKey(key)
    }

    fn get(cache: &TokenCache, number: u32) -> Option<Arc<[u32]>> {
        cache.get([key(number)].into_iter()).remove(0)
    }

    #[test]
    fn the_pieces_used_last_are_kept_within_the_limit() {
        let ids: Arc<[u32]> = (0..100).collect();
        let limit = 10 * piece_bytes(&ids) + 399;
        let cache = TokenCache::new(limit);
        for number in 0..10 {
            cache.insert(key(number), &ids);
        }
        assert_eq!(get(&cache, 0).as_ref(), Some(&ids));
        // A piece that is kept twice counts once.
        cache.insert(key(0), &ids);
        assert_eq!(cache.pieces().bytes, 10 * piece_bytes(&ids));
        cache.insert(key(10), &ids);
        let kept: Vec<bool> = (0..=10).map(|number| get(&cache, number).is_some()).collect();
        assert_eq!(kept.iter().filter(|kept| !**kept).count(), 1);
        assert!(kept[0] && !kept[1], "the oldest use is that of 1");
        // A piece that is too long evicts nothing, and one that fills the cache evicts all others.
        let long = |bytes: usize| -> Arc<[u32]> { vec![7; (bytes - ENTRY_BYTES) / 4].into() };
        cache.insert(key(11), &long(limit + 4));
        assert_eq!((get(&cache, 11), cache.pieces().by_key.len()), (None, 10));
        cache.insert(key(12), &long(limit));
        let pieces = cache.pieces();
        assert_eq!((pieces.by_key.len(), pieces.by_use.len()), (1, 1));
        assert!(pieces.bytes <= limit && pieces.by_key.contains_key(&key(12)));
    }

    #[test]
    fn keys_differ_by_all_that_determines_the_ids_and_by_the_salt() {
        let cache = TokenCache::new(1);
        let keys = [(None, false), (None, true), (Some(""), false), (Some("a"), false), (Some("a"), true)]
            .map(|(salt, has_literal)| cache.keys(salt, has_literal));
        let ranges: [&[Range<usize>]; 4] = [&[], &[0..1, 2..3], &[0..1, 2..4], &[0..1, 2..3, 4..5]];
        let mut seen = std::collections::HashSet::new();
        for keys in keys {
            for text in ["", "a", "b", "ab"] {
                assert!(ranges.iter().all(|ranges| seen.insert(keys.key(text, ranges.iter().cloned()))));
            }
        }
        let other = TokenCache::new(1).keys(None, false);
        assert!(seen.insert(other.key("a", std::iter::empty())), "each process has a secret of its own");
        assert_eq!(
            keys[0].key("a", std::iter::empty()),
            cache.keys(None, false).key("a", std::iter::empty())
        );
    }
}
