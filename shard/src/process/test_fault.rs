//! A fault that tests inject into a shard.
//!
//! With `MILLRACE_TEST_DEADLY_TOKEN=N` in the environment of the server, a shard aborts when a step
//! admits a sequence that contains the token N. Tests use it to imitate a request that triggers a
//! defect in a kernel or a driver. No request can set the variable, and without the variable no
//! step is examined.

use millrace_proto::Step;

/// Name of the variable that holds the deadly token.
const VARIABLE: &str = "MILLRACE_TEST_DEADLY_TOKEN";

/// The fault to inject, if there is one.
#[derive(Debug, Clone, Copy)]
pub(super) struct TestFault {
    deadly_token: Option<u32>,
}

impl TestFault {
    /// Reads the fault from the environment.
    pub(super) fn from_env() -> Self {
        let deadly_token = std::env::var(VARIABLE).ok().and_then(|token| token.parse().ok());
        if let Some(token) = deadly_token {
            tracing::warn!("{VARIABLE} is set: this shard aborts when a sequence contains token {token}");
        }
        TestFault { deadly_token }
    }

    /// Aborts the process if the step admits a sequence that contains the deadly token.
    pub(super) fn strike(&self, step: &Step) {
        if let Some(token) = self.deadly_token
            && step.admit.iter().any(|admission| admission.tokens.contains(&token))
        {
            std::process::abort();
        }
    }
}
