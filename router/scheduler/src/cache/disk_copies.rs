//! Copies between the KV cache and the disk cache.
//!
//! A prefix that is on disk is *restored* for a sequence in the queue, before it is admitted: the
//! restore takes blocks, reads the slots into them in one or more steps, and publishes the blocks.
//! Then the sequence finds them like a prefix that was never evicted. A read that fails ends the
//! restore, and the sequence computes the rest.

use millrace_proto::{DiskEntry, DiskRead, DiskWrite};

use super::disk::DiskTier;
use super::hash::BlockHashes;
use super::ids::NodeId;
use super::{BlockTable, KvCache, Prefix};

/// The blocks of a sequence that are read from disk.
#[derive(Debug)]
pub(crate) struct DiskRestore {
    /// The hashes and the tokens of the sequence.
    hashes: BlockHashes,
    tokens: Vec<u32>,
    /// The blocks of the prefix that was cached, and those that are read behind them.
    table: BlockTable,
    /// The nodes of all these blocks on disk.
    path: Vec<NodeId>,
    /// Number of blocks that have been read or are being read, with those that were cached.
    asked: usize,
    /// Number of blocks at the beginning that hold what they should.
    read: usize,
    /// Whether a read has failed. No further reads are planned then.
    failed: bool,
}

/// A read in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskReadInFlight {
    /// The index of the block in its sequence.
    pub(crate) index: usize,
    node: NodeId,
    hash: super::BlockHash,
}

impl DiskRestore {
    /// Whether the block that follows these cached blocks of a sequence is being read.
    pub(crate) fn covers(&self, hashes: &[super::BlockHash], cached: usize) -> bool {
        let own = self.hashes.as_slice();
        cached < self.path.len() && !self.failed && hashes.get(cached) == own.get(cached)
    }

    /// Whether there are blocks whose reads have not been planned.
    pub(crate) fn has_reads(&self) -> bool {
        !self.failed && self.asked < self.path.len()
    }

    /// Whether all reads that were planned have been answered, and no others follow.
    pub(crate) fn is_over(&self) -> bool {
        self.failed || self.read == self.path.len()
    }

    /// Notes that a read was answered. Answers come in the order of the reads.
    pub(crate) fn note_read(&mut self, read: DiskReadInFlight, is_good: bool) {
        self.failed |= !is_good;
        if !self.failed {
            self.read = read.index + 1;
        }
    }
}

impl KvCache {
    /// Uses a disk cache of `slots` slots from now on, which holds `entries`, if blocks are kept
    /// and shared everywhere.
    pub(crate) fn open_disk(&mut self, slots: usize, entries: &[DiskEntry]) {
        let is_used = slots > 0 && self.reuse && self.checkpoints.is_none();
        self.disk = is_used.then(|| DiskTier::new(slots, entries, self.num_blocks));
    }

    /// Number of blocks on disk.
    pub(crate) fn disk_blocks(&self) -> usize {
        self.disk.as_ref().map_or(0, DiskTier::held)
    }

    /// Begins to read the blocks behind `prefix` that a sequence of `len` tokens could begin with.
    /// Returns `None` and takes nothing if there are none, or not enough blocks for them.
    pub(crate) fn begin_restore(
        &mut self,
        prefix: &Prefix,
        hashes: &BlockHashes,
        tokens: &[u32],
        len: usize,
    ) -> Option<DiskRestore> {
        let all = hashes.as_slice();
        // At least one token is left to compute.
        let most = (len.saturating_sub(1) / self.block_size).min(all.len());
        let blocks = self.disk.as_ref()?.find(&all[..most]);
        if blocks <= prefix.blocks {
            return None;
        }
        let table = self.allocate(prefix, blocks * self.block_size)?;
        let path = self.disk.as_mut()?.acquire(all[blocks - 1]);
        let tokens = tokens[..blocks * self.block_size].to_vec();
        let (asked, read, failed) = (prefix.blocks, prefix.blocks, false);
        Some(DiskRestore { hashes: hashes.clone(), tokens, table, path, asked, read, failed })
    }

    /// The next read of a restore.
    pub(crate) fn next_read(&self, restore: &mut DiskRestore) -> Option<(DiskRead, DiskReadInFlight)> {
        let index = restore.asked;
        let (&node, &block) = (restore.path.get(index)?, restore.table.blocks.get(index)?);
        let (slot, hash) = self.disk.as_ref()?.slot(node);
        restore.asked += 1;
        let read = DiskRead { slot, block: block.0, hash: hash.0.to_vec() };
        Some((read, DiskReadInFlight { index, node, hash }))
    }

    /// Ends a restore, and publishes the blocks that were read. Blocks whose reads are in flight
    /// may be given to others at once: the shards run steps in order.
    pub(crate) fn end_restore(&mut self, restore: DiskRestore) {
        let DiskRestore { hashes, tokens, mut table, path, read, .. } = restore;
        let Some(disk) = &mut self.disk else { return self.release(table) };
        // Blocks that were forgotten meanwhile may be wrong.
        let known = path.iter().take(read).take_while(|&&node| disk.is_findable(node)).count();
        disk.release(path);
        self.publish(&mut table, &hashes, &tokens, known * self.block_size);
        self.release(table);
    }

    /// Notes that a read has failed: nobody reads the slot any more.
    pub(crate) fn lose_on_disk(&mut self, read: DiskReadInFlight) {
        self.disk.iter_mut().for_each(|disk| disk.lose(read.node, read.hash));
    }

    /// Up to `limit` blocks to be written now.
    pub(crate) fn take_writes(&mut self, limit: usize) -> Vec<DiskWrite> {
        self.disk.as_mut().map_or_else(Vec::new, |disk| disk.take_writes(&self.tree, limit))
    }

    /// Up to `limit` slots to be erased now.
    pub(crate) fn take_erasures(&mut self, limit: usize) -> Vec<u32> {
        self.disk.as_mut().map_or_else(Vec::new, |disk| disk.take_erasures(limit))
    }

    /// Writes nothing more to disk.
    pub(crate) fn end_disk_writes(&mut self) {
        self.disk.iter_mut().for_each(DiskTier::end_writes);
    }

    /// Whether there may be blocks to write, or slots to erase.
    pub(crate) fn has_disk_work(&self) -> bool {
        self.disk.as_ref().is_some_and(DiskTier::has_work)
    }

    /// Checks the disk cache, from which `restores` read.
    pub(crate) fn check_disk(&self, restores: &[&DiskRestore]) -> Result<(), String> {
        let paths: Vec<&[NodeId]> = restores.iter().map(|restore| &restore.path[..]).collect();
        self.disk.as_ref().map_or(Ok(()), |disk| disk.check_integrity(&paths))
    }
}

impl DiskRestore {
    /// The table of the restore and the hashes of its sequence, for the check of all tables.
    pub(crate) fn table(&self) -> (&BlockTable, &[super::BlockHash]) {
        (&self.table, self.hashes.as_slice())
    }
}
