//! The operations that only Hopper has.

use super::shared::Shared;
use super::warp::{Next, Warp, lanes};
use crate::DeviceMemory;
use crate::error::Trap;
use crate::hopper::HopperOp;
use crate::launch::WarpOrder;

impl Warp {
    /// Executes an operation at which lanes do not meet.
    pub(super) fn execute_hopper(
        &mut self,
        op: &HopperOp,
        active: u32,
        shared: &mut Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<Next, Trap> {
        match op {
            HopperOp::Mbarrier(op) => return self.mbarrier(op, active, shared),
            HopperOp::CopyTensor(copy) => self.copy_tensor(copy, active, shared, memory)?,
            HopperOp::CopyBulk(copy) => self.copy_bulk(copy, active, shared, memory)?,
            HopperOp::ProxyFence => {
                let part = self.index as u16;
                shared.memory.fence(part, active, &self.clock, self.synced);
                self.clock.tick(part);
            }
            HopperOp::MapToBlock { d, a, rank } => {
                let (a, rank) = (self.value(*a, shared), self.value(*rank, shared));
                if let Some(lane) = lanes(active).find(|lane| rank[*lane] != 0) {
                    let message = format!("block {} of a cluster of one", rank[lane]);
                    return Err(Trap::lane(lane as u32, message));
                }
                self.set(*d, &a, active);
            }
            op => return Err(Trap::new(format!("{op:?} has no meaning here"))),
        }
        Ok(Next::Step)
    }

    /// Executes an operation at which lanes meet.
    pub(super) fn execute_hopper_together(
        &mut self,
        op: &HopperOp,
        active: u32,
        shared: &mut Shared<'_>,
    ) -> Result<Next, Trap> {
        match op {
            HopperOp::ProductFence => self.fence_products(shared)?,
            HopperOp::Product(product) => self.begin_product(product, shared)?,
            HopperOp::ProductCommit => self.commit_products(shared)?,
            HopperOp::ProductWait(pending) => self.wait_products(*pending, shared)?,
            HopperOp::SetRegisters { count, increases } => {
                let next = self.set_registers(*count, *increases, shared)?;
                self.waits_for_registers = matches!(next, Next::Again);
                return Ok(next);
            }
            HopperOp::Elect { d, p, .. } => {
                // The choice is not specified, so it differs between the orders.
                let leader = match shared.launch.order {
                    WarpOrder::Forward => active.trailing_zeros(),
                    WarpOrder::Reverse => 31 - active.leading_zeros(),
                };
                if let Some(d) = d {
                    self.set(*d, &[u64::from(leader); 32], active);
                }
                self.set(*p, &std::array::from_fn(|lane| u64::from(lane as u32 == leader)), active);
            }
            op => return Err(Trap::new(format!("{op:?} has no meaning here"))),
        }
        Ok(Next::Step)
    }

    /// `setmaxnreg`
    pub(super) fn set_registers(
        &mut self,
        count: u32,
        increases: bool,
        shared: &mut Shared<'_>,
    ) -> Result<Next, Trap> {
        let groups = &mut shared.warpgroups;
        let owned = groups.owned[self.index as usize];
        if increases != (count > owned) && count != owned {
            return Err(Trap::new(format!("a change to {count} registers of a thread that has {owned}")));
        }
        let (give, take) = (owned.saturating_sub(count) * 32, count.saturating_sub(owned) * 32);
        if take > groups.free {
            return Ok(Next::Again);
        }
        groups.join(self.index, self.current_instruction(), [u64::from(count), 0])?;
        groups.free = groups.free + give - take;
        groups.owned[self.index as usize] = count;
        shared.effects += 1;
        Ok(Next::Step)
    }
}
