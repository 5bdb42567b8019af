//! The passing of hidden states from rank to rank, where each rank has some of the layers.

use millrace_backend::{Backend, Norm};

use super::group::RankGroup;
use super::stage::Stage;
use super::step::StageStep;
use super::workspace::HiddenStates;
use crate::Error;

/// Returns the stages of rank `place.0` of `place.1` ranks, whose layers are `own`. The rank with
/// the head ends with the norm `end`, if there is one.
pub(super) fn stages<B: Backend>(
    own: Box<dyn Stage<B>>,
    end: Option<Norm<B::Vector>>,
    (rank, world_size): (usize, usize),
) -> Vec<Box<dyn Stage<B>>> {
    let (mut own, mut stages) = (Some(own), Vec::new());
    for from in 0..world_size {
        if from == rank {
            stages.extend(own.take());
        }
        stages.push(Box::new(Handover { from }) as _);
    }
    if rank == 0 {
        stages.push(Box::new(PipelineEnd { norm: end }));
    }
    stages
}

/// The place in a pipeline at which a rank has computed its layers: all ranks get its hidden
/// states.
///
/// Only the next rank computes with them, and rank 0 after the last one. The others take part
/// because every rank calls the same collectives.
struct Handover {
    /// The rank that has computed its layers.
    from: usize,
}

impl<B: Backend> Stage<B> for Handover {
    fn is_recordable(&self) -> bool {
        // States may travel through the memory of the host.
        false
    }

    fn forward(
        &mut self,
        step: &StageStep<'_, B>,
        states: &mut HiddenStates<B>,
        group: &mut RankGroup<B>,
    ) -> Result<(), Error> {
        group.pass_on(step.backend, step.tokens, self.from, &mut states.residual)
    }
}

/// The end of a pipeline, on the rank that has the head: the norm after the last layer, if there is
/// one.
struct PipelineEnd<B: Backend> {
    norm: Option<Norm<B::Vector>>,
}

impl<B: Backend> Stage<B> for PipelineEnd<B> {
    fn forward(
        &mut self,
        step: &StageStep<'_, B>,
        states: &mut HiddenStates<B>,
        _group: &mut RankGroup<B>,
    ) -> Result<(), Error> {
        let &StageStep { backend, tokens: n, .. } = step;
        let HiddenStates { residual, normed } = states;
        match &self.norm {
            Some(norm) => backend.norm(n, residual, norm, normed)?,
            None => backend.copy_rows(residual, 0, n, normed, 0)?,
        }
        Ok(())
    }
}
