//! Collectives through memory that all ranks have mapped.
//!
//! # Rounds
//!
//! Every operation consists of rounds. In round k a rank writes its values to half `k % 2` of its
//! own area, publishes k, waits until all ranks have published k, and reads their halves `k % 2`.
//!
//! No half is overwritten while another rank reads it. A rank writes to half `k % 2` again in round
//! k + 2, after all ranks have published k + 1. A rank publishes k + 1 only after it has finished
//! reading in round k. So one wait per round is enough. This argument needs every rank to wait for
//! all others in every round, even a rank that receives nothing (rank 0 in a broadcast, all ranks
//! in a barrier).
//!
//! A rank whose wait has failed cannot rely on this. Therefore it never writes again: it marks
//! itself as ended, and refuses all further calls.

mod region;
mod wait;

use std::fs::File;
use std::mem::size_of;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use region::{HALF, Region};
use wait::{Round, WaitError};

use super::abort::Abort;
use super::address::{GroupToken, LeaderLocation};
use super::sum::sum_in_order;
use super::{Aborter, Call, CollectiveError, Deadlines, HostCollective, Operation};

/// Number of values in one half.
const VALUES: usize = HALF / size_of::<f32>();

/// From this number of values on, and with more than two ranks, each rank sums only a part and
/// gathers the other parts, in two rounds instead of one. A rank then reads two vectors instead of
/// one vector per rank.
const SPLIT_FROM: usize = 8 << 10;

/// Number of values in a cache line. The parts that the ranks sum begin at different cache lines.
const LINE: usize = 16;

/// One rank of a group that shares memory.
pub(super) struct Shm {
    region: Arc<Region>,
    rank: usize,
    world_size: usize,
    deadline: Duration,
    /// Whether waits begin with spinning. If there are fewer cores than ranks, spinning would take
    /// the core of a rank that others wait for.
    spin: bool,
    /// The last round that this rank has published.
    round: Round,
    calls: u64,
}

/// Rank 0 of a group that is being formed. It keeps the file open for the others.
pub(super) struct ShmLeader {
    rank: Shm,
    file: File,
    /// The deadline of calls once the group is formed.
    call_deadline: Duration,
}

impl ShmLeader {
    pub(super) fn new(
        token: GroupToken,
        world_size: usize,
        deadlines: Deadlines,
    ) -> Result<(ShmLeader, LeaderLocation), CollectiveError> {
        let (region, file) = Region::create(token, world_size)?;
        let (process, descriptor) = (std::process::id(), file.as_raw_fd().cast_unsigned());
        let rank = Shm::new(region, 0, world_size, deadlines.forming);
        let leader = ShmLeader { rank, file, call_deadline: deadlines.call };
        Ok((leader, LeaderLocation::Shm { process, descriptor }))
    }

    pub(super) fn wait(mut self) -> Result<Shm, CollectiveError> {
        self.rank.meet(Operation::Rendezvous)?;
        self.rank.deadline = self.call_deadline;
        drop(self.file);
        Ok(self.rank)
    }
}

/// Joins the group through rank 0's open file.
pub(super) fn join(
    process: u32,
    descriptor: u32,
    token: GroupToken,
    rank: usize,
    world_size: usize,
    deadlines: Deadlines,
) -> Result<Shm, CollectiveError> {
    let region = Region::open(process, descriptor, token, world_size)?;
    if !region.rank_state(rank).claim() {
        return Err(CollectiveError::Taken { rank });
    }
    let mut shm = Shm::new(region, rank, world_size, deadlines.forming);
    shm.meet(Operation::Rendezvous)?;
    shm.deadline = deadlines.call;
    Ok(shm)
}

impl Shm {
    fn new(region: Region, rank: usize, world_size: usize, deadline: Duration) -> Shm {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let spin = world_size <= cores;
        let region = Arc::new(region);
        Shm { region, rank, world_size, deadline, spin, round: Round::START, calls: 0 }
    }

    fn begin(&mut self, operation: Operation, length: usize) -> Result<Call, CollectiveError> {
        if self.region.rank_state(self.rank).has_ended() {
            return Err(self.ended(self.rank));
        }
        self.calls += 1;
        Ok(Call { sequence: self.calls - 1, operation, length: length as u64 })
    }

    /// Returns `length` values that `rank` has published in this half.
    fn theirs(&self, rank: usize, half: usize, length: usize) -> &[f32] {
        // SAFETY: `half` belongs to the last round, which all ranks have published, so nobody
        // writes to it (see the top of this file).
        unsafe { self.region.values(rank, half, length) }
    }

    /// Returns the place of this rank's values in the next round.
    fn ours(&mut self, length: usize) -> &mut [f32] {
        // SAFETY: nobody reads the half of the next round (see the top of this file), and only this
        // rank writes to it, through this borrow of `self`.
        unsafe { self.region.values_mut(self.rank, self.round.next().half(), length) }
    }

    /// Publishes the values of this rank, and waits until all others have published theirs. Returns
    /// the half to read.
    fn exchange(&mut self, call: &Call) -> Result<usize, CollectiveError> {
        let round = self.round.next();
        self.round = round;
        self.region.rank_state(self.rank).publish(round.half(), call);
        let met = (0..self.world_size).filter(|&rank| rank != self.rank).try_for_each(|rank| {
            let state = self.region.rank_state(rank);
            state.wait(round, self.spin, self.deadline).map_err(|error| match error {
                WaitError::Ended => self.ended(rank),
                WaitError::TimedOut => {
                    CollectiveError::TimedOut { operation: call.operation, rank, after: self.deadline }
                }
            })
        });
        match met.and_then(|()| self.compare(round.half(), call)) {
            Ok(()) => Ok(round.half()),
            Err(error) => {
                self.region.rank_state(self.rank).end();
                Err(error)
            }
        }
    }

    /// Checks that all ranks are in the same call.
    fn compare(&self, half: usize, ours: &Call) -> Result<(), CollectiveError> {
        for rank in 0..self.world_size {
            match self.region.rank_state(rank).call(half) {
                Some(theirs) if theirs == *ours => {}
                Some(theirs) => return Err(CollectiveError::Mismatch { rank, ours: *ours, theirs }),
                None => return Err(CollectiveError::Closed { rank }),
            }
        }
        Ok(())
    }

    fn ended(&self, rank: usize) -> CollectiveError {
        match self.region.is_aborted() {
            true => CollectiveError::Aborted,
            false => CollectiveError::Closed { rank },
        }
    }

    /// Runs a round without values.
    fn meet(&mut self, operation: Operation) -> Result<(), CollectiveError> {
        let call = self.begin(operation, 0)?;
        self.exchange(&call).map(drop)
    }

    /// Sums all values on every rank.
    fn all_reduce_in_one_round(&mut self, values: &mut [f32], call: &Call) -> Result<(), CollectiveError> {
        self.ours(values.len()).copy_from_slice(values);
        let half = self.exchange(call)?;
        let length = values.len();
        sum_in_order(values, self.world_size, |rank| self.theirs(rank, half, length));
        Ok(())
    }

    /// Sums this rank's part and gathers the parts of the others: reduce-scatter, then all-gather,
    /// as in R. Rabenseifner, "Optimization of Collective Reduction Operations" (ICCS 2004). The
    /// exchange by halves of that paper is not used, because it sums in another order.
    fn all_reduce_in_two_rounds(&mut self, values: &mut [f32], call: &Call) -> Result<(), CollectiveError> {
        let length = values.len();
        let world_size = self.world_size;
        let part = |rank| part_of(length, rank, world_size);
        self.ours(length).copy_from_slice(values);
        let half = self.exchange(call)?;

        let mine = part(self.rank);
        // The sum goes to `values` first, because the region cannot be borrowed for reading and
        // writing at once.
        sum_in_order(&mut values[mine.clone()], world_size, |rank| {
            &self.theirs(rank, half, length)[mine.clone()]
        });
        self.ours(mine.len()).copy_from_slice(&values[mine]);
        let half = self.exchange(call)?;
        for rank in (0..world_size).filter(|&rank| rank != self.rank) {
            let theirs = part(rank);
            values[theirs.clone()].copy_from_slice(self.theirs(rank, half, theirs.len()));
        }
        Ok(())
    }
}

/// Returns the range of `length` values that a rank sums.
fn part_of(length: usize, rank: usize, world_size: usize) -> Range<usize> {
    let size = length.div_ceil(world_size).next_multiple_of(LINE);
    (rank * size).min(length)..((rank + 1) * size).min(length)
}

impl HostCollective for Shm {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        let call = self.begin(Operation::AllReduce, values.len())?;
        if values.is_empty() {
            self.exchange(&call)?;
        }
        for chunk in values.chunks_mut(VALUES) {
            if self.world_size > 2 && chunk.len() >= SPLIT_FROM {
                self.all_reduce_in_two_rounds(chunk, &call)?;
            } else {
                self.all_reduce_in_one_round(chunk, &call)?;
            }
        }
        Ok(())
    }

    fn all_gather(
        &mut self,
        part: &[f32],
        take: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), CollectiveError> {
        let call = self.begin(Operation::AllGather, part.len())?;
        if part.is_empty() {
            self.exchange(&call)?;
        }
        for (index, chunk) in part.chunks(VALUES).enumerate() {
            self.ours(chunk.len()).copy_from_slice(chunk);
            let half = self.exchange(&call)?;
            for rank in 0..self.world_size {
                take(rank, index * VALUES, self.theirs(rank, half, chunk.len()));
            }
        }
        Ok(())
    }

    fn all_gather_bytes(&mut self, part: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let call = self.begin(Operation::AllGatherBytes, part.len())?;
        let mut all = vec![Vec::with_capacity(part.len()); self.world_size];
        if part.is_empty() {
            self.exchange(&call)?;
        }
        for chunk in part.chunks(HALF) {
            // SAFETY: the same as in `ours`.
            unsafe { self.region.bytes_mut(self.rank, self.round.next().half(), chunk.len()) }
                .copy_from_slice(chunk);
            let half = self.exchange(&call)?;
            for (rank, all) in all.iter_mut().enumerate() {
                // SAFETY: the same as in `theirs`.
                all.extend_from_slice(unsafe { self.region.bytes(rank, half, chunk.len()) });
            }
        }
        Ok(all)
    }

    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let call = self.begin(Operation::Broadcast, bytes.len())?;
        if bytes.is_empty() {
            self.exchange(&call)?;
        }
        for chunk in bytes.chunks_mut(HALF) {
            if self.rank == 0 {
                // SAFETY: as in `ours`.
                unsafe { self.region.bytes_mut(0, self.round.next().half(), chunk.len()) }
                    .copy_from_slice(chunk);
            }
            let half = self.exchange(&call)?;
            if self.rank != 0 {
                // SAFETY: as in `theirs`.
                chunk.copy_from_slice(unsafe { self.region.bytes(0, half, chunk.len()) });
            }
        }
        Ok(())
    }

    fn pass_on(&mut self, from: usize, values: &mut [f32]) -> Result<(), CollectiveError> {
        let call = self.begin(Operation::PassOn, values.len())?;
        if values.is_empty() {
            self.exchange(&call)?;
        }
        for chunk in values.chunks_mut(VALUES) {
            if self.rank == from {
                self.ours(chunk.len()).copy_from_slice(chunk);
            }
            let half = self.exchange(&call)?;
            if self.rank != from {
                chunk.copy_from_slice(self.theirs(from, half, chunk.len()));
            }
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.meet(Operation::Barrier)
    }

    fn aborter(&self) -> Aborter {
        Aborter(self.region.clone())
    }
}

impl Abort for Region {
    fn abort(&self) {
        Region::abort(self);
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        // A rank that waits for this one learns at once that it has left.
        self.region.rank_state(self.rank).end();
    }
}
