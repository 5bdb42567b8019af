//! Why a request was not answered.

use std::time::Duration;

use crate::engine::{Failure, Refused};

/// Why a request was not answered; the texts are meant for clients.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The request is wrong.
    #[error("Input validation error: {detail}")]
    Validation {
        /// The field, by TGI's name for it.
        param: &'static str,
        /// What is wrong with it.
        detail: String,
    },
    /// The request asks for something that its API key does not entitle it to.
    #[error("Permission denied: {detail}")]
    Forbidden {
        /// The field that asks for it.
        param: &'static str,
        /// What the key lacks.
        detail: String,
    },
    /// The conversation cannot be rendered.
    #[error("Template error: {0}")]
    Template(String),
    /// As many requests as allowed are waiting or running.
    #[error("Model is overloaded")]
    Overloaded {
        /// When there will be room, as far as can be told.
        retry_after: Duration,
    },
    /// The engine is loading, draining or has failed.
    #[error("{0}")]
    Unavailable(String),
    /// The engine failed while it answered.
    #[error("Request failed during generation: Server error: {0}")]
    Generation(String),
    /// The engine stopped without an answer.
    #[error("Incomplete generation")]
    Incomplete,
}

/// Seconds that a client is told to wait for a server that loads or is being replaced.
const UNAVAILABLE_RETRY: u64 = 1;

impl ServiceError {
    /// A [`ServiceError::Validation`].
    pub fn invalid(param: &'static str, detail: impl Into<String>) -> Self {
        ServiceError::Validation { param, detail: detail.into() }
    }

    /// A field that is understood but not served yet.
    pub fn unsupported(param: &'static str) -> Self {
        Self::invalid(param, format!("`{param}` is not supported"))
    }

    /// Seconds after which the same request may be answered; `None` if it never will be, or nobody knows why it was not.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            ServiceError::Overloaded { retry_after } => Some(retry_after.as_millis().div_ceil(1000) as u64),
            ServiceError::Unavailable(_) => Some(UNAVAILABLE_RETRY),
            _ => None,
        }
    }

    /// One word for it, the label of the failure counter.
    pub fn kind(&self) -> &'static str {
        match self {
            ServiceError::Validation { .. } => "validation",
            ServiceError::Forbidden { .. } => "forbidden",
            ServiceError::Template(_) => "template",
            ServiceError::Overloaded { .. } => "overloaded",
            ServiceError::Unavailable(_) => "unavailable",
            ServiceError::Generation(_) => "generation",
            ServiceError::Incomplete => "incomplete",
        }
    }
}

impl From<Refused> for ServiceError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Overloaded { retry_after } => ServiceError::Overloaded { retry_after },
            Refused::TooLarge(why) => ServiceError::invalid("inputs", why),
            Refused::Unavailable(why) => ServiceError::Unavailable(why),
        }
    }
}

impl From<Failure> for ServiceError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotStarted(why) => ServiceError::Unavailable(why),
            Failure::Broken(why) => ServiceError::Generation(why),
            Failure::Constraint(why) => ServiceError::invalid("grammar", why),
        }
    }
}
