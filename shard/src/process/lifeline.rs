//! The lifeline: a shard ends when its parent process ends, even in the middle of a long step.

use std::io::{self, Read};
use std::thread;

/// Starts a thread that reads standard input and ends the process with code 1 when standard input
/// is closed.
///
/// The parent holds the other end of the pipe. The operating system closes that end when the parent
/// ends, however it ends.
///
/// # Errors
/// If the thread cannot be started.
pub(super) fn watch_parent() -> io::Result<()> {
    thread::Builder::new().name("lifeline".into()).spawn(|| {
        let mut ignored = [0; 64];
        loop {
            match io::stdin().lock().read(&mut ignored) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) | Err(_) => std::process::exit(1),
                Ok(_) => {}
            }
        }
    })?;
    Ok(())
}
