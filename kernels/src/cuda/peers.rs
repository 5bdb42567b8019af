//! The ranks of one host that read and write each other's device memory.
//!
//! Each makes an [`Offer`] of memory and tells the others its name, by whatever the hosts have; [`Offer::open`] makes the group of what all have
//! told. From then on all ranks make the same calls in the same order, which wait for the other ranks on the device alone and can stand in a graph.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::driver::{Driver, SharedName};
use super::ops::allreduce::{self, AddNorm, Form, GatherColumns, Group};
use super::{Device, Elem, Memory, View};
use crate::{Error, Result};

/// This rank's memory, before the other ranks have opened it.
///
/// It stays allocated until the device is dropped: memory must not be freed while another process has it opened, and none tells when it has
/// closed it.
#[derive(Debug)]
pub struct Offer {
    device: Device,
    /// Its address.
    region: u64,
    name: SharedName,
    capacity: usize,
}

impl Offer {
    /// For messages of `capacity` bytes (a multiple of 16, the same on all ranks); longer ones go in several pieces.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device cannot share memory, or what its driver fails with.
    pub fn new(device: &Device, capacity: usize) -> Result<Offer> {
        let (region, name) = device.driver().share(Group::region_bytes(capacity))?;
        Ok(Offer { device: device.clone(), region, name, capacity })
    }

    /// What the others open it by.
    pub fn name(&self) -> &SharedName {
        &self.name
    }

    /// Opens what the others have offered; `names` are those of all ranks in their order. A rank waits for the others at most `patience` in
    /// each call.
    ///
    /// # Errors
    /// [`Error::Device`] that says which rank's memory cannot be reached, and why.
    pub fn open(self, rank: usize, names: &[SharedName], patience: Duration) -> Result<Peers> {
        let Offer { device, region, capacity, .. } = self;
        let (mut opened, mut addresses) = (Vec::new(), Vec::new());
        for (other, name) in names.iter().enumerate() {
            if other == rank {
                addresses.extend(region.to_le_bytes());
                continue;
            }
            let at = device.driver().open_shared(name, Group::region_bytes(capacity));
            let at = at.map_err(|e| Error::Device(format!("the memory of rank {other}: {e}")))?;
            opened.push(Opened { driver: device.driver().clone(), at });
            addresses.extend(at.to_le_bytes());
        }
        let word = device.driver().host_word()?;
        word.store(0, Ordering::Relaxed);
        let told = (std::ptr::from_ref(word) as u64).to_le_bytes();
        let mut state = vec![0; Group::STATE * 4];
        state.splice(Group::STATE * 4 - told.len().., told);
        let (table, state) = (device.upload(&addresses)?, device.upload(&state)?);
        Ok(Peers { rank, world: names.len(), capacity, patience, table, state, _opened: opened, device })
    }
}

/// One rank of a group whose devices reach each other's memory.
#[derive(Debug)]
pub struct Peers {
    rank: usize,
    world: usize,
    capacity: usize,
    patience: Duration,
    /// Addresses of all regions.
    table: Memory,
    state: Memory,
    _opened: Vec<Opened>,
    device: Device,
}

/// Another rank's memory.
#[derive(Debug)]
struct Opened {
    driver: Arc<dyn Driver>,
    at: u64,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the address came from this driver, and the group that used it is being dropped.
        unsafe { self.driver.close_shared(self.at) }
    }
}

impl Peers {
    /// How many ranks there are.
    pub fn world_size(&self) -> usize {
        self.world
    }

    /// The same, waiting so long for other ranks from now on.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Peers {
        Peers { patience, ..self }
    }

    /// Replaces `x` by its sum over all ranks, taken in their order in f32 and rounded once.
    ///
    /// # Errors
    /// [`Error::Device`] if a rank has not come in time before, else as for [`allreduce::all_reduce`].
    pub fn all_reduce(&self, x: View<'_>) -> Result<()> {
        self.check()?;
        let most = self.capacity / x.elem().size();
        for start in (0..x.len()).step_by(most) {
            let piece = x.slice(start..x.len().min(start + most));
            let form = Form::for_message(self.world, piece.bytes());
            allreduce::all_reduce(&self.device, &self.group(), form, piece, piece.len())?;
        }
        Ok(())
    }

    /// Whether [`Peers::all_reduce_norm`] takes a message of so many bytes.
    pub fn fuses(&self, bytes: usize) -> bool {
        bytes <= self.capacity && Form::for_message(self.world, bytes) == Form::OneShot
    }

    /// Sum over the ranks, residual addition and RMSNorm in one, with the same bits as one after the other.
    ///
    /// # Errors
    /// As for [`Peers::all_reduce`], and for messages that are too long.
    pub fn all_reduce_norm(&self, n: &AddNorm<'_>) -> Result<()> {
        self.check()?;
        allreduce::all_reduce_norm(&self.device, &self.group(), n)
    }

    /// Puts all ranks' columns side by side.
    ///
    /// # Errors
    /// As for [`Peers::all_reduce`]; [`Error::Shape`] for a row that is longer than a message.
    pub fn all_gather(&self, g: &GatherColumns<'_>) -> Result<()> {
        self.check()?;
        let most = self.capacity / (g.part_cols * g.part.elem().size()).max(1);
        if most == 0 {
            return Err(Error::Shape(format!("rows of {} columns from each rank", g.part_cols)));
        }
        for start in (0..g.rows).step_by(most) {
            let end = g.rows.min(start + most);
            let rows = |view: View<'_>, cols: usize| start * cols..view.len().min(end * cols);
            let piece = GatherColumns {
                rows: end - start,
                part: g.part.slice(rows(g.part, g.part_cols)),
                whole: g.whole.slice(rows(g.whole, g.whole_cols)),
                ..*g
            };
            allreduce::all_gather(&self.device, &self.group(), &piece)?;
        }
        Ok(())
    }

    /// Whether all ranks have come in time so far, as far as is known without waiting for the device.
    ///
    /// # Errors
    /// [`Error::Device`] that names the rank that has not.
    pub fn check(&self) -> Result<()> {
        match self.device.driver().host_word()?.load(Ordering::Acquire) {
            0 => Ok(()),
            missed => Err(Error::Device(format!(
                "rank {} did not take part in a collective within {:?}",
                missed - 1,
                self.patience
            ))),
        }
    }

    /// Sums a pattern over the ranks, waits for it and compares: drivers have promised access to memory that something between two cards, such as
    /// an IOMMU, then kept apart.
    ///
    /// # Errors
    /// [`Error::Device`] if what comes is wrong, or does not come.
    pub fn try_out(&self) -> Result<()> {
        const LEN: usize = 1 << 14;
        let value = |rank: usize, i: usize| ((rank + 1) * (i % 1024 + 1)) as f32;
        let own: Vec<u8> = (0..LEN).flat_map(|i| value(self.rank, i).to_le_bytes()).collect();
        let x = self.device.upload(&own)?;
        // Both halves of the regions.
        for round in 0..2 {
            self.device.write(x.view(Elem::F32), &own)?;
            self.all_reduce(x.view(Elem::F32))?;
            let sums = self.device.read(x.view(Elem::F32))?;
            self.check()?;
            // Whole numbers below 2^24: every sum of them is exact.
            let want = (0..LEN).flat_map(|i| (0..self.world).map(|r| value(r, i)).sum::<f32>().to_le_bytes());
            if !want.eq(sums) {
                return Err(Error::Device(format!("values of other ranks arrive wrong (attempt {round})")));
            }
        }
        Ok(())
    }

    fn group(&self) -> Group<'_> {
        Group {
            rank: self.rank,
            world: self.world,
            regions: self.table.view(Elem::U64),
            state: self.state.view(Elem::U32),
            capacity: self.capacity,
            patience: self.patience,
        }
    }
}
