//! The front thread. It accepts connections, answers probes, and makes sure that the server ends
//! when it is asked to.
//!
//! The thread has its own runtime, which serves no requests. Therefore probes are answered and
//! signals end the process even if the main runtime is busy or stuck.

use std::fmt::{self, Display, Formatter};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::accept::{self, Acceptor};
use super::connection_limits::CLOSE_TIMEOUT;
use super::probe::ProbeResponder;
use super::watchdog::Watchdog;
use crate::engine::{Engine, EngineState};

/// Reasons for ending the process although requests may still run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForcedEnd {
    /// The server was asked to end twice.
    AskedTwice,
    /// The threads that answer requests make no progress, so that the requests would never end.
    Stuck,
    /// The time for running requests is over, and the main runtime has not ended them.
    TooLate,
}

impl Display for ForcedEnd {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ForcedEnd::AskedTwice => "asked to end twice: running requests are cut off",
            ForcedEnd::Stuck => "asked to end while the server's threads are stuck: running requests are cut off",
            ForcedEnd::TooLate => {
                "requests still run although the time of --graceful-termination-timeout is up: they are cut off"
            }
        })
    }
}

/// Ends the process if the main runtime cannot. By default it exits with code 1.
#[derive(Clone)]
pub struct LastResort(Arc<dyn Fn(ForcedEnd) + Send + Sync>);

impl LastResort {
    /// Creates a last resort that calls `end`, which should not return.
    pub fn new(end: impl Fn(ForcedEnd) + Send + Sync + 'static) -> Self {
        LastResort(Arc::new(end))
    }
}

impl Default for LastResort {
    fn default() -> Self {
        LastResort::new(|_| std::process::exit(1))
    }
}

impl fmt::Debug for LastResort {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("LastResort")
    }
}

/// The steps of a server's shutdown. Each happens once.
#[derive(Debug, Clone, Default)]
pub(super) struct ShutdownPhases {
    /// The server was asked to end, or its engine has failed.
    pub(super) asked: CancellationToken,
    /// All requests have ended or their time is over. No more connections are accepted.
    pub(super) stop: CancellationToken,
    /// The front thread is no longer needed.
    pub(super) finished: CancellationToken,
}

/// The parts that the front thread runs.
pub(super) struct FrontThread {
    pub(super) listener: std::net::TcpListener,
    pub(super) probe_listener: Option<std::net::TcpListener>,
    pub(super) acceptor: Arc<Acceptor>,
    pub(super) probe_responder: Arc<ProbeResponder>,
    pub(super) watchdog: Arc<Watchdog>,
    pub(super) engine: Engine,
    pub(super) grace: Duration,
    pub(super) last_resort: LastResort,
    pub(super) phases: ShutdownPhases,
}

impl FrontThread {
    /// Starts the thread. The receiver completes when the thread has ended.
    ///
    /// # Errors
    /// If the system has no thread or no file descriptors left.
    pub(super) fn start(
        self,
        signals: impl Stream<Item = ()> + Send + 'static,
    ) -> io::Result<oneshot::Receiver<()>> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (ended, end) = oneshot::channel::<()>();
        std::thread::Builder::new().name("front".into()).spawn(move || {
            if let Err(error) = runtime.block_on(self.run(signals)) {
                tracing::error!(%error, "the port cannot be served");
            }
            drop(ended);
        })?;
        Ok(end)
    }

    async fn run(self, signals: impl Stream<Item = ()> + Send) -> io::Result<()> {
        let FrontThread {
            listener,
            probe_listener,
            acceptor,
            probe_responder,
            watchdog,
            engine,
            grace,
            last_resort,
            phases,
        } = self;
        let listener = TcpListener::from_std(listener)?;
        let probe_listener = probe_listener.map(TcpListener::from_std).transpose()?;
        let probes = async {
            if let Some(listener) = probe_listener {
                accept::run_probes(listener, probe_responder, phases.finished.clone()).await;
            }
        };
        let end = async {
            let mut signals = std::pin::pin!(signals);
            asked_to_end(&mut signals, &engine).await;
            phases.asked.cancel();
            engine.drain();
            let drained = async {
                // The engine ends by itself within this time. The timeout guards against a bug.
                let _ = timeout(grace + CLOSE_TIMEOUT, engine.ended()).await;
                phases.stop.cancel();
            };
            let forced = async { (last_resort.0)(forced_end(&mut signals, &watchdog, grace).await) };
            tokio::join!(drained, forced)
        };
        // Each of these futures continues until the server has finished.
        let all = async {
            tokio::join!(acceptor.run(listener, phases.stop.clone()), probes, watchdog.watch(), end)
        };
        phases.finished.run_until_cancelled(all).await;
        Ok(())
    }
}

/// Waits for the first signal, or for the end of a failed engine. In the second case the streams
/// get their error event before the server ends.
async fn asked_to_end(signals: &mut (impl Stream<Item = ()> + Unpin), engine: &Engine) {
    let mut state = engine.state();
    let asked = async {
        if signals.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = asked => {}
        _ = state.wait_for(|state| matches!(state, EngineState::Failed(_))) => {}
    }
}

/// Waits for a reason to end the process by force. The main runtime usually ends it earlier.
async fn forced_end(
    signals: &mut (impl Stream<Item = ()> + Unpin),
    watchdog: &Watchdog,
    grace: Duration,
) -> ForcedEnd {
    let asked_again = async {
        if signals.next().await.is_none() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = asked_again => ForcedEnd::AskedTwice,
        () = watchdog.stuck() => ForcedEnd::Stuck,
        () = sleep(grace + 3 * CLOSE_TIMEOUT) => ForcedEnd::TooLate,
    }
}
