//! The upload of matrices: several threads convert them into pinned buffers, from which they are
//! copied to the device while the next part is converted.

use millrace_backend::staging::{Packer, upload_ranges};
use millrace_backend::{Error, Result};
use millrace_numbers::{DType, Part};

use crate::weights::GroupBlocks;
use crate::{Device, DeviceEvent, Pinned, View};

/// Bytes of a pinned buffer. The copy of a buffer takes much longer than its launch.
const BUFFER: usize = 16 << 20;
/// Number of pinned buffers: one is filled while others are copied.
const BUFFERS: usize = 3;
/// The largest number of threads; more threads gain nothing, because memory bandwidth is the limit.
const MAX_THREADS: usize = 8;

/// The path of matrices to the device. It takes 48 MiB of pinned memory, whatever the model's size.
#[derive(Debug)]
pub(super) struct WeightUpload {
    packer: Packer,
    buffers: Vec<PinnedBuffer>,
    /// Index of the buffer that was used longest ago.
    next: usize,
}

#[derive(Debug)]
struct PinnedBuffer {
    pinned: Pinned,
    /// Reached when the device has the buffer's contents.
    copied: DeviceEvent,
}

impl WeightUpload {
    pub(super) fn new(device: &Device) -> Result<WeightUpload> {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let packer = Packer::new(threads.min(MAX_THREADS))?;
        let buffer = || Ok(PinnedBuffer { pinned: device.pinned(BUFFER)?, copied: device.event()? });
        let buffers = (0..BUFFERS).map(|_| buffer()).collect::<Result<_>>()?;
        Ok(WeightUpload { packer, buffers, next: 0 })
    }

    /// Waits for the next buffer until its contents have been copied, and returns it.
    fn next_buffer(&mut self) -> Result<(&Packer, &mut PinnedBuffer)> {
        let buffer = &mut self.buffers[self.next];
        self.next = (self.next + 1) % BUFFERS;
        buffer.copied.wait()?;
        Ok((&self.packer, buffer))
    }

    /// Copies all parts, one after the other, as elements of `dtype` to `to`, which is as long.
    /// Work that is submitted to the device from now on finds them there.
    pub(super) fn dense(
        &mut self,
        device: &Device,
        parts: &[Part],
        dtype: DType,
        to: View<'_>,
    ) -> Result<()> {
        let mut done = 0;
        for part in parts {
            for range in upload_ranges(part, dtype, BUFFER) {
                let (packer, buffer) = self.next_buffer()?;
                let bytes = range.len() * dtype.size();
                packer.pack(part, range.start, dtype, &mut buffer.pinned[..bytes]);
                buffer.copy(device, bytes, to.slice(done..done + range.len()))?;
                done += range.len();
            }
        }
        Ok(())
    }

    /// Quantizes all parts to FP8 and copies them to `to`, in rows of `depth` bytes. Returns the
    /// factor of each row.
    pub(super) fn fp8(
        &mut self,
        device: &Device,
        parts: &[Part],
        depth: usize,
        to: View<'_>,
    ) -> Result<Vec<f32>> {
        let most = BUFFER / depth;
        if most == 0 {
            return Err(Error::Shape(format!("an FP8 weight of {depth} columns")));
        }
        let mut scales = Vec::new();
        for part in parts {
            let rows = part.rows.len();
            for first in (0..rows).step_by(most) {
                let (packer, buffer) = self.next_buffer()?;
                let (count, done) = (most.min(rows - first), scales.len());
                let bytes = count * depth;
                scales.resize(done + count, 0.0);
                packer.quantize(part, first, depth, &mut buffer.pinned[..bytes], &mut scales[done..])?;
                buffer.copy(device, bytes, to.slice(done * depth..(done + count) * depth))?;
            }
        }
        Ok(scales)
    }

    /// Packs matrices in groups and copies their codes to `to`. Returns the words of the groups.
    pub(super) fn groups(
        &mut self,
        device: &Device,
        blocks: &GroupBlocks<'_>,
        to: View<'_>,
    ) -> Result<Vec<u32>> {
        let layout = blocks.layout();
        let (bytes, words) = (layout.block_bytes(), layout.block_scales());
        let most = BUFFER / bytes;
        if most == 0 {
            return Err(Error::Shape(format!("a packed weight with {} columns", layout.depth)));
        }
        let mut scales = vec![0; layout.blocks() * words];
        for first in (0..layout.blocks()).step_by(most) {
            let (packer, buffer) = self.next_buffer()?;
            let end = layout.blocks().min(first + most);
            let packed = &mut buffer.pinned[..(end - first) * bytes];
            let scales = &mut scales[first * words..end * words];
            packer.pack_blocks(end - first, packed, scales, |index, data, words| {
                blocks.pack(first + index, data, words)
            })?;
            buffer.copy(device, (end - first) * bytes, to.slice(first * bytes..end * bytes))?;
        }
        Ok(scales)
    }
}

impl PinnedBuffer {
    /// Copies the first `bytes` bytes to the device, beside the work of its main stream.
    fn copy(&self, device: &Device, bytes: usize, to: View<'_>) -> Result<()> {
        device.copies().write_from(to, &self.pinned, 0..bytes)?;
        device.copies().record(&self.copied)?;
        device.wait_for(&self.copied)
    }
}
