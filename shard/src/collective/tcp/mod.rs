//! Collectives over TCP, as a star around rank 0: the others send their values, and rank 0 combines
//! them and sends the result.
//!
//! Rank 0 reads the calls of all ranks before it combines anything, so a rank that makes another
//! call cannot corrupt a result. A rank reads the answer to its last message before it sends the
//! next one, so the two directions of a connection never block each other.

mod links;
mod message;
mod rendezvous;
mod transfer;

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use links::Links;
use message::{CALL, Disagreement, VERDICT};
use transfer::{PIECE, Transfer};

use super::address::{GroupToken, LeaderLocation};
use super::{Aborter, Call, CollectiveError, Deadlines, HostCollective, MAX_WORLD_SIZE, Operation};

/// One rank of a group that is connected by TCP.
pub(super) struct Tcp {
    links: Arc<Links>,
    watchers: Vec<JoinHandle<()>>,
    rank: usize,
    world_size: usize,
    calls: u64,
    failed: bool,
    transfer: Transfer,
    /// One piece of values per rank on rank 0, `[world_size, PIECE]`. Only one piece on the other
    /// ranks, `[1, PIECE]`.
    pieces: Box<[f32]>,
}

/// Rank 0 of a group that is being formed. It listens for the others.
pub(super) struct TcpLeader {
    listener: TcpListener,
    token: GroupToken,
    world_size: usize,
    deadlines: Deadlines,
}

impl TcpLeader {
    pub(super) fn new(
        ip: IpAddr,
        token: GroupToken,
        world_size: usize,
        deadlines: Deadlines,
    ) -> Result<(TcpLeader, LeaderLocation), CollectiveError> {
        if ip.is_unspecified() {
            return Err(CollectiveError::Unspecified(ip));
        }
        let listen = || {
            let listener = TcpListener::bind((ip, 0))?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let (at, listener) =
            listen().map_err(CollectiveError::io("listening for the other ranks at the address given"))?;
        Ok((TcpLeader { listener, token, world_size, deadlines }, LeaderLocation::Tcp(at)))
    }

    pub(super) fn wait(self) -> Result<Tcp, CollectiveError> {
        let TcpLeader { listener, token, world_size, deadlines } = self;
        let (data, abort) = rendezvous::accept_all(&listener, token, world_size, deadlines.forming)?;
        let start = || {
            let links = Links::new(data, abort, 1, deadlines.call)?;
            Ok((links::watch_aborts(&links)?, links))
        };
        let (watchers, links) = start().map_err(CollectiveError::io("connections to the other ranks"))?;
        Ok(Tcp::new(links, watchers, 0, world_size))
    }
}

/// Joins rank 0 at its listening socket.
pub(super) fn join(
    to: SocketAddr,
    token: GroupToken,
    rank: usize,
    world_size: usize,
    deadlines: Deadlines,
) -> Result<Tcp, CollectiveError> {
    let (data, abort) = rendezvous::join(to, token, rank, world_size, deadlines.forming)?;
    let links = Links::new(vec![data], vec![abort], 0, deadlines.call)
        .map_err(CollectiveError::io("connection to rank 0"))?;
    Ok(Tcp::new(links, Vec::new(), rank, world_size))
}

impl Tcp {
    fn new(links: Arc<Links>, watchers: Vec<JoinHandle<()>>, rank: usize, world_size: usize) -> Tcp {
        let pieces = if rank == 0 { world_size } else { 1 };
        Tcp {
            transfer: Transfer::new(links.clone()),
            links,
            watchers,
            rank,
            world_size,
            calls: 0,
            failed: false,
            pieces: vec![0.0; pieces * PIECE].into(),
        }
    }

    /// Runs one call. A failure closes the connections, because their position in the stream of
    /// messages is then unknown.
    fn run(
        &mut self,
        operation: Operation,
        length: usize,
        work: impl FnOnce(&mut Self, &Call) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        if self.links.is_aborted() {
            return Err(CollectiveError::Aborted);
        }
        if self.failed {
            return Err(CollectiveError::Closed { rank: self.rank });
        }
        let call = Call { sequence: self.calls, operation, length: length as u64 };
        self.calls += 1;
        let done = work(self, &call);
        if done.is_err() {
            self.failed = true;
            self.links.close();
        }
        done
    }

    /// Reads the calls of all other ranks, on rank 0. If they differ, tells all ranks and fails.
    fn agree(&self, ours: &Call) -> Result<(), CollectiveError> {
        let mut disagreement = None;
        let mut calls = [None; MAX_WORLD_SIZE];
        for rank in self.links.ranks() {
            let mut bytes = [0; CALL];
            self.links.receive(rank, &mut bytes, ours.operation)?;
            let call = message::decode_call(&bytes).ok_or(CollectiveError::Closed { rank })?;
            if call != *ours && disagreement.is_none() {
                disagreement = Some(Disagreement { rank, call, lead: *ours });
            }
            calls[rank] = Some(call);
        }
        let Some(Disagreement { rank, call, .. }) = disagreement else { return Ok(()) };
        // A rank reads the verdict only after it has sent its values. Unread values would also
        // discard the verdict when the connection is closed.
        for (rank, call) in calls.iter().enumerate() {
            if let Some(call) = call {
                self.discard(rank, call)?;
            }
        }
        let verdict = message::encode_verdict(disagreement);
        for rank in self.links.ranks() {
            self.links.send(rank, &verdict, ours.operation)?;
        }
        Err(CollectiveError::Mismatch { rank, ours: *ours, theirs: call })
    }

    /// Reads and drops the values that a rank sends before it waits for the verdict.
    fn discard(&self, rank: usize, call: &Call) -> Result<(), CollectiveError> {
        let values = match call.operation {
            Operation::AllReduce => call.length,
            Operation::AllGather => call.length.min(PIECE as u64),
            Operation::Rendezvous
            | Operation::Broadcast
            | Operation::Barrier
            | Operation::AllGatherBytes
            | Operation::PassOn => 0,
        };
        let mut left = values.saturating_mul(4);
        let mut bytes = [0; 4096];
        while left > 0 {
            let now = left.min(bytes.len() as u64);
            self.links.receive(rank, &mut bytes[..now as usize], call.operation)?;
            left -= now;
        }
        Ok(())
    }

    /// Waits for the verdict of rank 0 on whether all calls agree, on the other ranks.
    fn verdict(&self, ours: &Call) -> Result<(), CollectiveError> {
        let mut bytes = [0; VERDICT];
        self.links.receive(0, &mut bytes, ours.operation)?;
        match message::decode_verdict(&bytes) {
            Some(None) => Ok(()),
            Some(Some(Disagreement { lead, .. })) if lead != *ours => {
                Err(CollectiveError::Mismatch { rank: 0, ours: *ours, theirs: lead })
            }
            Some(Some(Disagreement { rank, call, .. })) => {
                Err(CollectiveError::Mismatch { rank, ours: *ours, theirs: call })
            }
            None => Err(CollectiveError::Closed { rank: 0 }),
        }
    }

    /// Waits until all ranks are in the same call.
    fn meet(&mut self, call: &Call) -> Result<(), CollectiveError> {
        if self.rank != 0 {
            self.transfer.send(&message::encode_call(call), &[], call.operation)?;
            return self.verdict(call);
        }
        self.agree(call)?;
        self.transfer.send(&message::encode_verdict(AGREED), &[], call.operation)
    }

    /// Runs an all-gather on rank 0.
    fn all_gather_on_leader(
        &mut self,
        part: &[f32],
        call: &Call,
        take: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), CollectiveError> {
        self.agree(call)?;
        let verdict = message::encode_verdict(AGREED);
        if part.is_empty() {
            return self.transfer.send(&verdict, &[], call.operation);
        }
        for (index, chunk) in part.chunks(PIECE).enumerate() {
            let size = chunk.len();
            let all = &mut self.pieces[..self.world_size * size];
            all[..size].copy_from_slice(chunk);
            for rank in self.links.ranks() {
                let theirs = &mut all[rank * size..][..size];
                self.transfer.receive(rank, theirs, call.operation, |value, new| *value = new)?;
            }
            let ahead = if index == 0 { &verdict[..] } else { &[] };
            self.transfer.send(ahead, all, call.operation)?;
            for (rank, theirs) in all.chunks(size).enumerate() {
                take(rank, index * PIECE, theirs);
            }
        }
        Ok(())
    }

    /// Runs an all-gather on another rank.
    fn all_gather_on_member(
        &mut self,
        part: &[f32],
        call: &Call,
        take: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), CollectiveError> {
        let first = &part[..part.len().min(PIECE)];
        self.transfer.send(&message::encode_call(call), first, call.operation)?;
        self.verdict(call)?;
        for (index, chunk) in part.chunks(PIECE).enumerate() {
            if index > 0 {
                self.transfer.send(&[], chunk, call.operation)?;
            }
            for rank in 0..self.world_size {
                let theirs = &mut self.pieces[..chunk.len()];
                self.transfer.receive(0, theirs, call.operation, |value, new| *value = new)?;
                take(rank, index * PIECE, theirs);
            }
        }
        Ok(())
    }
}

/// The verdict that all calls agree.
const AGREED: Option<Disagreement> = None;

impl HostCollective for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_reduce(&mut self, values: &mut [f32]) -> Result<(), CollectiveError> {
        self.run(Operation::AllReduce, values.len(), |this, call| {
            if this.rank != 0 {
                this.transfer.send(&message::encode_call(call), values, call.operation)?;
                this.verdict(call)?;
                return this.transfer.receive(0, values, call.operation, |value, sum| *value = sum);
            }
            this.agree(call)?;
            for rank in this.links.ranks() {
                this.transfer.receive(rank, values, call.operation, |sum, value| *sum += value)?;
            }
            this.transfer.send(&message::encode_verdict(AGREED), values, call.operation)
        })
    }

    fn all_gather(
        &mut self,
        part: &[f32],
        take: &mut dyn FnMut(usize, usize, &[f32]),
    ) -> Result<(), CollectiveError> {
        self.run(Operation::AllGather, part.len(), |this, call| match this.rank {
            0 => this.all_gather_on_leader(part, call, take),
            _ => this.all_gather_on_member(part, call, take),
        })
    }

    fn all_gather_bytes(&mut self, part: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        let mut all = vec![vec![0; part.len()]; self.world_size];
        self.run(Operation::AllGatherBytes, part.len(), |this, call| {
            this.meet(call)?;
            if this.rank != 0 {
                this.links.send(0, part, call.operation)?;
                return all.iter_mut().try_for_each(|theirs| this.links.receive(0, theirs, call.operation));
            }
            all[0].copy_from_slice(part);
            for rank in this.links.ranks() {
                this.links.receive(rank, &mut all[rank], call.operation)?;
            }
            let whole = all.concat();
            this.links.ranks().try_for_each(|rank| this.links.send(rank, &whole, call.operation))
        })?;
        Ok(all)
    }

    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        self.run(Operation::Broadcast, bytes.len(), |this, call| {
            this.meet(call)?;
            if this.rank != 0 {
                return this.links.receive(0, bytes, call.operation);
            }
            this.links.ranks().try_for_each(|rank| this.links.send(rank, bytes, call.operation))
        })
    }

    fn pass_on(&mut self, from: usize, values: &mut [f32]) -> Result<(), CollectiveError> {
        let set = |value: &mut f32, new| *value = new;
        self.run(Operation::PassOn, values.len(), |this, call| {
            this.meet(call)?;
            if this.rank == 0 {
                if from != 0 {
                    this.transfer.receive(from, values, call.operation, set)?;
                }
                return this.transfer.send(&[], values, call.operation);
            }
            if this.rank == from {
                this.transfer.send(&[], values, call.operation)?;
            }
            // Rank 0 sends to all ranks, so that this one gets its own values back.
            this.transfer.receive(0, values, call.operation, set)
        })
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.run(Operation::Barrier, 0, |this, call| this.meet(call))
    }

    fn aborter(&self) -> Aborter {
        Aborter(self.links.clone())
    }
}

impl Drop for Tcp {
    fn drop(&mut self) {
        self.links.close();
        for watcher in self.watchers.drain(..) {
            // A watcher that has panicked has ended too.
            let _ = watcher.join();
        }
    }
}
