//! Matrices on their way to the device: packed into pinned buffers by several threads, and copied beside whatever else happens.

use super::{Device, View};
use crate::cuda::{Event, Pinned};
use crate::staging::{Packer, loads};
use crate::{DType, Error, Part, Result};

/// Bytes of a buffer: a copy takes well longer than starting it.
const BUFFER: usize = 16 << 20;
/// Buffers: one is packed while others are on their way.
const BUFFERS: usize = 3;
/// More threads than this have nothing to gain: the memory is as fast as it gets.
const MOST_THREADS: usize = 8;

/// The way to the device. It takes 48 MiB of pinned memory, whatever the model's size.
#[derive(Debug)]
pub(super) struct Loading {
    packer: Packer,
    buffers: Vec<Buffer>,
    /// The buffer that was used longest ago.
    next: usize,
}

#[derive(Debug)]
struct Buffer {
    pinned: Pinned,
    /// What was in it has arrived.
    arrived: Event,
}

impl Loading {
    pub(super) fn new(device: &Device) -> Result<Loading> {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let packer = Packer::new(threads.min(MOST_THREADS))?;
        let buffer = || Ok(Buffer { pinned: device.pinned(BUFFER)?, arrived: device.event()? });
        let buffers = (0..BUFFERS).map(|_| buffer()).collect::<Result<_>>()?;
        Ok(Loading { packer, buffers, next: 0 })
    }

    /// Copies all parts, one after the other, to `to`, which is as long and whose elements are of `dtype`. Whatever is asked of the device
    /// from now on finds them there.
    pub(super) fn load(
        &mut self,
        device: &Device,
        parts: &[Part<'_>],
        dtype: DType,
        to: View<'_>,
    ) -> Result<()> {
        let mut done = 0;
        for part in parts {
            for load in loads(part, dtype, BUFFER) {
                let Buffer { pinned, arrived } = &mut self.buffers[self.next];
                self.next = (self.next + 1) % BUFFERS;
                arrived.wait()?;
                let bytes = load.len() * dtype.size();
                self.packer.pack(part, load.start, dtype, &mut pinned[..bytes]);
                let to = to.slice(done..done + load.len());
                device.copies().write_from(to, pinned, 0..bytes)?;
                device.copies().record(arrived)?;
                device.wait_for(arrived)?;
                done += load.len();
            }
        }
        Ok(())
    }

    /// The same as FP8, in rows of `depth` bytes. Returns the rows' factors.
    pub(super) fn load_fp8(
        &mut self,
        device: &Device,
        parts: &[Part<'_>],
        depth: usize,
        to: View<'_>,
    ) -> Result<Vec<f32>> {
        let most = BUFFER / depth;
        if most == 0 {
            return Err(Error::Shape(format!("a weight of {depth} columns as FP8")));
        }
        let mut scales = Vec::new();
        for part in parts {
            let rows = part.rows.len();
            for first in (0..rows).step_by(most) {
                let Buffer { pinned, arrived } = &mut self.buffers[self.next];
                self.next = (self.next + 1) % BUFFERS;
                arrived.wait()?;
                let (count, done) = (most.min(rows - first), scales.len());
                let bytes = count * depth;
                scales.resize(done + count, 0.0);
                self.packer.quantize(part, first, depth, &mut pinned[..bytes], &mut scales[done..])?;
                let to = to.slice(done * depth..(done + count) * depth);
                device.copies().write_from(to, pinned, 0..bytes)?;
                device.copies().record(arrived)?;
                device.wait_for(arrived)?;
            }
        }
        Ok(scales)
    }
}
