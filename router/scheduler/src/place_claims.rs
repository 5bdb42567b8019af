//! The claims of waiting sequences on places for adapters.
//!
//! The rules are those of [`adapter_places`](super::adapter_places).

use super::adapter_places::{PlaceClaim, PlaceClaims};
use super::id::{AdapterId, SeqId};
use super::running::RunningSequence;
use super::sequence::Sequence;
use super::state::Scheduler;

impl Scheduler {
    /// Frees the place of an adapter, if it has one. The sequences with it have ended.
    pub fn unload_adapter(&mut self, adapter: AdapterId) {
        self.adapter_places.unload(adapter);
    }

    /// The claims of the `candidates`, which are in the order of admission.
    pub(super) fn place_claims(&self, candidates: &[SeqId]) -> PlaceClaims {
        let places = &self.adapter_places;
        if places.count() == 0 {
            return PlaceClaims::default();
        }
        let ends: Vec<Option<usize>> = (0..places.count()).map(|index| self.place_end(index)).collect();
        let mut owners = vec![None; places.count()];
        let with_adapter = candidates.iter().filter_map(|&id| Some((id, self.waiting.get(id)?.adapter?)));
        let claims = with_adapter.map(|(id, adapter)| (id, places.claim(adapter, &mut owners, &ends)));
        claims.collect()
    }

    /// Whether a waiting sequence with this claim has a place when the running sequences with the
    /// indices `leaving` have left.
    pub(super) fn has_place(&self, claim: Option<PlaceClaim>, leaving: &[usize]) -> bool {
        match claim {
            None | Some(PlaceClaim::Free(_)) => true,
            Some(PlaceClaim::Busy(_)) => {
                !self.staying(leaving).any(|running| self.is_in_claimed_place(running, claim))
            }
            Some(PlaceClaim::Behind) => false,
        }
    }

    /// Whether a running sequence must leave before the place of this claim is free.
    pub(super) fn is_in_claimed_place(&self, running: &RunningSequence, claim: Option<PlaceClaim>) -> bool {
        match claim {
            Some(PlaceClaim::Busy(index)) => running.sequence.adapter == self.adapter_places.held(index),
            _ => false,
        }
    }

    /// Puts the adapter of a sequence that is admitted into the place that it has claimed.
    pub(super) fn use_place(&mut self, sequence: &Sequence, claim: Option<PlaceClaim>) {
        if let (Some(adapter), Some(PlaceClaim::Free(index) | PlaceClaim::Busy(index))) =
            (sequence.adapter, claim)
        {
            self.adapter_places.put(adapter, index);
        }
    }

    /// Number of tokens after which the last sequence in a place ends, if none of them ends early.
    /// `None` if there is none.
    fn place_end(&self, index: usize) -> Option<usize> {
        let held = self.adapter_places.held(index)?;
        let inside = self.running.iter().filter(|running| running.sequence.adapter == Some(held));
        inside
            .map(|running| (running.sequence.max_positions() + 1).saturating_sub(running.sequence.len()))
            .max()
    }

    /// Checks that each running sequence has a place.
    ///
    /// # Errors
    /// A description of the broken invariant.
    pub(super) fn check_places(&self) -> Result<(), String> {
        let places = &self.adapter_places;
        let held: Vec<AdapterId> = (0..places.count()).filter_map(|index| places.held(index)).collect();
        let in_places = |adapter: &AdapterId| held.iter().filter(|other| *other == adapter).count();
        if let Some(twice) = held.iter().find(|adapter| in_places(adapter) > 1) {
            return Err(format!("{twice:?} is in two places"));
        }
        let mut used = self.running.iter().filter_map(|running| running.sequence.adapter);
        match used.find(|adapter| places.count() > 0 && in_places(adapter) == 0) {
            Some(adapter) => Err(format!("a sequence runs with {adapter:?}, which is in no place")),
            None => Ok(()),
        }
    }
}
