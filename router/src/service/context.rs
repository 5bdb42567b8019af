//! The HTTP request for which a task works: its id in logs, and its tracing span.
//!
//! The process configures where OpenTelemetry sends spans. Without such a configuration spans cost
//! almost nothing.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use axum::http::HeaderMap;
use millrace_scheduler::DraftCounts;
use opentelemetry::propagation::Extractor;
use opentelemetry::trace::{Span, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue, global};

use super::caller::Caller;
use crate::engine::{Account, HeldAdapter, Tenant};
use crate::metrics::Timings;

/// Instrumentation scope of the spans.
const SCOPE: &str = "millrace";

tokio::task_local! {
    static CURRENT: Arc<RequestContext>;
}

/// The HTTP request for which a task works.
#[derive(Debug)]
pub(crate) struct RequestContext {
    id: String,
    /// Set when the API key has been checked. Never set if the server has no keys.
    caller: OnceLock<Caller>,
    /// The tenant that a header names, if one does.
    tenant: OnceLock<Tenant>,
    /// The length of the body in bytes; 0 until a long body has been read.
    body_bytes: AtomicUsize,
    /// The figures of all answers that have ended; `None` before the first one.
    figures: Mutex<Option<AnswerFigures>>,
    /// The adapters that the request has named. They stay loaded as long as the request.
    adapters: Mutex<Vec<Arc<HeldAdapter>>>,
    /// Holds the span of the whole request. The span ends when this is dropped.
    span: Context,
}

/// The figures of a request's answers, for its line in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct AnswerFigures {
    /// The longest time that one of them waited in the queue.
    pub(crate) queue: Duration,
    /// The time from the arrival of the request to its first token; `None` if there was none.
    pub(crate) first_token: Option<Duration>,
    /// The sums of the tokens.
    pub(crate) counts: TokenCounts,
}

impl AnswerFigures {
    /// Adds the figures of another answer to the same request.
    fn add(&mut self, other: AnswerFigures) {
        self.queue = self.queue.max(other.queue);
        self.first_token = [self.first_token, other.first_token].into_iter().flatten().min();
        self.counts.prompt += other.counts.prompt;
        self.counts.cached += other.counts.cached;
        self.counts.generated = self.counts.generated.saturating_add(other.counts.generated);
        self.counts.drafts += other.counts.drafts;
    }
}

/// HTTP headers for the propagator.
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
    /// Starts the span of a request. The header `traceparent` names its parent span.
    pub(crate) fn start_span(id: &str, method: &str, path: &str, headers: &HeaderMap) -> Arc<Self> {
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
        Arc::new(RequestContext {
            id: id.to_owned(),
            caller: OnceLock::new(),
            tenant: OnceLock::new(),
            body_bytes: AtomicUsize::new(0),
            figures: Mutex::default(),
            adapters: Mutex::default(),
            span: parent.with_span(span),
        })
    }

    /// Runs a future on behalf of this request.
    pub(crate) async fn scope<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self.clone(), work).await
    }

    /// The request for which the current task works; `None` at the terminal.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Sets the caller of the request. Only the first call has an effect.
    pub(crate) fn is_from(&self, caller: Caller) {
        let _ = self.caller.set(caller);
    }

    /// The caller of the request; `None` if the server has no keys.
    pub(crate) fn caller(&self) -> Option<&Caller> {
        self.caller.get()
    }

    /// Sets the tenant that a header of the request names. Only the first call has an effect.
    pub(crate) fn is_for(&self, tenant: Tenant) {
        let _ = self.tenant.set(tenant);
    }

    /// The tenant of the request: the header names it, or the caller has one.
    pub(crate) fn tenant(&self) -> Tenant {
        let caller_tenant = || self.caller().map(Caller::tenant);
        self.tenant.get().or_else(caller_tenant).cloned().unwrap_or_default()
    }

    /// The tenant of the request for which the current task works.
    pub(crate) fn current_tenant() -> Tenant {
        Self::current().map(|context| context.tenant()).unwrap_or_default()
    }

    /// Keeps an adapter loaded as long as the request.
    pub(crate) fn hold(&self, adapter: Arc<HeldAdapter>) {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner).push(adapter);
    }

    /// Notes the length of the body, once it has been read.
    pub(crate) fn note_body(&self, bytes: usize) {
        self.body_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The length of the body in bytes; 0 if it is short.
    pub(crate) fn body_bytes(&self) -> usize {
        self.body_bytes.load(Ordering::Relaxed)
    }

    /// The account of the request, if its key has one.
    pub(crate) fn account(&self) -> Option<&Arc<Account>> {
        self.caller().and_then(Caller::account)
    }

    /// The id of the request.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Adds the figures of an answer that has ended, with or without an error.
    pub(crate) fn add_figures(&self, figures: AnswerFigures) {
        let mut all = self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_or_insert_default().add(figures);
    }

    /// The figures of the answers so far; `None` if none has ended.
    pub(crate) fn figures(&self) -> Option<AnswerFigures> {
        *self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the status of the response.
    pub(crate) fn answered(&self, status: u16) {
        let span = self.span.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status)));
        if status >= 500 {
            span.set_status(Status::error(""));
        }
    }

    /// Records the spans of an answer's phases. The last phase ends now.
    pub(crate) fn phases(&self, timings: &Timings, first_token: Duration, counts: TokenCounts) {
        if !self.span.span().is_recording() {
            return;
        }
        let begin = SystemTime::now() - timings.total;
        let started = timings.validation + timings.queue;
        let first_token = first_token.clamp(started, timings.total);
        let prompt = vec![
            KeyValue::new("gen_ai.usage.input_tokens", counts.prompt as i64),
            KeyValue::new("millrace.cached_tokens", counts.cached as i64),
        ];
        let generated = vec![KeyValue::new("gen_ai.usage.output_tokens", i64::from(counts.generated))];
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

    /// Records that an answer failed for this reason.
    pub(crate) fn failed(&self, kind: &'static str) {
        let span = self.span.span();
        span.set_attribute(KeyValue::new("error.type", kind));
        span.set_status(Status::error(kind));
    }
}

/// The numbers of tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct TokenCounts {
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Tokens of the prompt that were found in the prefix cache.
    pub(crate) cached: usize,
    /// Generated tokens.
    pub(crate) generated: u32,
    /// Guesses of generated tokens.
    pub(crate) drafts: DraftCounts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_several_answers_are_one() {
        let context = RequestContext::start_span("a", "POST", "/generate", &HeaderMap::new());
        assert_eq!(context.figures(), None);
        let figures = |queue, first_token: Option<u64>, prompt, generated| AnswerFigures {
            queue: Duration::from_millis(queue),
            first_token: first_token.map(Duration::from_millis),
            counts: TokenCounts { prompt, cached: prompt / 2, generated, ..TokenCounts::default() },
        };
        context.add_figures(figures(3, Some(9), 10, 4));
        context.add_figures(figures(5, None, 0, 0));
        context.add_figures(figures(1, Some(7), 20, 6));
        assert_eq!(context.figures(), Some(figures(5, Some(7), 30, 10)));
    }
}
