//! A fault that tests put into a shard.
//!
//! `MILLRACE_TEST_DEADLY_TOKEN=N`, in the environment that the server is started with, makes a shard abort when a step admits a sequence with
//! the token N. It stands for a request that reaches a defect of a kernel or a driver. No request can set it, and without it nothing is looked at.

use millrace_proto::Step;

/// The variable that names the token.
const VARIABLE: &str = "MILLRACE_TEST_DEADLY_TOKEN";

/// What is to go wrong, if anything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TestFault {
    deadly: Option<u32>,
}

impl TestFault {
    /// What the environment asks for.
    pub(crate) fn from_env() -> Self {
        let deadly = std::env::var(VARIABLE).ok().and_then(|token| token.parse().ok());
        if let Some(token) = deadly {
            tracing::warn!("{VARIABLE} is set: this shard aborts when a sequence has token {token}");
        }
        TestFault { deadly }
    }

    /// Aborts the process if the step admits a sequence with the deadly token.
    pub(crate) fn strike(&self, step: &Step) {
        if let Some(token) = self.deadly
            && step.admit.iter().any(|admission| admission.tokens.contains(&token))
        {
            std::process::abort();
        }
    }
}
