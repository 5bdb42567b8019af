//! Chained hashes of blocks.
//!
//! The keys and values of a block depend on the adapter and on all tokens before it. The hash of a
//! block therefore covers its own tokens and the hash of the block before it; the chain begins with
//! a hash of the adapter and the salt. Equal hashes mean equal adapters, equal salts and equal
//! tokens from the beginning of the sequence to the end of the block.
//!
//! A hash is computed once: for the full blocks of the prompt before the request is submitted, and
//! for further blocks as tokens are generated. Several answers to one prompt share the hashes of
//! the prompt. The hashes are BLAKE3, truncated to 128 bits. Clients choose the tokens, so the hash
//! must resist deliberate collisions: a collision would let one tenant read the keys and values of
//! another.

use std::sync::Arc;

use crate::id::AdapterId;

/// The hash of a full block and of everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockHash(pub(super) [u8; Self::LEN]);

impl BlockHash {
    pub(super) const LEN: usize = 16;

    /// The beginning of the chain for sequences with this adapter and this salt.
    fn root(adapter: Option<AdapterId>, salt: Option<&Arc<str>>) -> Self {
        // A salt has its own derivation context, so no salt can be chosen to equal the contents of
        // a block.
        let context = "millrace prefix cache 2026-11 salt";
        let mut hasher = blake3::Hasher::new_derive_key(context);
        if let Some(AdapterId(number)) = adapter {
            // The first byte differs from a salt's, and the number has a fixed length, so no salt
            // can imitate an adapter.
            hasher.update(&[2]).update(&number.to_le_bytes());
        }
        if let Some(salt) = salt {
            // No salt and an empty salt are different.
            hasher.update(&[1]).update(salt.as_bytes());
        }
        Self::truncated(hasher.finalize())
    }

    #[cfg(test)]
    pub(crate) fn bytes(self) -> [u8; Self::LEN] {
        self.0
    }

    fn truncated(hash: blake3::Hash) -> Self {
        let mut truncated = [0; Self::LEN];
        truncated.copy_from_slice(&hash.as_bytes()[..Self::LEN]);
        BlockHash(truncated)
    }
}

/// The hashes of the full blocks of one sequence. Clones share the hashes until one of them gets
/// another hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockHashes {
    /// `None` if the prefix cache is off; nothing is hashed then.
    block_size: Option<usize>,
    root: BlockHash,
    adapter: Option<AdapterId>,
    /// Whether the sequence has a cache salt.
    salted: bool,
    hashes: Arc<Vec<BlockHash>>,
}

impl BlockHashes {
    /// The hashes of a sequence whose tokens have not been hashed yet.
    pub(crate) fn new(
        adapter: Option<AdapterId>,
        salt: Option<&Arc<str>>,
        block_size: Option<usize>,
    ) -> Self {
        BlockHashes {
            block_size,
            root: BlockHash::root(adapter, salt),
            adapter,
            salted: salt.is_some(),
            hashes: Arc::default(),
        }
    }

    /// The hashes of the full blocks of a prompt. A request with this prompt, this adapter and this
    /// salt may carry them. They take about 17 ns per token.
    pub fn of_prompt(
        prompt: &[u32],
        adapter: Option<AdapterId>,
        salt: Option<&Arc<str>>,
        block_size: usize,
    ) -> Self {
        let mut hashes = BlockHashes::new(adapter, salt, Some(block_size).filter(|&size| size > 0));
        hashes.extend(prompt);
        hashes
    }

    /// The beginning of the chain, which is equal for sequences with equal adapters and salts.
    pub(crate) fn root(&self) -> BlockHash {
        self.root
    }

    /// The size of the hashed blocks; `None` if nothing is hashed.
    pub fn block_size(&self) -> Option<usize> {
        self.block_size
    }

    /// Hashes the full blocks of `tokens` that have not been hashed. `tokens` are all tokens of the
    /// sequence.
    pub(crate) fn extend(&mut self, tokens: &[u32]) {
        let Some(block_size) = self.block_size else { return };
        let hashed = self.hashes.len() * block_size;
        if tokens.len() < hashed + block_size {
            return;
        }
        let hashes = Arc::make_mut(&mut self.hashes);
        let mut input = Vec::with_capacity(BlockHash::LEN + block_size * size_of::<u32>());
        for block in tokens[hashed..].chunks_exact(block_size) {
            input.clear();
            input.extend_from_slice(&hashes.last().unwrap_or(&self.root).0);
            block.iter().for_each(|token| input.extend_from_slice(&token.to_le_bytes()));
            hashes.push(BlockHash::truncated(blake3::hash(&input)));
        }
    }

    /// Hashes all of `tokens` again for blocks of another size. Nothing happens if the size is the
    /// same.
    pub(crate) fn resize(&mut self, block_size: Option<usize>, tokens: &[u32]) {
        if self.block_size != block_size {
            self.block_size = block_size;
            self.hashes = Arc::default();
            self.extend(tokens);
        }
    }

    /// The adapter that the blocks are computed with.
    pub(super) fn adapter(&self) -> Option<AdapterId> {
        self.adapter
    }

    /// Whether only sequences with the same cache salt can reuse the blocks.
    pub(super) fn is_salted(&self) -> bool {
        self.salted
    }

    /// Number of hashed blocks.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether no block is hashed.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The hash of a block and of everything before it.
    pub fn get(&self, block: usize) -> Option<[u8; BlockHash::LEN]> {
        self.hashes.get(block).map(|hash| hash.0)
    }

    /// The hashes, by block.
    pub(crate) fn as_slice(&self) -> &[BlockHash] {
        &self.hashes
    }
}

/// Number of blocks at the beginning of both chains that are equal. An equal hash means that all
/// earlier hashes are equal, so a bisection finds the number.
pub(crate) fn common_blocks(one: &[BlockHash], other: &[BlockHash]) -> usize {
    bisect(one.len().min(other.len()), |block| one[block] == other[block])
}

/// The first of `0..end` for which `holds` is false, or `end`. `holds` is true up to that number
/// and false from there on.
pub(super) fn bisect(end: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn hashes(salt: Option<&str>, block_size: usize, tokens: &[u32]) -> Vec<BlockHash> {
        let salt = salt.map(Arc::from);
        let mut hashes = BlockHashes::new(None, salt.as_ref(), Some(block_size));
        hashes.extend(tokens);
        hashes.as_slice().to_vec()
    }

    proptest! {
        #[test]
        fn equal_prefixes_have_equal_hashes_and_a_difference_changes_all_later_ones(
            tokens in prop::collection::vec(any::<u32>(), 0..200),
            block_size in 1usize..20,
            changed in any::<prop::sample::Index>(),
        ) {
            let original = hashes(None, block_size, &tokens);
            prop_assert_eq!(original.len(), tokens.len() / block_size);
            if tokens.is_empty() {
                return Ok(());
            }
            let changed = changed.index(tokens.len());
            let mut other = tokens;
            other[changed] ^= 1;
            let other = hashes(None, block_size, &other);
            for (index, (one, two)) in original.iter().zip(&other).enumerate() {
                prop_assert_eq!(one == two, index < changed / block_size, "block {}", index);
            }
            prop_assert_eq!(common_blocks(&original, &other), (changed / block_size).min(original.len()));
            prop_assert_eq!(common_blocks(&original, &original[..original.len() / 2]), original.len() / 2);
        }

        #[test]
        fn hashes_do_not_depend_on_when_the_tokens_came(
            tokens in prop::collection::vec(any::<u32>(), 1..100),
            block_size in 1usize..20,
            steps in prop::collection::vec(1usize..9, 0..100),
        ) {
            let mut known = 0;
            let mut incremental = BlockHashes::new(None, None, Some(block_size));
            for step in steps.into_iter().chain([tokens.len()]) {
                known = (known + step).min(tokens.len());
                incremental.extend(&tokens[..known]);
            }
            prop_assert_eq!(incremental.as_slice(), hashes(None, block_size, &tokens));
            incremental.resize(Some(block_size + 1), &tokens);
            prop_assert_eq!(incremental.as_slice(), hashes(None, block_size + 1, &tokens));
        }
    }

    #[test]
    fn each_salt_has_hashes_of_its_own() {
        let tokens: Vec<u32> = (0..64).collect();
        let all = [None, Some(""), Some("a"), Some("b"), Some("ab")].map(|salt| hashes(salt, 16, &tokens));
        for (index, one) in all.iter().enumerate() {
            for other in &all[..index] {
                assert!(one.iter().zip(other).all(|(one, other)| one != other));
            }
        }
    }

    /// The salts contain the bytes with which the hash of an adapter begins.
    #[test]
    fn each_adapter_has_hashes_of_its_own_that_no_salt_imitates() {
        let adapters = [None, Some(AdapterId(0)), Some(AdapterId(1)), Some(AdapterId(256))];
        let salts = [None, Some(""), Some("\u{2}\0\0\0\0"), Some("\0\0\0\0"), Some("\u{1}")];
        let all = adapters.iter().flat_map(|&adapter| {
            salts.map(|salt| BlockHashes::of_prompt(&[7; 32], adapter, salt.map(Arc::from).as_ref(), 16))
        });
        let all: Vec<BlockHash> = all.flat_map(|hashes| hashes.as_slice().to_vec()).collect();
        let distinct: HashSet<BlockHash> = all.iter().copied().collect();
        assert_eq!((all.len(), distinct.len()), (40, 40));
    }

    #[test]
    fn clones_share_their_hashes_until_one_is_extended() {
        let tokens: Vec<u32> = (0..100).collect();
        let original = BlockHashes::of_prompt(&tokens[..40], None, None, 16);
        let mut copy = original.clone();
        copy.extend(&tokens[..47]);
        assert!(Arc::ptr_eq(&original.hashes, &copy.hashes), "no block is complete");
        copy.extend(&tokens);
        assert_eq!((original.as_slice().len(), copy.as_slice().len()), (2, 6));
        assert_eq!(copy.as_slice(), hashes(None, 16, &tokens));
    }

    #[test]
    fn nothing_is_hashed_without_a_prefix_cache() {
        let mut hashes = BlockHashes::new(None, None, None);
        hashes.extend(&[1; 100]);
        assert_eq!(hashes.as_slice(), []);
    }
}
