//! Why a request was not answered.

use std::fmt;
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
    /// Prompt and answer do not fit into the model's context.
    #[error("Input validation error: {0}")]
    ContextLength(ContextOverflow),
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

/// Sizes of a request that does not fit into the model's context, in tokens. Each API says it in its
/// own words, which its clients look for; `Display` writes TGI's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextOverflow {
    /// The longest prompt.
    pub max_input: usize,
    /// The longest prompt and answer together.
    pub max_total: usize,
    /// The request's prompt.
    pub prompt: usize,
    /// The answer that the request asks for; `None` if the prompt is too long whatever the answer is.
    pub new: Option<usize>,
    /// The prompt was not tokenized because its text is far too long: it has at least this many tokens.
    pub is_estimate: bool,
}

impl ContextOverflow {
    /// Whether the prompt does not fit even with the shortest answer.
    pub fn is_prompt_alone(&self) -> bool {
        self.new.is_none() || self.prompt > self.max_input
    }
}

impl fmt::Display for ContextOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ContextOverflow { max_input, max_total, prompt, new, .. } = self;
        match new {
            Some(new) => write!(
                f,
                "`inputs` tokens + `max_new_tokens` must be <= {max_total}. Given: {prompt} `inputs` tokens and {new} \
                 `max_new_tokens`"
            ),
            None => write!(f, "`inputs` must have less than {max_input} tokens. Given: {prompt}"),
        }
    }
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
            ServiceError::Validation { .. } | ServiceError::ContextLength(_) => "validation",
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
            Failure::Refused(why) => ServiceError::invalid("inputs", why),
        }
    }
}
