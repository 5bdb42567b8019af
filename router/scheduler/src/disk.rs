//! The disk cache: which blocks are copied between the shards' KV cache and their files, and in
//! which steps.
//!
//! Blocks are written after they have been published, once each. A sequence whose prefix has been
//! evicted and is on disk is not admitted at once: its blocks are read first, and it finds them in
//! the prefix cache then ([`cache`](super::cache)). Reads go before writes, and writes also happen
//! in steps without rows while there is nothing else to do.
//!
//! Copies make a step longer for everyone, so each step has few of them: as many as take
//! [`BESIDE_ROWS`] according to the times of earlier copies, and at least one. While no sequence
//! decodes, nobody waits for the next token of a stream, and a step may copy for longer.
//!
//! A sequence in quarantine runs alone, so that a crash is its own. Such steps have no copies.

use millrace_proto::StepOutput;

use super::cache::Prefix;
use super::disk_copies::{CopiesInFlight, DiskCopies, Restore, StepCopies};
use super::frame_budget::{FrameBudget, RowBytes};
use super::id::SeqId;
use super::in_flight::StepInFlight;
use super::sequence::Sequence;
use super::state::Scheduler;

/// Time of the copies of a step beside rows that decode, in microseconds.
const BESIDE_ROWS: f64 = 2_000.0;

/// Time of the copies of any other step, in microseconds.
const ALONE: f64 = 20_000.0;

/// Maximum number of sequences whose blocks are read at the same time.
const MAX_RESTORES: usize = 4;

/// Bytes of a copy in a step, and of its failure in the answer.
const COPY: RowBytes = RowBytes { step: 64, answer: 8 };

impl Scheduler {
    /// Uses the disk cache that the shards have announced, if there is one. It is called for new
    /// shards, and after each [`recover`](Self::recover).
    pub fn open_disk_cache(&mut self, slots: u32, entries: &[millrace_proto::DiskEntry]) {
        self.cache.open_disk(slots as usize, entries);
    }

    /// Whether blocks are still to be written to the disk cache, or being written.
    pub fn has_disk_work(&self) -> bool {
        let in_flight = self.in_flight.iter().any(|step| step.copies.writes > 0);
        self.cache.has_disk_work() || in_flight
    }

    /// Whether blocks that this sequence can begin with are being read, behind its cached blocks
    /// `prefix`.
    pub(super) fn waits_for_disk(&self, sequence: &Sequence, prefix: &Prefix) -> bool {
        let hashes = sequence.block_hashes.as_slice();
        let covers = |restore: &Restore| {
            restore.sequence == sequence.id
                || !sequence.ignores_prefix_cache() && restore.blocks.covers(hashes, prefix.blocks)
        };
        self.copies.restores.iter().any(covers)
    }

    /// Begins to read the blocks of a waiting sequence that are on disk behind its cached blocks
    /// `prefix`. Returns whether there are any. `passed` are the sequences before it, which are
    /// overtaken.
    pub(super) fn begin_restore(&mut self, id: SeqId, prefix: &Prefix, passed: &[SeqId]) -> bool {
        let Some(sequence) = self.waiting.get(id) else { return false };
        let is_full = self.copies.restores.len() >= MAX_RESTORES;
        if is_full || sequence.restored || sequence.ignores_prefix_cache() {
            return false;
        }
        let Sequence { block_hashes, tokens, .. } = sequence;
        let Some(blocks) = self.cache.begin_restore(prefix, block_hashes, tokens, sequence.len()) else {
            return false;
        };
        let restore = Restore { id: self.copies.begun, sequence: id, blocks };
        self.copies.begun += 1;
        self.copies.restores.push(restore);
        // If its blocks are evicted before it is admitted, they are computed. So every wait ends.
        self.update(id, |sequence| sequence.restored = true);
        self.waiting.overtake(id, passed);
        true
    }

    /// Ends the last restore, because running sequences need its blocks. Returns whether there was
    /// one.
    pub(super) fn abandon_restore(&mut self) -> bool {
        let last = self.copies.restores.pop();
        last.map(|restore| self.cache.end_restore(restore.blocks)).is_some()
    }

    /// Chooses the copies of the step that is being planned.
    pub(super) fn plan_copies(&mut self, beside_decodes: bool, bytes: &mut FrameBudget) -> StepCopies {
        let mut copies = StepCopies::default();
        if !self.quarantine.is_empty() {
            return copies;
        }
        let limit = self.copies.copies_within(if beside_decodes { BESIDE_ROWS } else { ALONE });
        let limit = (0..limit).take_while(|_| bytes.take(COPY)).count();
        let Scheduler { cache, copies: DiskCopies { restores, .. }, .. } = self;
        for restore in restores {
            while copies.reads.len() < limit && restore.blocks.has_reads() {
                let Some((read, in_flight)) = cache.next_read(&mut restore.blocks) else { break };
                copies.reads.push(read);
                copies.in_flight.push((restore.id, in_flight));
            }
        }
        copies.erasures = cache.take_erasures(limit);
        copies.writes = cache.take_writes(limit - copies.reads.len());
        copies
    }

    /// The predicted time of these copies in microseconds.
    pub(super) fn predict_copies(&self, copies: &StepCopies) -> f64 {
        self.copies.copy_micros() * copies.len() as f64
    }

    /// Applies the part of an answer that is about copies.
    pub(super) fn apply_copies(&mut self, step: &StepInFlight, output: &StepOutput) {
        let CopiesInFlight { writes, reads } = &step.copies;
        self.copies.observe(writes + reads.len(), output.disk_micros);
        let failed_writes = output.failed_disk_writes as usize;
        self.copies.written_blocks += writes.saturating_sub(failed_writes) as u64;
        self.copies.failed_writes += failed_writes as u64;
        if failed_writes > 0 {
            self.cache.end_disk_writes();
        }
        for (index, &(id, read)) in reads.iter().enumerate() {
            let is_good = output.failed_disk_reads.binary_search(&(index as u32)).is_err();
            *(if is_good { &mut self.copies.read_blocks } else { &mut self.copies.failed_reads }) += 1;
            if !is_good {
                self.cache.lose_on_disk(read);
            }
            let mut restores = self.copies.restores.iter_mut();
            if let Some(restore) = restores.find(|restore| restore.id == id) {
                restore.blocks.note_read(read, is_good);
            }
        }
        self.end_restores();
    }

    /// Ends the restores that are over.
    fn end_restores(&mut self) {
        let (over, others) = std::mem::take(&mut self.copies.restores)
            .into_iter()
            .partition(|restore: &Restore| restore.blocks.is_over());
        self.copies.restores = others;
        over.into_iter().for_each(|restore| self.cache.end_restore(restore.blocks));
    }
}
