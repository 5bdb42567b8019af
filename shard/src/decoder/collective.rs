//! The interface between a decoder and the other ranks of its group.

use millrace_backend::{Backend, Norm, OpenStep};

use crate::Error;
use crate::collective::Aborter;

/// Collectives over the activations of a device. Every rank calls the same ones in the same order.
pub trait Collective<B: Backend> {
    /// Returns this rank's number, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn world_size(&self) -> usize;

    /// Replaces the first `n` rows of `buf` by their sum over all ranks, added in the order of the
    /// ranks.
    ///
    /// # Errors
    /// If a rank is lost.
    fn all_reduce(&mut self, backend: &B, n: usize, buf: &mut B::Buf) -> Result<(), Error>;

    /// `residual += sum of branch over all ranks; out = norm(residual)` over the first `n` rows.
    /// The contents of `branch` are lost.
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

    /// Replaces `values` in host memory, the same number on every rank, by their sums over all
    /// ranks.
    ///
    /// # Errors
    /// If a rank is lost, or the ranks exchange values only between devices.
    fn sum(&mut self, _values: &mut [f32]) -> Result<(), Error> {
        Err(Error::Unsupported("--kv-disk on several GPUs".to_owned()))
    }

    /// Allocates what [`Collective::all_gather`] needs for up to `rows` rows of `cols` columns from
    /// each rank. The decoder calls it once, before any all-gather.
    ///
    /// # Errors
    /// If the device has not enough memory.
    fn reserve(&mut self, _backend: &B, _rows: usize, _cols: usize) -> Result<(), Error> {
        Ok(())
    }

    /// Puts the first `n` rows of all ranks' `part`s side by side into `whole`. Columns beyond the
    /// width of `whole` are padding.
    ///
    /// # Errors
    /// If a rank is lost.
    fn all_gather(&mut self, backend: &B, n: usize, part: &B::Buf, whole: &mut B::Buf) -> Result<(), Error>;

    /// Allocates what [`Collective::pass_on`] needs for up to `rows` rows of `cols` columns. The
    /// decoder calls it once, before anything is passed on.
    fn reserve_states(&mut self, _rows: usize, _cols: usize) {}

    /// Replaces the first `n` rows of `buf` by those of rank `from`.
    ///
    /// # Errors
    /// If a rank is lost.
    fn pass_on(&mut self, backend: &B, n: usize, from: usize, buf: &mut B::Buf) -> Result<(), Error>;

    /// Replaces the step's sampled tokens, [`OpenStep::outputs`] of them, by the ones that rank 0
    /// has sampled. The other ranks get token ids without log-probabilities.
    ///
    /// # Errors
    /// If a rank is lost.
    fn broadcast_sampled(&mut self, backend: &B, step: &mut OpenStep<'_, B::Queue>) -> Result<(), Error>;

    /// Checks whether all ranks have taken part so far. Waits neither for them nor for the device,
    /// so that it can be called at every step. A device that has waited in vain for another rank
    /// continues with wrong values until this check reports it.
    ///
    /// # Errors
    /// If a rank is known to be lost.
    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns a handle that ends the waits of this rank from any thread, and those of the other
    /// ranks as far as they can be reached.
    fn aborter(&self) -> Aborter;

    /// Returns a description for the operator of how activations are exchanged; empty where there
    /// is only one way.
    fn describe(&self) -> String {
        String::new()
    }
}
