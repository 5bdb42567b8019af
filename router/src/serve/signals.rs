//! Signals that ask the process to end.

use std::future::Future;
use std::io;

use futures::{Stream, StreamExt};

/// Returns a stream with an item for each SIGTERM or Ctrl-C.
///
/// # Errors
/// If the handler for SIGTERM cannot be installed.
pub fn shutdown_signals() -> io::Result<impl Stream<Item = ()> + Send + 'static> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // The handler is installed here and not at the first poll.
        let each = |kind| {
            let heard = signal(kind)?;
            let next =
                |mut heard: tokio::signal::unix::Signal| async { heard.recv().await.map(|()| ((), heard)) };
            io::Result::Ok(Box::pin(futures::stream::unfold(heard, next)))
        };
        Ok(futures::stream::select(each(SignalKind::terminate())?, each(SignalKind::interrupt())?))
    }
    #[cfg(not(unix))]
    {
        let next = |()| async { tokio::signal::ctrl_c().await.ok().map(|()| ((), ())) };
        Ok(Box::pin(futures::stream::unfold((), next)))
    }
}

/// Returns a future that completes at the first SIGTERM or Ctrl-C.
///
/// # Errors
/// If the handler for SIGTERM cannot be installed.
pub fn shutdown_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut signals = shutdown_signals()?;
    Ok(async move {
        if signals.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    })
}
