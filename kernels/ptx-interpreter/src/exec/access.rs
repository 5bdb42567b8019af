//! Loads, stores and atomic operations.

use super::shared::Shared;
use super::warp::{Warp, lanes};
use crate::DeviceMemory;
use crate::error::Trap;
use crate::instruction::{AtomicOp, Load, Op};
use crate::operand::{Address, Source};
use crate::types::{Space, Type, cut};

/// The most bytes that a lane accesses at once.
const MAX_BYTES: usize = 16;

impl Warp {
    /// The addresses of an operand and their space, per lane.
    pub(super) fn addresses(&self, address: Address, shared: &Shared<'_>) -> [u64; 32] {
        self.value(address.base, shared).map(|base| base.wrapping_add_signed(address.offset))
    }

    fn resolve(space: Space, address: u64, bytes: usize) -> Result<(Space, u64), Trap> {
        if bytes > MAX_BYTES || !address.is_multiple_of(bytes as u64) {
            return Err(Trap::new(format!("an access to {bytes} bytes at {address:#x} is not aligned")));
        }
        Ok(if space == Space::Generic { Space::of_generic(address) } else { (space, address) })
    }

    /// Refuses memory of the previous grid that the lane has not waited for.
    pub(super) fn check_waited(&self, lane: usize, shared: &Shared<'_>) -> Result<(), Trap> {
        if shared.launch.is_dependent && self.has_waited >> lane & 1 == 0 {
            return Err(Trap::new("accesses global memory before waiting for the previous grid"));
        }
        Ok(())
    }

    fn read(
        &self,
        lane: usize,
        load: &Load,
        address: u64,
        shared: &Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<[u8; MAX_BYTES], Trap> {
        let bytes = load.ty.bytes() * load.d.len();
        let (space, at) = Warp::resolve(load.space, address, bytes)?;
        let mut out = [0; MAX_BYTES];
        let from = match space {
            Space::Shared => shared.memory.read(at, bytes, load.used_bytes, self.viewer(lane))?,
            Space::Param => param(&shared.launch.params, at, bytes)?,
            Space::Global => {
                if !load.read_only {
                    self.check_waited(lane, shared)?;
                }
                memory.slice(at, bytes).map_err(|e| Trap::new(e.to_string()))?
            }
            other => return Err(Trap::new(format!("a load from {other:?} memory"))),
        };
        out[..bytes].copy_from_slice(from);
        Ok(out)
    }

    pub(super) fn load(
        &mut self,
        load: &Load,
        active: u32,
        shared: &Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<(), Trap> {
        let addresses = self.addresses(load.address, shared);
        let size = load.ty.bytes();
        let mut values = [[0u64; 32]; 4];
        for lane in lanes(active) {
            let bytes = self.read(lane, load, addresses[lane], shared, memory);
            let bytes = bytes.map_err(|trap| trap.at_lane(lane as u32))?;
            for (value, part) in values.iter_mut().zip(bytes.chunks_exact(size)).take(load.d.len()) {
                value[lane] = load.ty.extend(little_endian(part));
            }
        }
        for (d, values) in load.d.iter().zip(&values) {
            if let Some((d, bits)) = d {
                self.set(*d, &values.map(|value| cut(*bits, value)), active);
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one instruction")]
    pub(super) fn store(
        &mut self,
        space: Space,
        ty: Type,
        address: Address,
        values: &[Source],
        active: u32,
        shared: &mut Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<(), Trap> {
        shared.effects += 1;
        let addresses = self.addresses(address, shared);
        let size = ty.bytes();
        let mut parts = [[0u64; 32]; 4];
        for (part, source) in parts.iter_mut().zip(values) {
            *part = self.value(*source, shared);
        }
        for lane in lanes(active) {
            let mut bytes = [0; MAX_BYTES];
            for (i, part) in parts.iter().enumerate().take(values.len()) {
                bytes[i * size..(i + 1) * size].copy_from_slice(&part[lane].to_le_bytes()[..size]);
            }
            let len = size * values.len();
            let target = self.target(lane, space, addresses[lane], len, shared, memory);
            target.map_err(|trap| trap.at_lane(lane as u32))?.copy_from_slice(&bytes[..len]);
        }
        Ok(())
    }

    /// The bytes that a lane writes.
    fn target<'m>(
        &self,
        lane: usize,
        space: Space,
        address: u64,
        bytes: usize,
        shared: &'m mut Shared<'_>,
        memory: &'m mut DeviceMemory,
    ) -> Result<&'m mut [u8], Trap> {
        match Warp::resolve(space, address, bytes)? {
            (Space::Shared, at) => shared.memory.write(at, bytes, self.viewer(lane)),
            (Space::Global, at) => {
                self.check_waited(lane, shared)?;
                memory.slice(at, bytes).map_err(|e| Trap::new(e.to_string()))
            }
            (other, _) => Err(Trap::new(format!("a store to {other:?} memory"))),
        }
    }

    pub(super) fn atomic(
        &mut self,
        op: &Op,
        active: u32,
        shared: &mut Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<(), Trap> {
        let Op::Atomic { space, ty, f, d, address, value } = op else { return Ok(()) };
        shared.effects += 1;
        let addresses = self.addresses(*address, shared);
        let values = self.value(*value, shared);
        let size = ty.bytes();
        let mut old = [0; 32];
        for lane in lanes(active) {
            if let (Space::Shared, at) = Warp::resolve(*space, addresses[lane], size)? {
                // An atomic operation reads what it replaces.
                let read = shared.memory.read(at, size, u64::MAX, self.viewer(lane));
                read.map_err(|trap| trap.at_lane(lane as u32))?;
            }
            let target = self.target(lane, *space, addresses[lane], size, shared, memory);
            let target = target.map_err(|trap| trap.at_lane(lane as u32))?;
            old[lane] = little_endian(target);
            let new = combine(*f, *ty, ty.extend(old[lane]), ty.extend(values[lane]));
            target.copy_from_slice(&new.to_le_bytes()[..size]);
        }
        self.set(*d, &old, active);
        Ok(())
    }
}

fn combine(f: AtomicOp, ty: Type, a: u64, b: u64) -> u64 {
    let b_is_less = if ty.is_signed() { (b as i64) < a as i64 } else { b < a };
    match f {
        AtomicOp::Add => a.wrapping_add(b),
        AtomicOp::Min => {
            if b_is_less {
                b
            } else {
                a
            }
        }
        AtomicOp::Max => {
            if b_is_less {
                a
            } else {
                b
            }
        }
        AtomicOp::And => a & b,
        AtomicOp::Or => a | b,
        AtomicOp::Xor => a ^ b,
        AtomicOp::Exchange => b,
    }
}

pub(super) fn param(params: &[u8], at: u64, bytes: usize) -> Result<&[u8], Trap> {
    let start = usize::try_from(at).unwrap_or(usize::MAX);
    let range = start..start.saturating_add(bytes);
    params.get(range).ok_or_else(|| Trap::new(format!("{bytes} bytes at {at} are not all parameters")))
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
