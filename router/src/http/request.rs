//! The id of each request, its line in the log, and its span.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};

use super::anthropic;
use super::api::Api;
use crate::service::RequestContext;

/// The header with the id of the request, which is also in logs and traces.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The same header by the name that Anthropic's clients read.
const ANTHROPIC_REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Characters of the longest id that is accepted from a client.
const MAX_ID_LENGTH: usize = 128;

/// Gives the request an id, which is the client's own if it may be logged, adds the id to the
/// response, and logs a line when the response has ended.
pub(super) async fn follow(request: Request, next: Next) -> Response {
    let id = given_id(request.headers()).unwrap_or_else(new_id);
    let path = request.extensions().get::<MatchedPath>().map_or("(no route)", MatchedPath::as_str);
    // Probes are frequent, so they have no span and their lines are logged at the debug level.
    let is_probe = request.method() != Method::POST;
    let is_anthropic =
        Api::of(request.uri().path()) == Api::Anthropic || anthropic::is_client(request.headers());
    let context = (!is_probe)
        .then(|| RequestContext::start_span(&id, request.method().as_str(), path, request.headers()));
    let mut log = RequestLog {
        id: id.clone(),
        is_probe,
        path: path.to_owned(),
        method: request.method().clone(),
        since: Instant::now(),
        status: None,
        complete: false,
        context: context.clone(),
    };
    let mut response = match &context {
        Some(context) => context.scope(next.run(request)).await,
        None => next.run(request).await,
    };
    log.status = Some(response.status());
    if let Some(context) = &context {
        context.answered(response.status().as_u16());
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        if is_anthropic {
            response.headers_mut().insert(ANTHROPIC_REQUEST_ID, id.clone());
        }
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response.map(|body| {
        // The end of an empty body is never polled.
        log.complete = body.is_end_stream();
        Body::new(LoggedBody { body, log })
    })
}

/// Returns the client's id if it consists of visible ASCII characters, so that it can neither end a
/// line of the log nor be invisible.
fn given_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let fits = !id.is_empty() && id.len() <= MAX_ID_LENGTH && id.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| id.to_owned())
}

fn new_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The line in the log. It is written when this value is dropped, which is when the response has
/// ended or the client has left.
struct RequestLog {
    id: String,
    is_probe: bool,
    method: Method,
    path: String,
    since: Instant,
    /// `None` if the client left before there was a response.
    status: Option<StatusCode>,
    complete: bool,
    /// The context ends with the response. `None` for probes.
    context: Option<Arc<RequestContext>>,
}

impl Drop for RequestLog {
    fn drop(&mut self) {
        let RequestLog { id, method, path, .. } = &*self;
        let seconds = self.since.elapsed().as_secs_f64();
        let status = self.status.map(|status| status.as_u16());
        let left = !self.complete;
        if self.is_probe {
            tracing::debug!(request_id = id, %method, path, status, left, seconds, "request");
        } else {
            let figures = self.context.as_ref().and_then(|context| context.figures());
            let queue_seconds = figures.map(|figures| figures.queue.as_secs_f64());
            let first_token = figures.and_then(|figures| figures.first_token);
            tracing::info!(
                request_id = id,
                %method,
                path,
                status,
                left,
                seconds,
                queue_seconds,
                first_token_seconds = first_token.map(|time| time.as_secs_f64()),
                prompt_tokens = figures.map(|figures| figures.counts.prompt),
                cached_tokens = figures.map(|figures| figures.counts.cached),
                generated_tokens = figures.map(|figures| figures.counts.generated),
                "request"
            );
        }
    }
}

/// The body of a response, whose end is logged.
struct LoggedBody {
    body: Body,
    log: RequestLog,
}

impl HttpBody for LoggedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        // A body that reports its end may not be polled again.
        self.log.complete = matches!(frame, Poll::Ready(None)) || self.body.is_end_stream();
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
