//! The state of an engine, from the states of its groups.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use super::ReadyGroups;
use crate::engine::event::EngineState;

/// The states of all groups.
#[derive(Debug)]
pub(in crate::engine) struct GroupStates {
    groups: Mutex<Vec<GroupState>>,
    ready: ReadyGroups,
    /// The state that clients see.
    shown: watch::Sender<EngineState>,
}

#[derive(Debug)]
struct GroupState {
    now: EngineState,
    /// Whether the group has ever been ready.
    was_ready: bool,
}

impl GroupStates {
    /// The states of groups that all have the state of `shown`.
    pub(in crate::engine) fn new(ready: ReadyGroups, shown: watch::Sender<EngineState>) -> Arc<Self> {
        let group = |_| GroupState { now: shown.borrow().clone(), was_ready: false };
        Arc::new(GroupStates { groups: Mutex::new((0..ready.len()).map(group).collect()), ready, shown })
    }
}

/// Reports the state of one group.
#[derive(Debug, Clone)]
pub(in crate::engine) struct StateReporter {
    states: Arc<GroupStates>,
    group: usize,
}

impl StateReporter {
    pub(in crate::engine) fn new(states: &Arc<GroupStates>, group: usize) -> Self {
        StateReporter { states: states.clone(), group }
    }

    /// Sets the state of the group, and shows the state of the engine that follows from it.
    pub(in crate::engine) fn set(&self, state: EngineState) {
        let GroupStates { groups, ready, shown } = &*self.states;
        let mut groups = groups.lock().unwrap_or_else(PoisonError::into_inner);
        let is_ready = matches!(state, EngineState::Ready(_));
        ready[self.group].store(is_ready, Ordering::Release);
        let own = &mut groups[self.group];
        own.was_ready |= is_ready;
        own.now = state;
        // It is sent under the lock, so that the last state that is sent is the newest one.
        shown.send_replace(combined(&groups));
    }
}

/// The state of an engine with these groups: it is ready when all groups have been loaded and one
/// of them is ready.
fn combined(groups: &[GroupState]) -> EngineState {
    let find = |wanted: fn(&GroupState) -> bool| {
        groups.iter().find(|group| wanted(group)).map(|group| group.now.clone())
    };
    let draining = find(|group| group.now == EngineState::Draining);
    let never_loaded = || find(|group| !group.was_ready && matches!(group.now, EngineState::Failed(_)));
    let loading = || find(|group| matches!(group.now, EngineState::Loading { .. }));
    // Every request that is accepted must fit on each group.
    let smallest = || {
        let ready = groups.iter().filter_map(|group| match &group.now {
            EngineState::Ready(ready) => Some(ready),
            _ => None,
        });
        ready.min_by_key(|ready| ready.num_blocks).map(|ready| EngineState::Ready(ready.clone()))
    };
    let recovering = || find(|group| matches!(group.now, EngineState::Recovering(_)));
    let failed = || find(|group| matches!(group.now, EngineState::Failed(_)));
    draining
        .or_else(never_loaded)
        .or_else(loading)
        .or_else(smallest)
        .or_else(recovering)
        .or_else(failed)
        .unwrap_or(EngineState::Draining)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use millrace_proto::Ready;

    use super::*;

    fn loading(phase: &str) -> EngineState {
        EngineState::Loading { phase: phase.into(), done: 0, total: 0 }
    }

    fn ready(num_blocks: u32) -> EngineState {
        EngineState::Ready(Arc::new(Ready { num_blocks, ..Ready::default() }))
    }

    fn failed(why: &str) -> EngineState {
        EngineState::Failed(why.into())
    }

    fn recovering() -> EngineState {
        EngineState::Recovering(Arc::new(Ready::default()))
    }

    fn three() -> (Vec<StateReporter>, watch::Receiver<EngineState>, ReadyGroups) {
        let flags: ReadyGroups = (0..3).map(|_| AtomicBool::new(false)).collect();
        let (shown, state) = watch::channel(loading("start"));
        let states = GroupStates::new(flags.clone(), shown);
        ((0..3).map(|group| StateReporter::new(&states, group)).collect(), state, flags)
    }

    #[test]
    fn an_engine_is_ready_when_all_groups_have_been_loaded() {
        let (groups, state, flags) = three();
        groups[1].set(ready(50));
        assert_eq!(*state.borrow(), loading("start"));
        groups[0].set(loading("weights"));
        groups[2].set(ready(40));
        assert_eq!(*state.borrow(), loading("weights"));
        groups[0].set(ready(60));
        assert_eq!(*state.borrow(), ready(40), "what fits there fits everywhere");
        assert!(flags.iter().all(|flag| flag.load(Ordering::Acquire)));
    }

    #[test]
    fn an_engine_is_ready_while_one_of_its_groups_is() {
        let (groups, state, flags) = three();
        groups.iter().for_each(|group| group.set(ready(50)));
        groups[0].set(recovering());
        groups[2].set(failed("lost three times"));
        assert_eq!(*state.borrow(), ready(50));
        let flags: Vec<bool> = flags.iter().map(|flag| flag.load(Ordering::Acquire)).collect();
        assert_eq!(flags, [false, true, false]);
        groups[1].set(recovering());
        assert_eq!(*state.borrow(), recovering());
        groups[0].set(failed("lost"));
        groups[1].set(failed("lost too"));
        assert_eq!(*state.borrow(), failed("lost"));
        groups[1].set(EngineState::Draining);
        assert_eq!(*state.borrow(), EngineState::Draining);
    }

    #[test]
    fn a_group_that_cannot_be_loaded_ends_the_start() {
        let (groups, state, _) = three();
        groups[0].set(ready(50));
        groups[1].set(failed("no such file"));
        assert_eq!(*state.borrow(), failed("no such file"));
        groups[2].set(ready(50));
        assert_eq!(*state.borrow(), failed("no such file"));
    }
}
