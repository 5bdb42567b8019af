//! Places for adapters, if more adapters are loaded than the shards have places for.
//!
//! All loaded adapters are in the host memory of the shards. A sequence with an adapter runs only
//! while its adapter is in a place. A step copies adapters into places in which no sequence runs
//! with another adapter.
//!
//! # Who gets a place
//!
//! In each plan, the waiting sequences *claim* places in the order of admission. A sequence claims
//! the place that holds its adapter. If its adapter is in no place, it claims one that no sequence
//! before it has claimed: an empty one, or else the one that has been unused for the longest time,
//! or else the one whose sequences end first. Sequences with the same adapter share a claim.
//!
//! A sequence whose place has been claimed for another adapter is not admitted, so the sequences in
//! a claimed place become fewer until it is free. A stream of requests for adapters that are in
//! places can therefore not keep out an adapter that is in none. Sequences whose place nobody
//! claims, and sequences without an adapter, are admitted meanwhile.
//!
//! The claim of the first sequence in order is on the place that is free first, and no sequence
//! behind it enters that place. The time until a place is free therefore falls from plan to plan,
//! and the first sequence always gets its place.
//!
//! A sequence that waits for a place is not overtaken in the sense of
//! [`admission`](super::admission): whatever runs meanwhile does not delay it. When its place is
//! free, it counts as any other sequence that waits for blocks.

use std::collections::HashMap;

use super::id::{AdapterId, SeqId};
use super::limits::SchedulerLimits;

/// The places of the shards.
#[derive(Debug, Default)]
pub(super) struct AdapterPlaces {
    /// Empty if each loaded adapter has a place of its own. Then no sequence waits for one.
    places: Vec<AdapterPlace>,
    /// The adapters, with the indices of their places, that the step being planned copies.
    placed: Vec<(AdapterId, usize)>,
}

#[derive(Debug, Clone, Default)]
struct AdapterPlace {
    adapter: Option<AdapterId>,
    /// The step before which the last sequence left the place.
    last_used: u64,
}

/// The claim of a waiting sequence with an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlaceClaim {
    /// The sequence can use this place now.
    Free(usize),
    /// The sequence can use this place when the sequences with the adapter in it have left.
    Busy(usize),
    /// All places that the sequence could use are claimed by sequences before it.
    Behind,
}

/// The claims of the waiting sequences that have an adapter.
#[derive(Debug, Default)]
pub(super) struct PlaceClaims(HashMap<SeqId, PlaceClaim>);

impl PlaceClaims {
    /// The claim of a sequence. `None` if it needs no place.
    pub(super) fn get(&self, id: SeqId) -> Option<PlaceClaim> {
        self.0.get(&id).copied()
    }

    /// Whether a sequence waits for a place.
    pub(super) fn waits(&self, id: SeqId) -> bool {
        !matches!(self.get(id), None | Some(PlaceClaim::Free(_)))
    }
}

impl FromIterator<(SeqId, PlaceClaim)> for PlaceClaims {
    fn from_iter<I: IntoIterator<Item = (SeqId, PlaceClaim)>>(claims: I) -> Self {
        PlaceClaims(claims.into_iter().collect())
    }
}

impl AdapterPlaces {
    /// Empty places.
    pub(super) fn new(limits: &SchedulerLimits) -> Self {
        let is_needed = limits.max_loaded_adapters > limits.adapters;
        let count = if is_needed { limits.adapters } else { 0 };
        AdapterPlaces { places: vec![AdapterPlace::default(); count], placed: Vec::new() }
    }

    /// Number of places; zero if no sequence waits for one.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// The adapter in a place.
    pub(super) fn held(&self, index: usize) -> Option<AdapterId> {
        self.places[index].adapter
    }

    /// Frees the place of an adapter, if it has one.
    pub(super) fn unload(&mut self, adapter: AdapterId) {
        for place in &mut self.places {
            if place.adapter == Some(adapter) {
                *place = AdapterPlace::default();
            }
        }
    }

    /// Notes that a sequence with this adapter has left its place.
    pub(super) fn note_use(&mut self, adapter: Option<AdapterId>, step: u64) {
        if let Some(adapter) = adapter
            && let Some(place) = self.places.iter_mut().find(|place| place.adapter == Some(adapter))
        {
            place.last_used = step;
        }
    }

    /// Takes the adapters that the step copies, with the indices of their places.
    pub(super) fn take_placed(&mut self) -> Vec<(AdapterId, usize)> {
        std::mem::take(&mut self.placed)
    }

    /// Puts an adapter into a place in which no other one is used.
    pub(super) fn put(&mut self, adapter: AdapterId, index: usize) {
        if self.places[index].adapter != Some(adapter) {
            self.places[index].adapter = Some(adapter);
            self.placed.push((adapter, index));
        }
    }

    /// The claim of the next sequence in order, whose adapter this is. `owners` are the adapters
    /// for which the places have been claimed, and `ends` are the numbers of tokens after which the
    /// sequences in the places end; `None` if there are none.
    pub(super) fn claim(
        &self,
        adapter: AdapterId,
        owners: &mut [Option<AdapterId>],
        ends: &[Option<usize>],
    ) -> PlaceClaim {
        let claimed = owners.iter().position(|owner| *owner == Some(adapter));
        let own = self.places.iter().position(|place| place.adapter == Some(adapter));
        let index = match (claimed, own) {
            (Some(index), _) => index,
            (None, Some(index)) if owners[index].is_none() => index,
            (None, Some(_)) => return PlaceClaim::Behind,
            (None, None) => {
                let unclaimed = (0..self.places.len()).filter(|&index| owners[index].is_none());
                let order = |&index: &usize| {
                    let AdapterPlace { adapter, last_used } = &self.places[index];
                    (ends[index], adapter.is_some(), *last_used)
                };
                let Some(index) = unclaimed.min_by_key(order) else { return PlaceClaim::Behind };
                index
            }
        };
        owners[index] = Some(adapter);
        let is_free = self.places[index].adapter == Some(adapter) || ends[index].is_none();
        if is_free { PlaceClaim::Free(index) } else { PlaceClaim::Busy(index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(held: &[(Option<u32>, u64)]) -> AdapterPlaces {
        let place = |&(adapter, last_used): &(Option<u32>, u64)| AdapterPlace {
            adapter: adapter.map(AdapterId),
            last_used,
        };
        AdapterPlaces { places: held.iter().map(place).collect(), placed: Vec::new() }
    }

    /// The claims of sequences with these adapters, in order.
    fn claims(places: &AdapterPlaces, ends: &[Option<usize>], adapters: &[u32]) -> Vec<PlaceClaim> {
        let mut owners = vec![None; ends.len()];
        adapters.iter().map(|&adapter| places.claim(AdapterId(adapter), &mut owners, ends)).collect()
    }

    #[test]
    fn the_place_that_is_unused_for_the_longest_time_is_claimed_first() {
        use PlaceClaim::{Behind, Busy, Free};
        let three = places(&[(Some(1), 7), (Some(2), 5), (Some(3), 0)]);
        assert_eq!(
            claims(&three, &[None, None, Some(9)], &[8, 9, 10, 11]),
            [Free(1), Free(0), Busy(2), Behind]
        );
        let with_empty = places(&[(Some(1), 2), (None, 3)]);
        assert_eq!(claims(&with_empty, &[None, None], &[8, 8, 9]), [Free(1), Free(1), Free(0)]);
    }

    #[test]
    fn nobody_enters_a_place_that_is_claimed_for_another_adapter() {
        use PlaceClaim::{Behind, Busy, Free};
        let two = places(&[(Some(1), 0), (Some(2), 0)]);
        let ends = [Some(5), Some(3)];
        // The sequences of adapter 2 end first.
        assert_eq!(claims(&two, &ends, &[7, 2, 1, 7]), [Busy(1), Behind, Free(0), Busy(1)]);
        // A sequence before it keeps its place.
        assert_eq!(claims(&two, &ends, &[2, 7, 2, 1]), [Free(1), Busy(0), Free(1), Behind]);
    }
}
