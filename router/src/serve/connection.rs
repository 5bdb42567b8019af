//! One connection: HTTP/1.1 or HTTP/2, closed when it is too slow.

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

use super::body_budget::{BodyBudget, BodyCharge};
use super::connection_activity::ConnectionActivity;
use super::connection_limits::{CLOSE_TIMEOUT, ConnectionLimits};
use super::observed_stream::ObservedStream;
use super::request_body::{BodyLimits, RequestBody};
use super::response_body::ResponseBody;
use crate::http::{BodyMemory, BodyOutcome, SharedBodyOutcome};

/// The number of concurrent requests on one HTTP/2 connection.
const MAX_STREAMS: u32 = 128;

/// The interval of HTTP/2 pings on connections with running requests, and the time in which the
/// client must reply.
const PING: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(20));

/// The minimum buffer size of the HTTP library.
const MIN_BUFFER_BYTES: usize = 8 << 10;

/// Returns the maximum length of a body in bytes.
type PayloadLimit = Box<dyn Fn() -> usize + Send + Sync>;

/// Serves connections with the same options.
pub(super) struct ConnectionServer {
    app: Router,
    limits: ConnectionLimits,
    payload_limit: PayloadLimit,
    bodies: Arc<BodyBudget>,
    http: Builder<TokioExecutor>,
    stop: CancellationToken,
    /// The interval at which a connection's activity is checked.
    check_interval: Duration,
}

impl ConnectionServer {
    /// Creates a server of connections. `payload_limit` returns the maximum length of a body in
    /// bytes, which is not known before the model is loaded.
    pub(super) fn new(
        app: Router,
        limits: ConnectionLimits,
        payload_limit: PayloadLimit,
        stop: CancellationToken,
    ) -> Self {
        let mut http = Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            // The activity check distinguishes slow headers from an idle connection, and the
            // library's timeout does not.
            .header_read_timeout(None)
            .max_headers(limits.headers)
            .max_buf_size(limits.header_bytes.max(MIN_BUFFER_BYTES));
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(u32::try_from(limits.header_bytes).unwrap_or(u32::MAX))
            .keep_alive_interval(PING.0)
            .keep_alive_timeout(PING.1);
        let shortest = limits.header_timeout.min(limits.idle_timeout).min(limits.write_timeout);
        let check_interval = (shortest / 8).clamp(Duration::from_millis(5), Duration::from_secs(1));
        let bodies = BodyBudget::new(limits.body_bytes);
        ConnectionServer { app, limits, payload_limit, bodies, http, stop, check_interval }
    }

    /// Returns the limits of a body that arrives now.
    fn body_limits(&self) -> BodyLimits {
        BodyLimits { bytes: (self.payload_limit)(), time: self.limits.body_timeout, stop: self.stop.clone() }
    }

    pub(super) fn header_timeout(&self) -> Duration {
        self.limits.header_timeout
    }

    /// Serves the requests on this connection until it ends, is too slow, or the server stops. The
    /// time limit of its first headers starts at `began`.
    pub(super) async fn serve<S>(&self, stream: S, began: Instant)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = ConnectionActivity::new(began);
        let (app, observer) = (self.app.clone(), activity.clone());
        let bodies = self.bodies.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let is_http2 = request.version() == Version::HTTP_2;
            let in_flight = observer.request(is_http2);
            let (outcome, activity) = (SharedBodyOutcome::new(), observer.clone());
            let charge = Arc::new(BodyCharge::new(bodies.clone()));
            let (limits, held) = (Arc::new(self.body_limits()), charge.clone());
            let mut request = request.map(|body| {
                Body::new(RequestBody::new(body, limits, held, outcome.clone(), activity.clone()))
            });
            let room = charge.clone();
            request.extensions_mut().insert(outcome.clone());
            request.extensions_mut().insert(BodyMemory::new(move |bytes| room.grow(bytes)));
            let answer = app.clone().call(request);
            async move {
                let mut response = answer.await?;
                // The request's share of the body memory is held until here.
                drop(charge);
                if !is_http2 && is_refused(outcome.get()) {
                    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(
                    response.map(|body| ResponseBody::new(body, is_http2, activity, in_flight)),
                )
            }
        });
        let stream = TokioIo::new(ObservedStream::new(stream, activity.clone()));
        let connection = self.http.serve_connection(stream, service);
        tokio::pin!(connection);
        let mut checks = tokio::time::interval(self.check_interval);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
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
                _ = checks.tick() => {
                    if let Some(reason) = activity.too_slow(&self.limits) {
                        tracing::debug!(why = ?reason, "a connection was too slow and is closed");
                        return;
                    }
                    // A client that does not close its HTTP/2 connection does not delay the end.
                    if stopping_since.is_some_and(|since| since.elapsed() > CLOSE_TIMEOUT) && activity.is_quiet() {
                        return;
                    }
                }
            }
        }
    }
}

/// Whether the rest of a body is not read, so that no other request can follow on the connection.
fn is_refused(outcome: BodyOutcome) -> bool {
    matches!(
        outcome,
        BodyOutcome::TooLarge | BodyOutcome::TooSlow | BodyOutcome::NoMemory | BodyOutcome::ShuttingDown
    )
}
