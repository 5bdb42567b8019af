//! How it is noticed that the other machine vanishes without a word, or a process of this one stands still.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Nothing is said for so long before the system asks whether the other side is there.
const QUIET: Duration = Duration::from_secs(4);

/// Between two questions.
const AGAIN: Duration = Duration::from_secs(2);

/// Questions without an answer after which the connection has ended.
const QUESTIONS: u32 = 3;

/// Between two bytes that a rank of a machine which is not the leader writes to its standard output, from its start until
/// its end. The router is elsewhere and cannot end a rank that stands still; who has started it can.
pub const BEAT: Duration = Duration::from_secs(1);

/// Has the system end this connection with an error about ten seconds after the other machine was last heard of, whether
/// something is under way or not.
///
/// # Errors
/// The system's.
pub fn watch<'s>(socket: impl Into<SockRef<'s>>) -> io::Result<()> {
    let socket = socket.into();
    let keepalive = TcpKeepalive::new().with_time(QUIET).with_interval(AGAIN).with_retries(QUESTIONS);
    socket.set_tcp_keepalive(&keepalive)?;
    // Nobody asks while bytes wait to be acknowledged.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(QUIET + AGAIN * QUESTIONS))?;
    Ok(())
}
