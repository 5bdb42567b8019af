//! What every request gets: an id, a line in the log, and a span.

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

use crate::service::RequestContext;

/// Names the request in logs and traces.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Characters of the longest id that is taken from a client.
const LONGEST_ID: usize = 128;

/// Gives the request an id (the client's own, if it is fit to be logged), repeats it in the response, and writes a line
/// when the response has ended.
pub(super) async fn follow(request: Request, next: Next) -> Response {
    let id = given_id(request.headers()).unwrap_or_else(new_id);
    let path = request.extensions().get::<MatchedPath>().map_or("(no route)", MatchedPath::as_str);
    // Probes come all the time: they have no span, and their lines are for debugging.
    let is_probe = request.method() != Method::POST;
    let context =
        (!is_probe).then(|| RequestContext::begin(&id, request.method().as_str(), path, request.headers()));
    let mut line = Line {
        id: id.clone(),
        is_probe,
        path: path.to_owned(),
        method: request.method().clone(),
        since: Instant::now(),
        status: None,
        complete: false,
        _context: context.clone(),
    };
    let mut response = match &context {
        Some(context) => context.scope(next.run(request)).await,
        None => next.run(request).await,
    };
    line.status = Some(response.status());
    if let Some(context) = &context {
        context.answered(response.status().as_u16());
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response.map(|body| {
        // Nobody asks an empty body for its end.
        line.complete = body.is_end_stream();
        Body::new(Followed { body, line })
    })
}

/// Visible ASCII alone, so that it can neither end a line of the log nor hide in it.
fn given_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let fits = !id.is_empty() && id.len() <= LONGEST_ID && id.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then(|| id.to_owned())
}

fn new_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// The line of the log, written when dropped: then the response has ended, or its reader has left.
struct Line {
    id: String,
    is_probe: bool,
    method: Method,
    path: String,
    since: Instant,
    /// `None` if the client left before there was a response.
    status: Option<StatusCode>,
    complete: bool,
    /// Ends with the line.
    _context: Option<Arc<RequestContext>>,
}

impl Drop for Line {
    fn drop(&mut self) {
        let Line { id, method, path, .. } = &*self;
        let seconds = self.since.elapsed().as_secs_f64();
        let status = self.status.map(|status| status.as_u16());
        let left = !self.complete;
        if self.is_probe {
            tracing::debug!(request_id = id, %method, path, status, left, seconds, "request");
        } else {
            tracing::info!(request_id = id, %method, path, status, left, seconds, "request");
        }
    }
}

/// A body whose end is the request's.
struct Followed {
    body: Body,
    line: Line,
}

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        // The server may not ask for the end of a body that says itself that it has ended.
        self.line.complete = matches!(frame, Poll::Ready(None)) || self.body.is_end_stream();
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
