//! API keys and their rights.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::http::{HeaderMap, header};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::engine::{Account, AccountLimits, Tenant};
use crate::service::Caller;

/// The header in which Anthropic's clients send their key.
const API_KEY: &str = "x-api-key";
/// The scheme of the header `Authorization`. RFC 9110 compares schemes without regard to case.
const SCHEME: &[u8] = b"bearer";
/// Maximum number of characters of a key's name, which is a label of metrics.
const MAX_NAME_LENGTH: usize = 64;

/// An API key and its rights. The `Debug` output does not show the key.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    secret: String,
    high_priority: bool,
    limits: AccountLimits,
    /// Name of the key in metrics.
    name: Option<String>,
}

/// The error of a text that is not an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ApiKeyError {
    /// The text has no key.
    #[error("a key must not be empty")]
    Empty,
    /// No client could send the key in a header, or an unknown word follows it, or a word twice.
    #[error(
        "a key must be visible ASCII characters without spaces, and only `priority=high`, `requests=N`, `queued=N`, \
         `tokens-per-minute=N` and `name=NAME` may follow it, each once, after spaces"
    )]
    Malformed,
}

impl ApiKey {
    /// The key, as clients send it.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// Reads a word that follows the key. Returns `None` if the word is unknown, has a value out of
    /// range, or sets what another word has set.
    fn read(&mut self, word: &str) -> Option<()> {
        let (option, value) = word.split_once('=')?;
        let number = || value.parse::<u32>().ok();
        let positive = || number().filter(|&number| number > 0);
        let is_new = match option {
            "priority" if value == "high" => !std::mem::replace(&mut self.high_priority, true),
            "requests" => self.limits.requests.replace(positive()? as usize).is_none(),
            "queued" => self.limits.queued.replace(number()? as usize).is_none(),
            "tokens-per-minute" => self.limits.tokens_per_minute.replace(positive()?).is_none(),
            "name" => {
                let fits = !value.is_empty()
                    && value.len() <= MAX_NAME_LENGTH
                    && value.bytes().all(|byte| byte.is_ascii_graphic());
                self.name.replace(value.to_owned()).is_none() && fits
            }
            _ => false,
        };
        is_new.then_some(())
    }

    /// Adds the rights of another entry with the same secret. If both have a limit, the larger one
    /// counts.
    fn merge(&mut self, other: &ApiKey) {
        self.high_priority |= other.high_priority;
        let (own, new) = (&mut self.limits, &other.limits);
        own.requests = own.requests.max(new.requests);
        own.queued = own.queued.max(new.queued);
        own.tokens_per_minute = own.tokens_per_minute.max(new.tokens_per_minute);
        if self.name.is_none() {
            self.name.clone_from(&other.name);
        }
    }

    /// The account of the key, if it has a limit or a name.
    fn account(&self) -> Option<Arc<Account>> {
        let is_needed = self.name.is_some() || self.limits != AccountLimits::default();
        is_needed.then(|| Account::new(self.limits, self.name.as_deref()))
    }

    /// Returns whether the key is marked for requests with high priority.
    pub fn is_high_priority(&self) -> bool {
        self.high_priority
    }
}

impl FromStr for ApiKey {
    type Err = ApiKeyError;

    /// Reads `KEY`, or `KEY priority=high requests=N queued=N tokens-per-minute=N name=NAME` with
    /// any of these words in any order. The limits of requests and tokens are positive.
    fn from_str(text: &str) -> Result<Self, ApiKeyError> {
        let mut words = text.split_whitespace();
        let secret = words.next().ok_or(ApiKeyError::Empty)?;
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ApiKeyError::Malformed);
        }
        let mut key = ApiKey {
            secret: secret.to_owned(),
            high_priority: false,
            limits: AccountLimits::default(),
            name: None,
        };
        for word in words {
            key.read(word).ok_or(ApiKeyError::Malformed)?;
        }
        Ok(key)
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiKey").field("high_priority", &self.high_priority).finish_non_exhaustive()
    }
}

/// The keys of a server, and the caller that each of them identifies.
#[derive(Debug, Default)]
pub(super) struct Keyring {
    /// The keys, without duplicates.
    keys: Vec<ApiKey>,
    /// The caller of each key.
    callers: Vec<Caller>,
}

impl Keyring {
    /// `separate_caches` gives each key its own prefix cache; `None` does so if there are several
    /// keys. If no key is marked for high priority, the requests of all keys may have it. A key
    /// that is listed twice has the rights of both entries. Each key is a tenant.
    pub(super) fn new(listed: &[ApiKey], separate_caches: Option<bool>) -> Self {
        let mut keys: Vec<ApiKey> = Vec::new();
        for key in listed {
            match keys.iter_mut().find(|known| known.secret == key.secret) {
                Some(known) => known.merge(key),
                None => keys.push(key.clone()),
            }
        }
        let separate = separate_caches.unwrap_or(keys.len() > 1);
        let has_marked_key = keys.iter().any(|key| key.high_priority);
        let caller = |(index, key): (usize, &ApiKey)| {
            // The number identifies the key while the server runs, which is as long as the cache
            // exists, and reveals nothing about the key.
            let partition = separate.then(|| Arc::from(format!("key {index}")));
            Caller::new(partition, key.high_priority || !has_marked_key)
                .for_tenant(Tenant::named(format!("key {index}")))
                .with_account(key.account())
        };
        let callers = keys.iter().enumerate().map(caller).collect();
        Keyring { keys, callers }
    }

    /// Returns whether no key is needed.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the caller whose key a request has. A client may send two keys, one in each header:
    /// one valid key is enough, and if both are valid, the key in `Authorization` counts.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Option<&Caller> {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let other = headers.get(API_KEY).map(|value| value.as_bytes());
        [bearer, other].into_iter().flatten().find_map(|given| self.find(given))
    }

    /// Compares with every key. The time does not depend on where keys differ or which of them
    /// matches, so it reveals nothing about them.
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

/// Returns the token of an `Authorization` header with the scheme `Bearer`, in upper or lower case
/// and followed by any number of spaces.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(SCHEME.len())?;
    let token = rest.trim_ascii_start();
    (scheme.eq_ignore_ascii_case(SCHEME) && token.len() < rest.len()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_may_be_marked_for_high_priority() {
        let key = |text: &str| text.parse::<ApiKey>().map(|key| (key.secret, key.high_priority));
        assert_eq!(key("abc"), Ok(("abc".into(), false)));
        assert_eq!(key("abc  priority=high "), Ok(("abc".into(), true)));
        // A key may look like the mark.
        assert_eq!(key("priority=high"), Ok(("priority=high".into(), false)));
        for (text, error) in [
            ("", ApiKeyError::Empty),
            (" ", ApiKeyError::Empty),
            ("two words", ApiKeyError::Malformed),
            ("abc priority=low", ApiKeyError::Malformed),
            ("abc priority=high more", ApiKeyError::Malformed),
            ("abc priority=high priority=high", ApiKeyError::Malformed),
            ("abc requests=0", ApiKeyError::Malformed),
            ("abc requests=1 requests=2", ApiKeyError::Malformed),
            ("abc requests=-1", ApiKeyError::Malformed),
            ("abc tokens-per-minute=0", ApiKeyError::Malformed),
            ("abc queued=", ApiKeyError::Malformed),
            ("abc name=", ApiKeyError::Malformed),
            ("abc name=a name=b", ApiKeyError::Malformed),
            ("größe", ApiKeyError::Malformed),
            ("a\u{1}b", ApiKeyError::Malformed),
        ] {
            assert_eq!(key(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn limits_and_a_name_may_follow_a_key() {
        let key: ApiKey =
            "abc name=shop queued=0 requests=8 priority=high tokens-per-minute=600".parse().unwrap();
        let limits = AccountLimits { requests: Some(8), queued: Some(0), tokens_per_minute: Some(600) };
        assert_eq!((key.limits, key.name.as_deref(), key.high_priority), (limits, Some("shop"), true));
        let mut merged: ApiKey = "abc requests=9".parse().unwrap();
        merged.merge(&key);
        assert_eq!(merged, ApiKey { limits: AccountLimits { requests: Some(9), ..limits }, ..key });
        assert!(merged.account().is_some());
        assert!("abc priority=high".parse::<ApiKey>().unwrap().account().is_none());
    }

    #[test]
    fn a_key_is_not_printed() {
        let key: ApiKey = "secret priority=high".parse().unwrap();
        assert_eq!(format!("{key:?}"), "ApiKey { high_priority: true, .. }");
    }

    #[test]
    fn the_scheme_is_read_as_in_rfc_9110() {
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
    fn the_matching_key_is_found_among_several() {
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
