//! The state of graph recording, which both kinds of driver share: whether a graph is being
//! recorded, and which memory graphs may still use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_backend::{Error, Result};

/// Memory whose owner has freed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Freed {
    /// Device memory, by its address.
    Device(u64),
    /// Pinned host memory, by its address.
    Pinned(u64),
}

/// The state of recording on one device.
///
/// A graph holds addresses. So memory that is freed while any graph exists is kept until no graph
/// is left. That makes replaying safe without tracking which memory each graph uses.
#[derive(Debug, Default)]
pub(in crate::device) struct Recorder {
    recording: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The error of the first call that a graph cannot hold.
    refused: Option<String>,
    /// The number of graphs, including one that is being recorded.
    graphs: usize,
    waiting: Vec<Freed>,
}

impl Recorder {
    /// Whether a graph is being recorded.
    pub(in crate::device) fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Acquire)
    }

    /// Begins a recording.
    pub(in crate::device) fn begin(&self) -> Result<()> {
        if self.recording.swap(true, Ordering::AcqRel) {
            return Err(Error::Device("a graph is already being recorded".to_owned()));
        }
        let mut state = self.state();
        state.refused = None;
        state.graphs += 1;
        Ok(())
    }

    /// Ends the recording. Returns an error if any call was refused in the meantime, even if its
    /// caller ignored the error.
    pub(in crate::device) fn end(&self) -> Result<()> {
        self.recording.store(false, Ordering::Release);
        match self.state().refused.take() {
            Some(refused) => Err(Error::Device(refused)),
            None => Ok(()),
        }
    }

    /// Returns an error if a graph is being recorded, and makes that recording fail. `what` names
    /// the call that a graph cannot hold.
    pub(in crate::device) fn forbid(&self, what: &str) -> Result<()> {
        if !self.is_recording() {
            return Ok(());
        }
        let refused = format!("{what} is not possible while a graph is recorded");
        self.state().refused.get_or_insert_with(|| refused.clone());
        Err(Error::Device(refused))
    }

    /// Whether memory may be freed at once. If not, [`Recorder::forget_graph`] returns it later.
    pub(in crate::device) fn may_free(&self, memory: Freed) -> bool {
        let mut state = self.state();
        if state.graphs > 0 {
            state.waiting.push(memory);
        }
        state.graphs == 0
    }

    /// Counts one graph (or failed recording) less, and returns the memory that may be freed now.
    pub(in crate::device) fn forget_graph(&self) -> Vec<Freed> {
        let mut state = self.state();
        state.graphs -= 1;
        if state.graphs == 0 { std::mem::take(&mut state.waiting) } else { Vec::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
