//! A scheduler and a pretend shard that answers at once.

use super::token;
use crate::test_support::{PretendShard, alone};
use crate::{
    Finish, PlannedStep, Request, Scheduler, SchedulerLimits, SchedulerOptions, SeqId, SequenceOutput,
};

/// The tokens of a sequence, and the reason of its end.
pub(super) type Text = (Vec<u32>, Option<Finish>);

/// A scheduler with its shard. Each step is answered at once.
pub(super) struct Pair {
    pub(super) scheduler: Scheduler,
    pub(super) shard: PretendShard,
}

impl Pair {
    pub(super) fn new(limits: SchedulerLimits) -> Self {
        Pair::with(limits, SchedulerOptions::default())
    }

    pub(super) fn with(limits: SchedulerLimits, options: SchedulerOptions) -> Self {
        Pair { scheduler: Scheduler::new(limits, options), shard: PretendShard::new(limits) }
    }

    pub(super) fn add(&mut self, request: &Request) -> SeqId {
        self.scheduler.add(request.clone()).expect("it fits")
    }

    pub(super) fn step(&mut self) -> Option<(PlannedStep, Vec<SequenceOutput>)> {
        let plan = self.scheduler.plan()?;
        let output = self.shard.run(&plan.step).expect("the step keeps the contract");
        let outputs = self.scheduler.apply(output).expect("the answer is well formed");
        self.scheduler.check_integrity().expect("integrity");
        Some((plan, outputs))
    }

    /// Runs until nothing is left to run. Returns the tokens and the end of each of `ids`, and the
    /// number of steps.
    pub(super) fn run(&mut self, ids: &[SeqId]) -> (Vec<Text>, usize) {
        let (mut got, mut steps) = (vec![(Vec::new(), None); ids.len()], 0);
        while let Some((_, outputs)) = self.step() {
            steps += 1;
            for output in outputs {
                let of = ids.iter().position(|&known| known == output.sequence).expect("a known id");
                got[of].0.push(token(&output));
                got[of].1 = output.finish;
            }
        }
        (got, steps)
    }

    /// Runs `request` until nothing is left to run. Returns the number of its cached tokens.
    pub(super) fn complete(&mut self, request: &Request) -> usize {
        let id = self.add(request);
        let (mut cached, mut tokens) = (None, Vec::new());
        while let Some((plan, outputs)) = self.step() {
            cached = cached.or_else(|| cached_tokens(&plan, id));
            let own = outputs.into_iter().filter(|output| output.sequence == id);
            tokens.extend(own.map(|output| token(&output)));
        }
        assert_eq!(tokens, alone(request, 100).0);
        cached.expect("it was admitted")
    }
}

/// Number of cached tokens of a sequence, if this plan admits it.
pub(super) fn cached_tokens(plan: &PlannedStep, id: SeqId) -> Option<usize> {
    plan.admitted.iter().find(|admitted| admitted.sequence == id).map(|admitted| admitted.cached_tokens)
}
