//! The disk cache of a pretend shard.

use std::collections::{BTreeMap, HashSet};

use millrace_proto::{DiskEntry, Step};

/// The files of a pretend shard. They outlive it.
#[derive(Debug, Clone, Default)]
pub struct PretendDisk {
    slots: u32,
    /// The contents of each slot, with the number of its write.
    contents: BTreeMap<u32, (u64, Stored)>,
    writes: u64,
    /// Writes fail once there were so many.
    most_writes: Option<u64>,
    /// Slots that do not hold any more what was written to them.
    damaged: HashSet<u32>,
}

#[derive(Debug, Clone)]
struct Stored {
    hash: Vec<u8>,
    parent: Vec<u8>,
    /// The digest at each position.
    digests: Vec<u64>,
}

/// The part of an answer that is about the disk cache.
#[derive(Debug, Default)]
pub(super) struct DiskAnswer {
    pub(super) failed_reads: Vec<u32>,
    pub(super) failed_writes: u32,
}

impl PretendDisk {
    /// An empty disk of `slots` slots, whose writes fail after `most_writes` of them.
    pub fn new(slots: u32, most_writes: Option<u64>) -> Self {
        PretendDisk { slots, most_writes, ..PretendDisk::default() }
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The entries that a new shard finds, the oldest write first.
    pub fn entries(&self) -> Vec<DiskEntry> {
        let mut contents: Vec<_> = self.contents.iter().collect();
        contents.sort_by_key(|(_, (number, _))| *number);
        let entry = |(&slot, (_, stored)): (&u32, &(u64, Stored))| DiskEntry {
            slot,
            hash: stored.hash.clone(),
            parent: stored.parent.clone(),
        };
        contents.into_iter().map(entry).collect()
    }

    /// Damages the slots that `is_damaged` names.
    pub fn damage(&mut self, is_damaged: impl Fn(u32) -> bool) {
        self.damaged.extend(self.contents.keys().copied().filter(|&slot| is_damaged(slot)));
    }

    /// Whether a slot holds the block with this hash.
    pub fn holds(&self, slot: u32, hash: &[u8]) -> bool {
        self.contents.get(&slot).is_some_and(|(_, stored)| stored.hash == hash)
    }

    /// Does the copies of a step between the slots and `cache`, the digest at each position.
    /// `holders` is the number of tables that have each block.
    pub(super) fn copy(
        &mut self,
        step: &Step,
        cache: &mut [u64],
        holders: &[u32],
    ) -> Result<DiskAnswer, String> {
        let block_size = cache.len() / holders.len();
        let positions = |block: u32| block as usize * block_size..(block as usize + 1) * block_size;
        let known = |slot: u32| if slot < self.slots { Ok(()) } else { Err(format!("no slot {slot}")) };
        let mut answer = DiskAnswer::default();
        for &slot in &step.disk_erasures {
            known(slot)?;
            self.contents.remove(&slot);
        }
        for write in &step.disk_writes {
            known(write.slot)?;
            let digests = cache.get(positions(write.block)).ok_or("no such block")?.to_vec();
            self.contents.remove(&write.slot);
            if self.most_writes.is_some_and(|most| self.writes >= most) {
                answer.failed_writes += 1;
                continue;
            }
            self.writes += 1;
            self.damaged.remove(&write.slot);
            let stored = Stored { hash: write.hash.clone(), parent: write.parent.clone(), digests };
            self.contents.insert(write.slot, (self.writes, stored));
        }
        for (index, read) in (0..).zip(&step.disk_reads) {
            known(read.slot)?;
            if holders.get(read.block as usize) != Some(&0) {
                return Err(format!("a read into block {}, which a sequence has", read.block));
            }
            let stored = self.contents.get(&read.slot).map(|(_, stored)| stored);
            match stored.filter(|stored| stored.hash == read.hash && !self.damaged.contains(&read.slot)) {
                Some(stored) => cache[positions(read.block)].copy_from_slice(&stored.digests),
                None => {
                    cache[positions(read.block)].fill(0);
                    answer.failed_reads.push(index);
                }
            }
        }
        Ok(answer)
    }
}
