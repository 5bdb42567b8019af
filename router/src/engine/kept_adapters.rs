//! The adapters that every group must have loaded, and the answers of its ranks.

use millrace_proto::{AdapterLoaded, LoadAdapter};
use millrace_scheduler::AdapterId;

use super::adapters::AdapterSource;

/// An adapter that a group must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeptAdapter {
    pub(super) id: AdapterId,
    /// The place in the pools of all ranks. `None` if the scheduler decides which adapters are in
    /// places.
    pub(super) place: Option<u32>,
    pub(super) source: AdapterSource,
    /// The files that each rank has read it from. Only shards read this text. Empty before the
    /// first load.
    pub(super) identities: Vec<String>,
}

/// An adapter that a group could not load, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LostAdapter {
    pub(super) id: AdapterId,
    pub(super) reason: String,
}

impl KeptAdapter {
    /// Returns the message that loads the adapter.
    pub(super) fn message(&self) -> LoadAdapter {
        let (folder, listed) = match &self.source {
            AdapterSource::Listed(index) => (String::new(), Some(*index)),
            AdapterSource::Folder(folder) => (folder.clone(), None),
        };
        LoadAdapter { adapter: self.id.0, place: self.place, folder, listed }
    }
}

/// The answers of the ranks to one load.
#[derive(Debug)]
pub(super) struct LoadAnswers {
    adapter: AdapterId,
    answers: Vec<Option<AdapterLoaded>>,
}

impl LoadAnswers {
    /// Waits for the answers of this many ranks.
    pub(super) fn new(adapter: AdapterId, ranks: usize) -> Self {
        LoadAnswers { adapter, answers: vec![None; ranks] }
    }

    /// Adds the answer of a rank. Returns false if the rank owes no such answer.
    pub(super) fn add(&mut self, rank: usize, answer: AdapterLoaded) -> bool {
        let is_owed = answer.adapter == self.adapter.0 && self.answers.get(rank).is_some_and(Option::is_none);
        if is_owed {
            self.answers[rank] = Some(answer);
        }
        is_owed
    }

    /// Returns the files that each rank has read, or the first error, once all ranks have answered.
    pub(super) fn result(&self) -> Option<Result<Vec<String>, String>> {
        let answers: Vec<&AdapterLoaded> = self.answers.iter().map(Option::as_ref).collect::<Option<_>>()?;
        let failed = answers.iter().find(|answer| !answer.error.is_empty());
        Some(match failed {
            Some(answer) => Err(answer.error.clone()),
            None => Ok(answers.iter().map(|answer| answer.identity.clone()).collect()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(adapter: u32, error: &str) -> AdapterLoaded {
        AdapterLoaded { adapter, error: error.into(), identity: format!("files of {adapter}") }
    }

    #[test]
    fn all_ranks_must_have_loaded_an_adapter() {
        let mut answers = LoadAnswers::new(AdapterId(7), 2);
        assert!(answers.add(1, answer(7, "")) && answers.result().is_none());
        for (rank, wrong) in [(1, answer(7, "")), (2, answer(7, "")), (0, answer(6, ""))] {
            assert!(!answers.add(rank, wrong), "rank {rank}");
        }
        assert!(answers.add(0, answer(7, "")));
        assert_eq!(answers.result(), Some(Ok(vec!["files of 7".to_owned(); 2])));
        let mut answers = LoadAnswers::new(AdapterId(7), 2);
        assert!(answers.add(0, answer(7, "")) && answers.add(1, answer(7, "too large")));
        assert_eq!(answers.result(), Some(Err("too large".to_owned())));
    }
}
