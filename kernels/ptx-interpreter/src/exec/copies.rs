//! `cp.async`: copies that take effect when a thread waits for them, which is the latest moment.

use super::in_flight::Copy;
use super::shared::Shared;
use super::warp::{Warp, lanes};
use crate::DeviceMemory;
use crate::error::Trap;
use crate::memory::Viewer;
use crate::operand::{Address, Source};

/// The most copies of a thread that are in flight.
const MAX_COPIES: usize = 4096;

impl Warp {
    pub(super) fn copy(
        &mut self,
        bytes: usize,
        [to, from]: [Address; 2],
        source_bytes: Source,
        active: u32,
        shared: &mut Shared<'_>,
    ) -> Result<(), Trap> {
        let (to, from) = (self.addresses(to, shared), self.addresses(from, shared));
        let source_bytes = self.value(source_bytes, shared);
        for lane in lanes(active) {
            let refuse = |message: String| Err(Trap::lane(lane as u32, message));
            let size = bytes as u64;
            if !to[lane].is_multiple_of(size) || !from[lane].is_multiple_of(size) {
                let (to, from) = (to[lane], from[lane]);
                return refuse(format!("a copy of {bytes} bytes from {from:#x} to {to:#x} is not aligned"));
            }
            if source_bytes[lane] > size {
                return refuse(format!("a copy of {bytes} bytes reads {}", source_bytes[lane]));
            }
            let begin = shared.memory.begin_copy(to[lane], bytes, self.viewer(lane));
            begin.map_err(|trap| trap.at_lane(lane as u32))?;
            let copies = &mut self.copies[lane];
            if copies.open.len() >= MAX_COPIES || copies.groups.len() >= MAX_COPIES {
                return refuse(format!("more than {MAX_COPIES} copies are in flight"));
            }
            let source_bytes = source_bytes[lane] as usize;
            copies.open.push(Copy { to: to[lane], from: from[lane], bytes, source_bytes });
        }
        Ok(())
    }

    pub(super) fn wait_copies(
        &mut self,
        pending: usize,
        active: u32,
        shared: &mut Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<(), Trap> {
        for lane in lanes(active) {
            let groups = &mut self.copies[lane].groups;
            let done = groups.len().saturating_sub(pending);
            let ended: Vec<Copy> = groups.drain(..done).flatten().collect();
            for copy in ended {
                finish(copy, self.viewer(lane), shared, memory).map_err(|trap| trap.at_lane(lane as u32))?;
            }
        }
        Ok(())
    }
}

fn finish(
    copy: Copy,
    viewer: Viewer<'_>,
    shared: &mut Shared<'_>,
    memory: &mut DeviceMemory,
) -> Result<(), Trap> {
    let target = shared.memory.end_copy(copy.to, copy.bytes, viewer)?;
    target.fill(0);
    if copy.source_bytes > 0 {
        let source = memory.slice(copy.from, copy.source_bytes).map_err(|e| Trap::new(e.to_string()))?;
        target[..copy.source_bytes].copy_from_slice(source);
    }
    Ok(())
}
