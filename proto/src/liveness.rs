//! Detection of machines that disappear and of processes that hang.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};

/// Time without data after which the system probes whether the other side is there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(4);

/// Time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// Number of unanswered probes after which the connection ends.
const KEEPALIVE_PROBES: u32 = 3;

/// Time between two bytes that a rank of a machine other than the leader writes to its standard
/// output, from its start to its end. The router cannot kill a hanging rank on another machine, but
/// the process that started the rank can.
pub const HEARTBEAT: Duration = Duration::from_secs(1);

/// Lets the system end this connection with an error about ten seconds after it last received data
/// from the other machine, whether data is in flight or not.
///
/// # Errors
/// The error of the system.
pub fn watch<'s>(socket: impl Into<SockRef<'s>>) -> io::Result<()> {
    let socket = socket.into();
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    // The system does not probe while sent bytes wait for their acknowledgement, so this time has a
    // limit of its own.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_PROBES))?;
    Ok(())
}
