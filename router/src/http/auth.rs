//! API keys: which requests have one, and what each key means for its requests.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::{App, anthropic, openai};
use crate::service::{Caller, RequestContext};

/// The header that Anthropic's clients send their key in.
const API_KEY: &str = "x-api-key";
/// The scheme of the header `Authorization`. RFC 9110 compares schemes without regard to case.
const SCHEME: &[u8] = b"bearer";
/// What follows a key, on the command line or in a file, that may ask for high priority.
const HIGH_PRIORITY: &str = "priority=high";

/// An API key, and what it entitles to. Its `Debug` output does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    secret: String,
    high_priority: bool,
}

/// A text that is not an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ApiKeyError {
    /// There is no key in it.
    #[error("a key must not be empty")]
    Empty,
    /// No client could send it in a header, or what follows it is unknown.
    #[error(
        "a key must be visible ASCII characters without spaces, and only `priority=high` may follow it, after a space"
    )]
    Malformed,
}

impl ApiKey {
    /// The key itself, as clients send it.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Whether this key is marked as one whose requests may have high priority.
    pub fn is_high_priority(&self) -> bool {
        self.high_priority
    }
}

impl FromStr for ApiKey {
    type Err = ApiKeyError;

    /// Reads `KEY` or `KEY priority=high`.
    fn from_str(text: &str) -> Result<Self, ApiKeyError> {
        let mut words = text.split_whitespace();
        let secret = words.next().ok_or(ApiKeyError::Empty)?;
        let high_priority = match (words.next(), words.next()) {
            (None, _) => false,
            (Some(HIGH_PRIORITY), None) => true,
            _ => return Err(ApiKeyError::Malformed),
        };
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ApiKeyError::Malformed);
        }
        Ok(ApiKey { secret: secret.to_owned(), high_priority })
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey").field("high_priority", &self.high_priority).finish_non_exhaustive()
    }
}

/// The keys of a server, and what their bearers are to the service.
#[derive(Debug, Default)]
pub(super) struct Keyring {
    /// Without duplicates.
    keys: Vec<ApiKey>,
    /// One for each key.
    callers: Vec<Caller>,
}

impl Keyring {
    /// `separate_caches` gives each key a prefix cache of its own; `None` does so if there is more
    /// than one key. If no key is marked for high priority, all of them may ask for it. A key that
    /// is listed twice has the rights of both entries.
    pub(super) fn new(listed: &[ApiKey], separate_caches: Option<bool>) -> Self {
        let mut keys: Vec<ApiKey> = Vec::new();
        for key in listed {
            match keys.iter_mut().find(|known| known.secret == key.secret) {
                Some(known) => known.high_priority |= key.high_priority,
                None => keys.push(key.clone()),
            }
        }
        let separate = separate_caches.unwrap_or(keys.len() > 1);
        let is_bound = keys.iter().any(|key| key.high_priority);
        let caller = |(index, key): (usize, &ApiKey)| {
            // The number of a key identifies it for as long as the server runs, which is as long as
            // the cache lives. Nothing about the key itself can be learned from it.
            let partition = separate.then(|| Arc::from(format!("key {index}")));
            Caller::new(partition, key.high_priority || !is_bound)
        };
        let callers = keys.iter().enumerate().map(caller).collect();
        Keyring { keys, callers }
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The caller whose key a request brings. A client may send two keys, one in each header: one
    /// that is valid suffices, and if both are, the one in `Authorization` counts.
    fn caller(&self, headers: &HeaderMap) -> Option<&Caller> {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let other = headers.get(API_KEY).map(|value| value.as_bytes());
        [bearer, other].into_iter().flatten().find_map(|given| self.find(given))
    }

    /// Compares with every key, in a time that does not depend on where they differ or on which of
    /// them matches.
    fn find(&self, given: &[u8]) -> Option<&Caller> {
        let mut found = Choice::from(0);
        let mut index = 0u64;
        for (number, key) in (0u64..).zip(&self.keys) {
            let equal = key.secret.as_bytes().ct_eq(given);
            index.conditional_assign(&number, equal);
            found |= equal;
        }
        self.callers.get(usize::try_from(index).ok()?).filter(|_| found.into())
    }
}

/// The token of an `Authorization` header with the scheme `Bearer`, in any case and before any
/// number of spaces.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(SCHEME.len())?;
    let token = rest.trim_ascii_start();
    (scheme.eq_ignore_ascii_case(SCHEME) && token.len() < rest.len()).then_some(token)
}

/// Lets a POST pass only with one of the keys, and says in its context which one it was.
pub(super) async fn require_key(State(app): State<App>, request: Request, next: Next) -> Response {
    if request.method() != Method::POST || app.keys.is_empty() {
        return next.run(request).await;
    }
    if let Some(caller) = app.keys.caller(request.headers()) {
        if let Some(context) = RequestContext::current() {
            context.is_from(caller.clone());
        }
        return next.run(request).await;
    }
    let mut response = if request.uri().path().starts_with("/v1/messages") {
        anthropic::unauthorized()
    } else if request.uri().path().starts_with("/v1/") {
        openai::unauthorized()
    } else {
        StatusCode::UNAUTHORIZED.into_response()
    };
    response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_be_marked_for_high_priority() {
        let key = |text: &str| text.parse::<ApiKey>().map(|key| (key.secret, key.high_priority));
        assert_eq!(key("abc"), Ok(("abc".into(), false)));
        assert_eq!(key("abc  priority=high "), Ok(("abc".into(), true)));
        // A key may look like a mark.
        assert_eq!(key("priority=high"), Ok(("priority=high".into(), false)));
        for (text, error) in [
            ("", ApiKeyError::Empty),
            (" ", ApiKeyError::Empty),
            ("two words", ApiKeyError::Malformed),
            ("abc priority=low", ApiKeyError::Malformed),
            ("abc priority=high more", ApiKeyError::Malformed),
            ("größe", ApiKeyError::Malformed),
            ("a\u{1}b", ApiKeyError::Malformed),
        ] {
            assert_eq!(key(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        let key: ApiKey = "secret priority=high".parse().unwrap();
        assert_eq!(format!("{key:?}"), "ApiKey { high_priority: true, .. }");
    }

    #[test]
    fn the_scheme_is_read_as_rfc_9110_says() {
        for (value, token) in [
            ("Bearer key", Some("key")),
            ("bearer key", Some("key")),
            ("BEARER   key", Some("key")),
            ("Bearer ", Some("")),
            ("Bearer", None),
            ("Bearerkey", None),
            ("Basic key", None),
            ("key", None),
            ("", None),
        ] {
            assert_eq!(bearer(value.as_bytes()), token.map(str::as_bytes), "{value:?}");
        }
    }

    #[test]
    fn the_key_that_matches_is_found_among_any_number() {
        let keys: Vec<ApiKey> = ["a", "b", "c", "b"].iter().map(|key| key.parse().unwrap()).collect();
        let keyring = Keyring::new(&keys, None);
        assert_eq!(keyring.keys.len(), 3);
        for (index, key) in ["a", "b", "c"].iter().enumerate() {
            let found = keyring.find(key.as_bytes()).unwrap();
            assert!(std::ptr::eq(found, &keyring.callers[index]), "{key}");
        }
        for wrong in ["", "ab", "d", "A"] {
            assert!(keyring.find(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }
}
