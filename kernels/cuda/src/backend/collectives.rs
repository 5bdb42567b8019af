//! The exchange of activations and tokens between the ranks of a group.

use millrace_backend::{ForwardOps, Norm, NormKind, OpenStep, Result};

use super::buffers::{Buf, Vector};
use super::cuda::Cuda;
use super::queue::Queue;
use crate::comm::DeviceCollectives;
use crate::ops::allreduce::{AllGatherColumns, AllReduceNorm};

impl Cuda {
    /// Replaces the first `n` rows by their sum over all ranks.
    ///
    /// # Errors
    /// The error of the ranks' exchange.
    pub fn all_reduce(&self, ranks: &DeviceCollectives, n: usize, buf: &mut Buf) -> Result<()> {
        ranks.all_reduce(buf.rows(n))
    }

    /// `residual += sum of branch over the ranks; out = norm(residual)` over the first `n` rows.
    ///
    /// # Errors
    /// The error of the ranks' exchange, or of the device.
    pub fn all_reduce_norm(
        &self,
        ranks: &DeviceCollectives,
        n: usize,
        residual: &mut Buf,
        branch: &mut Buf,
        norm: &Norm<Vector>,
        out: &mut Buf,
    ) -> Result<()> {
        if norm.kind != NormKind::Rms {
            // Only this norm has a kernel that also adds up the ranks' summands.
            self.all_reduce(ranks, n, branch)?;
            return self.add_norm(n, residual, branch, norm, out);
        }
        ranks.all_reduce_norm(&AllReduceNorm {
            rows: n,
            cols: branch.cols,
            eps: norm.eps,
            x: branch.rows(n),
            residual: residual.rows(n),
            weight: norm.weight.view(),
            out: out.rows(n),
        })
    }

    /// Puts the first `n` rows of all ranks' `part`s side by side into `whole`; columns that
    /// `whole` has no room for are padding. `gathered` has room for the rows of all ranks.
    ///
    /// # Errors
    /// The error of the ranks' exchange, or of the device.
    pub fn all_gather(
        &self,
        ranks: &DeviceCollectives,
        n: usize,
        part: &Buf,
        gathered: &mut Buf,
        whole: &mut Buf,
    ) -> Result<()> {
        let (part_cols, whole_cols) = (part.cols, whole.cols);
        let columns =
            AllGatherColumns { rows: n, part_cols, whole_cols, part: part.rows(n), whole: whole.rows(n) };
        ranks.all_gather(&columns, gathered.rows(ranks.world_size() * n))
    }

    /// Replaces the tokens that the step has sampled by those of rank 0. A rank that has not
    /// sampled itself gets tokens only, without log-probabilities.
    ///
    /// # Errors
    /// The error of the ranks' exchange.
    pub fn broadcast_sampled(&self, ranks: &DeviceCollectives, step: &mut OpenStep<'_, Queue>) -> Result<()> {
        ranks.broadcast(step.queue().sampled())
    }
}
