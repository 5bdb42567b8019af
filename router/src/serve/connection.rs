//! One connection: HTTP/1.1 or HTTP/2, and when it has been too slow.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::Connections;
use super::body::{Answering, InTime};
use super::pulse::{Felt, Pulse};

/// Requests on one connection of HTTP/2 at the same time.
const STREAMS: u32 = 128;

/// How often an HTTP/2 client with running requests is asked whether it lives, and how long it may take to say so.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(20));

/// The least buffer that the HTTP library takes.
const LEAST_BUFFER: usize = 8 << 10;

/// Serves connections, all in the same way.
pub(super) struct Keeper {
    app: Router,
    limits: Connections,
    http: Builder<TokioExecutor>,
    stop: CancellationToken,
    /// How often a connection is looked at.
    look: Duration,
}

impl Keeper {
    pub(super) fn new(app: Router, limits: Connections, stop: CancellationToken) -> Self {
        let mut http = Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            // The watchdog tells slow headers from an idle connection; this one could not.
            .header_read_timeout(None)
            .max_headers(limits.headers)
            .max_buf_size(limits.header_bytes.max(LEAST_BUFFER));
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1);
        let shortest = limits.header_timeout.min(limits.idle_timeout).min(limits.write_timeout);
        let look = (shortest / 8).clamp(Duration::from_millis(5), Duration::from_secs(1));
        Keeper { app, limits, http, stop, look }
    }

    pub(super) fn header_timeout(&self) -> Duration {
        self.limits.header_timeout
    }

    /// Answers what is asked on this connection until it ends, is too slow, or the server stops.
    pub(super) async fn serve<S>(&self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let pulse = Pulse::new();
        let (app, body_timeout, felt) = (self.app.clone(), self.limits.body_timeout, pulse.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let in_flight = felt.request(request.version() == Version::HTTP_2);
            let request = request.map(|body| Body::new(InTime::new(body, body_timeout)));
            let answer = app.clone().call(request);
            async move { Ok::<_, Infallible>(answer.await?.map(|body| Answering::new(body, in_flight))) }
        });
        let stream = TokioIo::new(Felt { stream, pulse: pulse.clone() });
        let connection = self.http.serve_connection(stream, service);
        tokio::pin!(connection);
        let mut looks = tokio::time::interval(self.look);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopping = false;
        loop {
            tokio::select! {
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(error, "a connection ended with an error");
                    }
                    return;
                }
                () = self.stop.cancelled(), if !stopping => {
                    stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
                _ = looks.tick() => {
                    if let Some(why) = pulse.too_slow(&self.limits) {
                        tracing::debug!(?why, "a connection was too slow and is closed");
                        return;
                    }
                }
            }
        }
    }
}
