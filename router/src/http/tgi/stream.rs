//! `/generate_stream`.

use axum::extract::State;
use axum::response::Response;
use millrace_text::SpecialTokens;

use super::error::{ErrorBody, TgiError};
use super::types::{GenerateRequest, StreamDetails, StreamResponse, finish_reason};
use crate::chat::IgnoredFields;
use crate::http::app::App;
use crate::http::headers;
use crate::http::offload::TurnJson;
use crate::http::sse::{self, EventDescription};
use crate::service::{Prompt, Service, ServiceError, TextEvent};

/// Answers token by token. A wrong request is refused before the stream begins.
#[utoipa::path(post, path = "/generate_stream", tag = "TGI", request_body = GenerateRequest, responses((status = 200, description = "One event per token, whose data is a StreamResponse", content((inline(EventDescription) = "text/event-stream")))))]
pub(super) async fn generate_stream(
    State(app): State<App>,
    TurnJson(request): TurnJson<GenerateRequest>,
) -> Result<Response, TgiError> {
    let GenerateRequest { inputs, parameters } = request;
    parameters.check_stream().map_err(Service::reject)?;
    let params = parameters.params().map_err(Service::reject)?;
    let prepared = app.service.prepare(Prompt::Text(inputs.clone(), SpecialTokens::Add), params).await?;
    let mut ignored = IgnoredFields::default();
    ignored.note_unenforced(&prepared);
    let headers = headers::before(&app, inputs.chars().count(), &ignored);
    let mut streams = [app.service.start(prepared)?];
    sse::begin(&mut streams).await?;
    let cached_tokens = streams[0].cached_tokens();
    let request = streams[0].request();
    let writer = TokenStreamWriter {
        prefix: if parameters.return_full_text.unwrap_or(false) { inputs } else { String::new() },
        details: parameters.details,
        seed: request.seed(),
        input_length: request.prompt().len(),
        tokens: 0,
    };
    let mut response = sse::response(&app, streams.into(), cached_tokens, writer);
    response.headers_mut().extend(headers);
    Ok(response)
}

/// Writes one event for each token.
struct TokenStreamWriter {
    /// The text before the generated text in the last event.
    prefix: String,
    /// Whether the last event has details.
    details: bool,
    seed: Option<u64>,
    input_length: usize,
    /// Tokens so far.
    tokens: u32,
}

impl sse::Write for TokenStreamWriter {
    fn event(&mut self, _: usize, event: TextEvent, to: &mut sse::Events) {
        let TextEvent { token, top, finished, .. } = event;
        self.tokens = self.tokens.saturating_add(1);
        let details = finished.as_ref().filter(|_| self.details).map(|finished| StreamDetails {
            finish_reason: finish_reason(finished.reason),
            generated_tokens: finished.generated_tokens,
            seed: self.seed,
            input_length: self.input_length,
        });
        to.json(&StreamResponse {
            index: self.tokens,
            token: token.into(),
            top_tokens: top.into_iter().map(Into::into).collect(),
            details,
            generated_text: finished.map(|finished| std::mem::take(&mut self.prefix) + &finished.text),
        });
    }

    fn error(&mut self, error: ServiceError, to: &mut sse::Events) {
        to.json(&match error {
            // TGI has another error type for streams.
            ServiceError::Incomplete => ErrorBody {
                error: "Incomplete generation stream".into(),
                error_type: "incomplete_generation_stream",
            },
            error => ErrorBody::from(&error),
        });
    }

    fn end(&mut self, _: &mut sse::Events) {}
}
