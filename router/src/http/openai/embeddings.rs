//! `/v1/embeddings`.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{OpenAiError, OpenAiJson};
use super::params::check_rest;
use super::prompts::PromptList;
use crate::chat::IgnoredFields;
use crate::http::app::App;
use crate::http::field_names::FieldNames;
use crate::http::ignored;
use crate::http::model_name::served_model;
use crate::http::vectors::{self, VectorOptions, Vectors};
use crate::service::ServiceError;

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
    /// TEI's field: the name of a prompt in the model's `config_sentence_transformers.json` that is
    /// put in front of each text. By default it is the model's default prompt, if there is one.
    prompt_name: Option<String>,
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
    let EmbeddingRequest { input, model, encoding_format, dimensions, add_special_tokens, prompt_name, rest } =
        request;
    let model = served_model(&app, model.as_deref())?;
    let mut ignored = IgnoredFields::default();
    check_rest(&rest, &mut ignored)?;
    let encode = encoding(encoding_format.as_deref())?;
    let inputs = input.into_prompts(add_special_tokens);
    if inputs.is_empty() || inputs.len() > MAX_INPUTS {
        let message = format!("`input` must have 1 to {MAX_INPUTS} texts. Given: {}", inputs.len());
        return Err(OpenAiError::invalid("input", message));
    }
    let options =
        VectorOptions { adapter: model.adapter, dimensions, normalize: true, truncate: None, prompt_name };
    let Vectors { vectors, prompt_tokens } =
        vectors::compute(&app, inputs, options).await.map_err(about_input)?;
    let bytes = vectors::bytes(&vectors);
    let embed = |(index, vector)| Embedding { object: "embedding", index, embedding: encode(vector) };
    let usage = EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens };
    let mut headers = HeaderMap::new();
    ignored::write_header(&ignored, &mut headers);
    let write = move || {
        let data = vectors.into_iter().enumerate().map(embed).collect();
        Json(EmbeddingList { object: "list", data, model: model.name, usage }).into_response()
    };
    Ok((headers, app.service.in_turn_for(bytes, write).await).into_response())
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

/// Converts an error of the service about one of the inputs.
fn about_input(error: ServiceError) -> OpenAiError {
    OpenAiError::from_service(error, &FieldNames::EMBEDDINGS)
}
