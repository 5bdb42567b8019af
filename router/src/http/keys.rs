//! API keys and their rights.

use std::collections::{HashMap, hash_map};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use axum::http::{HeaderMap, header};
use sha2::{Digest as _, Sha256};

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

/// The keys of a server. They can be replaced while it runs. Clones share the keys.
#[derive(Debug, Clone, Default)]
pub struct ApiKeys {
    keyring: Arc<RwLock<Arc<Keyring>>>,
    /// Whether each key has its own prefix cache.
    separate_caches: Option<bool>,
}

impl ApiKeys {
    /// Takes the keys that requests may have; if there is none, no key is needed.
    ///
    /// `separate_caches` gives each key its own prefix cache; `None` does so if there are several
    /// keys. If no key is marked for high priority, the requests of all keys may have it. A key
    /// that is listed twice has the rights of both entries. Each key is a tenant.
    pub fn new(listed: &[ApiKey], separate_caches: Option<bool>) -> Self {
        let keyring = Keyring::following(&Keyring::default(), listed, separate_caches);
        ApiKeys { keyring: Arc::new(RwLock::new(Arc::new(keyring))), separate_caches }
    }

    /// Replaces the keys. A key that stays keeps its prefix cache, and its use of its limits if
    /// these stay. Requests that are running go on.
    pub fn replace(&self, listed: &[ApiKey]) {
        let new = Arc::new(Keyring::following(&self.keyring(), listed, self.separate_caches));
        *self.keyring.write().unwrap_or_else(PoisonError::into_inner) = new;
    }

    /// Returns the number of keys.
    pub fn count(&self) -> usize {
        self.keyring().entries.len()
    }

    /// Returns whether no key is needed.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Returns the caller whose key a request has. A client may send two keys, one in each header:
    /// one valid key is enough, and if both are valid, the key in `Authorization` counts.
    pub(super) fn caller(&self, headers: &HeaderMap) -> Option<Caller> {
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let other = headers.get(API_KEY).map(|value| value.as_bytes());
        let keyring = self.keyring();
        let entry = [bearer, other].into_iter().flatten().find_map(|given| keyring.find(given))?;
        Some(entry.caller.clone())
    }

    fn keyring(&self) -> Arc<Keyring> {
        self.keyring.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The keys at one time, by digest.
#[derive(Debug, Default)]
struct Keyring {
    entries: HashMap<Digest, Entry>,
    /// Makes the digests of this process differ from those that anybody else can compute.
    salt: [u8; 32],
    /// The number of the next key that is new.
    next_number: u64,
}

/// A key, and the caller that it identifies.
#[derive(Debug)]
struct Entry {
    key: ApiKey,
    /// The number identifies the key while the server runs, which is as long as the cache exists,
    /// and reveals nothing about the key.
    number: u64,
    caller: Caller,
}

/// The SHA-256 of the salt and a key.
///
/// Keys are compared by their digests: the time of a lookup reveals nothing about the keys, because
/// nobody knows which digest a guess has, and it does not grow with their number.
type Digest = [u8; 32];

impl Keyring {
    /// Returns the keyring that replaces `former`.
    fn following(former: &Keyring, listed: &[ApiKey], separate_caches: Option<bool>) -> Self {
        let salt = if former.entries.is_empty() { rand::random() } else { former.salt };
        let mut keyring = Keyring { salt, next_number: former.next_number, ..Keyring::default() };
        // In the order of the list, and without duplicates.
        let mut keys: Vec<(Digest, ApiKey)> = Vec::new();
        let mut places: HashMap<Digest, usize> = HashMap::new();
        for key in listed {
            let digest = keyring.digest(key.secret.as_bytes());
            match places.entry(digest) {
                hash_map::Entry::Occupied(place) => {
                    if let Some((_, known)) = keys.get_mut(*place.get()) {
                        known.merge(key);
                    }
                }
                hash_map::Entry::Vacant(place) => {
                    place.insert(keys.len());
                    keys.push((digest, key.clone()));
                }
            }
        }
        let separate = separate_caches.unwrap_or(keys.len() > 1);
        let has_marked_key = keys.iter().any(|(_, key)| key.high_priority);
        for (digest, key) in keys {
            let known = former.entries.get(&digest);
            let number = known.map_or(keyring.next_number, |entry| entry.number);
            keyring.next_number = keyring.next_number.max(number + 1);
            let kept = known.filter(|entry| entry.key.limits == key.limits && entry.key.name == key.name);
            let account = match kept {
                Some(entry) => entry.caller.account().cloned(),
                None => key.account(),
            };
            let partition = separate.then(|| Arc::from(format!("key {number}")));
            let caller = Caller::new(partition, key.high_priority || !has_marked_key)
                .for_tenant(Tenant::named(format!("key {number}")))
                .with_account(account);
            keyring.entries.insert(digest, Entry { key, number, caller });
        }
        keyring
    }

    fn digest(&self, key: &[u8]) -> Digest {
        Sha256::new().chain_update(self.salt).chain_update(key).finalize().into()
    }

    fn find(&self, given: &[u8]) -> Option<&Entry> {
        self.entries.get(&self.digest(given))
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

    fn keys(listed: &[&str]) -> Vec<ApiKey> {
        listed.iter().map(|key| key.parse().unwrap()).collect()
    }

    #[test]
    fn the_matching_key_is_found_among_several() {
        let all = ApiKeys::new(&keys(&["a", "b", "c", "b"]), None);
        assert_eq!(all.count(), 3);
        let keyring = all.keyring();
        for (number, key) in (0..).zip(["a", "b", "c"]) {
            let found = keyring.find(key.as_bytes()).unwrap();
            assert_eq!((found.number, found.key.secret()), (number, key));
        }
        for wrong in ["", "ab", "d", "A"] {
            assert!(keyring.find(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_key_that_stays_keeps_its_number_and_its_use() {
        let all = ApiKeys::new(&keys(&["a requests=1", "b requests=2", "c"]), None);
        let before = all.keyring();
        all.replace(&keys(&["d", "b requests=2", "a requests=3"]));
        let after = all.keyring();
        let number = |keyring: &Keyring, key: &str| keyring.find(key.as_bytes()).map(|entry| entry.number);
        assert_eq!(["a", "b", "c", "d"].map(|key| number(&before, key)), [Some(0), Some(1), Some(2), None]);
        // The new key does not get the number of the one that is gone, nor its prefix cache.
        assert_eq!(["a", "b", "c", "d"].map(|key| number(&after, key)), [Some(0), Some(1), None, Some(3)]);
        let account = |keyring: &Keyring, key: &str| {
            keyring.find(key.as_bytes()).unwrap().caller.account().cloned().unwrap()
        };
        assert!(Arc::ptr_eq(&account(&before, "b"), &account(&after, "b")));
        assert!(!Arc::ptr_eq(&account(&before, "a"), &account(&after, "a")), "its limit has changed");
    }

    #[test]
    fn many_keys_are_read_in_time_that_grows_with_their_number_only() {
        // Comparing each pair would take minutes in a build without optimizations.
        let many: Vec<ApiKey> = (0..200_000).map(|n| format!("key-{n}").parse().unwrap()).collect();
        let all = ApiKeys::new(&many, None);
        assert_eq!(all.count(), 200_000);
        assert!(all.keyring().find(b"key-199999").is_some());
    }
}
