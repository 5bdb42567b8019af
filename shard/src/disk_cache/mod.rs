//! The cache of evicted blocks: a file of blocks of the KV cache, or host memory for those of a
//! GPU.
//!
//! The router decides which block is in which slot. A shard copies blocks between the KV cache and
//! the slots as the steps say, before the rows of the step, on the thread that computes. The router
//! bounds the copies of a step by the time that earlier ones took. Reads and writes of a file go
//! through the system's page cache, so most of them are copies of memory. Copies of a GPU take part
//! in the order of its work ([`saved_blocks`]).
//!
//! A read that fails, or finds another block, is reported, and the router has the block computed.
//! After a write has failed, nothing more is written.

mod identity;
mod saved_blocks;
mod slot_file;
mod slot_header;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use millrace_backend::Backend;
use millrace_proto::{DiskEntry, DiskRead, DiskWrite, Step};

pub(crate) use self::identity::CacheIdentity;
use self::saved_blocks::SavedBlocks;
use self::slot_file::{FileShape, OpenedFile, SlotFile};
use self::slot_header::Hash;
use crate::Error;
use crate::decoder::Decoder;
use crate::options::{DiskCacheOptions, RankPlacement};
use crate::state::StepError;

/// Maximum number of slots. It bounds the router's index, which takes about 64 bytes for each slot,
/// and the message that lists the slots.
pub(crate) const MAX_SLOTS: usize = 1 << 20;

/// Bytes of the router's index for each slot.
pub(crate) const INDEX_BYTES: usize = 64;

/// The slots of this rank.
pub(crate) struct DiskCache {
    store: Store,
    slots: usize,
}

/// Where the slots are.
enum Store {
    /// Nowhere: there are none.
    None,
    /// In a file.
    File(FileStore),
    /// In the memory of the host, beside a device with memory of its own.
    Host(SavedBlocks),
}

/// The file of this rank, and the buffer for a block.
struct FileStore {
    file: SlotFile,
    block: Vec<u8>,
    /// Whether a write has failed.
    is_broken: bool,
}

/// A disk cache that was opened.
pub(crate) struct OpenedCache {
    /// The cache.
    pub(crate) cache: DiskCache,
    /// The slots that hold a block, the oldest write first.
    pub(crate) entries: Vec<DiskEntry>,
}

/// The results of the copies of a step, on all ranks.
#[derive(Debug, Default)]
pub(crate) struct CopyResults {
    /// The indices of the reads that failed.
    pub(crate) failed_reads: Vec<u32>,
    /// Number of writes that failed.
    pub(crate) failed_writes: u32,
    /// Time of the copies.
    pub(crate) elapsed: Duration,
}

impl DiskCache {
    /// Opens the file of this rank. All ranks call it, and use as many slots as the rank with the
    /// fewest. If a file cannot be used, there are none.
    ///
    /// # Errors
    /// If the device cannot copy blocks, no slot fits the size, or another rank is lost.
    pub(crate) fn open<B: Backend>(
        options: &DiskCacheOptions,
        placement: &RankPlacement,
        identity: &CacheIdentity<'_>,
        backend: &B,
        decoder: &mut Decoder<B>,
    ) -> Result<OpenedCache, Error> {
        let block_bytes = block_bytes("--kv-disk", backend, decoder)?;
        let most = FileShape::slots_within(options.bytes / placement.world_size as u64, block_bytes);
        let slots = decoder.agree(placement, most.min(MAX_SLOTS))?;
        if slots == 0 {
            return Err(Error::Unsupported(format!(
                "--kv-disk: {} bytes hold no block of {block_bytes} bytes for each shard; give more",
                options.bytes
            )));
        }
        let path = rank_file(options, placement);
        let shape = FileShape { identity: identity.digest(placement, options), slots, block_bytes };
        let opened = SlotFile::open(&path, shape);
        if let Err(error) = &opened {
            tracing::warn!("the disk cache is not used: {}: {error}", path.display());
        }
        let usable = decoder.agree(placement, usize::from(opened.is_ok()))? == 1;
        let OpenedFile { file, entries, replaced } = match opened {
            Ok(opened) if usable => opened,
            _ => return Ok(OpenedCache { cache: DiskCache::unused(), entries: Vec::new() }),
        };
        if replaced && placement.rank == 0 {
            tracing::warn!(
                "the disk cache begins empty: the one in {} is of another model, size or version",
                options.folder.display()
            );
        }
        let file = FileStore { file, block: vec![0; block_bytes], is_broken: false };
        Ok(OpenedCache { cache: DiskCache { store: Store::File(file), slots }, entries })
    }

    /// Reserves host memory for the blocks of a device that has memory of its own: `bytes` for all
    /// `world_size` ranks together.
    ///
    /// # Errors
    /// If the device cannot copy blocks there, no slot fits the size, or the host has too little
    /// memory.
    pub(crate) fn in_host_memory<B: Backend>(
        bytes: u64,
        world_size: usize,
        backend: &B,
        decoder: &Decoder<B>,
    ) -> Result<DiskCache, Error> {
        let block_bytes = block_bytes("--kv-host-memory", backend, decoder)?;
        let most = usize::try_from(bytes / world_size as u64).unwrap_or(usize::MAX) / block_bytes.max(1);
        let slots = most.min(MAX_SLOTS);
        if slots == 0 {
            return Err(Error::Unsupported(format!(
                "--kv-host-memory: {bytes} bytes hold no block of {block_bytes} bytes for each shard; give more"
            )));
        }
        let saved = SavedBlocks::reserve(backend, slots, block_bytes)?;
        Ok(DiskCache { store: Store::Host(saved), slots })
    }

    /// Checks that a step for a shard without a disk cache has no copies.
    ///
    /// # Errors
    /// If it has one.
    pub(crate) fn check_none(step: &Step, num_blocks: usize) -> Result<CopyResults, Error> {
        let checked = DiskCache::unused().check(step, num_blocks);
        checked.map_err(|source| Error::Step { id: step.id, source })?;
        Ok(CopyResults::default())
    }

    fn unused() -> Self {
        DiskCache { store: Store::None, slots: 0 }
    }

    /// Returns the number of slots.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the bytes of host memory that the slots and the buffer for a block take.
    pub(crate) fn bytes(&self) -> usize {
        match &self.store {
            Store::None => 0,
            Store::File(file) => file.block.len(),
            Store::Host(saved) => saved.bytes(),
        }
    }

    /// Does the copies of a step.
    ///
    /// # Errors
    /// If the step names a slot or a block that does not exist, or another rank is lost.
    pub(crate) fn copy<B: Backend>(
        &mut self,
        step: &Step,
        num_blocks: usize,
        backend: &B,
        decoder: &mut Decoder<B>,
    ) -> Result<CopyResults, Error> {
        let since = Instant::now();
        self.check(step, num_blocks).map_err(|source| Error::Step { id: step.id, source })?;
        for &slot in &step.disk_erasures {
            match &mut self.store {
                Store::None => {}
                Store::File(file) => file.erase(slot as usize),
                Store::Host(saved) => saved.erase(slot as usize),
            }
        }
        // A 1 for each copy that has failed here; the sum over all ranks tells of all failures.
        let mut failures = Vec::with_capacity(step.disk_writes.len() + step.disk_reads.len());
        for write in &step.disk_writes {
            failures.push(f32::from(u8::from(!self.write(write, backend, decoder)?)));
        }
        for read in &step.disk_reads {
            failures.push(f32::from(u8::from(!self.read(read, backend, decoder)?)));
        }
        let elapsed = match &self.store {
            // What a slot holds follows from the steps alone, which are the same on all ranks.
            Store::Host(saved) => saved.copy_time(failures.len()),
            _ if failures.is_empty() => since.elapsed(),
            _ => {
                decoder.sum_over_ranks(&mut failures)?;
                since.elapsed()
            }
        };
        let (writes, reads) = failures.split_at(step.disk_writes.len());
        Ok(CopyResults {
            failed_reads: (0..)
                .zip(reads)
                .filter(|(_, failed)| **failed > 0.0)
                .map(|(index, _)| index)
                .collect(),
            failed_writes: writes.iter().filter(|failed| **failed > 0.0).count() as u32,
            elapsed,
        })
    }

    /// Checks the numbers of a step, because a bug in the router must not damage other blocks.
    fn check(&self, step: &Step, num_blocks: usize) -> Result<(), StepError> {
        let writes = step.disk_writes.iter().map(|write| (write.slot, write.block));
        let reads = step.disk_reads.iter().map(|read| (read.slot, read.block));
        let erasures = step.disk_erasures.iter().map(|&slot| (slot, 0));
        let (slots, blocks) = (self.slots, num_blocks);
        let exists = |&(slot, block): &(u32, u32)| (slot as usize) < slots && (block as usize) < blocks;
        match erasures.chain(writes).chain(reads).find(|copy| !exists(copy)) {
            Some((slot, block)) => Err(StepError::DiskCopy { slot, block, slots, blocks }),
            None => Ok(()),
        }
    }

    /// Writes a block, and returns whether that succeeded.
    fn write<B: Backend>(
        &mut self,
        write: &DiskWrite,
        backend: &B,
        decoder: &Decoder<B>,
    ) -> Result<bool, Error> {
        let parent = if write.parent.is_empty() { Some(None) } else { hash(&write.parent).map(Some) };
        let (Some(own), Some(parent)) = (hash(&write.hash), parent) else { return Ok(false) };
        let (slot, block) = (write.slot as usize, write.block as usize);
        match &mut self.store {
            Store::None => Ok(false),
            Store::File(file) if file.is_broken => Ok(false),
            Store::File(file) => {
                decoder.read_block(backend, block, &mut file.block)?;
                let written = file.file.write(slot, own, parent, &file.block);
                Ok(file.note(written))
            }
            Store::Host(saved) => {
                saved.save(slot, own, block, (backend, decoder))?;
                Ok(true)
            }
        }
    }

    /// Reads a block, and returns whether the slot holds it.
    fn read<B: Backend>(
        &mut self,
        read: &DiskRead,
        backend: &B,
        decoder: &mut Decoder<B>,
    ) -> Result<bool, Error> {
        let Some(own) = hash(&read.hash) else { return Ok(false) };
        let (slot, block) = (read.slot as usize, read.block as usize);
        match &mut self.store {
            Store::None => Ok(false),
            Store::File(file) => {
                let is_held = file.file.read(slot, &own, &mut file.block);
                if is_held {
                    decoder.write_block(backend, block, &file.block)?;
                }
                Ok(is_held)
            }
            Store::Host(saved) => saved.restore(slot, &own, block, (backend, decoder)),
        }
    }
}

impl FileStore {
    fn erase(&mut self, slot: usize) {
        let erased = self.file.erase(slot);
        self.note(erased);
    }

    /// Notes whether a write has failed, and returns whether it succeeded.
    fn note(&mut self, written: std::io::Result<()>) -> bool {
        if let Err(error) = &written
            && !std::mem::replace(&mut self.is_broken, true)
        {
            tracing::warn!("nothing more is written to the disk cache: {error}");
        }
        written.is_ok()
    }
}

/// Returns the bytes of a block on this rank.
///
/// # Errors
/// If the device cannot copy blocks as the flag `flag` asks.
fn block_bytes<B: Backend>(flag: &str, backend: &B, decoder: &Decoder<B>) -> Result<usize, Error> {
    let unsupported = || Error::Unsupported(format!("{flag} is not supported on {}", backend.name()));
    decoder.block_bytes(backend).ok_or_else(unsupported)
}

/// Returns the path of this rank's file.
fn rank_file(options: &DiskCacheOptions, placement: &RankPlacement) -> PathBuf {
    let RankPlacement { rank, world_size, .. } = placement;
    options.folder.join(format!("rank-{rank}-of-{world_size}.kv"))
}

fn hash(bytes: &[u8]) -> Option<Hash> {
    bytes.try_into().ok()
}
