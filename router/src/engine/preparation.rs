//! Work that comes before the first shards start, such as a download of the weights.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::mpsc;

use super::command::EngineCommand;
use super::event::EngineState;
use super::first_group::drain_requested;
use super::groups::StateReporter;

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
    /// The preparations of so many groups of shards, which all wait for the same work. It is
    /// cancelled when all of them have been dropped.
    pub(super) fn for_groups(preparation: Option<Self>, groups: usize) -> Vec<Option<Self>> {
        let Some(Preparation { phase, progress, work }) = preparation else {
            return (0..groups).map(|_| None).collect();
        };
        let (progress, work): (Arc<dyn Fn() -> (u64, u64) + Send + Sync>, _) =
            (progress.into(), work.shared());
        let each = || {
            let progress = progress.clone();
            Preparation {
                phase: phase.clone(),
                progress: Box::new(move || progress()),
                work: Box::pin(work.clone()),
            }
        };
        (0..groups).map(|_| Some(each())).collect()
    }

    /// Does the work, and shows its progress. Returns false if the engine was asked to drain before
    /// the work was done.
    ///
    /// # Errors
    /// The reason for which the work failed.
    pub(super) async fn run(
        self,
        commands: &mut mpsc::UnboundedReceiver<EngineCommand>,
        state: &StateReporter,
    ) -> Result<bool, String> {
        let Preparation { phase, progress, mut work } = self;
        let show = || {
            let (done, total) = progress();
            state.set(EngineState::Loading { phase: phase.clone(), done, total });
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
