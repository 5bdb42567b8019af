//! Signals that ask the process to end.

use std::future::Future;
use std::io;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::time::Instant;

/// The time after a signal in which another one is the same request to end. Supervisors send
/// SIGTERM to the process and to its group, and a terminal sends Ctrl-C to each process of a group,
/// whose leader passes it on.
const SAME_REQUEST: Duration = Duration::from_secs(1);

/// Returns a stream with an item for each request to end: a SIGTERM or Ctrl-C, with those that
/// follow it within a second.
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
        let all = futures::stream::select(each(SignalKind::terminate())?, each(SignalKind::interrupt())?);
        Ok(Box::pin(without_echoes(all)))
    }
    #[cfg(not(unix))]
    {
        let next = |()| async { tokio::signal::ctrl_c().await.ok().map(|()| ((), ())) };
        Ok(Box::pin(without_echoes(futures::stream::unfold((), next))))
    }
}

/// Removes the signals that come within [`SAME_REQUEST`] after one that is kept.
fn without_echoes(signals: impl Stream<Item = ()>) -> impl Stream<Item = ()> {
    let mut kept: Option<Instant> = None;
    signals.filter(move |()| {
        let now = Instant::now();
        let is_echo = kept.is_some_and(|kept| now.duration_since(kept) < SAME_REQUEST);
        if !is_echo {
            kept = Some(now);
        }
        std::future::ready(!is_echo)
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn signals_within_a_second_are_one_request() {
        let (send, signals) = futures::channel::mpsc::unbounded();
        let mut requests = std::pin::pin!(without_echoes(signals));
        // Milliseconds before each signal, and whether it is a request of its own.
        for (pause, is_request) in [(0, true), (0, false), (999, false), (1, true), (600, false), (400, true)]
        {
            tokio::time::advance(Duration::from_millis(pause)).await;
            send.unbounded_send(()).unwrap();
            assert_eq!(futures::poll!(requests.next()).is_ready(), is_request, "after {pause} ms");
        }
    }
}
