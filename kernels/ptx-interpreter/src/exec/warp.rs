//! The execution of a warp. Each lane has a program counter of its own; the lanes that are the
//! furthest behind execute first, and lanes meet where an instruction says so.

use super::alu::Lanes;
use super::convert;
use super::in_flight::LaneCopies;
use super::named_barrier::NamedBarrier;
use super::products::Products;
use super::shared::Shared;
use crate::DeviceMemory;
use crate::error::Trap;
use crate::hopper::HopperOp;
use crate::instruction::Kernel;
use crate::instruction::Op;
use crate::launch::Stats;
use crate::memory::{Clock, Viewer};
use crate::operand::{Register, Source, Special};
use crate::types::{Space, cut};

/// Instructions of a turn, after which other lanes and warps get theirs.
const TURN: u32 = 4096;

/// The time that an instruction takes on the clock that kernels read: about what the interpreter
/// needs.
const NANOSECONDS: u64 = 100;

pub(super) struct Warp {
    pub(super) index: u32,
    registers: Vec<Lanes>,
    /// The position of each lane.
    next: [u32; 32],
    /// Lanes that have not ended.
    pub(super) live: u32,
    /// Lanes that wait for other lanes of the warp.
    parked: u32,
    /// The named barrier that the warp waits at.
    pub(super) barrier: Option<usize>,
    /// The target of `bar.red` and whether it is `or`.
    reduction: Option<(Register, bool)>,
    /// Lanes that have waited for the previous grid.
    pub(super) has_waited: u32,
    pub(super) copies: [LaneCopies; 32],
    pub(super) products: Products,
    /// The accesses of other warps that the warp knows of. Its own part counts its own.
    pub(super) clock: Clock,
    /// The time up to which the lanes know of each other's accesses.
    pub(super) synced: u32,
    /// The mbarrier that a lane waits for.
    pub(super) waits_for: Option<u64>,
    pub(super) waits_for_registers: bool,
    current: (usize, u32),
    /// Whether the last turn ended early, so that other lanes go first.
    exhausted: bool,
}

/// The step that follows an instruction.
pub(super) enum Next {
    /// The next instruction.
    Step,
    /// The lanes must wait for others and execute the instruction again.
    Park,
    /// The warp waits at a barrier.
    Wait,
    /// The next instruction, after other warps have had their turn.
    Spin,
    /// This instruction again, after other warps have had their turn.
    Again,
}

/// The indices of the lanes of a mask.
pub(super) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..32).filter(move |lane| mask >> lane & 1 == 1)
}

impl Warp {
    pub(super) fn new(index: u32, live: u32, kernel: &Kernel) -> Warp {
        let mut clock = Clock::default();
        clock.set(index as u16, 1);
        Warp {
            index,
            registers: vec![[0; 32]; kernel.registers],
            next: [0; 32],
            live,
            parked: 0,
            barrier: None,
            reduction: None,
            has_waited: 0,
            copies: std::array::from_fn(|_| LaneCopies::default()),
            products: Products::new(if kernel.has_products { kernel.registers } else { 0 }),
            clock,
            synced: 0,
            waits_for: None,
            waits_for_registers: false,
            current: (0, live),
            exhausted: false,
        }
    }

    pub(super) fn is_live(&self) -> bool {
        self.live != 0
    }

    pub(super) fn current_instruction(&self) -> usize {
        self.current.0
    }

    pub(super) fn current_lane(&self) -> u32 {
        self.current.1.trailing_zeros().min(31)
    }

    pub(super) fn pass_barrier(&mut self, id: usize, barrier: &NamedBarrier) {
        if self.barrier != Some(id) {
            return;
        }
        self.barrier = None;
        self.clock.merge(&barrier.clock);
        if let Some((d, any)) = self.reduction.take() {
            self.set(d, &[barrier.reduced(any); 32], self.live);
        }
    }

    /// Runs until the warp must wait, or its turn is over.
    pub(super) fn run(
        &mut self,
        shared: &mut Shared<'_>,
        memory: &mut DeviceMemory,
        stats: &mut Stats,
    ) -> Result<(), Trap> {
        let mut left = TURN;
        while self.barrier.is_none() {
            let ready = self.live & !self.parked;
            if ready == 0 {
                return if self.parked == 0 { Ok(()) } else { Err(self.apart(shared)) };
            }
            let (at, mask) = self.choose(ready);
            self.current = (at, mask);
            if stats.steps >= shared.launch.max_steps {
                return Err(Trap::new(format!("no end after {} instructions", stats.steps)));
            }
            stats.steps += 1;
            shared.nanoseconds += NANOSECONDS;
            let ends_turn = self.step(at, mask, shared, memory)?;
            left -= 1;
            if left == 0 {
                shared.effects += 1;
            }
            if ends_turn || left == 0 {
                self.exhausted = !self.exhausted;
                return Ok(());
            }
        }
        Ok(())
    }

    /// The position at which lanes go on, and those that are there.
    fn choose(&self, ready: u32) -> (usize, u32) {
        let first = self.next[ready.trailing_zeros() as usize];
        let here = self.lanes_at(first) & ready;
        if here == ready {
            return (first as usize, here);
        }
        let positions = lanes(ready).map(|lane| self.next[lane]);
        let at = if self.exhausted { positions.max() } else { positions.min() };
        let at = at.expect("a lane is ready");
        (at as usize, self.lanes_at(at) & ready)
    }

    fn lanes_at(&self, position: u32) -> u32 {
        (0..32).fold(0, |all, lane| all | u32::from(self.next[lane] == position) << lane)
    }

    /// Lets lanes go on at a position.
    fn go(&mut self, active: u32, position: usize) {
        let position = position as u32;
        if active == u32::MAX {
            self.next = [position; 32];
        } else {
            lanes(active).for_each(|lane| self.next[lane] = position);
        }
    }

    fn apart(&self, shared: &Shared<'_>) -> Trap {
        let lines: std::collections::BTreeSet<u32> = lanes(self.parked)
            .map(|lane| shared.kernel.instructions[self.next[lane] as usize].line)
            .collect();
        let lane = self.parked.trailing_zeros();
        Trap::lane(lane, format!("lanes of a warp wait for each other at different lines: {lines:?}"))
    }

    /// Executes an instruction. Returns whether other warps must have their turn now.
    fn step(
        &mut self,
        at: usize,
        mask: u32,
        shared: &mut Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<bool, Trap> {
        let kernel = shared.kernel;
        let Some(instruction) = kernel.instructions.get(at) else {
            return self.exit(mask, shared).map(|()| false);
        };
        let mut active = mask;
        if let Some((register, negated)) = instruction.guard {
            let p = &self.registers[usize::from(register)];
            active = mask & (0..32).fold(0, |all, lane| all | u32::from((p[lane] != 0) != negated) << lane);
        }
        if active != mask {
            self.go(mask & !active, at + 1);
        }
        if active == 0 {
            return Ok(false);
        }
        if kernel.has_products {
            self.products.touch(instruction)?;
        }
        match &instruction.op {
            Op::Branch { target } => self.go(active, *target),
            Op::Exit => self.exit(active, shared)?,
            op => match self.execute(op, active, shared, memory)? {
                Next::Step | Next::Wait => self.proceed(active),
                Next::Park => self.parked |= active,
                Next::Spin => {
                    self.proceed(active);
                    return Ok(true);
                }
                Next::Again => return Ok(true),
            },
        }
        Ok(false)
    }

    fn proceed(&mut self, active: u32) {
        self.go(active, self.current.0 + 1);
    }

    fn exit(&mut self, mask: u32, shared: &mut Shared<'_>) -> Result<(), Trap> {
        for lane in lanes(mask) {
            if !self.copies[lane].is_empty() {
                return Err(Trap::lane(lane as u32, "ends with asynchronous copies in flight"));
            }
            if !self.products.is_empty() {
                return Err(Trap::lane(lane as u32, "ends with products in flight"));
            }
            if shared.launch.is_dependent && self.has_waited >> lane & 1 == 0 {
                return Err(Trap::lane(lane as u32, "ends without waiting for the previous grid"));
            }
        }
        shared.effects += 1;
        self.live &= !mask;
        self.parked = 0;
        if self.live == 0 {
            shared.live_warps &= !(1 << self.index);
        }
        Ok(())
    }

    /// The lanes that execute an instruction at which `members` meet: all of them at once, or none
    /// yet.
    fn gather(&mut self, members: u32) -> bool {
        let here = self.lanes_at(self.current.0 as u32) & self.live;
        if members & !here != 0 {
            return false;
        }
        self.parked &= !members;
        true
    }

    pub(super) fn value(&self, source: Source, shared: &Shared<'_>) -> Lanes {
        let special = match source {
            Source::Register(register) => return self.registers[usize::from(register)],
            Source::Immediate(value) => return [value; 32],
            Source::Special(special) => special,
        };
        let [x, y, _] = shared.launch.threads;
        std::array::from_fn(|lane| {
            let thread = self.index * 32 + lane as u32;
            u64::from(match special {
                Special::Thread(0) => thread % x,
                Special::Thread(1) => thread / x % y,
                Special::Thread(_) => thread / x / y,
                Special::ThreadCount(axis) => shared.launch.threads[usize::from(axis)],
                Special::Block(axis) => shared.at[usize::from(axis)],
                Special::BlockCount(axis) => shared.launch.blocks[usize::from(axis)],
                Special::Lane => lane as u32,
                Special::Warp => self.index,
                Special::GlobalTimer => return shared.nanoseconds,
                Special::Constant(value) => value,
            })
        })
    }

    pub(super) fn set(&mut self, d: Register, values: &Lanes, mask: u32) {
        let register = &mut self.registers[usize::from(d)];
        if mask == u32::MAX {
            *register = *values;
        } else {
            lanes(mask).for_each(|lane| register[lane] = values[lane]);
        }
    }

    fn execute(
        &mut self,
        op: &Op,
        active: u32,
        shared: &mut Shared<'_>,
        memory: &mut DeviceMemory,
    ) -> Result<Next, Trap> {
        if let Some(members) = self.meeting(op, active, shared)? {
            if !self.gather(members) {
                return Ok(Next::Park);
            }
            let next = self.execute_together(op, members, shared)?;
            if !matches!(next, Next::Again) {
                self.proceed(members);
            }
            return Ok(next);
        }
        match op {
            Op::Load(load) => self.load(load, active, shared, memory)?,
            Op::Store { space, ty, address, values } => {
                self.store(*space, *ty, *address, values, active, shared, memory)?;
            }
            Op::Atomic { .. } => self.atomic(op, active, shared, memory)?,
            Op::CopyAsync { bytes, to, from, source_bytes } => {
                self.copy(*bytes, [*to, *from], *source_bytes, active, shared)?;
            }
            Op::CopyCommit => lanes(active).for_each(|lane| self.copies[lane].commit()),
            Op::CopyWait(pending) => self.wait_copies(*pending, active, shared, memory)?,
            Op::GridWait => self.has_waited |= active,
            Op::Hopper(op) => return self.execute_hopper(op, active, shared, memory),
            Op::Nothing => {}
            Op::Trap => return Err(Trap::new("the kernel executed trap")),
            op => self.compute(op, active, shared)?,
        }
        Ok(Next::Step)
    }

    /// The lanes that meet at an instruction, if it is one at which lanes meet.
    fn meeting(&self, op: &Op, active: u32, shared: &Shared<'_>) -> Result<Option<u32>, Trap> {
        Ok(match op {
            Op::Shuffle(shuffle) => Some(self.members(shuffle.mask, active, shared)?),
            Op::Vote { mask, .. } | Op::WarpBarrier { mask } => Some(self.members(*mask, active, shared)?),
            Op::Barrier { .. } | Op::BarrierReduce { .. } => Some(self.live),
            Op::Hopper(HopperOp::Elect { mask, .. }) => Some(self.members(*mask, active, shared)?),
            Op::Hopper(op) if !op.is_aligned() => None,
            Op::LoadMatrices { .. } | Op::TransposeMatrix { .. } | Op::Mma(_) | Op::Hopper(_) => {
                if self.live != u32::MAX {
                    return Err(Trap::new("a matrix instruction of a warp in which lanes have ended"));
                }
                Some(self.live)
            }
            _ => None,
        })
    }

    fn execute_together(&mut self, op: &Op, active: u32, shared: &mut Shared<'_>) -> Result<Next, Trap> {
        match op {
            Op::Shuffle(shuffle) => self.shuffle(shuffle, active, shared)?,
            Op::Vote { mode, d, p, .. } => {
                let result = self.vote(*mode, &self.value(*p, shared), active);
                self.set(*d, &result, active);
            }
            Op::Barrier { id, threads, arrive_only } => {
                let threads = threads.map(|threads| self.uniform(threads, active, shared)).transpose()?;
                let id = self.arrive(*id, threads, None, active, shared)?;
                if !arrive_only {
                    self.barrier = Some(id);
                    return Ok(Next::Wait);
                }
            }
            Op::BarrierReduce { any, d, id, p } => {
                let p = self.value(*p, shared);
                let both = (lanes(active).any(|lane| p[lane] != 0), lanes(active).all(|lane| p[lane] != 0));
                self.barrier = Some(self.arrive(*id, None, Some(both), active, shared)?);
                self.reduction = Some((*d, *any));
                return Ok(Next::Wait);
            }
            Op::WarpBarrier { .. } if active == self.live => self.sync_lanes(),
            Op::Hopper(op) => return self.execute_hopper_together(op, active, shared),
            Op::LoadMatrices { d, address, transposed } => {
                self.load_matrices(d, *address, *transposed, shared)?;
            }
            Op::TransposeMatrix { d, a } => self.transpose_matrix(*d, *a, shared),
            Op::Mma(mma) => self.multiply(mma, shared),
            _ => {}
        }
        Ok(Next::Step)
    }

    /// The value that all lanes give.
    pub(super) fn uniform64(&self, source: Source, shared: &Shared<'_>) -> Result<u64, Trap> {
        let values = self.value(source, shared);
        match (0..32).find(|lane| values[*lane] != values[0]) {
            Some(lane) => Err(Trap::lane(lane as u32, "lanes give different descriptors")),
            None => Ok(values[0]),
        }
    }

    fn uniform(&self, source: Source, active: u32, shared: &Shared<'_>) -> Result<u32, Trap> {
        let values = self.value(source, shared);
        let first = values[active.trailing_zeros() as usize];
        match lanes(active).find(|lane| values[*lane] != first) {
            Some(lane) => Err(Trap::lane(lane as u32, "lanes give different numbers of a barrier")),
            None => Ok(first as u32),
        }
    }

    fn arrive(
        &mut self,
        id: Source,
        threads: Option<u32>,
        predicates: Option<(bool, bool)>,
        active: u32,
        shared: &mut Shared<'_>,
    ) -> Result<usize, Trap> {
        let id = self.uniform(id, active, shared)? as usize;
        let barrier =
            shared.barriers.get_mut(id).ok_or_else(|| Trap::new(format!("there is no barrier {id}")))?;
        barrier.arrive(self.index, threads, predicates, &self.clock)?;
        self.sync_lanes();
        shared.effects += 1;
        Ok(id)
    }

    /// Notes that all lanes of the warp know of each other's accesses so far.
    fn sync_lanes(&mut self) {
        let part = self.index as u16;
        self.synced = self.clock.get(part);
        self.clock.tick(part);
    }

    /// A lane of the warp as the one that accesses shared memory.
    pub(super) fn viewer(&self, lane: usize) -> Viewer<'_> {
        Viewer { clock: &self.clock, warp: self.index as u16, lane: lane as u8 }
    }

    fn compute(&mut self, op: &Op, active: u32, shared: &Shared<'_>) -> Result<(), Trap> {
        match op {
            Op::Unary { f, d, a } => {
                let a = self.value(*a, shared);
                f(&mut self.registers[usize::from(*d)], &a, active);
            }
            Op::Binary { f, d, a, b, divides } => {
                let (a, b) = (self.value(*a, shared), self.value(*b, shared));
                if let Some(ty) = divides
                    && let Some(lane) = lanes(active).find(|lane| ty.cut(b[*lane]) == 0)
                {
                    return Err(Trap::lane(lane as u32, "a division by zero"));
                }
                f(&mut self.registers[usize::from(*d)], &a, &b, active);
            }
            Op::Ternary { f, d, a, b, c } => {
                let [a, b, c] = [a, b, c].map(|source| self.value(*source, shared));
                f(&mut self.registers[usize::from(*d)], &a, &b, &c, active);
            }
            Op::BitFieldInsert { d, operands } => {
                let [a, b, at, len] = operands.map(|source| self.value(source, shared));
                let result = std::array::from_fn(|lane| {
                    let (at, len) = (at[lane] as u32 & 255, len[lane] as u32 & 255);
                    let field =
                        if len == 0 || at > 31 { 0 } else { cut(32, cut(len.min(32), u64::MAX) << at) };
                    b[lane] & !field | a[lane].checked_shl(at).unwrap_or(0) & field
                });
                self.set(*d, &result, active);
            }
            Op::Convert { conversion, d, d_bits, a } => {
                let a = self.value(*a, shared);
                let result = a.map(|a| cut(*d_bits, convert::convert(*conversion, a)));
                self.set(*d, &result, active);
            }
            Op::Pack { d, parts, bits } => {
                let mut result = [0; 32];
                for (i, part) in parts.iter().enumerate() {
                    let values = self.value(*part, shared);
                    lanes(active)
                        .for_each(|lane| result[lane] |= cut(*bits, values[lane]) << (i as u32 * bits));
                }
                self.set(*d, &result, active);
            }
            Op::Unpack { parts, a, bits } => {
                let a = self.value(*a, shared);
                for (i, part) in parts.iter().enumerate() {
                    if let Some(d) = part {
                        self.set(*d, &a.map(|a| cut(*bits, a >> (i as u32 * bits))), active);
                    }
                }
            }
            Op::ToSpace { space, d, a } => {
                let a = self.value(*a, shared);
                for lane in lanes(active) {
                    let (found, _) = Space::of_generic(a[lane]);
                    if found != *space {
                        let at = a[lane];
                        return Err(Trap::lane(lane as u32, format!("{at:#x} does not lie in {space:?}")));
                    }
                }
                self.set(*d, &a.map(|a| a.wrapping_sub(space.window())), active);
            }
            op => return Err(Trap::new(format!("{op:?} has no meaning here"))),
        }
        Ok(())
    }
}
