//! Work that comes before the first shards start, such as a download of the weights.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::first_group::drain_requested;
use super::handle::EngineCommand;
use super::state::EngineState;

/// The time between two updates of the state.
const UPDATE: Duration = Duration::from_millis(200);

/// Work that comes before the first shards start. It is cancelled by being dropped.
pub struct Preparation {
    /// The name of the phase in [`EngineState::Loading`].
    pub phase: String,
    /// Returns the bytes so far, and all bytes.
    pub progress: Box<dyn Fn() -> (u64, u64) + Send + Sync>,
    /// The work. Its error is the reason for which the engine fails.
    pub work: Pin<Box<dyn Future<Output = Result<(), String>> + Send>>,
}

impl fmt::Debug for Preparation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Preparation").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl Preparation {
    /// Does the work, and shows its progress. Returns false if the engine was asked to drain before
    /// the work was done.
    ///
    /// # Errors
    /// The reason for which the work failed.
    pub(super) async fn run(
        self,
        commands: &mut mpsc::UnboundedReceiver<EngineCommand>,
        state: &watch::Sender<EngineState>,
    ) -> Result<bool, String> {
        let Preparation { phase, progress, mut work } = self;
        let show = || {
            let (done, total) = progress();
            state.send_replace(EngineState::Loading { phase: phase.clone(), done, total });
        };
        let mut drained = std::pin::pin!(drain_requested(commands));
        loop {
            show();
            tokio::select! {
                result = &mut work => break result.map(|()| true),
                () = &mut drained => break Ok(false),
                () = tokio::time::sleep(UPDATE) => {}
            }
        }
    }
}
