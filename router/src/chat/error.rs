//! Why a conversation is refused.

use crate::metrics;
use crate::service::ServiceError;

/// The reason why a conversation is refused. Each API writes it in its own form.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ChatError {
    /// A field has a wrong value.
    Invalid {
        /// The path of the field, by the name that `/v1/chat/completions` has for it.
        param: String,
        /// The error for the client.
        message: String,
    },
    /// The service refuses the request.
    Service(ServiceError),
}

impl ChatError {
    /// A [`ChatError::Invalid`], which is counted as a rejected request.
    pub(crate) fn invalid(param: &str, message: impl Into<String>) -> Self {
        metrics::request_rejected("validation");
        ChatError::Invalid { param: param.to_owned(), message: message.into() }
    }
}

impl From<ServiceError> for ChatError {
    fn from(error: ServiceError) -> Self {
        ChatError::Service(error)
    }
}
