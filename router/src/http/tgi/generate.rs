//! `/generate`, and `/` for clients of TGI's older API.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use millrace_text::SpecialTokens;

use super::error::TgiError;
use super::stream;
use super::types::{
    BestOfSequence, CompatRequest, Details, GenerateRequest, GenerateResponse, PrefillToken, finish_reason,
};
use crate::chat::IgnoredFields;
use crate::http::app::App;
use crate::http::headers;
use crate::http::offload::TurnJson;
use crate::http::sse::EventDescription;
use crate::service::{Answer, Prompt, Service, ServiceError};

/// `/generate`: the whole answer at once.
#[utoipa::path(post, path = "/generate", tag = "TGI", request_body = GenerateRequest, responses((status = 200, description = "The answer", body = GenerateResponse)))]
pub(super) async fn generate(
    State(app): State<App>,
    TurnJson(request): TurnJson<GenerateRequest>,
) -> Result<Response, TgiError> {
    let (headers, response) = answer(&app, request).await?;
    Ok((headers, Json(response)).into_response())
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
    let request = GenerateRequest { inputs, parameters };
    if stream {
        return stream::generate_stream(State(app), TurnJson(request)).await;
    }
    let (headers, response) = answer(&app, request).await?;
    Ok((headers, Json([response])).into_response())
}

async fn answer(app: &App, request: GenerateRequest) -> Result<(HeaderMap, GenerateResponse), TgiError> {
    let GenerateRequest { inputs, parameters } = request;
    let wants_prefill = parameters.decoder_input_details;
    let mut params = parameters.params().map_err(Service::reject)?;
    params.prompt_logprobs = wants_prefill.then_some(0);
    let prepared = app.service.prepare(Prompt::Text(inputs.clone(), SpecialTokens::Add), params).await?;
    let answers = Service::collect(app.service.start_several(&prepared, parameters.best_of())?).await?;
    let mut ignored = IgnoredFields::default();
    ignored.note_unenforced(&prepared);
    let characters = inputs.chars().count();
    let headers = headers::after(app, characters, &ignored, prepared.prompt().len(), &answers);
    let full = parameters.return_full_text.unwrap_or(false);
    let text = |answer: &Answer| {
        if full { inputs.clone() + &answer.finished.text } else { answer.finished.text.clone() }
    };
    let best =
        (0..answers.len()).max_by(|&a, &b| answers[a].mean_logprob().total_cmp(&answers[b].mean_logprob()));
    // There is at least one answer.
    let best = best.unwrap_or(0);
    let details = |answer: &Answer, best_of_sequences| {
        let prefill = if wants_prefill { prefill(app, prepared.prompt(), answer) } else { Vec::new() };
        Details { prefill, ..details(answer, best_of_sequences) }
    };
    let details = (parameters.details || wants_prefill).then(|| {
        let others = answers.iter().enumerate().filter(|&(index, _)| index != best);
        let others = others.map(|(_, answer)| BestOfSequence {
            generated_text: text(answer),
            details: details(answer, Vec::new()),
        });
        details(&answers[best], others.collect())
    });
    Ok((headers, GenerateResponse { generated_text: text(&answers[best]), details }))
}

/// Returns the text of the best answer to a request of `/generate`.
///
/// # Errors
/// [`ServiceError`] if the request is wrong or not answered.
pub(in crate::http) async fn generate_best(
    app: &App,
    request: GenerateRequest,
) -> Result<String, ServiceError> {
    let params = request.parameters.params().map_err(Service::reject)?;
    let prepared = app.service.prepare(Prompt::Text(request.inputs, SpecialTokens::Add), params).await?;
    let streams = app.service.start_several(&prepared, request.parameters.best_of())?;
    let mut answers = Service::collect(streams).await?;
    answers.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
    answers.into_iter().next().map(|best| best.finished.text).ok_or(ServiceError::Incomplete)
}

fn prefill(app: &App, prompt: &[u32], answer: &Answer) -> Vec<PrefillToken> {
    let logprobs = [None].into_iter().chain(answer.prompt.iter().map(|token| Some(token.logprob)));
    let token = |(&id, logprob)| PrefillToken { id, text: app.service.tokenizer().token_text(id), logprob };
    prompt.iter().zip(logprobs).map(token).collect()
}

fn details(answer: &Answer, best_of_sequences: Vec<BestOfSequence>) -> Details {
    let top = answer.tokens.iter().map(|event| event.top.iter().map(Into::into).collect());
    let has_top = answer.tokens.iter().any(|event| !event.top.is_empty());
    Details {
        finish_reason: finish_reason(answer.finished.reason),
        generated_tokens: answer.finished.generated_tokens,
        seed: answer.seed,
        prefill: Vec::new(),
        tokens: answer.tokens.iter().map(|event| (&event.token).into()).collect(),
        best_of_sequences,
        top_tokens: if has_top { top.collect() } else { Vec::new() },
    }
}
