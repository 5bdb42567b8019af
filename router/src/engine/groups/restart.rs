//! Restarts the groups of an engine one after the other, while the others serve.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Groups;
use crate::engine::command::EngineCommand;

/// Why groups were not restarted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestartError {
    /// Another request restarts them.
    #[error("the groups are being restarted already")]
    Busy,
    /// A group could not be restarted. Those after it were not touched.
    #[error("group {group} of {groups} was not restarted: {reason}")]
    Failed {
        /// The number of the group, from 1.
        group: usize,
        /// Number of groups.
        groups: usize,
        /// The reason.
        reason: String,
    },
}

impl Groups {
    /// Restarts all groups one after the other. Returns the time that each of them took from the
    /// command to the readiness of its new shards.
    ///
    /// # Errors
    /// [`RestartError`]. Nothing is restarted twice, and what runs goes on running.
    pub(in crate::engine) async fn restart(&self) -> Result<Vec<Duration>, RestartError> {
        let Ok(_restarting) = self.restarting.try_lock() else { return Err(RestartError::Busy) };
        let mut times = Vec::new();
        for (index, commands) in self.commands().enumerate() {
            let begun = Instant::now();
            let (reply, restarted) = oneshot::channel();
            // A command to an engine that has ended is dropped, and its reply with it.
            let _ = commands.send(EngineCommand::Restart(reply));
            let result = restarted.await.unwrap_or_else(|_| Err("the server is shutting down".to_owned()));
            result.map_err(|reason| RestartError::Failed {
                group: index + 1,
                groups: self.commands().len(),
                reason,
            })?;
            times.push(begun.elapsed());
        }
        Ok(times)
    }
}
