//! `/embed`.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::app::App;
use crate::http::offload::{self, TurnJson};
use crate::http::openai::PromptList;
use crate::http::tgi::TgiError;
use crate::http::vectors::{self, VectorOptions};
use crate::service::{ServiceError, TruncationSide};

/// The most inputs of a request. TEI's default is 32, and OpenAI's API allows 2048.
const MAX_INPUTS: usize = 2048;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct EmbedRequest {
    inputs: PromptList,
    /// Whether texts that are too long are cut, and not refused.
    truncate: Option<bool>,
    /// The side from which long texts are cut: `Right`, the default, keeps the first tokens.
    #[serde(default)]
    truncation_direction: TruncationDirection,
    /// Whether vectors are scaled to the length 1, whatever the model's modules do: by default
    /// true.
    normalize: Option<bool>,
    /// The name of a prompt in the model's `config_sentence_transformers.json` that is put in front
    /// of each text. By default it is the model's default prompt, if there is one.
    prompt_name: Option<String>,
    /// The number of features to keep, for models that were trained for shorter vectors.
    dimensions: Option<usize>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
pub(super) enum TruncationDirection {
    #[serde(alias = "left")]
    Left,
    #[default]
    #[serde(alias = "right")]
    Right,
}

impl TruncationDirection {
    /// Returns the side from which texts are cut if `truncate` is set.
    pub(super) fn side(self, truncate: bool) -> Option<TruncationSide> {
        truncate.then_some(match self {
            TruncationDirection::Left => TruncationSide::Left,
            TruncationDirection::Right => TruncationSide::Right,
        })
    }
}

/// A vector for each input, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EmbedResponse(Vec<Vec<f32>>);

/// Returns a vector for each text.
#[utoipa::path(post, path = "/embed", tag = "Text embeddings inference", request_body = EmbedRequest, responses((status = 200, description = "A vector for each input, in their order", body = EmbedResponse)))]
pub(super) async fn embed(
    State(app): State<App>,
    TurnJson(request): TurnJson<EmbedRequest>,
) -> Result<Response, TgiError> {
    let EmbedRequest { inputs, truncate, truncation_direction, normalize, prompt_name, dimensions } = request;
    let inputs = inputs.into_prompts(None);
    if inputs.is_empty() || inputs.len() > MAX_INPUTS {
        let message = format!("`inputs` must have 1 to {MAX_INPUTS} texts. Given: {}", inputs.len());
        return Err(ServiceError::invalid("inputs", message).into());
    }
    let options = VectorOptions {
        adapter: None,
        dimensions,
        normalize: normalize.unwrap_or(true),
        truncate: truncation_direction.side(truncate == Some(true)),
        prompt_name,
    };
    let vectors = vectors::compute(&app, inputs, options).await?.vectors;
    Ok(offload::json(&app, vectors::bytes(&vectors), EmbedResponse(vectors)).await)
}
