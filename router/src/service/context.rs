//! The request that a piece of work belongs to: its name in logs, and its span.
//!
//! Spans go wherever the process has told OpenTelemetry to send them; nowhere, if it has not, and then they cost next
//! to nothing.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use opentelemetry::propagation::Extractor;
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, global};

use super::{Caller, Timings};

/// Who makes the spans.
const SCOPE: &str = "millrace";

tokio::task_local! {
    static CURRENT: Arc<RequestContext>;
}

/// The request that a piece of work belongs to.
#[derive(Debug)]
pub(crate) struct RequestContext {
    id: String,
    /// Set when its API key has been checked; never if the server has no keys.
    caller: OnceLock<Caller>,
    /// Holds the span of the whole request, which ends with this.
    span: Context,
}

/// Headers, as the propagator reads them.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

impl RequestContext {
    /// A request begins. Its header `traceparent` names the span that it belongs to.
    pub(crate) fn begin(id: &str, method: &str, path: &str, headers: &HeaderMap) -> Arc<Self> {
        let parent = global::get_text_map_propagator(|propagator| propagator.extract(&Headers(headers)));
        let tracer = global::tracer(SCOPE);
        let span = tracer
            .span_builder(format!("{method} {path}"))
            .with_kind(SpanKind::Server)
            .with_attributes([
                KeyValue::new("http.request.method", method.to_owned()),
                KeyValue::new("http.route", path.to_owned()),
                KeyValue::new("request.id", id.to_owned()),
            ])
            .start_with_context(&tracer, &parent);
        Arc::new(RequestContext { id: id.to_owned(), caller: OnceLock::new(), span: parent.with_span(span) })
    }

    /// Runs a future on behalf of this request.
    pub(crate) async fn scope<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self.clone(), work).await
    }

    /// The request that is being worked for; `None` at the terminal.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// The request is from this caller. The first caller that is named counts.
    pub(crate) fn is_from(&self, caller: Caller) {
        let _ = self.caller.set(caller);
    }

    /// Who sent the request; `None` if the server has no keys.
    pub(crate) fn caller(&self) -> Option<&Caller> {
        self.caller.get()
    }

    /// What the request is called.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The response has this status.
    pub(crate) fn answered(&self, status: u16) {
        let span = self.span.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if status >= 500 {
            span.set_status(Status::error(""));
        }
    }

    /// An answer is complete: spans of its phases, the last of which ends now.
    pub(crate) fn phases(&self, timings: &Timings, first_token: Duration, sizes: Sizes) {
        if !self.span.span().is_recording() {
            return;
        }
        let begin = SystemTime::now() - timings.total;
        let started = timings.validation + timings.queue;
        let first_token = first_token.clamp(started, timings.total);
        let prompt = vec![
            KeyValue::new("gen_ai.usage.input_tokens", sizes.prompt as i64),
            KeyValue::new("millrace.cached_tokens", sizes.cached as i64),
        ];
        let generated = vec![KeyValue::new("gen_ai.usage.output_tokens", i64::from(sizes.generated))];
        let tracer = global::tracer(SCOPE);
        for (name, from, to, attributes) in [
            ("validation", Duration::ZERO, timings.validation, Vec::new()),
            ("queue", timings.validation, started, Vec::new()),
            ("prefill", started, first_token, prompt),
            ("decode", first_token, timings.total, generated),
        ] {
            tracer
                .span_builder(name)
                .with_start_time(begin + from)
                .with_attributes(attributes)
                .start_with_context(&tracer, &self.span)
                .end_with_timestamp(begin + to);
        }
    }

    /// An answer broke off, for this reason.
    pub(crate) fn failed(&self, kind: &'static str) {
        let span = self.span.span();
        span.set_attribute(KeyValue::new("error.type", kind));
        span.set_status(Status::error(kind));
    }
}

/// Tokens of an answer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Of its prompt.
    pub(crate) prompt: usize,
    /// Of these, how many did not have to be computed.
    pub(crate) cached: usize,
    /// Of the answer.
    pub(crate) generated: u32,
}
