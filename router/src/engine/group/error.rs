//! Errors of starting and ending shards.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::engine::loss::{GroupLoss, LossCause};

/// Maximum time for a process to end after SIGKILL. The kernel ends it at once, unless the process
/// is in a system call that cannot be interrupted.
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(30);

/// Processes that SIGKILL has not ended. This process can do nothing more about them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} within {} s of SIGKILL. In state D a process waits for a device, its driver or a file system that does not \
     answer: see the kernel's log (dmesg). The server ends without waiting any longer; what the process holds, such as a \
     device's memory, is free only when it has ended, which may take a restart of the machine",
    .0.join("; "), KILL_TIMEOUT.as_secs()
)]
pub struct Unreaped(pub(super) Vec<String>);

/// Why the shards could not be started. The texts are meant for the operator.
#[derive(Debug, thiserror::Error)]
pub(in crate::engine) enum StartError {
    #[error("cannot make a private directory for sockets in {}: {source}; set TMPDIR to a writable place", .dir.display())]
    SocketDirectory { dir: PathBuf, source: io::Error },
    #[error("cannot listen on {}: {source}; if the path is too long, set TMPDIR to a shorter one", .path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("cannot start {}: {source}", .program.display())]
    Spawn { program: PathBuf, source: io::Error },
    #[error("{}", .0.reason)]
    Lost(GroupLoss),
    #[error("{reason}; {unreaped}")]
    Unreaped { reason: String, unreaped: Unreaped },
    #[error("shard {rank} did not connect within {} s", .after.as_secs())]
    NotConnected { rank: usize, after: Duration },
    #[error("cannot listen on {at} for other machines: {source} (--leader-port)")]
    ListenForNodes { at: SocketAddr, source: io::Error },
    #[error("rank {rank} did not connect from its machine within {} s", .after.as_secs())]
    NodeNotConnected { rank: usize, after: Duration },
}

impl From<StartError> for GroupLoss {
    fn from(error: StartError) -> GroupLoss {
        let cause = match &error {
            StartError::Lost(loss) => return loss.clone(),
            StartError::Unreaped { .. } => LossCause::Lasting,
            StartError::SocketDirectory { source, .. }
            | StartError::Listen { source, .. }
            | StartError::Spawn { source, .. }
            | StartError::ListenForNodes { source, .. }
                if is_shortage(source) =>
            {
                LossCause::Shortage
            }
            _ => LossCause::Shards,
        };
        GroupLoss { reason: error.to_string(), cause }
    }
}

/// Whether the system has run out of a resource that may become free again: memory, processes or
/// file descriptors.
fn is_shortage(error: &io::Error) -> bool {
    /// ENFILE and EMFILE, which have no `ErrorKind`. Their numbers are the same on all Unix
    /// systems.
    const TOO_MANY_FILES: [i32; 2] = [23, 24];
    matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::WouldBlock)
        || error.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code))
}
