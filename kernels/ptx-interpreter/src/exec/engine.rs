//! The copy engine: `cp.async.bulk` and `cp.async.bulk.tensor`. Its copies arrive when nothing else
//! can happen in the block, one by one, or when they are issued ([`crate::Arrival`]).

use super::in_flight::{EngineCopy, Issued};
use super::shared::Shared;
use super::warp::{Warp, lanes};
use crate::DeviceMemory;
use crate::error::Trap;
use crate::hopper::{BulkCopy, TensorCopy};
use crate::launch::{Arrival, WarpOrder};
use crate::memory::{Chunk, Decoded, MAP_BYTES};
use crate::operand::Address;
use crate::types::Space;

/// The most copies of a block that are in flight.
const MAX_COPIES: usize = 4096;
/// Bytes of the parts of a copy.
const UNIT: u64 = 16;

impl Warp {
    pub(super) fn copy_tensor(
        &mut self,
        copy: &TensorCopy,
        active: u32,
        shared: &mut Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<(), Trap> {
        let [to, map, barrier] =
            [copy.to, copy.map, copy.barrier].map(|address| self.addresses(address, shared));
        let at: Vec<_> = copy.at.iter().map(|source| self.value(*source, shared)).collect();
        for lane in lanes(active) {
            let at: Vec<i64> = at.iter().map(|values| i64::from(values[lane] as u32 as i32)).collect();
            let issue = self.issue_tensor(lane, [to[lane], map[lane], barrier[lane]], &at, shared, memory);
            issue.map_err(|trap| trap.at_lane(lane as u32))?;
        }
        Ok(())
    }

    fn issue_tensor(
        &mut self,
        lane: usize,
        [to, map, barrier]: [u64; 3],
        at: &[i64],
        shared: &mut Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<(), Trap> {
        if !map.is_multiple_of(64) {
            return Err(Trap::new(format!("a tensor map at {map:#x} is not aligned to 64")));
        }
        let bytes = match Space::of_generic(map) {
            (Space::Param, at) => super::access::param(&shared.launch.params, at, MAP_BYTES)?,
            (Space::Global, at) => memory.slice(at, MAP_BYTES).map_err(|e| Trap::new(e.to_string()))?,
            (other, _) => return Err(Trap::new(format!("a tensor map in {other:?} memory"))),
        };
        let bytes = bytes.try_into().expect("the slice has this many bytes");
        let decoded = Decoded::parse(bytes)
            .ok_or_else(|| Trap::new(format!("the bytes at {map:#x} are not a tensor map")))?;
        if decoded.rank() != at.len() {
            return Err(Trap::new(format!(
                "a copy of {} dimensions with a map of {}",
                at.len(),
                decoded.rank()
            )));
        }
        if !to.is_multiple_of(128) {
            return Err(Trap::new(format!("a tensor copy to {to:#x}, which is not aligned to 128")));
        }
        let cut = decoded.cut(to, at);
        self.issue(lane, cut.chunks, (cut.bytes, decoded.fill, barrier), shared, memory)
    }

    pub(super) fn copy_bulk(
        &mut self,
        copy: &BulkCopy,
        active: u32,
        shared: &mut Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<(), Trap> {
        let address = |address: Address| self.addresses(address, shared);
        let [to, from, barrier] = [copy.to, copy.from, copy.barrier].map(address);
        let bytes = self.value(copy.bytes, shared);
        for lane in lanes(active) {
            let (to, from, bytes) = (to[lane], from[lane], u64::from(bytes[lane] as u32));
            if [to, from, bytes].iter().any(|x| !x.is_multiple_of(UNIT)) {
                let message =
                    format!("a copy of {bytes} bytes from {from:#x} to {to:#x} is not aligned to 16");
                return Err(Trap::lane(lane as u32, message));
            }
            let chunks = (0..bytes / UNIT).map(|i| Chunk {
                to: to + i * UNIT,
                from: from + i * UNIT,
                start: 0,
                end: UNIT as u8,
            });
            let issue = self.issue(lane, chunks.collect(), (bytes, 0, barrier[lane]), shared, memory);
            issue.map_err(|trap| trap.at_lane(lane as u32))?;
        }
        Ok(())
    }

    fn issue(
        &mut self,
        lane: usize,
        chunks: Vec<Chunk>,
        (bytes, fill, barrier): (u64, u8, u64),
        shared: &mut Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<(), Trap> {
        self.check_waited(lane, shared)?;
        self.check_made(barrier, shared)?;
        for chunk in &chunks {
            shared.memory.begin_engine_copy(chunk.to, UNIT as usize, self.viewer(lane))?;
        }
        if shared.engine_copies.len() >= MAX_COPIES {
            return Err(Trap::new(format!("more than {MAX_COPIES} copies are in flight")));
        }
        let issued = Issued { warp: self.index, lane: lane as u32, instruction: self.current_instruction() };
        let copy = EngineCopy { chunks, fill, bytes, barrier, issued };
        shared.effects += 1;
        match shared.launch.arrival {
            Arrival::Late => shared.engine_copies.push_back(copy),
            Arrival::Early => arrive(&copy, shared, memory)?,
        }
        Ok(())
    }
}

/// Lets one copy arrive, if there is one. The error names the place where it was issued.
pub(super) fn arrive_one(shared: &mut Shared<'_>, memory: &mut DeviceMemory) -> Result<bool, (Issued, Trap)> {
    let copy = match shared.launch.order {
        WarpOrder::Forward => shared.engine_copies.pop_front(),
        WarpOrder::Reverse => shared.engine_copies.pop_back(),
    };
    match copy {
        Some(copy) => arrive(&copy, shared, memory).map(|()| true).map_err(|trap| (copy.issued, trap)),
        None => Ok(false),
    }
}

fn arrive(copy: &EngineCopy, shared: &mut Shared<'_>, memory: &mut DeviceMemory) -> Result<(), Trap> {
    let (part, phase) = shared.mbarriers.complete_bytes(copy.barrier, copy.bytes)?;
    for chunk in &copy.chunks {
        let target = shared.memory.end_engine_copy(chunk.to, UNIT as usize, part, phase)?;
        target.fill(copy.fill);
        let (start, end) = (usize::from(chunk.start), usize::from(chunk.end));
        if start < end {
            let source = memory.slice(chunk.from, end - start).map_err(|e| Trap::new(e.to_string()))?;
            target[start..end].copy_from_slice(source);
        }
    }
    Ok(())
}
