//! Devices whose memory is the host's memory, such as the CPU.

use millrace_backend::{HostMemory, OpenStep, Sampled};
use millrace_model::memory_plan::PoolBound;
use millrace_numbers::DType;

use crate::Error;
use crate::collective::{Aborter, HostCollective};
use crate::decoder::Collective;
use crate::host_memory::free_host_bytes;
use crate::options::{RankPlacement, ShardOptions};
use crate::platform::device::{OpenDevice, Platform};

/// A kind of device whose memory is the host's memory. The function opens the device.
pub struct HostPlatform<F>(pub F);

impl<B: HostMemory + 'static, F: Fn() -> Result<OpenDevice<B>, Error>> Platform for HostPlatform<F> {
    type Backend = B;

    const POOL_BOUND: Option<PoolBound> = Some(PoolBound { fraction: 0.5, bytes: 16 << 30 });

    fn open(&self, _dtype: DType) -> Result<OpenDevice<B>, Error> {
        self.0()
    }

    fn free(&self, _backend: &B, placement: &RankPlacement, options: &ShardOptions) -> Option<usize> {
        free_host_share(placement, options)
    }

    fn connect(&self, _backend: &B, host: Box<dyn HostCollective>) -> Result<Box<dyn Collective<B>>, Error> {
        Ok(Box::new(HostCollectives::new(host)))
    }
}

/// Returns this rank's equal share of the host's free memory. When a group of ranks replaces a lost
/// one, the other groups have their memory already.
pub(crate) fn free_host_share(placement: &RankPlacement, options: &ShardOptions) -> Option<usize> {
    let ranks = match placement.previous_pool {
        None => options.places_on_host(),
        Some(_) => options.host_ranks.max(1),
    };
    free_host_bytes().map(|bytes| bytes / ranks)
}

/// The collectives of a device whose activations are in host memory.
pub struct HostCollectives {
    host: Box<dyn HostCollective>,
    /// The token ids of a broadcast, little-endian.
    message: Vec<u8>,
}

impl HostCollectives {
    /// Creates the collectives of the ranks that `host` connects.
    pub fn new(host: Box<dyn HostCollective>) -> Self {
        HostCollectives { host, message: Vec::new() }
    }
}

impl<B: HostMemory> Collective<B> for HostCollectives {
    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn world_size(&self) -> usize {
        self.host.world_size()
    }

    fn pass_on(&mut self, backend: &B, n: usize, from: usize, buf: &mut B::Buf) -> Result<(), Error> {
        Ok(self.host.pass_on(from, backend.host_mut(buf, n))?)
    }

    fn all_reduce(&mut self, backend: &B, n: usize, buf: &mut B::Buf) -> Result<(), Error> {
        Ok(self.host.all_reduce(backend.host_mut(buf, n))?)
    }

    fn sum(&mut self, values: &mut [f32]) -> Result<(), Error> {
        Ok(self.host.all_reduce(values)?)
    }

    fn all_gather(&mut self, backend: &B, n: usize, part: &B::Buf, whole: &mut B::Buf) -> Result<(), Error> {
        let (part, whole) = (backend.host(part, n), backend.host_mut(whole, n));
        let (part_cols, whole_cols) = (part.len() / n, whole.len() / n);
        let mut take = |rank: usize, offset: usize, mut chunk: &[f32]| {
            let mut at = offset;
            while !chunk.is_empty() {
                let (row, col) = (at / part_cols, at % part_cols);
                let (of_row, rest) = chunk.split_at((part_cols - col).min(chunk.len()));
                let first = (rank * part_cols + col).min(whole_cols);
                let held = of_row.len().min(whole_cols - first);
                whole[row * whole_cols + first..][..held].copy_from_slice(&of_row[..held]);
                at += of_row.len();
                chunk = rest;
            }
        };
        Ok(self.host.all_gather(part, &mut take)?)
    }

    fn broadcast_sampled(&mut self, backend: &B, step: &mut OpenStep<'_, B::Queue>) -> Result<(), Error> {
        let HostCollectives { host, message } = self;
        let outputs = step.outputs();
        let sampled = backend.sampled(step);
        message.clear();
        message.extend(sampled.iter().flat_map(|sampled| sampled.token.to_le_bytes()));
        message.resize(outputs * size_of::<u32>(), 0);
        host.broadcast(message)?;
        if host.rank() != 0 {
            sampled.clear();
            sampled.extend(message.chunks_exact(size_of::<u32>()).map(|id| Sampled {
                token: u32::from_le_bytes([id[0], id[1], id[2], id[3]]),
                logprob: 0.0,
                top: Vec::new(),
            }));
        }
        Ok(())
    }

    fn aborter(&self) -> Aborter {
        self.host.aborter()
    }
}
