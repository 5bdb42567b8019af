//! KServe's V2 protocol (Open Inference Protocol) over REST.
//!
//! A prompt is a tensor of type `BYTES` with one element: either a text, as in the protocol, or a
//! list of its bytes, as in TGI's API. The answer has the form of the prompt.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::future::try_join_all;
use millrace_text::SpecialTokens;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::app::App;
use super::layers;
use super::model_name::{ServedModel, UnknownModel, served_model};
use super::offload::TurnJson;
use super::tgi::{self, GenerateParameters, TgiError};
use crate::engine::{AdapterId, EngineState};
use crate::service::{Prompt, Service, ServiceError};

pub(super) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(server))
        .routes(routes!(live))
        .routes(routes!(ready))
        .routes(routes!(model))
        .routes(routes!(model_ready))
        .routes(routes!(infer))
        // The version is ignored, so the description leaves these paths out.
        .route("/v2/models/{model}/versions/{version}", get(model))
        .route("/v2/models/{model}/versions/{version}/ready", get(model_ready))
        .route("/v2/models/{model}/versions/{version}/infer", post(infer))
        .layer(layers::answer_panics_with(tgi::internal))
}

#[derive(Debug, Deserialize, ToSchema)]
struct InferenceRequest {
    id: Option<String>,
    #[serde(default, deserialize_with = "crate::http::fields::optional_object")]
    parameters: Option<GenerateParameters>,
    #[serde(deserialize_with = "crate::http::fields::objects")]
    inputs: Vec<InferenceInput>,
    /// The names of the outputs; by default the outputs have the names of the inputs.
    #[serde(default, deserialize_with = "crate::http::fields::objects")]
    outputs: Vec<InferenceOutputName>,
}

#[derive(Debug, Deserialize, ToSchema)]
struct InferenceInput {
    name: String,
    datatype: Option<String>,
    data: InferenceData,
}

#[derive(Debug, Deserialize, ToSchema)]
struct InferenceOutputName {
    name: String,
}

#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "`data` must be a list of bytes or a list of texts")]
enum InferenceData {
    Bytes(Vec<u8>),
    Texts(Vec<String>),
}

#[derive(Debug, Serialize, ToSchema)]
struct InferenceResponse {
    model_name: String,
    id: String,
    outputs: Vec<InferenceOutput>,
}

#[derive(Debug, Serialize, ToSchema)]
struct InferenceOutput {
    name: String,
    shape: [usize; 2],
    datatype: &'static str,
    data: InferenceData,
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

/// The model in the path. The version is ignored, since there is only one.
#[derive(Debug, Deserialize)]
struct ModelPath {
    model: String,
}

impl ModelPath {
    /// Returns the model or the adapter with this name.
    fn check(&self, app: &App) -> Result<ServedModel, UnknownModelResponse> {
        served_model(app, Some(&self.model)).map_err(UnknownModelResponse)
    }
}

/// The response to a request for a model that is not served.
struct UnknownModelResponse(UnknownModel);

impl IntoResponse for UnknownModelResponse {
    fn into_response(self) -> Response {
        (StatusCode::NOT_FOUND, Json(json!({"error": self.0.message()}))).into_response()
    }
}

#[utoipa::path(get, path = "/v2/models/{model}", tag = "KServe", params(("model" = String, Path, description = "Its name")), responses((status = 200, description = "The model", body = Object), (status = 404, description = "It is not served here", body = Object)))]
async fn model(
    State(app): State<App>,
    Path(path): Path<ModelPath>,
) -> Result<Json<Value>, UnknownModelResponse> {
    let ServedModel { name, .. } = path.check(&app)?;
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
    TurnJson(request): TurnJson<InferenceRequest>,
) -> Result<Response, Response> {
    let ServedModel { name: model_name, adapter } = path.check(&app).map_err(IntoResponse::into_response)?;
    let outputs = outputs(&app, adapter, &request).await.map_err(|error| match error {
        ServiceError::Generation(_) => TgiError(ServiceError::Incomplete).into_response(),
        error => TgiError(error).into_response(),
    })?;
    let id = request.id.unwrap_or_default();
    Ok(Json(InferenceResponse { model_name, id, outputs }).into_response())
}

/// Returns an output for each input, in their order.
/// Parameters that name an adapter take precedence over the `adapter` of the path.
async fn outputs(
    app: &App,
    adapter: Option<AdapterId>,
    request: &InferenceRequest,
) -> Result<Vec<InferenceOutput>, ServiceError> {
    let InferenceRequest { inputs, outputs, .. } = request;
    let invalid = |detail: String| Service::reject(ServiceError::invalid("inputs", detail));
    let max_inputs = app.service.limits().max_concurrent_requests;
    if inputs.is_empty() || inputs.len() > max_inputs {
        return Err(invalid(format!(
            "`inputs` must have 1 to {max_inputs} tensors. Given: {}",
            inputs.len()
        )));
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
            InferenceData::Bytes(bytes) => String::from_utf8(bytes.clone())
                .map_err(|_| invalid(format!("the data of `{}` must be UTF-8", input.name)))?,
            InferenceData::Texts(texts) => match texts.as_slice() {
                [text] => text.clone(),
                _ => return Err(invalid(format!("`{}` must have one element", input.name))),
            },
        };
        let params = match parameters {
            Some(parameters) => parameters.params(app),
            None => tgi::default_parameters().params(app),
        };
        let mut params = params.map_err(Service::reject)?;
        params.adapter = params.adapter.or(adapter);
        let prompt = Prompt::Text(text, SpecialTokens::Add);
        let stream = app.service.generate(prompt, params).await?;
        let text = stream.collect().await?.finished.text;
        let name = outputs.get(index).map_or(&input.name, |output| &output.name).clone();
        Ok(match &input.data {
            InferenceData::Bytes(_) => InferenceOutput {
                name,
                shape: [1, text.len()],
                datatype: "BYTES",
                data: InferenceData::Bytes(text.into_bytes()),
            },
            InferenceData::Texts(_) => InferenceOutput {
                name,
                shape: [1, 1],
                datatype: "BYTES",
                data: InferenceData::Texts(vec![text]),
            },
        })
    });
    try_join_all(answers).await
}
