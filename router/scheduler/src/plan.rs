//! Planning the next step.

use std::time::Duration;

use millrace_proto::{AdapterPlacement, Row, Step};

use super::cost_model::StepLoad;
use super::disk_copies::StepCopies;
use super::frame_budget::FrameBudget;
use super::id::AdapterId;
use super::in_flight::{RowInFlight, StepInFlight};
use super::output::{Admitted, PlannedStep};
use super::prompt_shares;
use super::running::RunningSequence;
use super::state::Scheduler;

impl Scheduler {
    /// Plans the next step, or returns `None` if there is nothing to run before more answers have
    /// come in.
    pub fn plan(&mut self) -> Option<PlannedStep> {
        self.read_for_drafts();
        if self.waits_for_drafts() {
            return None;
        }
        self.share_step();
        let planned = self.plan_rows();
        // If none of the chosen rows can run, others may.
        let planned = if planned.is_none() && self.release_held() { self.plan_rows() } else { planned };
        planned.or_else(|| self.plan_copies_alone())
    }

    /// Plans a step without rows, if blocks are to be copied.
    fn plan_copies_alone(&mut self) -> Option<PlannedStep> {
        let mut bytes = FrameBudget::for_decodes(&self.limits);
        let copies = self.plan_copies(false, &mut bytes);
        (!copies.is_empty()).then(|| self.send(Vec::new(), Vec::new(), copies))
    }

    /// Plans the rows that are not held.
    fn plan_rows(&mut self) -> Option<PlannedStep> {
        let mut bytes = FrameBudget::for_decodes(&self.limits);
        self.schedule_decodes(&mut bytes);
        bytes.add_prompts_half();
        let admitted = match self.quarantine.is_empty() {
            true => self.admit(&mut bytes),
            false => self.admit_from_quarantine(),
        };
        self.schedule_prefills(&mut bytes);
        self.schedule_drafts(&mut bytes);
        self.reserve_checkpoints();

        // The first copy to a checkpoint may touch its memory for the first time, which takes
        // longer than any later one.
        let is_usual = !self.running.iter().any(RunningSequence::is_first_keep);
        let next_step = self.next_step;
        let mut rows: Vec<_> = self
            .running
            .iter_mut()
            .filter_map(|running| {
                let (row, expected) = running.take_row()?;
                running.last_step = next_step;
                Some((running.sequence.is_decode(&row), row, expected))
            })
            .collect();
        if rows.is_empty() {
            debug_assert!(admitted.is_empty(), "an admitted sequence always has a row");
            return None;
        }
        // The protocol requires decodes before chunks of prompts.
        rows.sort_by_key(|(decodes, ..)| !decodes);
        let decodes = rows.first().is_some_and(|&(decodes, ..)| decodes);
        let copies = self.plan_copies(decodes, &mut bytes);
        let rows = rows.into_iter().map(|(_, row, expected)| (row, expected)).collect();
        let planned = self.send(admitted, rows, copies);
        if let Some(step) = self.in_flight.back_mut().filter(|_| !is_usual) {
            step.load = StepLoad::default();
        }
        Some(planned)
    }

    /// Makes a step of its parts, and notes that it is in flight.
    fn send(
        &mut self,
        admitted: Vec<Admitted>,
        rows: Vec<(Row, RowInFlight)>,
        copies: StepCopies,
    ) -> PlannedStep {
        let admit = admitted.iter().filter_map(|new| self.position(new.sequence));
        let admit = admit.map(|index| self.running[index].admission()).collect();
        let id = self.next_step;
        self.next_step += 1;
        let (rows, expected): (Vec<_>, _) = rows.into_iter().unzip();
        let mut load = StepLoad::default();
        rows.iter().for_each(|row| load.add_row(row));
        let computes = if rows.is_empty() { 0.0 } else { self.costs.predict(&load) };
        let duration = Duration::from_micros((computes + self.predict_copies(&copies)) as u64);
        let release = self.released.drain(..).map(|slot| slot.0).collect();
        let placed = self.adapter_places.take_placed().into_iter();
        let adapters = placed
            .map(|(AdapterId(adapter), place)| AdapterPlacement { adapter, place: place as u32 })
            .collect();
        let mut step = Step { id, release, adapters, admit, rows, ..Step::default() };
        let copies = copies.add_to(&mut step);
        self.in_flight.push_back(StepInFlight::new(id, expected, load, copies));
        PlannedStep { step, admitted, duration }
    }

    /// Plans one token for each sequence that decodes, first sequence first. If blocks run out, the
    /// last running sequence is preempted, which may be the one that needs the block. A sequence
    /// whose row does not fit the messages is considered again beside the prompts, or waits for the
    /// next step.
    fn schedule_decodes(&mut self, bytes: &mut FrameBudget) {
        let mut index = 0;
        while let Some(running) = self.running.get_mut(index) {
            let decodes = running.remaining() == 1 && !running.held;
            let positions = running.positions_after(1);
            if !decodes || self.cache.cover(&mut running.table, positions) {
                running.plan(usize::from(decodes), &self.limits, bytes);
                index += 1;
            } else if !self.drop_spares() && !self.abandon_restore() {
                self.preempt_last();
            }
        }
    }

    /// Frees blocks of which the tree and a sequence both have a copy. Returns whether there were
    /// any.
    fn drop_spares(&mut self) -> bool {
        let Scheduler { running, cache, .. } = self;
        running.iter().fold(false, |any, running| cache.drop_spares(&running.table) | any)
    }

    fn preempt_last(&mut self) {
        if let Some(last) = self.running.len().checked_sub(1) {
            let sequence = self.vacate(last);
            self.waiting.insert(sequence);
            self.preemptions += 1;
        }
    }

    /// Shares the budget for prompts among them.
    fn schedule_prefills(&mut self, bytes: &mut FrameBudget) {
        let prompts = self.running.iter().filter(|running| running.is_prefill());
        let needs: Vec<_> = prompts.map(|running| self.prompt_need(running)).collect();
        let shares = prompt_shares::share(&needs, self.prompt_budget(&[]));
        let prompts = self.running.iter_mut().filter(|running| running.is_prefill());
        for (running, tokens) in prompts.zip(shares) {
            running.plan(tokens, &self.limits, bytes);
        }
    }

    /// Remaining tokens of the running sequences that have something to run and no row yet.
    pub(super) fn remaining_prefills(&self) -> Vec<usize> {
        let prefills = self.running.iter().filter(|running| running.is_prefill());
        prefills.map(RunningSequence::remaining).collect()
    }

    /// Number of tokens that are left of the step's budget.
    pub(super) fn unplanned_tokens(&self) -> usize {
        let planned: usize = self.running.iter().map(RunningSequence::planned_tokens).sum();
        self.limits.max_step_tokens - planned
    }
}
