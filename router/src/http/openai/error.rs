//! OpenAI's errors: `{"error": {"message", "type", "param", "code"}}`.

use axum::Json;
use axum::extract::FromRequest;
use axum::extract::rejection::JsonRejection;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::types::STREAM_END;
use crate::chat::ChatError;
use crate::http::app::App;
use crate::http::field_names::FieldNames;
use crate::http::json_errors::BodyError;
use crate::http::model_name::UnknownModel;
use crate::http::offload::TurnJson;
use crate::http::sse::Events;
use crate::http::thinking::WrongThinking;
use crate::metrics;
use crate::service::{ContextOverflow, ServiceError};

/// An error with its HTTP status.
#[derive(Debug)]
pub(in crate::http) struct OpenAiError {
    status: StatusCode,
    /// The error of the service that this error shows, with the field names of the route.
    source: Option<Box<ServiceError>>,
    body: OpenAiErrorBody,
}

#[derive(Debug, Serialize, ToSchema)]
struct OpenAiErrorBody {
    message: String,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<String>,
    code: Option<&'static str>,
    /// TGI's clients look for it in the events of a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    http_status_code: Option<u16>,
}

/// The JSON of an error.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OpenAiError)]
pub(in crate::http) struct OpenAiErrorEnvelope {
    error: OpenAiErrorBody,
}

const INVALID: &str = "invalid_request_error";
/// The code of an error of a limit of an API key.
const LIMIT_EXCEEDED: &str = "rate_limit_exceeded";

impl From<WrongThinking> for OpenAiError {
    fn from(wrong: WrongThinking) -> Self {
        Self::invalid(wrong.field, wrong.message)
    }
}

impl OpenAiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        let body = OpenAiErrorBody { message, kind, param: None, code: None, http_status_code: None };
        OpenAiError { status, source: None, body }
    }

    fn with_param(mut self, param: impl Into<String>) -> Self {
        self.body.param = Some(param.into());
        self
    }

    fn with_code(mut self, code: &'static str) -> Self {
        self.body.code = Some(code);
        self
    }

    /// The error of a field with a wrong value. It is counted as a rejected request, so it must not
    /// be used for errors of the service, which counts its own.
    pub(super) fn invalid(param: &str, message: impl Into<String>) -> Self {
        metrics::request_rejected("validation");
        Self::new(StatusCode::BAD_REQUEST, INVALID, message).with_param(param)
    }

    /// The error of a field that is known and not supported.
    pub(super) fn unsupported(param: &str) -> Self {
        Self::invalid(param, format!("`{param}` is not supported")).with_code("unsupported_parameter")
    }

    /// The error of a fault in the server.
    pub(in crate::http) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "Internal server error")
    }

    /// An error of the request as a whole.
    pub(in crate::http) fn plain(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, INVALID, message)
    }

    /// The error of a path that is not served (404), or not by this method (405).
    pub(in crate::http) fn absent(status: StatusCode, message: String) -> Self {
        let is_path = status == StatusCode::NOT_FOUND;
        let code = if is_path { "unknown_url" } else { "method_not_allowed" };
        Self::new(status, INVALID, message).with_code(code)
    }

    /// An error of the service, with the field names of a route.
    pub(super) fn from_service(error: ServiceError, names: &FieldNames) -> Self {
        let error = names.renamed(error);
        let message = error.to_string();
        let bad_request = |message| Self::new(StatusCode::BAD_REQUEST, INVALID, message);
        let mut answer = match &error {
            ServiceError::Validation { param, .. } => bad_request(message).with_param(names.name(param)),
            ServiceError::ContextLength(sizes) => bad_request(overflow_message(names, sizes))
                .with_param(names.prompt)
                .with_code("context_length_exceeded"),
            ServiceError::Forbidden { param, .. } => Self::new(StatusCode::FORBIDDEN, INVALID, message)
                .with_param(*param)
                .with_code("insufficient_permissions"),
            ServiceError::Template(_) => {
                bad_request(message).with_param(names.prompt).with_code("template_error")
            }
            ServiceError::Overloaded { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message).with_code("overloaded")
            }
            ServiceError::LimitExceeded { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
                    .with_code(LIMIT_EXCEEDED)
            }
            ServiceError::Unavailable(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", message)
            }
            ServiceError::Generation(_) | ServiceError::Incomplete => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
            }
        };
        answer.source = Some(Box::new(error));
        answer
    }

    /// An error of the chat core, with the field names of a route.
    pub(super) fn from_chat(error: ChatError, names: &FieldNames) -> Self {
        match error {
            ChatError::Invalid { param, message } => {
                let param = if param == "messages" { names.prompt.to_owned() } else { param };
                let message = names.rename_conversation(&message);
                Self::new(StatusCode::BAD_REQUEST, INVALID, message).with_param(param)
            }
            ChatError::Service(error) => Self::from_service(error, names),
        }
    }

    /// The text of the error.
    pub(super) fn message(&self) -> &str {
        &self.body.message
    }

    /// The code of the error, or its type if it has no code.
    pub(super) fn code(&self) -> &'static str {
        self.body.code.unwrap_or(self.body.kind)
    }

    /// The error of the service that this error shows, for routes that write errors in TGI's form.
    /// An error that did not come from the service is one of the conversation.
    pub(in crate::http) fn into_service_error(self) -> ServiceError {
        match self.source {
            Some(error) => *error,
            None => ServiceError::invalid("messages", self.body.message),
        }
    }

    /// Writes the error as the last events of a stream of chunks.
    pub(super) fn write(mut self, to: &mut Events) {
        self.body.http_status_code = Some(self.status.as_u16());
        to.json(&OpenAiErrorEnvelope { error: self.body });
        to.line(STREAM_END);
    }
}

/// Returns the text for a request that does not fit. Clients recognize the error by the beginning
/// of the first sentence.
fn overflow_message(names: &FieldNames, sizes: &ContextOverflow) -> String {
    let ContextOverflow { max_input, max_total, prompt, new, is_estimate, index } = *sizes;
    let FieldNames { prompt: field, new_tokens, .. } = names;
    let limit = format!("This model's maximum context length is {max_total} tokens");
    let about = if is_estimate { "at least " } else { "" };
    let which = index.map(|index| format!(" It is the one at index {index}.")).unwrap_or_default();
    match new.filter(|_| !sizes.is_prompt_alone()) {
        Some(new) => format!(
            "{limit}. However, you requested {} tokens ({prompt} in the {field}, {new} in the completion). \
             Please reduce `{field}` or `{new_tokens}`.{which}",
            prompt.saturating_add(new)
        ),
        None => format!(
            "{limit}, of which at most {max_input} may be the prompt's. However, the {field} resulted in \
             {about}{prompt} tokens. Please reduce `{field}`.{which}"
        ),
    }
}

impl From<ServiceError> for OpenAiError {
    fn from(error: ServiceError) -> Self {
        Self::from_service(error, &FieldNames::COMPLETION)
    }
}

impl From<UnknownModel> for OpenAiError {
    fn from(error: UnknownModel) -> Self {
        Self::new(StatusCode::NOT_FOUND, INVALID, error.message())
            .with_param("model")
            .with_code("model_not_found")
    }
}

impl From<JsonRejection> for OpenAiError {
    fn from(rejection: JsonRejection) -> Self {
        BodyError::from(rejection).into()
    }
}

impl From<BodyError> for OpenAiError {
    fn from(error: BodyError) -> Self {
        let BodyError { status, message, param } = error;
        let error = Self::new(status, INVALID, message);
        match param {
            Some(param) => error.with_param(param),
            None => error,
        }
    }
}

impl IntoResponse for OpenAiError {
    fn into_response(self) -> Response {
        let retry_after = self.source.and_then(|error| error.retry_after());
        let mut response = (self.status, Json(OpenAiErrorEnvelope { error: self.body })).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        response
    }
}

/// A JSON body, which is refused with an [`OpenAiError`].
#[derive(Debug, FromRequest)]
#[from_request(via(TurnJson), rejection(OpenAiError), state(App))]
pub(super) struct OpenAiJson<T>(pub(super) T);

/// The response to a POST without a valid key.
pub(in crate::http) fn unauthorized() -> Response {
    OpenAiError::new(StatusCode::UNAUTHORIZED, INVALID, "Incorrect API key provided")
        .with_code("invalid_api_key")
        .into_response()
}

/// The response to a request whose handler panicked.
pub(in crate::http) fn internal() -> Response {
    OpenAiError::internal().into_response()
}
