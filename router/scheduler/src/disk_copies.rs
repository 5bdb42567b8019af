//! The state of the copies between the KV cache and the disk cache, and the copies of one step.

use millrace_proto::{DiskRead, DiskWrite, Step};

use super::cache::{DiskReadInFlight, DiskRestore};
use super::id::SeqId;

/// Assumed time of a copy before any was measured, in microseconds: a block of 2 MiB from a slow
/// disk.
const FIRST_GUESS: f64 = 10_000.0;

/// Maximum number of copies of a step, and of erasures.
const MAX_COPIES: usize = 256;

/// Weight of the newest step in the average time of a copy.
const NEWEST: f64 = 0.2;

/// The state of the copies.
#[derive(Debug)]
pub(super) struct DiskCopies {
    pub(super) restores: Vec<Restore>,
    /// Number of restores so far.
    pub(super) begun: u64,
    /// The average time of a copy in microseconds, once one was measured.
    copy_micros: Option<f64>,
    pub(super) read_blocks: u64,
    pub(super) written_blocks: u64,
    pub(super) failed_reads: u64,
    pub(super) failed_writes: u64,
}

/// A restore for a waiting sequence.
#[derive(Debug)]
pub(super) struct Restore {
    pub(super) id: u64,
    pub(super) sequence: SeqId,
    pub(super) blocks: DiskRestore,
}

/// The copies of a step.
#[derive(Debug, Default)]
pub(super) struct StepCopies {
    pub(super) erasures: Vec<u32>,
    pub(super) writes: Vec<DiskWrite>,
    pub(super) reads: Vec<DiskRead>,
    /// The restore of each read, and the read.
    pub(super) in_flight: Vec<(u64, DiskReadInFlight)>,
}

/// The copies of a step in flight.
#[derive(Debug, Default)]
pub(super) struct CopiesInFlight {
    pub(super) writes: usize,
    /// The restore of each read, and the read.
    pub(super) reads: Vec<(u64, DiskReadInFlight)>,
}

impl DiskCopies {
    pub(super) fn new() -> Self {
        DiskCopies {
            restores: Vec::new(),
            begun: 0,
            copy_micros: None,
            read_blocks: 0,
            written_blocks: 0,
            failed_reads: 0,
            failed_writes: 0,
        }
    }

    /// Forgets all restores, because the shards with their blocks are gone.
    pub(super) fn clear(&mut self) {
        self.restores.clear();
    }

    /// The restores.
    pub(super) fn restores(&self) -> impl Iterator<Item = &DiskRestore> {
        self.restores.iter().map(|restore| &restore.blocks)
    }

    /// The expected time of a copy in microseconds.
    pub(super) fn copy_micros(&self) -> f64 {
        self.copy_micros.unwrap_or(FIRST_GUESS)
    }

    /// Number of copies that take about `micros` microseconds.
    pub(super) fn copies_within(&self, micros: f64) -> usize {
        ((micros / self.copy_micros()) as usize).clamp(1, MAX_COPIES)
    }

    /// Learns from a step with `copies` copies.
    pub(super) fn observe(&mut self, copies: usize, micros: u64) {
        if copies > 0 && micros > 0 {
            let each = micros as f64 / copies as f64;
            let before = self.copy_micros.unwrap_or(each);
            self.copy_micros = Some(before + NEWEST * (each - before));
        }
    }
}

impl StepCopies {
    pub(super) fn is_empty(&self) -> bool {
        self.erasures.is_empty() && self.writes.is_empty() && self.reads.is_empty()
    }

    /// Number of blocks that are copied.
    pub(super) fn len(&self) -> usize {
        self.writes.len() + self.reads.len()
    }

    /// Adds the copies to a step.
    pub(super) fn add_to(self, step: &mut Step) -> CopiesInFlight {
        let in_flight = CopiesInFlight { writes: self.writes.len(), reads: self.in_flight };
        (step.disk_erasures, step.disk_writes, step.disk_reads) = (self.erasures, self.writes, self.reads);
        in_flight
    }
}
