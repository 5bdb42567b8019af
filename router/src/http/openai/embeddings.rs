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

use super::completions::Prompts;
use super::error::{OpenAiError, OpenAiJson};
use super::names::FieldNames;
use super::params::{Common, check_rest};
use crate::http::App;
use crate::http::ignored::Ignored;
use crate::service::{Params, Prepared, ServiceError};

/// OpenAI's bound.
const MOST_INPUTS: usize = 2048;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct EmbeddingRequest {
    input: Prompts,
    model: Option<String>,
    /// `float` or `base64`: single precision, little-endian.
    encoding_format: Option<String>,
    /// Keep so many of the first features, for models that were trained for that.
    dimensions: Option<usize>,
    /// As vLLM has it: whether the tokenizer's own tokens go around an input that is a text.
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
    embedding: Vector,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize, ToSchema)]
struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

/// The states of texts, each as one vector of length 1.
#[utoipa::path(post, path = "/v1/embeddings", tag = "OpenAI", request_body = EmbeddingRequest, responses((status = 200, description = "A vector for each input, in their order", body = EmbeddingList)))]
pub(super) async fn embeddings(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<EmbeddingRequest>,
) -> Result<Response, OpenAiError> {
    let EmbeddingRequest { input, model, encoding_format, dimensions, add_special_tokens, rest } = request;
    let model = Common::of_model(model).check_model(&app)?;
    let mut ignored = Ignored::default();
    check_rest(&rest, &mut ignored)?;
    let encode = encoding(encoding_format.as_deref())?;
    let inputs = input.list(add_special_tokens);
    if inputs.is_empty() || inputs.len() > MOST_INPUTS {
        let message = format!("`input` must have 1 to {MOST_INPUTS} texts. Given: {}", inputs.len());
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

    // Half of the places at most, so that others find room beside the longest list. All inputs are checked before the first is
    // computed.
    let width = (app.service.limits().max_concurrent_requests / 2).max(1);
    let prepare = |input| app.service.prepare(input, params.clone());
    let prepared: Vec<Prepared> =
        stream::iter(inputs).map(prepare).buffered(width).try_collect().await.map_err(about_input)?;
    let prompt_tokens = prepared.iter().map(|input| input.prompt().len()).sum();
    let embed = |(index, input)| {
        let app = &app;
        async move {
            let mut vector = app.service.start(input)?.collect().await?.vector;
            vector.truncate(kept);
            normalise(&mut vector)?;
            Ok(Embedding { object: "embedding", index, embedding: encode(vector) })
        }
    };
    let data = stream::iter(prepared.into_iter().enumerate()).map(embed).buffered(width);
    let data = data.try_collect().await.map_err(about_input)?;
    let usage = EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens };
    let mut headers = HeaderMap::new();
    ignored.write(&mut headers);
    Ok((headers, Json(EmbeddingList { object: "list", data, model, usage })).into_response())
}

fn encoding(format: Option<&str>) -> Result<fn(Vec<f32>) -> Vector, OpenAiError> {
    match format {
        None | Some("float") => Ok(Vector::Floats),
        Some("base64") => Ok(|vector| {
            let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
            Vector::Base64(BASE64_STANDARD.encode(bytes))
        }),
        Some(_) => {
            Err(OpenAiError::invalid("encoding_format", "`encoding_format` must be `float` or `base64`"))
        }
    }
}

/// Gives a vector the length 1, unless it has none.
fn normalise(vector: &mut [f32]) -> Result<(), ServiceError> {
    let length = vector.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    if !length.is_finite() {
        return Err(ServiceError::Generation("the model's states are no numbers".into()));
    }
    if length > 0.0 {
        vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    Ok(())
}

/// What the service calls a prompt is an input here.
fn about_input(error: ServiceError) -> OpenAiError {
    OpenAiError::about(error, &FieldNames::EMBEDDINGS)
}
