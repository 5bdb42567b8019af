//! Collectives through memory that all ranks have mapped.
//!
//! # Rounds
//!
//! Every operation is made of rounds. In round k a rank writes its values to half `k % 2` of its slot, publishes k, waits
//! until all ranks have published k, and reads their halves `k % 2`.
//!
//! Why no half is overwritten while somebody reads it: a rank writes to half `k % 2` again in round k + 2, that is after it
//! has seen all ranks publish k + 1. A rank publishes k + 1 after it has finished reading in round k. So the halves of round
//! k are read no more, and the wait at the end of round k + 1 is the only one needed. This is why also ranks that get
//! nothing (rank 0 in a broadcast, all in a barrier) wait for all others.
//!
//! A rank whose wait has failed does not know that, and therefore never writes again: it ends its turn, and refuses all
//! further calls.

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
use wait::{Round, Stop};

use super::address::{Place, Token};
use super::sum::sum_in_order;
use super::{Abort, Aborter, Call, CollectiveError, Deadlines, HostCollective, Operation};

/// Values of one half.
const VALUES: usize = HALF / size_of::<f32>();

/// From how many values on, and with more than two ranks, each rank sums a part only and gathers the rest, in two rounds
/// instead of one. A rank then reads two vectors instead of one of each rank.
const SPLIT_FROM: usize = 8 << 10;

/// Values in a cache line: the parts that ranks sum begin at lines of their own.
const LINE: usize = 16;

/// One rank of a group that shares memory.
pub(super) struct Shm {
    region: Arc<Region>,
    rank: usize,
    world_size: usize,
    deadline: Duration,
    /// Whether every rank can have a core for itself; if not, spinning keeps those off that are waited for.
    spin: bool,
    /// The last round that was published.
    round: Round,
    calls: u64,
}

/// Rank 0, with the file open for the others.
pub(super) struct Lead {
    rank: Shm,
    file: File,
    /// The deadline of calls, once all are there.
    call: Duration,
}

impl Lead {
    pub(super) fn new(
        token: Token,
        world_size: usize,
        deadlines: Deadlines,
    ) -> Result<(Lead, Place), CollectiveError> {
        let (region, file) = Region::create(token, world_size)?;
        let place = Place::Shm { process: std::process::id(), descriptor: file.as_raw_fd().cast_unsigned() };
        Ok((
            Lead { rank: Shm::new(region, 0, world_size, deadlines.forming), file, call: deadlines.call },
            place,
        ))
    }

    pub(super) fn wait(mut self) -> Result<Shm, CollectiveError> {
        self.rank.meet(Operation::Rendezvous)?;
        self.rank.deadline = self.call;
        drop(self.file);
        Ok(self.rank)
    }
}

/// Joins by way of rank 0's open file.
pub(super) fn join(
    process: u32,
    descriptor: u32,
    token: Token,
    rank: usize,
    world_size: usize,
    deadlines: Deadlines,
) -> Result<Shm, CollectiveError> {
    let region = Region::open(process, descriptor, token, world_size)?;
    if !region.turn(rank).claim() {
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
        if self.region.turn(self.rank).has_ended() {
            return Err(self.ended(self.rank));
        }
        self.calls += 1;
        Ok(Call { sequence: self.calls - 1, operation, length: length as u64 })
    }

    /// What stands in the slots after the round with this half, of `length` values of each rank.
    fn theirs(&self, rank: usize, half: usize, length: usize) -> &[f32] {
        // SAFETY: `half` is that of the round last published and waited for, so nobody writes to it (see the top of this
        // file).
        unsafe { self.region.values(rank, half, length) }
    }

    /// This rank's values of the coming round.
    fn ours(&mut self, length: usize) -> &mut [f32] {
        // SAFETY: the half of the coming round is read by nobody (see the top of this file), and written by this rank alone,
        // through this borrow of `self`.
        unsafe { self.region.values_mut(self.rank, self.round.next().half(), length) }
    }

    /// Publishes what this rank has written, and waits for all others to do so. Returns the half to read.
    fn exchange(&mut self, call: &Call) -> Result<usize, CollectiveError> {
        let round = self.round.next();
        self.round = round;
        self.region.turn(self.rank).publish(round.half(), call);
        let met = (0..self.world_size).filter(|&rank| rank != self.rank).try_for_each(|rank| {
            let turn = self.region.turn(rank);
            turn.wait(round, self.spin, self.deadline).map_err(|stop| match stop {
                Stop::Ended => self.ended(rank),
                Stop::TimedOut => {
                    CollectiveError::TimedOut { operation: call.operation, rank, after: self.deadline }
                }
            })
        });
        match met.and_then(|()| self.compare(round.half(), call)) {
            Ok(()) => Ok(round.half()),
            Err(error) => {
                self.region.turn(self.rank).end();
                Err(error)
            }
        }
    }

    /// Whether all ranks are in the same call.
    fn compare(&self, half: usize, ours: &Call) -> Result<(), CollectiveError> {
        for rank in 0..self.world_size {
            match self.region.turn(rank).call(half) {
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

    /// A round without values.
    fn meet(&mut self, operation: Operation) -> Result<(), CollectiveError> {
        let call = self.begin(operation, 0)?;
        self.exchange(&call).map(drop)
    }

    /// Every rank sums everything.
    fn one_shot(&mut self, values: &mut [f32], call: &Call) -> Result<(), CollectiveError> {
        self.ours(values.len()).copy_from_slice(values);
        let half = self.exchange(call)?;
        let length = values.len();
        sum_in_order(values, self.world_size, |rank| self.theirs(rank, half, length));
        Ok(())
    }

    /// Every rank sums its part, and gathers those of the others: reduce-scatter, then all-gather, as in R. Rabenseifner,
    /// "Optimization of Collective Reduction Operations" (ICCS 2004), without its exchange by halves, which has another
    /// order of summation.
    fn split(&mut self, values: &mut [f32], call: &Call) -> Result<(), CollectiveError> {
        let length = values.len();
        let world_size = self.world_size;
        let part = |rank| part_of(length, rank, world_size);
        self.ours(length).copy_from_slice(values);
        let half = self.exchange(call)?;

        let mine = part(self.rank);
        // Summed in `values`, because the slots cannot be borrowed for reading and writing at once.
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

/// Which of `length` values a rank sums.
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
                self.split(chunk, &call)?;
            } else {
                self.one_shot(chunk, &call)?;
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
        // Nobody needs to wait for this rank any more.
        self.region.turn(self.rank).end();
    }
}
