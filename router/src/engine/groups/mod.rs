//! Several groups of shards behind one router (`--replicas`). Each group has the whole model, and
//! an event loop with a scheduler of its own.
//!
//! A request runs on one group. It goes where it has the least to wait for: the prompts before it,
//! and the part of its own prompt that is not in the group's prefix cache. When a group is lost or
//! restarted, its requests move to the others with the tokens that they have so far.
//!
//! | module | purpose |
//! |---|---|
//! | `load` | the work of each group |
//! | `prefixes` | the prefixes that each group has computed |
//! | `states` | the state of the engine, from the states of its groups |
//! | `restart` | restarts the groups one after the other |

mod load;
mod prefixes;
mod restart;
mod states;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_scheduler::BlockHashes;
use tokio::sync::mpsc;

use super::adapters::{AdapterCommand, LoadError};
use super::command::EngineCommand;

pub(super) use self::load::GroupPlace;
use self::load::{ANSWER, GroupLoad};
use self::prefixes::PrefixMap;
pub use self::restart::RestartError;
pub(super) use self::states::{GroupStates, StateReporter};

/// Whether each group is ready.
pub(super) type ReadyGroups = Arc<[AtomicBool]>;

/// The groups of an engine.
#[derive(Debug)]
pub(super) struct Groups {
    groups: Vec<Group>,
    ready: ReadyGroups,
    /// The prefixes that the groups have; `None` if there is one group.
    prefixes: Option<Mutex<PrefixMap>>,
    /// The group that is looked at first, so that groups without work get requests in turn.
    next: AtomicUsize,
    /// Held while the groups are restarted.
    restarting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Group {
    commands: mpsc::UnboundedSender<EngineCommand>,
    load: Arc<GroupLoad>,
}

/// A request that looks for a group.
pub(super) struct Candidate<'a> {
    /// Number of its tokens.
    pub(super) tokens: usize,
    /// The hashes of their blocks, if they are known.
    pub(super) hashes: Option<&'a BlockHashes>,
}

/// The group that was chosen for a request.
pub(super) struct Chosen {
    /// Where the request is sent.
    pub(super) commands: mpsc::UnboundedSender<EngineCommand>,
    /// Counts the request as work of the group.
    pub(super) place: GroupPlace,
}

impl Groups {
    /// The groups whose event loops receive these commands.
    pub(super) fn new(commands: Vec<mpsc::UnboundedSender<EngineCommand>>, ready: ReadyGroups) -> Self {
        let prefixes = (commands.len() > 1).then(|| Mutex::new(PrefixMap::new(commands.len())));
        let groups = commands.into_iter().map(|commands| Group { commands, load: Arc::default() }).collect();
        Groups {
            groups,
            ready,
            prefixes,
            next: AtomicUsize::new(0),
            restarting: tokio::sync::Mutex::default(),
        }
    }

    /// The channels to all event loops.
    pub(super) fn commands(&self) -> impl ExactSizeIterator<Item = &mpsc::UnboundedSender<EngineCommand>> {
        self.groups.iter().map(|group| &group.commands)
    }

    /// Chooses a group for a new request. If no group is ready, the request waits for one that is
    /// not.
    pub(super) fn choose(&self, candidate: &Candidate<'_>) -> Chosen {
        let is_ready = |group: usize| self.ready[group].load(Ordering::Acquire);
        let any_ready = (0..self.groups.len()).any(is_ready);
        self.choose_among(candidate, |group| !any_ready || is_ready(group))
            .unwrap_or_else(|| self.enter(0, 0))
    }

    /// Chooses a group that is ready and is not `lost`. Returns `None` if there is none.
    pub(super) fn choose_other(&self, lost: usize, candidate: &Candidate<'_>) -> Option<Chosen> {
        self.choose_among(candidate, |group| group != lost && self.ready[group].load(Ordering::Acquire))
    }

    /// Whether another group than this one is ready.
    pub(super) fn has_other(&self, lost: usize) -> bool {
        (0..self.groups.len()).any(|group| group != lost && self.ready[group].load(Ordering::Acquire))
    }

    /// Chooses a group for a request that waits in the queue of another one. Returns `None` if the
    /// request has no less to wait for elsewhere.
    pub(super) fn choose_better(&self, own: usize, candidate: &Candidate<'_>) -> Option<Chosen> {
        // The request counts here itself, and a small difference is not worth a move.
        let here = self.groups[own].load.work().checked_sub(2 * ANSWER)?;
        let is_better = |group: usize| {
            let ready = group != own && self.ready[group].load(Ordering::Acquire);
            ready && self.groups[group].load.work().saturating_add(candidate.tokens) < here
        };
        self.choose_among(candidate, is_better)
    }

    /// Whether another group is ready and has no requests.
    pub(super) fn has_idle(&self, own: usize) -> bool {
        (0..self.groups.len()).any(|group| group != own && self.is_idle(group))
    }

    fn is_idle(&self, group: usize) -> bool {
        self.ready[group].load(Ordering::Acquire) && self.groups[group].load.work() == 0
    }

    /// Keeps new requests from a group until it is ready again.
    pub(super) fn leave(&self, group: usize) {
        self.ready[group].store(false, Ordering::Release);
    }

    /// Sends a command about an adapter to all groups. Several groups have the adapters that they
    /// were started with.
    pub(super) fn send_adapter_command(&self, command: AdapterCommand) {
        match command {
            AdapterCommand::Load(command) if self.groups.len() > 1 => {
                let reason =
                    "adapters cannot be loaded while the server runs with --replicas: give them with \
                              --lora-adapters at the start"
                        .to_owned();
                let _ = command.reply.send(Err(LoadError::Refused(reason)));
            }
            AdapterCommand::Load(command) => {
                let command = AdapterCommand::Load(command);
                let _ = self.groups[0].commands.send(EngineCommand::Adapter(command));
            }
            AdapterCommand::Free(adapter) => {
                for commands in self.commands() {
                    let _ = commands.send(EngineCommand::Adapter(AdapterCommand::Free(adapter)));
                }
            }
        }
    }

    /// Forgets the prefixes of a group, because its shards are lost.
    pub(super) fn forget_prefixes(&self, group: usize) {
        if let Some(prefixes) = &self.prefixes {
            prefixes.lock().unwrap_or_else(PoisonError::into_inner).forget(group);
        }
    }

    fn choose_among(&self, candidate: &Candidate<'_>, may_take: impl Fn(usize) -> bool) -> Option<Chosen> {
        let count = self.groups.len();
        let mut prefixes =
            self.prefixes.as_ref().map(|prefixes| prefixes.lock().unwrap_or_else(PoisonError::into_inner));
        let known = prefixes.as_ref().zip(candidate.hashes).map(|(prefixes, hashes)| prefixes.find(hashes));
        let uncached = |group: usize| {
            let cached = known.as_ref().map_or(0, |known| known[group]);
            candidate.tokens.saturating_sub(cached)
        };
        let first = if count > 1 { self.next.fetch_add(1, Ordering::Relaxed) } else { 0 };
        let group = (0..count)
            .map(|offset| first.wrapping_add(offset) % count)
            .filter(|&group| may_take(group))
            .min_by_key(|&group| self.groups[group].load.work().saturating_add(uncached(group)))?;
        if let (Some(prefixes), Some(hashes)) = (&mut prefixes, candidate.hashes) {
            prefixes.add(group, hashes);
        }
        Some(self.enter(group, uncached(group)))
    }

    fn enter(&self, group: usize, tokens: usize) -> Chosen {
        let Group { commands, load } = &self.groups[group];
        Chosen { commands: commands.clone(), place: load.enter(tokens) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(count: usize) -> Groups {
        let commands = (0..count).map(|_| mpsc::unbounded_channel().0).collect();
        Groups::new(commands, (0..count).map(|_| AtomicBool::new(true)).collect())
    }

    /// The group of a place, by its load.
    fn group_of(groups: &Groups, chosen: &Chosen) -> usize {
        groups.groups.iter().position(|group| chosen.place.is_of(&group.load)).unwrap()
    }

    fn hashes(tokens: &[u32]) -> BlockHashes {
        BlockHashes::of_prompt(tokens, None, None, 16)
    }

    fn choose(groups: &Groups, prompt: &[u32]) -> Chosen {
        let hashes = hashes(prompt);
        groups.choose(&Candidate { tokens: prompt.len(), hashes: Some(&hashes) })
    }

    #[test]
    fn requests_without_a_common_prefix_are_spread_evenly() {
        let groups = groups(3);
        let held: Vec<Chosen> = (0..30).map(|i| choose(&groups, &[i; 100])).collect();
        for group in 0..3 {
            assert_eq!(held.iter().filter(|chosen| group_of(&groups, chosen) == group).count(), 10);
        }
    }

    #[test]
    fn a_conversation_stays_where_its_prefix_is() {
        let groups = groups(4);
        let mut prompts: Vec<Vec<u32>> = (0..12).map(|i| vec![i; 500]).collect();
        let homes: Vec<usize> =
            prompts.iter().map(|prompt| group_of(&groups, &choose(&groups, prompt))).collect();
        for turn in 0..10 {
            for (prompt, home) in prompts.iter_mut().zip(&homes) {
                prompt.extend([100 + turn; 70]);
                assert_eq!(group_of(&groups, &choose(&groups, prompt)), *home);
            }
        }
    }

    #[test]
    fn a_prefix_does_not_hold_a_request_where_much_more_waits() {
        let groups = groups(2);
        let prompt = [7; 640];
        let home = group_of(&groups, &choose(&groups, &prompt));
        // More work than computing the prompt again, on the group with the prefix.
        let work: Vec<GroupPlace> = (0..8).map(|_| groups.groups[home].load.enter(100)).collect();
        assert_eq!(group_of(&groups, &choose(&groups, &prompt)), 1 - home);
        drop(work);
        // Both have it now.
        let held: Vec<Chosen> = (0..4).map(|_| choose(&groups, &prompt)).collect();
        assert_eq!(held.iter().filter(|chosen| group_of(&groups, chosen) == home).count(), 2);
    }

    #[test]
    fn requests_avoid_groups_that_are_not_ready() {
        let groups = groups(3);
        groups.leave(1);
        assert!((0..9).all(|i| group_of(&groups, &choose(&groups, &[i; 9])) != 1));
        let other = Candidate { tokens: 9, hashes: None };
        for lost in [0, 2] {
            let chosen = groups.choose_other(lost, &other).unwrap();
            assert_eq!(group_of(&groups, &chosen), 2 - lost);
        }
        assert!(groups.has_other(0));
        groups.leave(2);
        assert!(!groups.has_other(0) && groups.choose_other(0, &other).is_none());
        groups.leave(0);
        // Nothing is ready, so the requests wait on all of them.
        let held: Vec<Chosen> = (0..3).map(|i| choose(&groups, &[i; 9])).collect();
        let mut waiting: Vec<usize> = held.iter().map(|chosen| group_of(&groups, chosen)).collect();
        waiting.sort_unstable();
        assert_eq!(waiting, [0, 1, 2]);
    }

    #[test]
    fn a_waiting_request_goes_where_it_waits_for_less() {
        let groups = groups(2);
        let request = Candidate { tokens: 100, hashes: None };
        let held: Vec<GroupPlace> = (0..9).map(|_| groups.groups[0].load.enter(100)).collect();
        assert!(groups.has_idle(0) && !groups.has_idle(1));
        let moved: Vec<Chosen> = std::iter::from_fn(|| groups.choose_better(0, &request)).collect();
        // The places of the moved requests are still held where they were, too.
        assert_eq!(moved.len(), 8);
        assert!(!groups.has_idle(0));
        drop(held);
        assert!(groups.choose_better(1, &Candidate { tokens: 3000, hashes: None }).is_none());
    }

    #[test]
    fn the_prefixes_of_a_lost_group_count_no_more() {
        let groups = groups(2);
        let prompt = [3; 640];
        let home = group_of(&groups, &choose(&groups, &prompt));
        groups.forget_prefixes(home);
        let held: Vec<Chosen> = (0..2).map(|_| choose(&groups, &prompt)).collect();
        assert_ne!(group_of(&groups, &held[0]), group_of(&groups, &held[1]));
    }
}
