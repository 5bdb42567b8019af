//! The prefixes that each group of shards has computed, as far as the router knows.
//!
//! The router remembers the prompts that it has sent to each group, by the hashes of some of their
//! blocks. What a group has evicted since is not known here. A wrong guess costs time, but changes
//! no text.

use std::collections::HashMap;

use millrace_scheduler::{BlockHashBytes, BlockHashes};

/// Every so many blocks one is remembered. With blocks of 16 tokens, prefixes are found in units of
/// 64 tokens.
const STRIDE: usize = 4;

/// Number of blocks in each of two generations. They stand for 16 million tokens in blocks of 16,
/// and take about 16 MB.
const GENERATION: usize = 1 << 17;

/// A set of groups: bit `i` stands for group `i`.
type GroupSet = u64;

/// The prefixes of each group. The oldest half is forgotten when the other half is full.
#[derive(Debug)]
pub(super) struct PrefixMap {
    groups: usize,
    /// The blocks that were added since the last change of generations.
    young: HashMap<BlockHashBytes, GroupSet>,
    old: HashMap<BlockHashBytes, GroupSet>,
    capacity: usize,
}

impl PrefixMap {
    /// An empty map for so many groups.
    pub(super) fn new(groups: usize) -> Self {
        PrefixMap { groups, young: HashMap::new(), old: HashMap::new(), capacity: GENERATION }
    }

    /// The number of tokens at the beginning of a prompt that each group has computed.
    pub(super) fn find(&self, hashes: &BlockHashes) -> Vec<usize> {
        let (mut tokens, mut missing) = (vec![0; self.groups], self.groups);
        for end in remembered(hashes).rev() {
            let groups = self.groups_of(hashes, end);
            for (group, tokens) in tokens.iter_mut().enumerate() {
                if *tokens == 0 && groups >> group & 1 == 1 {
                    *tokens = end * hashes.block_size().unwrap_or(0);
                    missing -= 1;
                }
            }
            if missing == 0 {
                break;
            }
        }
        tokens
    }

    /// Notes that a group computes a prompt.
    pub(super) fn add(&mut self, group: usize, hashes: &BlockHashes) {
        for end in remembered(hashes) {
            let Some(hash) = hashes.get(end - 1) else { continue };
            if self.young.len() >= self.capacity {
                self.old = std::mem::take(&mut self.young);
            }
            let before = self.old.get(&hash).copied().unwrap_or(0);
            *self.young.entry(hash).or_insert(before) |= 1 << group;
        }
    }

    /// Forgets the prefixes of a group.
    pub(super) fn forget(&mut self, group: usize) {
        for generation in [&mut self.young, &mut self.old] {
            generation.retain(|_, groups| {
                *groups &= !(1 << group);
                *groups != 0
            });
        }
    }

    fn groups_of(&self, hashes: &BlockHashes, end: usize) -> GroupSet {
        let Some(hash) = hashes.get(end - 1) else { return 0 };
        self.young.get(&hash).or_else(|| self.old.get(&hash)).copied().unwrap_or(0)
    }
}

/// The numbers of blocks after which prefixes are remembered.
fn remembered(hashes: &BlockHashes) -> impl DoubleEndedIterator<Item = usize> + use<> {
    (1..=hashes.len() / STRIDE).map(|units| units * STRIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(tokens: &[u32]) -> BlockHashes {
        BlockHashes::of_prompt(tokens, None, None, 16)
    }

    #[test]
    fn the_longest_common_prefix_with_each_group_is_found() {
        let mut map = PrefixMap::new(3);
        let prompt: Vec<u32> = (0..1000).collect();
        map.add(0, &hashes(&prompt[..300]));
        map.add(2, &hashes(&[&prompt[..700], &[5; 300]].concat()));
        assert_eq!(map.find(&hashes(&prompt)), [256, 0, 640]);
        assert_eq!(map.find(&hashes(&prompt[..63])), [0, 0, 0]);
        assert_eq!(map.find(&hashes(&prompt[1..])), [0, 0, 0]);
        map.forget(2);
        assert_eq!(map.find(&hashes(&prompt)), [256, 0, 0]);
        map.forget(0);
        assert_eq!((map.young.len(), map.old.len()), (0, 0));
    }

    #[test]
    fn the_map_is_bounded_and_keeps_what_is_used() {
        let mut map = PrefixMap { capacity: 50, ..PrefixMap::new(2) };
        let used: Vec<u32> = (0..640).collect();
        for other in 0..300 {
            map.add(0, &hashes(&used));
            map.add(1, &hashes(&[1000 + other; 200]));
            assert!(map.young.len() <= 50 && map.old.len() <= 50);
            assert_eq!(map.find(&hashes(&used)), [640, 0]);
        }
        assert_eq!(map.find(&hashes(&[1000; 200])), [0, 0], "it was forgotten");
        assert_eq!(map.find(&hashes(&[1299; 200])), [0, 192]);
    }

    #[test]
    fn prompts_that_are_not_hashed_have_no_prefix() {
        let mut map = PrefixMap::new(2);
        let unhashed = BlockHashes::of_prompt(&[1; 100], None, None, 0);
        map.add(0, &unhashed);
        assert_eq!(map.find(&unhashed), [0, 0]);
    }
}
