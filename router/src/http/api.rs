//! The APIs that a path may belong to, and the errors that each of them answers with.
//!
//! Layers around the routes refuse requests before a handler sees them. They use this table to
//! answer in the form that the clients of a path expect.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::anthropic;
use super::openai::{self, OpenAiError};
use super::tgi::{self, TgiError};
use crate::service::ServiceError;

/// The API that a path belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    Anthropic,
    OpenAi,
    /// Text-generation-inference, and everything else.
    Tgi,
}

/// The API of all paths that begin with a prefix. The first match counts.
const PREFIXES: [(&str, Api); 3] =
    [("/v1/messages", Api::Anthropic), ("/v1/", Api::OpenAi), ("/v2/rerank", Api::OpenAi)];

impl Api {
    /// The API that a path belongs to, whether or not the path is served.
    pub(super) fn of(path: &str) -> Self {
        let found = PREFIXES.into_iter().find(|(prefix, _)| path.starts_with(prefix));
        found.map_or(Api::Tgi, |(_, api)| api)
    }

    /// The response for a path that is not served (404), or not by this method (405).
    pub(super) fn absent(self, status: StatusCode, text: String) -> Response {
        match self {
            Api::Anthropic => anthropic::refused(status, text),
            Api::OpenAi => OpenAiError::absent(status, text).into_response(),
            Api::Tgi => {
                let is_path = status == StatusCode::NOT_FOUND;
                tgi::refused(status, text, if is_path { "not_found" } else { "method_not_allowed" })
            }
        }
    }

    /// The response for a body that is not read. TGI's API answers in plain text then.
    pub(super) fn refused(self, status: StatusCode, text: String) -> Response {
        match self {
            Api::Anthropic => anthropic::refused(status, text),
            Api::OpenAi => OpenAiError::plain(status, text).into_response(),
            Api::Tgi => (status, text).into_response(),
        }
    }

    /// The response for a POST without a valid key.
    pub(super) fn unauthorized(self) -> Response {
        let mut response = match self {
            Api::Anthropic => anthropic::unauthorized(),
            Api::OpenAi => openai::unauthorized(),
            Api::Tgi => StatusCode::UNAUTHORIZED.into_response(),
        };
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        response
    }

    /// The response for an error of the service.
    pub(super) fn error(self, error: ServiceError) -> Response {
        match self {
            Api::Anthropic => anthropic::error(error),
            Api::OpenAi => OpenAiError::from(error).into_response(),
            Api::Tgi => TgiError(error).into_response(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Api;

    #[test]
    fn a_path_belongs_to_the_first_api_whose_prefix_it_has() {
        for (path, api) in [
            ("/v1/messages", Api::Anthropic),
            ("/v1/messages/count_tokens", Api::Anthropic),
            ("/v1/chat/completions", Api::OpenAi),
            ("/v1/unknown", Api::OpenAi),
            ("/v2/rerank", Api::OpenAi),
            ("/v2/models/a/infer", Api::Tgi),
            ("/v1", Api::Tgi),
            ("/generate", Api::Tgi),
            ("/", Api::Tgi),
        ] {
            assert_eq!(Api::of(path), api, "{path}");
        }
    }
}
