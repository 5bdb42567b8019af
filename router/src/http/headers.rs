//! TGI's headers about an answer, which the routes of other APIs have, too.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::app::App;
use super::ignored;
use crate::chat::IgnoredFields;
use crate::service::{Finished, TokenCounts};

/// The header with the number of tokens of the prompts that did not have to be computed.
pub(super) const CACHED_TOKENS: HeaderName = HeaderName::from_static("x-cached-tokens");

/// Returns the headers that are known before the first token: the device, the number of characters
/// of the prompt, and the fields of the request that have no effect.
pub(super) fn before(app: &App, characters: usize, ignored: &IgnoredFields) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let device = app.service.ready().ok().and_then(|ready| HeaderValue::from_str(&ready.device).ok());
    let device = device.unwrap_or(HeaderValue::from_static("unknown"));
    headers.insert(HeaderName::from_static("x-compute-type"), device);
    headers.insert(HeaderName::from_static("x-compute-characters"), characters.into());
    ignored::write_header(ignored, &mut headers);
    headers
}

/// Adds the headers of complete answers, which have `counts` tokens together. The slowest answer
/// gives the times, in milliseconds.
pub(super) fn after<'a>(
    mut headers: HeaderMap,
    counts: TokenCounts,
    answers: impl Iterator<Item = &'a Finished>,
) -> HeaderMap {
    let Some(slowest) = answers.max_by_key(|answer| answer.timings.total) else { return headers };
    let timings = &slowest.timings;
    let mut add = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    add("x-compute-time", timings.total.as_secs_f64().to_string());
    add("x-total-time", timings.total.as_millis().to_string());
    add("x-validation-time", timings.validation.as_millis().to_string());
    add("x-queue-time", timings.queue.as_millis().to_string());
    add("x-inference-time", timings.inference.as_millis().to_string());
    add("x-time-per-token", timings.per_token(slowest.generated_tokens).as_millis().to_string());
    add("x-prompt-tokens", counts.prompt.to_string());
    add("x-generated-tokens", counts.generated.to_string());
    headers.insert(CACHED_TOKENS, counts.cached.into());
    headers
}
