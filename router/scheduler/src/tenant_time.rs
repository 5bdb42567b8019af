//! How tenants share the time of a step.
//!
//! All rows of a step are computed together, so the stream of one tenant waits for the rows of all
//! others. A tenant with many rows and long prompts could make the steps of another tenant last as
//! long as it likes. While several tenants have work, a step is therefore limited to a multiple of
//! the time that the tenant with the least work would need for a step of its own: one time for each
//! tenant, and one more, so that a step is not much less efficient.
//!
//! The tenant with the least work always runs completely. Rows of the others that do not fit the
//! limit are *held*: they run in a later step, the one that has waited for the longest time first.
//! Prompts get what the decode rows leave, and at least half of the limit.
//!
//! A tenant counts for some steps after its last sequence has ended, because a client that sends
//! one request after the other is absent for a moment only. Without that, its next request would
//! wait for the long steps that are planned meanwhile.
//!
//! Priorities are above shares: the limit is that of a tenant with the highest priority. With one
//! tenant, and until the shards have reported the time of a step, nothing is limited.

use std::collections::BTreeMap;

use super::cost_model::StepLoad;
use super::present_tenants::MAX_PRESENT;
use super::prompt_budget::MIN_EFFICIENT_TOKENS;
use super::request::{Priority, Tenant};
use super::running::RunningSequence;
use super::sequence::Sequence;
use super::state::Scheduler;

/// Number of steps for which a tenant without sequences counts.
const PRESENT_STEPS: u64 = 64;
/// The work of a tenant in the next step.
#[derive(Debug, Default)]
struct TenantWork {
    /// The rows that decode and the beginnings of the prompts.
    all: StepLoad,
    /// The indices of the running sequences that decode.
    decodes: Vec<usize>,
}

impl Scheduler {
    /// Limits the time of the step being planned if several tenants share it, and holds the rows
    /// that do not fit.
    pub(super) fn share_step(&mut self) {
        self.release_held();
        self.note_present();
        if self.present.len() < 2 || !self.costs.is_known() {
            return;
        }
        let works = self.tenant_works();
        let tenants = self.present.len();
        let first_priority = works.keys().map(|(priority, _)| *priority).min();
        let absent = self.present.iter().any(|known| works.keys().all(|(_, tenant)| tenant != known));
        let own_times = works.iter().filter(|((priority, _), _)| Some(*priority) == first_priority);
        let own_times = own_times.map(|(_, work)| self.costs.predict(&work.all));
        let expected = absent.then(|| self.costs.predict(&one_row()));
        let Some(least) = own_times.chain(expected).min_by(f64::total_cmp) else { return };
        let limit = least * (tenants + 1) as f64;
        self.step_limit = Some(limit);
        self.hold_rows(works, least, limit);
    }

    /// Lets the rows of all tenants run in the step being planned. Returns whether any was held.
    pub(super) fn release_held(&mut self) -> bool {
        self.step_limit = None;
        self.running.iter_mut().fold(false, |any, running| std::mem::take(&mut running.held) | any)
    }

    /// Whether no running prompt belongs to this tenant, and other tenants share the steps.
    pub(super) fn has_prompt_share(&self, tenant: &Tenant) -> bool {
        let mut prompts = self.running.iter().filter(|running| running.is_prefill());
        self.step_limit.is_some()
            && !self.limits.needs_whole_prompts()
            && prompts.all(|running| running.sequence.tenant != *tenant)
    }

    fn note_present(&mut self) {
        let step = self.next_step;
        for running in &self.running {
            self.present.note(&running.sequence.tenant, step);
        }
        let waiting: Vec<Tenant> =
            self.first_waiting().into_iter().map(|sequence| sequence.tenant.clone()).collect();
        waiting.iter().for_each(|tenant| self.present.note(tenant, step));
        self.present.forget_before(step.saturating_sub(PRESENT_STEPS));
    }

    /// The first waiting sequence of each tenant, if one without a slot may be admitted.
    fn first_waiting(&self) -> Vec<&Sequence> {
        let mut first: Vec<&Sequence> = Vec::new();
        if self.admits_new_tenants() {
            let count = if self.waiting.tenants().len() > 1 { MAX_PRESENT } else { 1 };
            for sequence in self.admission_order(count).iter().filter_map(|&id| self.waiting.get(id)) {
                if first.iter().all(|known| known.tenant != sequence.tenant) {
                    first.push(sequence);
                }
            }
        }
        first
    }

    /// The work of each tenant in the next step, by the priority of its sequences.
    fn tenant_works(&self) -> BTreeMap<(Priority, Tenant), TenantWork> {
        let prompt_tokens = self.costs.efficient_tokens().max(MIN_EFFICIENT_TOKENS);
        let mut works: BTreeMap<(Priority, Tenant), TenantWork> = BTreeMap::new();
        for (index, running) in self.running.iter().enumerate() {
            let remaining = running.remaining();
            if remaining == 0 {
                continue;
            }
            let sequence = &running.sequence;
            let work = works.entry((sequence.priority, sequence.tenant.clone())).or_default();
            if running.is_decoding() {
                running.add_decode(&mut work.all);
                work.decodes.push(index);
            } else {
                let tokens = remaining.min(prompt_tokens);
                work.all.add(running.positions_after(0), tokens, tokens == remaining);
            }
        }
        for first in self.first_waiting() {
            if works.keys().all(|(_, tenant)| *tenant != first.tenant) {
                let work = works.entry((first.priority, first.tenant.clone())).or_default();
                work.all.add(0, first.len().min(prompt_tokens), true);
            }
        }
        works
    }

    /// Holds the decode rows that do not fit the limit. A tenant runs completely if its own step
    /// takes no more than `least`, and at least one of its rows otherwise.
    fn hold_rows(&mut self, works: BTreeMap<(Priority, Tenant), TenantWork>, least: f64, limit: f64) {
        let is_prompt = |running: &RunningSequence| running.remaining() > 0 && !running.is_decoding();
        let has_prompts = !self.free_slots.is_empty() && !self.waiting.is_empty()
            || self.running.iter().any(is_prompt)
            || works.values().any(|work| work.decodes.is_empty());
        let empty = self.costs.predict(&StepLoad::default());
        let mut left = if has_prompts { limit / 2.0 } else { limit } - empty;
        let mut works: Vec<_> = works
            .into_iter()
            .map(|((priority, _), work)| (priority, self.costs.predict(&work.all), work.decodes))
            .collect();
        works.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        for index in 0..works.len() {
            let (priority, own_time, decodes) = &mut works[index];
            let (priority, is_least, mut decodes) = (*priority, *own_time <= least, std::mem::take(decodes));
            let sharing = works[index..].iter().filter(|other| other.0 == priority).count();
            let share = left / sharing as f64;
            decodes.sort_by_key(|&index| (self.running[index].last_step, self.running[index].sequence.id));
            let (mut spent, mut fits) = (0.0, true);
            for (count, row) in decodes.into_iter().enumerate() {
                let mut load = StepLoad::default();
                self.running[row].add_decode(&mut load);
                let cost = self.costs.predict_additional(&load);
                // A cheaper row does not pass one that has waited for longer.
                fits &= count == 0 || spent + cost <= share;
                let runs = is_least || fits;
                self.running[row].held = !runs;
                spent += if runs { cost } else { 0.0 };
            }
            left = (left - spent).max(0.0);
        }
    }
}

/// The load of a step of one short stream.
fn one_row() -> StepLoad {
    let mut load = StepLoad::default();
    load.add(0, 1, true);
    load
}
