//! A decoder's membership in a group of ranks that compute one model together.

use std::time::{Duration, Instant};

use millrace_backend::{Backend, Norm, OpenStep};

use super::collective::Collective;
use crate::Error;

/// The ranks that compute a model together.
pub(super) enum RankGroup<B: Backend> {
    /// This rank computes the whole model.
    Alone,
    /// This rank has a share of each layer (tensor parallel).
    Member(GroupMember<B>),
    /// This rank has some of the layers (pipeline parallel).
    Pipeline(PipelineMember<B>),
}

/// A rank's connection to the other ranks of a pipeline.
pub(super) struct PipelineMember<B: Backend> {
    collective: Box<dyn Collective<B>>,
    /// Time in collectives since it was last taken.
    elapsed: Duration,
}

/// A rank's connection to the other ranks.
pub(super) struct GroupMember<B: Backend> {
    collective: Box<dyn Collective<B>>,
    /// This rank's columns of the logits, `[outputs, vocab_rows]`.
    pub(super) own_logits: B::Buf,
    /// Time in collectives since it was last taken.
    elapsed: Duration,
}

impl<B: Backend> RankGroup<B> {
    /// Allocates for up to `rows` rows of logits, of which this rank has `cols` columns.
    pub(super) fn new(
        collective: Option<Box<dyn Collective<B>>>,
        backend: &B,
        rows: usize,
        cols: usize,
    ) -> Result<Self, Error> {
        let Some(mut collective) = collective else { return Ok(RankGroup::Alone) };
        collective.reserve(backend, rows, cols)?;
        let own_logits = backend.logits(rows, cols)?;
        Ok(RankGroup::Member(GroupMember { collective, own_logits, elapsed: Duration::ZERO }))
    }

    /// Joins a pipeline, and allocates for up to `rows` hidden states of `cols` features.
    pub(super) fn pipeline(mut collective: Box<dyn Collective<B>>, rows: usize, cols: usize) -> Self {
        collective.reserve_states(rows, cols);
        RankGroup::Pipeline(PipelineMember { collective, elapsed: Duration::ZERO })
    }

    /// Returns the number of this rank and of all ranks, in a pipeline.
    pub(super) fn place_in_pipeline(&self) -> Option<(usize, usize)> {
        match self {
            RankGroup::Alone | RankGroup::Member(_) => None,
            RankGroup::Pipeline(member) => Some((member.collective.rank(), member.collective.world_size())),
        }
    }

    /// Gives all ranks of a pipeline the first `n` rows of rank `from`.
    pub(super) fn pass_on(
        &mut self,
        backend: &B,
        n: usize,
        from: usize,
        buf: &mut B::Buf,
    ) -> Result<(), Error> {
        match self {
            RankGroup::Alone | RankGroup::Member(_) => Ok(()),
            RankGroup::Pipeline(member) => {
                let since = Instant::now();
                member.collective.pass_on(backend, n, from, buf)?;
                member.elapsed += since.elapsed();
                Ok(())
            }
        }
    }

    /// Replaces `values` in host memory by their sums over all ranks.
    pub(super) fn sum(&mut self, values: &mut [f32]) -> Result<(), Error> {
        match self {
            RankGroup::Alone => Ok(()),
            RankGroup::Member(member) => member.collective.sum(values),
            RankGroup::Pipeline(member) => member.collective.sum(values),
        }
    }

    /// Replaces the summands of this rank in the first `n` rows of `buf` by the sum over all ranks.
    pub(super) fn all_reduce(&mut self, backend: &B, n: usize, buf: &mut B::Buf) -> Result<(), Error> {
        match self {
            RankGroup::Alone | RankGroup::Pipeline(_) => Ok(()),
            RankGroup::Member(member) => member.timed(|collective, _| collective.all_reduce(backend, n, buf)),
        }
    }

    /// `residual += branch; out = norm(residual)` over the first `n` rows, where `branch` is the
    /// sum over all ranks. Its contents are lost.
    pub(super) fn all_reduce_norm(
        &mut self,
        backend: &B,
        n: usize,
        residual: &mut B::Buf,
        branch: &mut B::Buf,
        norm: &Norm<B::Vector>,
        out: &mut B::Buf,
    ) -> Result<(), Error> {
        match self {
            RankGroup::Alone | RankGroup::Pipeline(_) => {
                Ok(backend.add_norm(n, residual, branch, norm, out)?)
            }
            RankGroup::Member(member) => member
                .timed(|collective, _| collective.all_reduce_norm(backend, n, residual, branch, norm, out)),
        }
    }

    /// Gives all ranks the tokens that the first rank has sampled in this step.
    pub(super) fn broadcast_sampled(
        &mut self,
        backend: &B,
        step: &mut OpenStep<'_, B::Queue>,
    ) -> Result<(), Error> {
        match self {
            RankGroup::Alone => Ok(()),
            RankGroup::Member(member) => {
                member.timed(|collective, _| collective.broadcast_sampled(backend, step))
            }
            RankGroup::Pipeline(member) => {
                let since = Instant::now();
                member.collective.broadcast_sampled(backend, step)?;
                member.elapsed += since.elapsed();
                Ok(())
            }
        }
    }

    /// Tells whether this rank samples the tokens. In a group only rank 0 does, because the logits
    /// of the other ranks may be rounded differently on another machine.
    pub(super) fn is_first(&self) -> bool {
        match self {
            RankGroup::Alone => true,
            RankGroup::Member(member) => member.collective.rank() == 0,
            RankGroup::Pipeline(member) => member.collective.rank() == 0,
        }
    }

    /// Checks whether all ranks have taken part so far, see [`Collective::check`].
    pub(super) fn check(&self) -> Result<(), Error> {
        match self {
            RankGroup::Alone => Ok(()),
            RankGroup::Member(member) => member.collective.check(),
            RankGroup::Pipeline(member) => member.collective.check(),
        }
    }

    /// Returns the time in collectives since the last call, including the time spent waiting for
    /// other ranks.
    pub(super) fn take_elapsed(&mut self) -> Duration {
        match self {
            RankGroup::Alone => Duration::ZERO,
            RankGroup::Member(member) => std::mem::take(&mut member.elapsed),
            RankGroup::Pipeline(member) => std::mem::take(&mut member.elapsed),
        }
    }
}

impl<B: Backend> GroupMember<B> {
    fn timed(
        &mut self,
        call: impl FnOnce(&mut dyn Collective<B>, &mut B::Buf) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let since = Instant::now();
        call(&mut *self.collective, &mut self.own_logits)?;
        self.elapsed += since.elapsed();
        Ok(())
    }

    /// Puts the columns of all ranks' logits side by side into `whole`, `[n, vocab]`.
    pub(super) fn gather_logits(&mut self, backend: &B, n: usize, whole: &mut B::Buf) -> Result<(), Error> {
        self.timed(|collective, own| collective.all_gather(backend, n, own, whole))
    }
}
