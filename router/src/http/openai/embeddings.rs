//! `/v1/embeddings`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{OpenAiError, OpenAiJson};
use super::params::{check_rest, concurrent_prompts};
use super::prompts::PromptList;
use crate::chat::IgnoredFields;
use crate::http::app::App;
use crate::http::field_names::FieldNames;
use crate::http::ignored;
use crate::http::model_name::served_model;
use crate::service::{Params, Prepared, ServiceError};

/// The most inputs of a request, as in OpenAI's API.
const MAX_INPUTS: usize = 2048;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct EmbeddingRequest {
    input: PromptList,
    model: Option<String>,
    /// `float`, or `base64` for little-endian numbers of 32 bits.
    encoding_format: Option<String>,
    /// The number of features to keep, for models that were trained for shorter vectors.
    dimensions: Option<usize>,
    /// vLLM's field: whether the tokenizer's own tokens go around an input that is a text.
    add_special_tokens: Option<bool>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EmbeddingList {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, ToSchema)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: EmbeddingVector,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = Vector)]
enum EmbeddingVector {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize, ToSchema)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// Returns one vector of length 1 for each text.
#[utoipa::path(post, path = "/v1/embeddings", tag = "OpenAI", request_body = EmbeddingRequest, responses((status = 200, description = "A vector for each input, in their order", body = EmbeddingList)))]
pub(super) async fn embeddings(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<EmbeddingRequest>,
) -> Result<Response, OpenAiError> {
    let EmbeddingRequest { input, model, encoding_format, dimensions, add_special_tokens, rest } = request;
    let model = served_model(&app, model.as_deref())?;
    let mut ignored = IgnoredFields::default();
    check_rest(&rest, &mut ignored)?;
    let encode = encoding(encoding_format.as_deref())?;
    let inputs = input.into_prompts(add_special_tokens);
    if inputs.is_empty() || inputs.len() > MAX_INPUTS {
        let message = format!("`input` must have 1 to {MAX_INPUTS} texts. Given: {}", inputs.len());
        return Err(OpenAiError::invalid("input", message));
    }
    let ready = app.service.ready()?;
    let features = ready.hidden_size as usize;
    let kept = dimensions.unwrap_or(features);
    if kept == 0 || kept > features {
        let message = format!("`dimensions` must be > 0 and <= {features}. Given: {kept}");
        return Err(OpenAiError::invalid("dimensions", message));
    }
    let params = Params {
        max_new_tokens: Some(0),
        echoes: true,
        pooling: Some(app.service.pooling().map_err(|why| OpenAiError::invalid("model", why.to_string()))?),
        ..Params::default()
    };

    // All inputs are validated before the first is computed.
    let width = concurrent_prompts(&app, 1);
    let prepare = |input| app.service.prepare(input, params.clone());
    let prepared: Vec<Prepared> =
        stream::iter(inputs).map(prepare).buffered(width).try_collect().await.map_err(about_input)?;
    let prompt_tokens = prepared.iter().map(|input| input.prompt().len()).sum();
    let embed = |(index, input)| {
        let app = &app;
        async move {
            let mut vector = app.service.start(input)?.collect().await?.vector;
            vector.truncate(kept);
            normalize(&mut vector)?;
            Ok(Embedding { object: "embedding", index, embedding: encode(vector) })
        }
    };
    let data = stream::iter(prepared.into_iter().enumerate()).map(embed).buffered(width);
    let data = data.try_collect().await.map_err(about_input)?;
    let usage = EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens };
    let mut headers = HeaderMap::new();
    ignored::write_header(&ignored, &mut headers);
    Ok((headers, Json(EmbeddingList { object: "list", data, model, usage })).into_response())
}

/// Returns the function that encodes a vector.
fn encoding(format: Option<&str>) -> Result<fn(Vec<f32>) -> EmbeddingVector, OpenAiError> {
    match format {
        None | Some("float") => Ok(EmbeddingVector::Floats),
        Some("base64") => Ok(|vector| {
            let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
            EmbeddingVector::Base64(BASE64_STANDARD.encode(bytes))
        }),
        Some(_) => {
            Err(OpenAiError::invalid("encoding_format", "`encoding_format` must be `float` or `base64`"))
        }
    }
}

/// Scales a vector to the length 1. A vector of zeros stays as it is.
fn normalize(vector: &mut [f32]) -> Result<(), ServiceError> {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err(ServiceError::Generation("the model's hidden states are not finite".into()));
    }
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    Ok(())
}

/// Converts an error of the service about one of the inputs.
fn about_input(error: ServiceError) -> OpenAiError {
    OpenAiError::from_service(error, &FieldNames::EMBEDDINGS)
}
