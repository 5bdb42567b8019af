//! `/similarity`.

use axum::extract::State;
use axum::response::Response;
use millrace_text::SpecialTokens;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::embed::TruncationDirection;
use crate::http::app::App;
use crate::http::offload::{self, TurnJson};
use crate::http::tgi::TgiError;
use crate::http::vectors::{self, VectorOptions};
use crate::service::{Prompt, ServiceError};

/// The most sentences of a request.
const MAX_SENTENCES: usize = 2047;

/// Bytes of a number in JSON.
const NUMBER_BYTES: usize = 12;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct SimilarityRequest {
    inputs: SimilarityInput,
    parameters: Option<SimilarityParameters>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct SimilarityInput {
    /// The text that the others are compared with.
    source_sentence: String,
    /// The other texts.
    sentences: Vec<String>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct SimilarityParameters {
    /// Whether texts that are too long are cut, and not refused.
    truncate: Option<bool>,
    /// The side from which long texts are cut: `Right`, the default, keeps the first tokens.
    #[serde(default)]
    truncation_direction: TruncationDirection,
    /// The name of a prompt in the model's `config_sentence_transformers.json` that is put in front
    /// of all texts. By default it is the model's default prompt, if there is one.
    prompt_name: Option<String>,
}

/// The cosine of the angle between the vectors of each sentence and of the source.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SimilarityResponse(Vec<f32>);

/// Returns how similar each sentence is to the source sentence: the cosine of the angle between
/// their vectors.
#[utoipa::path(post, path = "/similarity", tag = "Text embeddings inference", request_body = SimilarityRequest, responses((status = 200, description = "A number between -1 and 1 for each sentence, in their order", body = SimilarityResponse)))]
pub(super) async fn similarity(
    State(app): State<App>,
    TurnJson(request): TurnJson<SimilarityRequest>,
) -> Result<Response, TgiError> {
    let SimilarityInput { source_sentence, sentences } = request.inputs;
    let count = sentences.len();
    if count == 0 || count > MAX_SENTENCES {
        let message = format!("`sentences` must have 1 to {MAX_SENTENCES} texts. Given: {count}");
        return Err(ServiceError::invalid("sentences", message).into());
    }
    let SimilarityParameters { truncate, truncation_direction, prompt_name } =
        request.parameters.unwrap_or_default();
    let options = VectorOptions {
        adapter: None,
        dimensions: None,
        normalize: true,
        truncate: truncation_direction.side(truncate == Some(true)),
        prompt_name,
    };
    let inputs = std::iter::once(source_sentence).chain(sentences);
    let inputs = inputs.map(|text| Prompt::Text(text, SpecialTokens::Add)).collect();
    let mut vectors = vectors::compute(&app, inputs, options).await?.vectors.into_iter();
    let source = vectors.next().unwrap_or_default();
    // The vectors have the length 1, so that their product is the cosine.
    let cosine = |vector: Vec<f32>| source.iter().zip(vector).map(|(a, b)| a * b).sum();
    let response = SimilarityResponse(vectors.map(cosine).collect());
    Ok(offload::json(&app, count * NUMBER_BYTES, response).await)
}
