//! What both kinds of driver keep in mind about graphs: whether one is being recorded, and whose memory they may still use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Error, Result};

/// Memory that was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Freed {
    /// Of the device.
    Device(u64),
    /// Of the host, pinned.
    Pinned(u64),
}

/// The state of recording on one device.
///
/// A graph holds addresses, so memory that is given back while there is any graph stays until there is none. That makes replaying safe
/// without asking what a graph has seen.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    recording: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The first thing asked for that a graph cannot hold.
    refused: Option<String>,
    /// Graphs, and the recording under way.
    graphs: usize,
    waiting: Vec<Freed>,
}

impl Recorder {
    /// Whether a graph is being recorded.
    pub(super) fn is_recording(&self) -> bool {
        self.recording.load(Ordering::Acquire)
    }

    /// Begins a recording.
    pub(super) fn begin(&self) -> Result<()> {
        if self.recording.swap(true, Ordering::AcqRel) {
            return Err(Error::Device("a graph is being recorded already".to_owned()));
        }
        let mut state = self.state();
        state.refused = None;
        state.graphs += 1;
        Ok(())
    }

    /// Ends it; an error if something was refused on the way, whoever saw that.
    pub(super) fn end(&self) -> Result<()> {
        self.recording.store(false, Ordering::Release);
        match self.state().refused.take() {
            Some(refused) => Err(Error::Device(refused)),
            None => Ok(()),
        }
    }

    /// Refuses `what` in the middle of a recording, which thereby fails.
    pub(super) fn forbid(&self, what: &str) -> Result<()> {
        if !self.is_recording() {
            return Ok(());
        }
        let refused = format!("{what} while a graph is recorded");
        self.state().refused.get_or_insert_with(|| refused.clone());
        Err(Error::Device(refused))
    }

    /// Whether memory may be freed at once; if not, [`Recorder::forget_graph`] names it in time.
    pub(super) fn may_free(&self, memory: Freed) -> bool {
        let mut state = self.state();
        if state.graphs > 0 {
            state.waiting.push(memory);
        }
        state.graphs == 0
    }

    /// A graph, or a recording that led to none, is no more: what may be freed now.
    pub(super) fn forget_graph(&self) -> Vec<Freed> {
        let mut state = self.state();
        state.graphs -= 1;
        if state.graphs == 0 { std::mem::take(&mut state.waiting) } else { Vec::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
