//! Shared memory of a block, with the state of each byte.

use std::ops::Range;

use super::clock::{Clock, FIRST_MBARRIER};
use crate::error::Trap;

/// Bytes that the tensor cores read at once.
pub(crate) const CHUNK: usize = 16;
/// The time of a read that has not ended.
const PENDING: u32 = u32::MAX;

/// The state of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteState {
    /// Nobody has written it.
    Fresh,
    Written,
    /// An asynchronous copy may write it at any time.
    InFlight,
    /// It belongs to an mbarrier.
    Barrier,
}

/// The last write of a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Writer {
    /// A part of clocks.
    part: u16,
    lane: u8,
    time: u32,
}

/// A lane that accesses memory, and what its warp knows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Viewer<'c> {
    pub(crate) clock: &'c Clock,
    pub(crate) warp: u16,
    pub(crate) lane: u8,
}

impl Viewer<'_> {
    fn knows(&self, writer: Writer) -> bool {
        writer.part == self.warp || self.clock.get(writer.part) >= writer.time
    }

    /// The lane as the writer of a byte.
    fn writer(&self) -> Writer {
        Writer { part: self.warp, lane: self.lane, time: self.clock.get(self.warp) }
    }
}

/// A `fence.proxy.async`.
#[derive(Debug)]
struct ProxyFence {
    warp: u16,
    lanes: u32,
    time: u32,
    /// The accesses that the warp knew of. Its own part is the time up to which its lanes know of
    /// each other.
    known: Clock,
}

/// Bytes that know whether they may be read.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    bytes: Vec<u8>,
    states: Vec<ByteState>,
    writers: Vec<Writer>,
    fences: Vec<ProxyFence>,
    /// For each chunk and warp the time at which the warp's last product that reads the chunk
    /// ended; 0 if there was none. Empty before the first product.
    product_reads: Vec<u32>,
    warps: usize,
}

impl SharedMemory {
    pub(crate) fn new(bytes: usize, warps: usize) -> SharedMemory {
        SharedMemory {
            bytes: vec![0; bytes],
            states: vec![ByteState::Fresh; bytes],
            writers: vec![Writer { part: 0, lane: 0, time: 0 }; bytes],
            fences: Vec::new(),
            product_reads: Vec::new(),
            warps,
        }
    }

    fn range(&self, address: u64, bytes: usize) -> Result<Range<usize>, Trap> {
        let len = self.bytes.len();
        match usize::try_from(address).ok().filter(|&start| start <= len && bytes <= len - start) {
            Some(start) => Ok(start..start + bytes),
            None => Err(Trap::new(format!(
                "{bytes} bytes at {address:#x} of shared memory, which has {len} bytes"
            ))),
        }
    }

    /// The bytes of a range, of which those with a bit in `used` must have been written.
    pub(crate) fn read(
        &self,
        address: u64,
        bytes: usize,
        used: u64,
        viewer: Viewer<'_>,
    ) -> Result<&[u8], Trap> {
        let range = self.range(address, bytes)?;
        for at in range.clone() {
            match self.states[at] {
                ByteState::Written => self.check_arrived(at, viewer)?,
                ByteState::Fresh if used >> (at - range.start).min(63) & 1 == 0 => {}
                ByteState::Fresh => return Err(fresh(at)),
                ByteState::InFlight => return Err(in_flight("reads", at)),
                ByteState::Barrier => return Err(on_barrier("reads", at)),
            }
        }
        Ok(&self.bytes[range])
    }

    /// Whether the tensor copy that wrote a byte is known to have ended.
    fn check_arrived(&self, at: usize, viewer: Viewer<'_>) -> Result<(), Trap> {
        let writer = self.writers[at];
        if writer.part < FIRST_MBARRIER || viewer.knows(writer) {
            return Ok(());
        }
        Err(Trap::new(format!(
            "accesses shared memory at {at:#x}, which a copy wrote, without a wait for the copy's mbarrier"
        )))
    }

    /// The bytes of a range that a lane writes.
    pub(crate) fn write(
        &mut self,
        address: u64,
        bytes: usize,
        viewer: Viewer<'_>,
    ) -> Result<&mut [u8], Trap> {
        let range = self.range(address, bytes)?;
        for at in range.clone() {
            match self.states[at] {
                ByteState::InFlight => return Err(in_flight("writes", at)),
                ByteState::Barrier => return Err(on_barrier("writes", at)),
                ByteState::Fresh => {}
                ByteState::Written => self.check_arrived(at, viewer)?,
            }
        }
        self.check_no_product_reads(range.clone(), viewer)?;
        self.finish_write(range, viewer.writer())
    }

    fn finish_write(&mut self, range: Range<usize>, writer: Writer) -> Result<&mut [u8], Trap> {
        self.states[range.clone()].fill(ByteState::Written);
        self.writers[range.clone()].fill(writer);
        Ok(&mut self.bytes[range])
    }

    /// Begins an asynchronous write.
    pub(crate) fn begin_copy(&mut self, address: u64, bytes: usize, viewer: Viewer<'_>) -> Result<(), Trap> {
        let range = self.range(address, bytes)?;
        for at in range.clone() {
            match self.states[at] {
                ByteState::InFlight => return Err(in_flight("copies to", at)),
                ByteState::Barrier => return Err(on_barrier("copies to", at)),
                ByteState::Fresh => {}
                ByteState::Written => self.check_arrived(at, viewer)?,
            }
        }
        self.check_no_product_reads(range.clone(), viewer)?;
        self.states[range].fill(ByteState::InFlight);
        Ok(())
    }

    /// Begins a write by the copy engine, which works in the async proxy.
    pub(crate) fn begin_engine_copy(
        &mut self,
        address: u64,
        bytes: usize,
        viewer: Viewer<'_>,
    ) -> Result<(), Trap> {
        let range = self.range(address, bytes)?;
        let mut checked = None;
        for at in range.filter(|at| self.states[*at] == ByteState::Written) {
            if checked != Some(self.writers[at]) {
                self.check_published("a copy overwrites", at, viewer)?;
                checked = Some(self.writers[at]);
            }
        }
        self.begin_copy(address, bytes, viewer)
    }

    /// Ends an asynchronous write of a lane.
    pub(crate) fn end_copy(
        &mut self,
        address: u64,
        bytes: usize,
        viewer: Viewer<'_>,
    ) -> Result<&mut [u8], Trap> {
        let range = self.range(address, bytes)?;
        self.finish_write(range, viewer.writer())
    }

    /// Ends a write of the copy engine, which ends with this phase of an mbarrier.
    pub(crate) fn end_engine_copy(
        &mut self,
        address: u64,
        bytes: usize,
        part: u16,
        phase: u32,
    ) -> Result<&mut [u8], Trap> {
        let range = self.range(address, bytes)?;
        self.finish_write(range, Writer { part, lane: 0, time: phase })
    }

    /// Records a `fence.proxy.async` of some lanes of a warp. Up to the time `synced`, the lanes of
    /// the warp know of each other.
    pub(crate) fn fence(&mut self, warp: u16, lanes: u32, clock: &Clock, synced: u32) {
        let mut known = clock.clone();
        known.set(warp, synced);
        self.fences.push(ProxyFence { warp, lanes, time: clock.get(warp), known });
    }

    /// Checks that a byte that threads wrote is visible in the async proxy: a fence must lie
    /// between the write and the access, and barriers must order all three.
    fn check_published(&self, does: &str, at: usize, viewer: Viewer<'_>) -> Result<(), Trap> {
        let writer = self.writers[at];
        if writer.part >= FIRST_MBARRIER {
            return self.check_arrived(at, viewer);
        }
        let is_between = |fence: &ProxyFence| {
            let follows = if fence.warp == writer.part && fence.lanes >> writer.lane & 1 == 1 {
                fence.time >= writer.time
            } else {
                fence.known.get(writer.part) >= writer.time
            };
            let is_known = fence.warp == viewer.warp || viewer.clock.get(fence.warp) >= fence.time;
            follows && is_known
        };
        if self.fences.iter().any(is_between) {
            return Ok(());
        }
        let thread = u32::from(writer.part) * 32 + u32::from(writer.lane);
        Err(Trap::new(format!(
            "{does} shared memory at {at:#x}, which thread {thread} wrote: fence.proxy.async and a barrier must come \
             between"
        )))
    }

    /// The chunk at an address, which a product of a warp reads until the warp waits for it.
    pub(crate) fn read_for_product(&mut self, address: u64, viewer: Viewer<'_>) -> Result<[u8; CHUNK], Trap> {
        let range = self.range(address, CHUNK)?;
        let mut checked = None;
        for at in range.clone() {
            match self.states[at] {
                ByteState::Written if checked == Some(self.writers[at]) => {}
                ByteState::Written => {
                    self.check_published("a product reads", at, viewer)?;
                    checked = Some(self.writers[at]);
                }
                ByteState::Fresh => return Err(fresh(at)),
                ByteState::InFlight => return Err(in_flight("a product reads", at)),
                ByteState::Barrier => return Err(on_barrier("a product reads", at)),
            }
        }
        if self.product_reads.is_empty() {
            self.product_reads = vec![0; self.bytes.len().div_ceil(CHUNK) * self.warps];
        }
        self.product_reads[range.start / CHUNK * self.warps + usize::from(viewer.warp)] = PENDING;
        Ok(self.bytes[range].try_into().expect("a chunk has this many bytes"))
    }

    /// Marks chunks, by their addresses, as being read by a warp's products.
    pub(crate) fn hold_product_reads(&mut self, chunks: &[u32], warp: u16) {
        self.end_product_reads(chunks, warp, PENDING);
    }

    /// Ends the reads of chunks by a warp's products.
    pub(crate) fn end_product_reads(&mut self, chunks: &[u32], warp: u16, time: u32) {
        for chunk in chunks {
            self.product_reads[*chunk as usize / CHUNK * self.warps + usize::from(warp)] = time;
        }
    }

    /// Checks that no product may still read a range that is written.
    fn check_no_product_reads(&self, range: Range<usize>, viewer: Viewer<'_>) -> Result<(), Trap> {
        if self.product_reads.is_empty() || range.is_empty() {
            return Ok(());
        }
        for chunk in range.start / CHUNK..=(range.end - 1) / CHUNK {
            let times = &self.product_reads[chunk * self.warps..(chunk + 1) * self.warps];
            for (warp, time) in times.iter().enumerate() {
                let is_own = warp == usize::from(viewer.warp);
                if *time == PENDING || !is_own && *time > viewer.clock.get(warp as u16) {
                    let at = chunk * CHUNK;
                    return Err(Trap::new(format!(
                        "writes shared memory at {at:#x}, which a product of warp {warp} may still read"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Turns 8 bytes into an mbarrier.
    pub(crate) fn begin_barrier(&mut self, address: u64, viewer: Viewer<'_>) -> Result<(), Trap> {
        let range = self.range(address, 8)?;
        if self.states[range.clone()].contains(&ByteState::Barrier) {
            return Err(Trap::new(format!("an mbarrier at {address:#x} is initialized twice")));
        }
        self.write(address, 8, viewer)?;
        self.states[range].fill(ByteState::Barrier);
        Ok(())
    }

    /// Ends an mbarrier.
    pub(crate) fn end_barrier(&mut self, address: u64) -> Result<(), Trap> {
        let range = self.range(address, 8)?;
        self.states[range].fill(ByteState::Fresh);
        Ok(())
    }
}

fn fresh(at: usize) -> Trap {
    Trap::new(format!("reads shared memory at {at:#x}, which was not written"))
}

fn in_flight(does: &str, at: usize) -> Trap {
    Trap::new(format!("{does} shared memory at {at:#x}, where an asynchronous copy is in flight"))
}

fn on_barrier(does: &str, at: usize) -> Trap {
    Trap::new(format!("{does} shared memory at {at:#x}, where an mbarrier lies"))
}
