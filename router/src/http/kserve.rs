//! KServe's V2 protocol (Open Inference Protocol) over REST.
//!
//! A prompt is a tensor of type `BYTES` with one element: either a text (as the protocol has it), or a list of its
//! bytes (as TGI has it). The answer comes in the form of the question.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::{OpenApi, ToSchema};

use super::tgi::{self, GenerateParameters, TgiError};
use super::{App, panic};
use crate::engine::State as EngineState;
use crate::service::{Prompt, Service, ServiceError};
use crate::text::Specials;

/// What these routes take and give.
#[derive(OpenApi)]
#[openapi(paths(server, live, ready, model, model_ready, infer))]
pub(super) struct Docs;

pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/v2", get(server))
        .route("/v2/health/live", get(live))
        .route("/v2/health/ready", get(ready))
        .route("/v2/models/{model}", get(model))
        .route("/v2/models/{model}/ready", get(model_ready))
        .route("/v2/models/{model}/infer", post(infer))
        .route("/v2/models/{model}/versions/{version}", get(model))
        .route("/v2/models/{model}/versions/{version}/ready", get(model_ready))
        .route("/v2/models/{model}/versions/{version}/infer", post(infer))
        .layer(panic::answered_by(tgi::internal))
}

#[derive(Debug, Deserialize, ToSchema)]
struct InferenceRequest {
    id: Option<String>,
    parameters: Option<GenerateParameters>,
    inputs: Vec<Input>,
    /// Their names; by default those of the inputs.
    #[serde(default)]
    outputs: Vec<OutputName>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = InferenceInput)]
struct Input {
    name: String,
    datatype: Option<String>,
    data: Data,
}

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = InferenceOutputName)]
struct OutputName {
    name: String,
}

#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "`data` must be a list of bytes or a list of texts")]
#[schema(as = InferenceData)]
enum Data {
    Bytes(Vec<u8>),
    Texts(Vec<String>),
}

#[derive(Debug, Serialize, ToSchema)]
struct InferenceResponse {
    model_name: String,
    id: String,
    outputs: Vec<Output>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InferenceOutput)]
struct Output {
    name: String,
    shape: [usize; 2],
    datatype: &'static str,
    data: Data,
}

#[utoipa::path(get, path = "/v2", tag = "KServe", responses((status = 200, description = "The server", body = Object)))]
async fn server() -> Json<Value> {
    Json(json!({"name": "millrace", "version": env!("CARGO_PKG_VERSION"), "extensions": []}))
}

#[utoipa::path(get, path = "/v2/health/live", tag = "KServe", responses((status = 200, description = "It lives", body = Object), (status = 503, description = "The engine has failed", body = Object)))]
async fn live(State(app): State<App>) -> Response {
    match &*app.service.engine().state().borrow() {
        EngineState::Failed(_) => tgi::unhealthy(),
        _ => Json(json!({"live": true})).into_response(),
    }
}

#[utoipa::path(get, path = "/v2/health/ready", tag = "KServe", responses((status = 200, description = "It serves", body = Object), (status = 503, description = "Not yet, or not any more", body = Object)))]
async fn ready(State(app): State<App>) -> Response {
    let ready = matches!(&*app.service.engine().state().borrow(), EngineState::Ready(_));
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(json!({"live": true, "ready": ready}))).into_response()
}

/// The model of the path; a version is not looked at, as there is only one.
#[derive(Debug, Deserialize)]
struct ModelPath {
    model: String,
}

impl ModelPath {
    fn check(&self, app: &App) -> Result<String, NotFound> {
        let served = &app.service.model().id;
        let names = &app.service.limits().model_names;
        if names.is_empty() || self.model == "tgi" || names.contains(&self.model) {
            return Ok(served.clone());
        }
        Err(NotFound(self.model.clone()))
    }
}

/// A model that is not served here.
struct NotFound(String);

impl IntoResponse for NotFound {
    fn into_response(self) -> Response {
        let text = format!("model not found: {}. GET /v1/models lists what is served", self.0);
        (StatusCode::NOT_FOUND, Json(json!({"error": text}))).into_response()
    }
}

#[utoipa::path(get, path = "/v2/models/{model}", tag = "KServe", params(("model" = String, Path, description = "Its name")), responses((status = 200, description = "The model", body = Object), (status = 404, description = "It is not served here", body = Object)))]
async fn model(State(app): State<App>, Path(path): Path<ModelPath>) -> Result<Json<Value>, NotFound> {
    let name = path.check(&app)?;
    let tensor = |name| json!({"name": name, "datatype": "BYTES", "shape": [1]});
    Ok(Json(json!({
        "name": name, "versions": ["1"], "platform": "millrace",
        "inputs": [tensor("input")], "outputs": [tensor("output")],
    })))
}

#[utoipa::path(get, path = "/v2/models/{model}/ready", tag = "KServe", params(("model" = String, Path, description = "Its name")), responses((status = 200, description = "It is served", body = Object), (status = 404, description = "It is not served here", body = Object), (status = 503, description = "Not yet", body = Object)))]
async fn model_ready(State(app): State<App>, Path(path): Path<ModelPath>) -> Response {
    match path.check(&app) {
        Ok(_) => ready(State(app)).await,
        Err(absent) => absent.into_response(),
    }
}

#[utoipa::path(post, path = "/v2/models/{model}/infer", tag = "KServe", request_body = InferenceRequest, params(("model" = String, Path, description = "Its name")), responses((status = 200, description = "One text per input", body = InferenceResponse)))]
async fn infer(
    State(app): State<App>,
    Path(path): Path<ModelPath>,
    Json(request): Json<InferenceRequest>,
) -> Result<Response, Response> {
    let model_name = path.check(&app).map_err(IntoResponse::into_response)?;
    let outputs = outputs(&app, &request).await.map_err(|error| match error {
        ServiceError::Generation(_) => TgiError(ServiceError::Incomplete).into_response(),
        error => TgiError(error).into_response(),
    })?;
    let id = request.id.unwrap_or_default();
    Ok(Json(InferenceResponse { model_name, id, outputs }).into_response())
}

async fn outputs(app: &App, request: &InferenceRequest) -> Result<Vec<Output>, ServiceError> {
    let InferenceRequest { inputs, outputs, .. } = request;
    let invalid = |detail: String| Service::reject(ServiceError::invalid("inputs", detail));
    let most = app.service.limits().max_concurrent_requests;
    if inputs.is_empty() || inputs.len() > most {
        return Err(invalid(format!("`inputs` must have 1 to {most} tensors. Given: {}", inputs.len())));
    }
    if !outputs.is_empty() && outputs.len() != inputs.len() {
        let detail = format!("Inputs and outputs length mismatch: {} and {}", inputs.len(), outputs.len());
        return Err(invalid(detail));
    }
    let parameters = request.parameters.as_ref();
    let answers = inputs.iter().enumerate().map(|(index, input)| async move {
        if input.datatype.as_deref().is_some_and(|datatype| datatype != "BYTES") {
            return Err(invalid(format!("`{}` must have the datatype BYTES", input.name)));
        }
        let text = match &input.data {
            Data::Bytes(bytes) => String::from_utf8(bytes.clone())
                .map_err(|_| invalid(format!("the data of `{}` must be UTF-8", input.name)))?,
            Data::Texts(texts) => match texts.as_slice() {
                [text] => text.clone(),
                _ => return Err(invalid(format!("`{}` must have one element", input.name))),
            },
        };
        let params = parameters.map_or_else(|| tgi::absent().params(), GenerateParameters::params);
        let prompt = Prompt::Text(text, Specials::Add);
        let stream = app.service.generate(prompt, params.map_err(Service::reject)?).await?;
        let text = stream.collect().await?.finished.text;
        let name = outputs.get(index).map_or(&input.name, |output| &output.name).clone();
        Ok(match &input.data {
            Data::Bytes(_) => Output {
                name,
                shape: [1, text.len()],
                datatype: "BYTES",
                data: Data::Bytes(text.into_bytes()),
            },
            Data::Texts(_) => {
                Output { name, shape: [1, 1], datatype: "BYTES", data: Data::Texts(vec![text]) }
            }
        })
    });
    try_join_all(answers).await
}
