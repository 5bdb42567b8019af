//! Collectives between the ranks of one host over each other's device memory.
//!
//! Each rank makes a [`PeerOffer`] of memory and sends its name to the other ranks, by whatever
//! connects their hosts. [`PeerOffer::open`] forms the group from the names of all ranks. From then
//! on all ranks must make the same calls in the same order. These calls wait for other ranks only
//! on the device, so graphs can hold them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use millrace_backend::{Error, Result};

use crate::ops::allreduce::{self, AllGatherColumns, AllReduceForm, AllReduceNorm, PeerGroup};
use crate::{Device, Driver, Elem, Memory, SharedName, View};

/// This rank's shared memory, before it has opened that of the other ranks.
///
/// The memory stays allocated until the device is dropped: it must not be freed while another
/// process has it open, and no process announces when it has closed it.
#[derive(Debug)]
pub struct PeerOffer {
    device: Device,
    /// The address of the memory.
    region: u64,
    name: SharedName,
    capacity: usize,
}

impl PeerOffer {
    /// Allocates memory for messages of `capacity` bytes (a multiple of 16, the same on all ranks).
    /// Longer messages are split.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device cannot share memory, or the driver's error.
    pub fn new(device: &Device, capacity: usize) -> Result<PeerOffer> {
        let (region, name) = device.driver().allocate_shared(PeerGroup::region_bytes(capacity))?;
        Ok(PeerOffer { device: device.clone(), region, name, capacity })
    }

    /// The name by which other ranks open the memory.
    pub fn name(&self) -> &SharedName {
        &self.name
    }

    /// Opens the memory of the other ranks; `names` are those of all ranks in rank order. In each
    /// collective a rank waits at most `timeout` for the others.
    ///
    /// # Errors
    /// [`Error::Device`] that says which rank's memory cannot be accessed, and why.
    pub fn open(self, rank: usize, names: &[SharedName], timeout: Duration) -> Result<PeerCollectives> {
        let PeerOffer { device, region, capacity, .. } = self;
        let (mut opened, mut addresses) = (Vec::new(), Vec::new());
        for (other, name) in names.iter().enumerate() {
            if other == rank {
                addresses.extend(region.to_le_bytes());
                continue;
            }
            let at = device.driver().open_shared(name, PeerGroup::region_bytes(capacity));
            let at = at.map_err(|e| Error::Device(format!("the memory of rank {other}: {e}")))?;
            opened.push(OpenedRegion { driver: device.driver().clone(), at });
            addresses.extend(at.to_le_bytes());
        }
        let word = device.driver().host_word()?;
        word.store(0, Ordering::Relaxed);
        let word_address = (std::ptr::from_ref(word) as u64).to_le_bytes();
        let mut state = vec![0; PeerGroup::STATE * 4];
        state.splice(PeerGroup::STATE * 4 - word_address.len().., word_address);
        let (table, state) = (device.upload(&addresses)?, device.upload(&state)?);
        Ok(PeerCollectives {
            rank,
            world: names.len(),
            capacity,
            timeout,
            table,
            state,
            _opened: opened,
            device,
        })
    }
}

/// One rank of a group whose devices access each other's memory.
#[derive(Debug)]
pub struct PeerCollectives {
    rank: usize,
    world: usize,
    capacity: usize,
    timeout: Duration,
    /// Addresses of all ranks' regions.
    table: Memory,
    state: Memory,
    _opened: Vec<OpenedRegion>,
    device: Device,
}

/// An opened region of another rank.
#[derive(Debug)]
struct OpenedRegion {
    driver: Arc<dyn Driver>,
    at: u64,
}

impl Drop for OpenedRegion {
    fn drop(&mut self) {
        // SAFETY: the address came from this driver, and the group that used it is being dropped.
        unsafe { self.driver.close_shared(self.at) }
    }
}

impl PeerCollectives {
    /// The number of ranks in the group.
    pub fn world_size(&self) -> usize {
        self.world
    }

    /// Sets how long this rank waits for other ranks from now on.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> PeerCollectives {
        PeerCollectives { timeout, ..self }
    }

    /// Replaces `x` by its sum over all ranks, added in rank order in f32 and rounded once.
    ///
    /// # Errors
    /// [`Error::Device`] if a rank did not take part in time before, or the errors of
    /// [`allreduce::all_reduce`].
    pub fn all_reduce(&self, x: View<'_>) -> Result<()> {
        self.check()?;
        let most = self.capacity / x.elem().size();
        for start in (0..x.len()).step_by(most) {
            let piece = x.slice(start..x.len().min(start + most));
            let form = AllReduceForm::for_message(self.world, piece.bytes());
            allreduce::all_reduce(&self.device, &self.group(), form, piece, piece.len())?;
        }
        Ok(())
    }

    /// Whether [`PeerCollectives::all_reduce_norm`] takes a message of this many bytes.
    pub fn fuses(&self, bytes: usize) -> bool {
        bytes <= self.capacity && AllReduceForm::for_message(self.world, bytes) == AllReduceForm::OneShot
    }

    /// Computes the sum over the ranks, the residual addition and RMSNorm in one kernel, with the
    /// same bits as one after the other.
    ///
    /// # Errors
    /// As for [`PeerCollectives::all_reduce`], and for messages that are too long.
    pub fn all_reduce_norm(&self, n: &AllReduceNorm<'_>) -> Result<()> {
        self.check()?;
        allreduce::all_reduce_norm(&self.device, &self.group(), n)
    }

    /// Concatenates all ranks' columns.
    ///
    /// # Errors
    /// As for [`PeerCollectives::all_reduce`]; [`Error::Shape`] for a row that is longer than a
    /// message.
    pub fn all_gather(&self, g: &AllGatherColumns<'_>) -> Result<()> {
        self.check()?;
        let most = self.capacity / (g.part_cols * g.part.elem().size()).max(1);
        if most == 0 {
            return Err(Error::Shape(format!("rows of {} columns from each rank", g.part_cols)));
        }
        for start in (0..g.rows).step_by(most) {
            let end = g.rows.min(start + most);
            let rows = |view: View<'_>, cols: usize| start * cols..view.len().min(end * cols);
            let piece = AllGatherColumns {
                rows: end - start,
                part: g.part.slice(rows(g.part, g.part_cols)),
                whole: g.whole.slice(rows(g.whole, g.whole_cols)),
                ..*g
            };
            allreduce::all_gather(&self.device, &self.group(), &piece)?;
        }
        Ok(())
    }

    /// Replaces `words`, of 32 bits each, by those of rank 0.
    ///
    /// There is no kernel for this alone. A gather into a matrix that is as wide as one rank's
    /// part keeps the columns of rank 0 and drops the others as padding. Each thread reads its
    /// word before it writes there, so `words` may be source and target. The gather copies 32-bit
    /// words without interpreting them; `f32` is only the name that it has for their size.
    ///
    /// # Errors
    /// As for [`PeerCollectives::all_gather`].
    pub fn broadcast(&self, words: View<'_>) -> Result<()> {
        let (words, cols) = (words.recast(Elem::F32), words.len());
        self.all_gather(&AllGatherColumns {
            rows: 1,
            part_cols: cols,
            whole_cols: cols,
            part: words,
            whole: words,
        })
    }

    /// Checks that all ranks have taken part in time so far, as far as the host knows without
    /// waiting for the device.
    ///
    /// # Errors
    /// [`Error::Device`] that names the rank that has not.
    pub fn check(&self) -> Result<()> {
        match self.device.driver().host_word()?.load(Ordering::Acquire) {
            0 => Ok(()),
            missed => Err(Error::Device(format!(
                "rank {} did not take part in a collective within {:?}",
                missed - 1,
                self.timeout
            ))),
        }
    }

    /// Tests the connection: sums a pattern over the ranks and compares the result. Some drivers
    /// grant access to memory that something between two GPUs, such as an IOMMU, then blocks.
    ///
    /// # Errors
    /// [`Error::Device`] if the sums are wrong or do not arrive.
    pub fn self_test(&self) -> Result<()> {
        const LEN: usize = 1 << 14;
        let value = |rank: usize, i: usize| ((rank + 1) * (i % 1024 + 1)) as f32;
        let own: Vec<u8> = (0..LEN).flat_map(|i| value(self.rank, i).to_le_bytes()).collect();
        let x = self.device.upload(&own)?;
        // Two rounds use both halves of the regions.
        for round in 0..2 {
            self.device.write(x.view(Elem::F32), &own)?;
            self.all_reduce(x.view(Elem::F32))?;
            let sums = self.device.read(x.view(Elem::F32))?;
            self.check()?;
            // Integers below 2^24: all sums are exact.
            let want = (0..LEN).flat_map(|i| (0..self.world).map(|r| value(r, i)).sum::<f32>().to_le_bytes());
            if !want.eq(sums) {
                return Err(Error::Device(format!("sums over peer memory are wrong (round {round})")));
            }
        }
        Ok(())
    }

    fn group(&self) -> PeerGroup<'_> {
        PeerGroup {
            rank: self.rank,
            world: self.world,
            regions: self.table.view(Elem::U64),
            state: self.state.view(Elem::U32),
            capacity: self.capacity,
            timeout: self.timeout,
        }
    }
}
