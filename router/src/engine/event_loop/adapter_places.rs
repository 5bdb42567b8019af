//! The adapters of the shards: those that are loaded, and the one that is being loaded.

use millrace_scheduler::{AdapterId, SchedulerLimits};
use tokio::sync::oneshot;

use crate::engine::adapters::LoadError;
use crate::engine::kept_adapters::{KeptAdapter, LoadAnswers};

/// The adapters of the shards, and the one that is being loaded.
#[derive(Debug, Default)]
pub(super) struct AdapterPlaces {
    /// Adapters that have been loaded.
    pub(super) loaded: Vec<KeptAdapter>,
    pub(super) loading: Option<LoadingAdapter>,
    /// Adapters that were freed while a group was starting, which may have loaded them.
    pub(super) freed_during_start: Vec<AdapterId>,
}

/// An adapter for which not all ranks have answered.
#[derive(Debug)]
pub(super) struct LoadingAdapter {
    pub(super) adapter: KeptAdapter,
    pub(super) answers: LoadAnswers,
    pub(super) reply: oneshot::Sender<Result<(), LoadError>>,
}

impl AdapterPlaces {
    /// The adapters that the first group has loaded.
    pub(super) fn new(loaded: Vec<KeptAdapter>) -> Self {
        AdapterPlaces { loaded, ..AdapterPlaces::default() }
    }

    /// Tells whether sequences may name an adapter.
    pub(super) fn has(&self, id: AdapterId) -> bool {
        self.loaded.iter().any(|adapter| adapter.id == id)
    }

    /// Returns where the shards keep one more adapter: in a free place, or in host memory.
    ///
    /// # Errors
    /// If no more adapters may be loaded.
    pub(super) fn free_place(&self, limits: &SchedulerLimits) -> Result<Option<u32>, LoadError> {
        let &SchedulerLimits { adapters: places, max_loaded_adapters: most, .. } = limits;
        if most > places {
            return if self.loaded.len() < most { Ok(None) } else { Err(LoadError::NoMemory { most }) };
        }
        let is_free = |place: &u32| self.loaded.iter().all(|adapter| adapter.place != Some(*place));
        (0..places as u32).find(is_free).map(Some).ok_or(LoadError::NoPlace { places })
    }

    /// Removes an adapter. Returns whether it was loaded.
    pub(super) fn remove(&mut self, id: AdapterId) -> bool {
        let before = self.loaded.len();
        self.loaded.retain(|adapter| adapter.id != id);
        self.loaded.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::adapters::AdapterSource;

    #[test]
    fn the_first_free_place_is_used() {
        let kept = |id, place| KeptAdapter {
            id: AdapterId(id),
            place: Some(place),
            source: AdapterSource::Listed(0),
            identities: Vec::new(),
        };
        let mut places = AdapterPlaces::new(vec![kept(7, 0), kept(3, 2)]);
        let limits = |adapters, max_loaded_adapters| SchedulerLimits {
            adapters,
            max_loaded_adapters,
            ..crate::engine::tests::limits()
        };
        let full = |most| Err(LoadError::NoPlace { places: most });
        assert_eq!(
            (places.free_place(&limits(4, 4)), places.free_place(&limits(1, 1))),
            (Ok(Some(1)), full(1))
        );
        let in_memory = [places.free_place(&limits(1, 3)), places.free_place(&limits(1, 2))];
        assert_eq!(in_memory, [Ok(None), Err(LoadError::NoMemory { most: 2 })]);
        assert!(places.has(AdapterId(7)) && places.remove(AdapterId(7)) && !places.remove(AdapterId(7)));
        assert_eq!((places.free_place(&limits(4, 4)), places.has(AdapterId(7))), (Ok(Some(0)), false));
    }
}
