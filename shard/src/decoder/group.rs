//! The ranks that compute one model together.

use std::time::{Duration, Instant};

use millrace_kernels::cuda::Cuda;
use millrace_kernels::cuda::ranks::Ranks;
use millrace_kernels::{Backend, HostMemory, Norm, Sampled};

use crate::Error;
use crate::collective::{Aborter, HostCollective};

/// Collectives over the activations of a device. Every rank calls the same ones in the same order.
pub trait Collective<B: Backend> {
    /// This rank's number, from 0.
    fn rank(&self) -> usize;

    /// Replaces the first `n` rows of `buf` by their sum over all ranks, in the order of the ranks.
    ///
    /// # Errors
    /// If a rank is lost.
    fn all_reduce(&mut self, backend: &B, n: usize, buf: &mut B::Buf) -> Result<(), Error>;

    /// `residual += sum of branch over all ranks; out = norm(residual)` over the first `n` rows. `branch` is lost.
    ///
    /// # Errors
    /// If a rank is lost.
    fn all_reduce_norm(
        &mut self,
        backend: &B,
        n: usize,
        residual: &mut B::Buf,
        branch: &mut B::Buf,
        norm: &Norm<B::Vector>,
        out: &mut B::Buf,
    ) -> Result<(), Error> {
        self.all_reduce(backend, n, branch)?;
        Ok(backend.add_norm(n, residual, branch, norm, out)?)
    }

    /// Makes room for [`Collective::all_gather`] of up to `rows` rows of `cols` columns from each rank.
    ///
    /// # Errors
    /// If the device has not enough memory.
    fn reserve(&mut self, _backend: &B, _rows: usize, _cols: usize) -> Result<(), Error> {
        Ok(())
    }

    /// Puts the first `n` rows of all ranks' `part`s side by side into `whole`. Columns that `whole` has no room for are
    /// padding.
    ///
    /// # Errors
    /// If a rank is lost.
    fn all_gather(&mut self, backend: &B, n: usize, part: &B::Buf, whole: &mut B::Buf) -> Result<(), Error>;

    /// Replaces `bytes` by those of rank 0.
    ///
    /// # Errors
    /// If a rank is lost.
    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<(), Error>;

    /// Whether all ranks have taken part so far. Waits neither for them nor for the device, so it can be asked at every step: a device that has
    /// waited in vain goes on with wrong values, until somebody asks.
    ///
    /// # Errors
    /// If a rank is known to be lost.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    /// What ends the waits of this rank, and of the others as far as they can be reached, from any thread.
    fn aborter(&self) -> Aborter;

    /// What carries the activations, for the operator; nothing where it goes without saying.
    fn describe(&self) -> String {
        String::new()
    }
}

/// The collectives of a device whose activations lie in the host's memory.
pub struct OverHost(pub Box<dyn HostCollective>);

impl<B: HostMemory> Collective<B> for OverHost {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn all_reduce(&mut self, backend: &B, n: usize, buf: &mut B::Buf) -> Result<(), Error> {
        Ok(self.0.all_reduce(backend.host_mut(buf, n))?)
    }

    fn all_gather(&mut self, backend: &B, n: usize, part: &B::Buf, whole: &mut B::Buf) -> Result<(), Error> {
        let (part, whole) = (backend.host(part, n), backend.host_mut(whole, n));
        let (part_cols, whole_cols) = (part.len() / n, whole.len() / n);
        let mut take = |rank: usize, offset: usize, mut chunk: &[f32]| {
            let mut at = offset;
            while !chunk.is_empty() {
                let (row, col) = (at / part_cols, at % part_cols);
                let (of_row, rest) = chunk.split_at((part_cols - col).min(chunk.len()));
                let first = (rank * part_cols + col).min(whole_cols);
                let held = of_row.len().min(whole_cols - first);
                whole[row * whole_cols + first..][..held].copy_from_slice(&of_row[..held]);
                at += of_row.len();
                chunk = rest;
            }
        };
        Ok(self.0.all_gather(part, &mut take)?)
    }

    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        Ok(self.0.broadcast(bytes)?)
    }

    fn aborter(&self) -> Aborter {
        self.0.aborter()
    }
}

/// The collectives of cards: activations go from card to card, and what the hosts agree on goes from host to host.
pub struct OverCards {
    cards: Ranks,
    host: Box<dyn HostCollective>,
    /// How the activations go.
    said: String,
    /// What all ranks gave, one after the other.
    gathered: Option<<Cuda as Backend>::Buf>,
}

impl OverCards {
    /// `cards` carries activations (`said` tells the operator how), `host` everything else; both have the same ranks.
    pub fn new(cards: Ranks, host: Box<dyn HostCollective>, said: String) -> Self {
        OverCards { cards, host, said, gathered: None }
    }
}

impl Collective<Cuda> for OverCards {
    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn all_reduce(
        &mut self,
        backend: &Cuda,
        n: usize,
        buf: &mut <Cuda as Backend>::Buf,
    ) -> Result<(), Error> {
        Ok(backend.all_reduce(&self.cards, n, buf)?)
    }

    fn all_reduce_norm(
        &mut self,
        backend: &Cuda,
        n: usize,
        residual: &mut <Cuda as Backend>::Buf,
        branch: &mut <Cuda as Backend>::Buf,
        norm: &Norm<<Cuda as Backend>::Vector>,
        out: &mut <Cuda as Backend>::Buf,
    ) -> Result<(), Error> {
        Ok(backend.all_reduce_norm(&self.cards, n, residual, branch, norm, out)?)
    }

    fn all_gather(
        &mut self,
        backend: &Cuda,
        n: usize,
        part: &<Cuda as Backend>::Buf,
        whole: &mut <Cuda as Backend>::Buf,
    ) -> Result<(), Error> {
        let gathered = self.gathered.as_mut().expect("room was made when the decoder was put together");
        Ok(backend.all_gather(&self.cards, n, part, gathered, whole)?)
    }

    fn reserve(&mut self, backend: &Cuda, rows: usize, cols: usize) -> Result<(), Error> {
        self.gathered = Some(backend.logits(rows * self.cards.world_size(), cols)?);
        Ok(())
    }

    fn broadcast(&mut self, bytes: &mut [u8]) -> Result<(), Error> {
        Ok(self.host.broadcast(bytes)?)
    }

    fn check(&self) -> Result<(), Error> {
        Ok(self.cards.check()?)
    }

    fn aborter(&self) -> Aborter {
        let (host, cards) = (self.host.aborter(), self.cards.aborter());
        Aborter::of(move || {
            host.abort();
            if let Some(cards) = &cards {
                cards.abort();
            }
        })
    }

    fn describe(&self) -> String {
        self.said.clone()
    }
}

/// What a decoder that is one of several ranks has in addition.
pub(super) struct Group<B: Backend> {
    wire: Box<dyn Collective<B>>,
    /// This rank's columns of the logits, `[s, vocab_rows]`.
    pub(super) part: B::Buf,
    /// Token ids on their way to the other ranks.
    ids: Vec<u8>,
    spent: Duration,
}

impl<B: Backend> Group<B> {
    /// For up to `rows` rows of logits, of which this rank has `cols` columns.
    pub(super) fn new(
        mut wire: Box<dyn Collective<B>>,
        backend: &B,
        rows: usize,
        cols: usize,
    ) -> Result<Self, Error> {
        wire.reserve(backend, rows, cols)?;
        Ok(Group { wire, part: backend.logits(rows, cols)?, ids: Vec::new(), spent: Duration::ZERO })
    }

    /// Makes the summands in the first `n` rows of `buf` the whole.
    pub(super) fn reduce(&mut self, backend: &B, n: usize, buf: &mut B::Buf) -> Result<(), Error> {
        let since = Instant::now();
        self.wire.all_reduce(backend, n, buf)?;
        self.spent += since.elapsed();
        Ok(())
    }

    /// Adds the sum of all ranks' summands in `branch` to `residual`, and normalises that.
    pub(super) fn reduce_norm(
        &mut self,
        backend: &B,
        n: usize,
        residual: &mut B::Buf,
        branch: &mut B::Buf,
        norm: &Norm<B::Vector>,
        out: &mut B::Buf,
    ) -> Result<(), Error> {
        let since = Instant::now();
        self.wire.all_reduce_norm(backend, n, residual, branch, norm, out)?;
        self.spent += since.elapsed();
        Ok(())
    }

    /// Makes whole rows of logits from every rank's columns.
    pub(super) fn gather(&mut self, backend: &B, n: usize, whole: &mut B::Buf) -> Result<(), Error> {
        let since = Instant::now();
        self.wire.all_gather(backend, n, &self.part, whole)?;
        self.spent += since.elapsed();
        Ok(())
    }

    /// Whether this rank chooses the tokens. Only one does: the others might round differently on another machine.
    pub(super) fn chooses(&self) -> bool {
        self.wire.rank() == 0
    }

    /// Tells all ranks the `n` tokens that the first has chosen; the others have none yet in `chosen`.
    pub(super) fn agree(&mut self, n: usize, chosen: &mut Vec<Sampled>) -> Result<(), Error> {
        let since = Instant::now();
        // The first rank has read its logits, so its device has done all that was asked of it.
        self.wire.check()?;
        self.ids.clear();
        self.ids.extend(chosen.iter().flat_map(|sampled| sampled.token.to_le_bytes()));
        self.ids.resize(n * size_of::<u32>(), 0);
        self.wire.broadcast(&mut self.ids)?;
        if !self.chooses() {
            let ids = self.ids.chunks_exact(size_of::<u32>());
            chosen.extend(ids.map(|id| Sampled {
                token: u32::from_le_bytes([id[0], id[1], id[2], id[3]]),
                logprob: 0.0,
                top: Vec::new(),
            }));
        }
        self.spent += since.elapsed();
        Ok(())
    }

    /// Time in collectives since the last call, waiting for other ranks included.
    pub(super) fn take_spent(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }
}
