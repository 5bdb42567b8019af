//! Errors of requests.

use std::fmt;
use std::time::Duration;

use crate::engine::{GenerationFailure, SubmitError};

/// Why a request was not answered. The texts are meant for clients.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The request is invalid.
    #[error("Input validation error: {detail}")]
    Validation {
        /// Name of the field in TGI's API.
        param: &'static str,
        /// Description of the error.
        detail: String,
    },
    /// Prompt and answer do not fit the model's context.
    #[error("Input validation error: {0}")]
    ContextLength(ContextOverflow),
    /// The request asks for something that its API key does not permit.
    #[error("Permission denied: {detail}")]
    Forbidden {
        /// Name of the field.
        param: &'static str,
        /// Description of the missing permission.
        detail: String,
    },
    /// The chat template cannot render the conversation.
    #[error("Template error: {0}")]
    Template(String),
    /// The maximum number of requests is waiting or running.
    #[error("Model is overloaded")]
    Overloaded {
        /// Estimated time until there is room for the request.
        retry_after: Duration,
    },
    /// A limit of the request's API key is reached.
    #[error("Rate limit exceeded: {detail}")]
    LimitExceeded {
        /// Description of the limit.
        detail: String,
        /// Estimated time until the limit allows the request.
        retry_after: Duration,
    },
    /// The engine is loading, draining or has failed.
    #[error("{0}")]
    Unavailable(String),
    /// The engine failed during the generation.
    #[error("Request failed during generation: Server error: {0}")]
    Generation(String),
    /// The engine stopped without an answer.
    #[error("Incomplete generation")]
    Incomplete,
}

/// Sizes in tokens of a request that does not fit the model's context. Clients look for the words
/// of their API's error, so each API formats it; `Display` writes TGI's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContextOverflow {
    /// Maximum number of tokens of a prompt.
    pub max_input: usize,
    /// Maximum number of tokens of prompt and answer together.
    pub max_total: usize,
    /// Tokens of the request's prompt.
    pub prompt: usize,
    /// Maximum number of new tokens that the request asks for; `None` if the prompt alone is too
    /// long.
    pub new: Option<usize>,
    /// Whether `prompt` is a lower bound: the prompt was not tokenized because its text is far too
    /// long.
    pub is_estimate: bool,
    /// The index of the prompt, if the request has several.
    pub index: Option<usize>,
}

impl ContextOverflow {
    /// Whether the prompt does not fit even with the shortest answer.
    pub fn is_prompt_alone(&self) -> bool {
        self.new.is_none() || self.prompt > self.max_input
    }
}

impl fmt::Display for ContextOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ContextOverflow { max_input, max_total, prompt, new, index, .. } = self;
        if let Some(index) = index {
            write!(f, "{}", AtIndex(*index))?;
        }
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

/// The beginning of an error about one of several inputs.
#[derive(Debug, Clone, Copy)]
pub struct AtIndex(pub usize);

impl fmt::Display for AtIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the input at index {}: ", self.0)
    }
}

/// Seconds after which a client should try again while the server loads or is being replaced.
const UNAVAILABLE_RETRY: u64 = 1;

impl ServiceError {
    /// Creates a [`ServiceError::Validation`].
    pub fn invalid(param: &'static str, detail: impl Into<String>) -> Self {
        ServiceError::Validation { param, detail: detail.into() }
    }

    /// Says that the error is about the input at `index` of a request with several inputs.
    #[must_use]
    pub fn at_index(self, index: usize) -> Self {
        match self {
            ServiceError::Validation { param, detail } => {
                ServiceError::Validation { param, detail: format!("{}{detail}", AtIndex(index)) }
            }
            ServiceError::ContextLength(overflow) => {
                ServiceError::ContextLength(ContextOverflow { index: Some(index), ..overflow })
            }
            ServiceError::Generation(detail) => {
                ServiceError::Generation(format!("{}{detail}", AtIndex(index)))
            }
            other => other,
        }
    }

    /// Creates the error for a field that is known but not supported.
    pub fn unsupported(param: &'static str) -> Self {
        Self::invalid(param, format!("`{param}` is not supported"))
    }

    /// Seconds after which the client should send the same request again; `None` if that would not
    /// help, or is not known to help.
    pub fn retry_after(&self) -> Option<u64> {
        match self {
            ServiceError::Overloaded { retry_after } | ServiceError::LimitExceeded { retry_after, .. } => {
                Some(u64::try_from(retry_after.as_millis().div_ceil(1000)).unwrap_or(u64::MAX))
            }
            ServiceError::Unavailable(_) => Some(UNAVAILABLE_RETRY),
            _ => None,
        }
    }

    /// The kind of the error, as the label of the failure counter.
    pub fn kind(&self) -> &'static str {
        match self {
            ServiceError::Validation { .. } | ServiceError::ContextLength(_) => "validation",
            ServiceError::Forbidden { .. } => "forbidden",
            ServiceError::Template(_) => "template",
            ServiceError::Overloaded { .. } => "overloaded",
            ServiceError::LimitExceeded { .. } => "limit_exceeded",
            ServiceError::Unavailable(_) => "unavailable",
            ServiceError::Generation(_) => "generation",
            ServiceError::Incomplete => "incomplete",
        }
    }
}

impl From<SubmitError> for ServiceError {
    fn from(refused: SubmitError) -> Self {
        match refused {
            SubmitError::Overloaded { retry_after } => ServiceError::Overloaded { retry_after },
            SubmitError::LimitExceeded { limit, retry_after } => {
                ServiceError::LimitExceeded { detail: limit.to_string(), retry_after }
            }
            SubmitError::TooLarge(reason) => ServiceError::invalid("inputs", reason),
            SubmitError::Unavailable(reason) => ServiceError::Unavailable(reason),
        }
    }
}

impl From<GenerationFailure> for ServiceError {
    fn from(failure: GenerationFailure) -> Self {
        match failure {
            GenerationFailure::NotStarted(reason) => ServiceError::Unavailable(reason),
            GenerationFailure::Broken(reason) => ServiceError::Generation(reason),
            GenerationFailure::Constraint(reason) => ServiceError::invalid("grammar", reason),
            GenerationFailure::Refused(reason) => ServiceError::invalid("inputs", reason),
        }
    }
}
