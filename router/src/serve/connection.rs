//! One connection: HTTP/1.1 or HTTP/2, and when it has been too slow.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

use super::answer::Answer;
use super::body::{BodyLimits, RequestBody};
use super::budget::{BodyBudget, Charge};
use super::pulse::{Felt, Pulse};
use super::{Connections, LAST_BYTES};
use crate::http::{BodyFate, BodyRoom, SharedFate};

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
    body_limits: Arc<BodyLimits>,
    bodies: Arc<BodyBudget>,
    http: Builder<TokioExecutor>,
    stop: CancellationToken,
    /// How often a connection is looked at.
    look: Duration,
}

impl Keeper {
    /// `payload_limit` is the length of the longest body, in bytes.
    pub(super) fn new(
        app: Router,
        limits: Connections,
        payload_limit: usize,
        stop: CancellationToken,
    ) -> Self {
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
        let bodies = BodyBudget::new(limits.body_bytes);
        let body_limits =
            Arc::new(BodyLimits { bytes: payload_limit, time: limits.body_timeout, stop: stop.clone() });
        Keeper { app, limits, body_limits, bodies, http, stop, look }
    }

    pub(super) fn header_timeout(&self) -> Duration {
        self.limits.header_timeout
    }

    /// Answers what is asked on this connection until it ends, is too slow, or the server stops. Its first headers have been
    /// waited for since `began`.
    pub(super) async fn serve<S>(&self, stream: S, began: Instant)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let pulse = Pulse::new(began);
        let (app, felt) = (self.app.clone(), pulse.clone());
        let (body_limits, bodies) = (self.body_limits.clone(), self.bodies.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let is_http2 = request.version() == Version::HTTP_2;
            let in_flight = felt.request(is_http2);
            let (fate, pulse) = (SharedFate::new(), felt.clone());
            let charge = Arc::new(Charge::new(bodies.clone()));
            let (limits, held) = (body_limits.clone(), charge.clone());
            let mut request = request
                .map(|body| Body::new(RequestBody::new(body, limits, held, fate.clone(), pulse.clone())));
            let room = charge.clone();
            request.extensions_mut().insert(fate.clone());
            request.extensions_mut().insert(BodyRoom::new(move |bytes| room.grow(bytes)));
            let answer = app.clone().call(request);
            async move {
                let mut response = answer.await?;
                // The request's texts are held until here.
                drop(charge);
                if !is_http2 && is_refused(fate.get()) {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response.map(|body| Answer::new(body, is_http2, pulse, in_flight)))
            }
        });
        let stream = TokioIo::new(Felt::new(stream, pulse.clone()));
        let connection = self.http.serve_connection(stream, service);
        tokio::pin!(connection);
        let mut looks = tokio::time::interval(self.look);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stopping_since = None;
        loop {
            tokio::select! {
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(error, "a connection ended with an error");
                    }
                    return;
                }
                () = self.stop.cancelled(), if stopping_since.is_none() => {
                    stopping_since = Some(Instant::now());
                    connection.as_mut().graceful_shutdown();
                }
                _ = looks.tick() => {
                    if let Some(why) = pulse.too_slow(&self.limits) {
                        tracing::debug!(?why, "a connection was too slow and is closed");
                        return;
                    }
                    // A client that owes an HTTP/2 goodbye is not waited for.
                    if stopping_since.is_some_and(|since| since.elapsed() > LAST_BYTES) && pulse.is_quiet() {
                        return;
                    }
                }
            }
        }
    }
}

/// Whether the rest of a body is not read, so that no other request can follow on the same connection.
fn is_refused(fate: BodyFate) -> bool {
    matches!(fate, BodyFate::TooLarge | BodyFate::TooSlow | BodyFate::NoRoom | BodyFate::Stopping)
}
