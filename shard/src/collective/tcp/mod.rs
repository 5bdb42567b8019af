//! Collectives over TCP: a star around rank 0. The others send their values, rank 0 combines them and sends the result.
//!
//! Rank 0 reads the calls of all ranks before it combines anything, so a rank that does something else spoils nothing.
//! Nobody sends before it has read the answer to what it sent last; so the directions of a connection never block each other.

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

use super::address::{Place, Token};
use super::{Aborter, Call, CollectiveError, Deadlines, HostCollective, Operation};

/// One rank of a group that is connected by TCP.
pub(super) struct Tcp {
    links: Arc<Links>,
    watchers: Vec<JoinHandle<()>>,
    rank: usize,
    world_size: usize,
    calls: u64,
    failed: bool,
    transfer: Transfer,
    /// A piece of each rank; on ranks other than 0, one piece. `[world_size or 1, PIECE]`
    pieces: Box<[f32]>,
}

/// Rank 0, listening.
pub(super) struct Lead {
    listener: TcpListener,
    token: Token,
    world_size: usize,
    deadlines: Deadlines,
}

impl Lead {
    pub(super) fn new(
        ip: IpAddr,
        token: Token,
        world_size: usize,
        deadlines: Deadlines,
    ) -> Result<(Lead, Place), CollectiveError> {
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
        Ok((Lead { listener, token, world_size, deadlines }, Place::Tcp(at)))
    }

    pub(super) fn wait(self) -> Result<Tcp, CollectiveError> {
        let Lead { listener, token, world_size, deadlines } = self;
        let (data, news) = rendezvous::gather(&listener, token, world_size, deadlines.forming)?;
        let start = || {
            let links = Links::new(data, news, 1, deadlines.call)?;
            Ok((links::watch(&links)?, links))
        };
        let (watchers, links) = start().map_err(CollectiveError::io("connections to the other ranks"))?;
        Ok(Tcp::new(links, watchers, 0, world_size))
    }
}

/// Joins rank 0 at its listening socket.
pub(super) fn join(
    to: SocketAddr,
    token: Token,
    rank: usize,
    world_size: usize,
    deadlines: Deadlines,
) -> Result<Tcp, CollectiveError> {
    let (data, news) = rendezvous::call(to, token, rank, world_size, deadlines.forming)?;
    let links = Links::new(vec![data], vec![news], 0, deadlines.call)
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

    /// Runs one call; after a failure the connections are of no use, because nobody knows what is under way on them.
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

    /// Rank 0: reads the calls of all others and has them go on, or, if they do not all do the same, tells everybody.
    fn agree(&self, ours: &Call) -> Result<(), CollectiveError> {
        let mut disagreement = None;
        let mut calls = [None; super::MAX_WORLD_SIZE];
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
        // Who is still sending does not read yet, and what is not read when a connection is closed takes the answer with it.
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

    /// Reads the values that a rank sends with its call before it waits for the verdict.
    fn discard(&self, rank: usize, call: &Call) -> Result<(), CollectiveError> {
        let values = match call.operation {
            Operation::AllReduce => call.length,
            Operation::AllGather => call.length.min(PIECE as u64),
            Operation::Rendezvous | Operation::Broadcast | Operation::Barrier => 0,
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

    /// Other ranks: waits for rank 0 to say whether all ranks agree.
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

    /// Waits until all ranks are in the same call, without values.
    fn meet(&mut self, call: &Call) -> Result<(), CollectiveError> {
        if self.rank != 0 {
            self.transfer.send(&message::encode_call(call), &[], call.operation)?;
            return self.verdict(call);
        }
        self.agree(call)?;
        self.transfer.send(&message::encode_verdict(AGREED), &[], call.operation)
    }

    /// Rank 0's all-gather.
    fn gather_for_all(
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

    /// The others' all-gather.
    fn gather_by_rank_0(
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

/// The verdict that lets everybody go on.
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
            0 => this.gather_for_all(part, call, take),
            _ => this.gather_by_rank_0(part, call, take),
        })
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
            // One that has panicked has ended too.
            let _ = watcher.join();
        }
    }
}
