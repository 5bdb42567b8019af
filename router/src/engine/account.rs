//! The accounts of API keys: what each of them may use, and what it uses.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::metrics::AccountCounters;

/// The limits of an account. `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AccountLimits {
    /// Maximum number of requests queued or running.
    pub requests: Option<usize>,
    /// Maximum number of queued requests beyond those that could start at once.
    pub queued: Option<usize>,
    /// Maximum number of tokens per minute, prompts and generated tokens together.
    pub tokens_per_minute: Option<u32>,
}

/// A limit that a request would exceed. The texts are meant for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ExceededLimit {
    /// The maximum number of requests is queued or running.
    #[error("this API key has {0} requests waiting or running, which is its limit")]
    Requests(usize),
    /// The maximum number of requests is queued.
    #[error("this API key has {0} requests waiting, which is its limit")]
    Queued(usize),
    /// The tokens of the last minute exceed the limit.
    #[error("this API key has used its {per_minute} tokens per minute")]
    Tokens {
        /// The limit.
        per_minute: u32,
        /// Time until the key may use tokens again.
        wait: Duration,
    },
}

impl ExceededLimit {
    /// The name of the limit, as the label of a metric.
    fn name(&self) -> &'static str {
        match self {
            ExceededLimit::Requests(_) => "requests",
            ExceededLimit::Queued(_) => "queued",
            ExceededLimit::Tokens { .. } => "tokens_per_minute",
        }
    }
}

/// The account of an API key: its limits, and what it uses.
#[derive(Debug)]
pub struct Account {
    limits: AccountLimits,
    /// Counters with the name of the key, if it has one.
    counters: Option<AccountCounters>,
    in_flight: AtomicUsize,
    queued: AtomicUsize,
    tokens: Option<Mutex<TokenBucket>>,
}

impl Account {
    /// An account that has used nothing. With a `name`, its use is shown in the metrics.
    pub fn new(limits: AccountLimits, name: Option<&str>) -> Arc<Self> {
        let bucket = |per_minute| Mutex::new(TokenBucket::full(per_minute, Instant::now()));
        Arc::new(Account {
            limits,
            counters: name.map(AccountCounters::new),
            in_flight: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            tokens: limits.tokens_per_minute.map(bucket),
        })
    }

    /// Checks that so many requests could be submitted now, of which `free` could start at once.
    /// Nothing is reserved.
    ///
    /// # Errors
    /// The limit that they would exceed.
    pub(super) fn check(&self, requests: usize, free: usize) -> Result<(), ExceededLimit> {
        let may_have =
            |used: &AtomicUsize, limit: usize| used.load(Ordering::Acquire).saturating_add(requests) <= limit;
        let result = match self.limits {
            AccountLimits { requests: Some(limit), .. } if !may_have(&self.in_flight, limit) => {
                Err(ExceededLimit::Requests(limit))
            }
            AccountLimits { queued: Some(limit), .. }
                if !may_have(&self.queued, limit.saturating_add(free)) =>
            {
                Err(ExceededLimit::Queued(limit))
            }
            _ => self.check_tokens(Instant::now()),
        };
        result.inspect_err(|limit| {
            if let Some(counters) = &self.counters {
                counters.refused(limit.name());
            }
        })
    }

    fn check_tokens(&self, now: Instant) -> Result<(), ExceededLimit> {
        let Some(tokens) = &self.tokens else { return Ok(()) };
        let mut bucket = tokens.lock().unwrap_or_else(PoisonError::into_inner);
        let wait = bucket.wait(now);
        let per_minute = bucket.per_minute;
        if wait.is_zero() { Ok(()) } else { Err(ExceededLimit::Tokens { per_minute, wait }) }
    }

    /// Counts a request, of which `free` could start at once. Handles on several threads may exceed
    /// the limit of queued requests by as many requests as there are threads; the limit of all
    /// requests is exact.
    ///
    /// # Errors
    /// The limit that the request exceeds.
    pub(super) fn enter(self: &Arc<Self>, free: usize) -> Result<AccountPermit, ExceededLimit> {
        self.check(1, free)?;
        let limit = self.limits.requests.unwrap_or(usize::MAX);
        self.in_flight
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < limit).then_some(n + 1))
            .map_err(|_| ExceededLimit::Requests(limit))?;
        self.queued.fetch_add(1, Ordering::AcqRel);
        if let Some(counters) = &self.counters {
            counters.accepted();
        }
        Ok(AccountPermit { account: self.clone(), queued: true })
    }

    /// Charges tokens of a prompt.
    pub(crate) fn charge_prompt(&self, tokens: usize) {
        self.charge(tokens);
        if let Some(counters) = &self.counters {
            counters.prompt_tokens(tokens);
        }
    }

    /// Charges the work for a prompt that was refused after it had been rendered or tokenized. The
    /// work is about as much as so many tokens need.
    pub(crate) fn charge_refused(&self, tokens: usize) {
        self.charge(tokens);
    }

    /// Charges a generated token.
    pub(crate) fn charge_generated(&self) {
        self.charge(1);
        if let Some(counters) = &self.counters {
            counters.generated_token();
        }
    }

    fn charge(&self, tokens: usize) {
        if let Some(bucket) = &self.tokens {
            bucket.lock().unwrap_or_else(PoisonError::into_inner).take(tokens, Instant::now());
        }
    }
}

/// Counts one request of an account as in flight until it is dropped, and as queued until the
/// request starts.
#[derive(Debug)]
pub(super) struct AccountPermit {
    account: Arc<Account>,
    queued: bool,
}

impl AccountPermit {
    /// Notes that the request has left the queue.
    pub(super) fn start(&mut self) {
        if std::mem::take(&mut self.queued) {
            self.account.queued.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Drop for AccountPermit {
    fn drop(&mut self) {
        self.start();
        self.account.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A token bucket: it fills at a constant rate, up to the tokens of one minute. The length of an
/// answer is not known in advance, so tokens are taken when they are used, and more may be taken
/// than there are. The bucket is closed until the debt is paid.
#[derive(Debug)]
struct TokenBucket {
    per_minute: u32,
    /// Negative while there is a debt.
    tokens: f64,
    filled: Instant,
}

impl TokenBucket {
    fn full(per_minute: u32, now: Instant) -> Self {
        TokenBucket { per_minute, tokens: f64::from(per_minute), filled: now }
    }

    fn fill(&mut self, now: Instant) {
        let seconds = now.saturating_duration_since(self.filled).as_secs_f64();
        let capacity = f64::from(self.per_minute);
        self.tokens = (self.tokens + seconds * capacity / 60.0).min(capacity);
        self.filled = self.filled.max(now);
    }

    fn take(&mut self, tokens: usize, now: Instant) {
        self.fill(now);
        self.tokens -= tokens as f64;
    }

    /// Time until there is a token; zero if there is one.
    fn wait(&mut self, now: Instant) -> Duration {
        self.fill(now);
        let missing = 1.0 - self.tokens;
        if missing <= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(missing * 60.0 / f64::from(self.per_minute)).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(requests: Option<usize>, queued: Option<usize>, tokens: Option<u32>) -> Arc<Account> {
        Account::new(AccountLimits { requests, queued, tokens_per_minute: tokens }, None)
    }

    #[test]
    fn requests_are_bounded_until_they_end() {
        let account = account(Some(3), None, None);
        let mut held: Vec<_> = (0..3).map(|_| account.enter(0).unwrap()).collect();
        assert_eq!(account.enter(9).unwrap_err(), ExceededLimit::Requests(3));
        held[0].start();
        assert_eq!(account.enter(9).unwrap_err(), ExceededLimit::Requests(3));
        drop(held.pop());
        assert_eq!(account.check(1, 0), Ok(()));
        assert_eq!(account.check(2, 0), Err(ExceededLimit::Requests(3)));
    }

    #[test]
    fn queued_requests_are_bounded_until_they_start() {
        let account = account(None, Some(2), None);
        let mut held: Vec<_> = (0..3).map(|_| account.enter(1).unwrap()).collect();
        assert_eq!(account.enter(1).unwrap_err(), ExceededLimit::Queued(2));
        held[0].start();
        held[0].start();
        assert_eq!(account.enter(0).unwrap_err(), ExceededLimit::Queued(2));
        assert_eq!(account.check(1, 1), Ok(()));
        held[1].start();
        assert_eq!(account.check(1, 0), Ok(()));
        held.clear();
        assert_eq!(account.check(2, 0), Ok(()));
        assert_eq!(account.check(3, 0), Err(ExceededLimit::Queued(2)));
    }

    #[test]
    fn an_account_without_limits_accepts_everything() {
        let account = account(None, None, None);
        account.charge_prompt(usize::MAX);
        assert_eq!(account.check(usize::MAX, 0), Ok(()));
    }

    #[test]
    fn a_bucket_fills_at_its_rate_and_keeps_a_debt() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut bucket = TokenBucket::full(60, start);
        bucket.take(59, at(0));
        assert_eq!(bucket.wait(at(0)), Duration::ZERO, "one is left");
        // One token per second, and more can be taken than there are.
        bucket.take(100, at(0));
        assert_eq!(bucket.wait(at(0)), Duration::from_secs(100));
        assert_eq!(bucket.wait(at(40)), Duration::from_secs(60));
        assert_eq!(bucket.wait(at(100)), Duration::ZERO);
        // It holds the tokens of one minute at most.
        bucket.take(60, at(10_000));
        assert_eq!(bucket.wait(at(10_000)), Duration::from_secs(1));
        // A clock that goes back fills nothing.
        assert_eq!(bucket.wait(at(9_000)), Duration::from_secs(1));
        assert_eq!(bucket.wait(at(10_001)), Duration::ZERO);
    }

    #[test]
    fn tokens_are_charged_when_they_are_used() {
        let account = account(None, None, Some(2));
        account.charge_prompt(1);
        assert_eq!(account.check(100, 0), Ok(()));
        for _ in 0..1000 {
            account.charge_generated();
        }
        let Err(ExceededLimit::Tokens { per_minute: 2, wait }) = account.check(1, 0) else { panic!() };
        assert!(wait > Duration::from_secs(20_000), "{wait:?}");
    }
}
