//! `/generate` and `/generate_stream`, and `/` for clients of TGI's older API.

use axum::extract::State;
use axum::response::Response;
use millrace_text::SpecialTokens;

use super::error::TgiError;
use super::renderer::{GenerateRenderer, ResponseForm};
use super::types::{CompatRequest, GenerateRequest, GenerateResponse};
use crate::chat::{AnswerFormat, IgnoredFields};
use crate::http::answer_pipeline::{AnswerCounts, AnswerPipeline, PreparedPrompt};
use crate::http::app::App;
use crate::http::offload::TurnJson;
use crate::http::sse::EventDescription;
use crate::service::{Prompt, Service, ServiceError};

/// `/generate`: the whole answer at once.
#[utoipa::path(post, path = "/generate", tag = "TGI", request_body = GenerateRequest, responses((status = 200, description = "The answer", body = GenerateResponse)))]
pub(super) async fn generate(
    State(app): State<App>,
    TurnJson(request): TurnJson<GenerateRequest>,
) -> Result<Response, TgiError> {
    respond(&app, request, ResponseForm::Object).await
}

/// Answers token by token. A wrong request is refused before the stream begins.
#[utoipa::path(post, path = "/generate_stream", tag = "TGI", request_body = GenerateRequest, responses((status = 200, description = "One event per token, whose data is a StreamResponse", content((inline(EventDescription) = "text/event-stream")))))]
pub(super) async fn generate_stream(
    State(app): State<App>,
    TurnJson(request): TurnJson<GenerateRequest>,
) -> Result<Response, TgiError> {
    respond(&app, request, ResponseForm::Stream).await
}

/// `/`: a list of one answer, or the same stream as `/generate_stream`.
#[utoipa::path(post, path = "/", tag = "TGI", request_body = CompatRequest, responses((status = 200, description = "A list of one answer, or a stream if `stream` is true", content((Vec<GenerateResponse> = "application/json"), (inline(EventDescription) = "text/event-stream")))))]
pub(in crate::http) async fn compat(
    State(app): State<App>,
    TurnJson(request): TurnJson<CompatRequest>,
) -> Result<Response, TgiError> {
    let CompatRequest { inputs, mut parameters, stream } = request;
    let tag = app.service.model().pipeline_tag.as_deref();
    parameters.return_full_text.get_or_insert(tag.is_none_or(|tag| tag == "text-generation"));
    let form = if stream { ResponseForm::Stream } else { ResponseForm::List };
    respond(&app, GenerateRequest { inputs, parameters }, form).await
}

async fn respond(app: &App, request: GenerateRequest, form: ResponseForm) -> Result<Response, TgiError> {
    let GenerateRequest { inputs, parameters } = request;
    let is_stream = form == ResponseForm::Stream;
    if is_stream {
        parameters.check_stream().map_err(Service::reject)?;
    }
    let wants_prefill = parameters.decoder_input_details;
    let mut params = parameters.params(app).map_err(Service::reject)?;
    params.prompt_logprobs = wants_prefill.then_some(0);
    let prepared = app.service.prepare(Prompt::Text(inputs.clone(), SpecialTokens::Add), params).await?;
    let mut ignored = IgnoredFields::default();
    ignored.note_unenforced(&prepared);
    let characters = inputs.chars().count();
    let renderer = GenerateRenderer {
        tokenizer: app.service.tokenizer().clone(),
        form,
        prefix: if parameters.return_full_text.unwrap_or(false) { inputs } else { String::new() },
        details: parameters.details || wants_prefill,
        seed: prepared.seed(),
        prefill: wants_prefill.then(|| prepared.prompt().to_vec()),
    };
    let pipeline = AnswerPipeline {
        prompts: vec![PreparedPrompt { prepared, characters }],
        counts: AnswerCounts::all(parameters.best_of()),
        format: AnswerFormat::plain(&app.service),
        ignored,
        is_stream,
        renderer,
    };
    Ok(pipeline.respond(app).await?)
}

/// Returns the text of the best answer to a request of `/generate`.
///
/// # Errors
/// [`ServiceError`] if the request is wrong or not answered.
pub(in crate::http) async fn generate_best(
    app: &App,
    request: GenerateRequest,
) -> Result<String, ServiceError> {
    let params = request.parameters.params(app).map_err(Service::reject)?;
    let prepared = app.service.prepare(Prompt::Text(request.inputs, SpecialTokens::Add), params).await?;
    let streams = app.service.start_several(&prepared, request.parameters.best_of())?;
    let mut answers = Service::collect(streams).await?;
    answers.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
    answers.into_iter().next().map(|best| best.finished.text).ok_or(ServiceError::Incomplete)
}
