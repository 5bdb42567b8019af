//! `/rerank`.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::embed::TruncationDirection;
use crate::http::app::App;
use crate::http::offload::{self, TurnJson};
use crate::http::scores;
use crate::http::tgi::TgiError;
use crate::service::ServiceError;

/// The most texts of a request.
const MAX_TEXTS: usize = 2048;

/// Bytes of a rank without its text in JSON.
const RANK_BYTES: usize = 40;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct RerankRequest {
    query: String,
    texts: Vec<String>,
    /// Whether texts that are too long are cut, and not refused. The longer one of query and text
    /// is cut first.
    #[serde(default)]
    truncate: bool,
    /// The side from which long texts are cut: `Right`, the default, keeps the first tokens.
    #[serde(default)]
    truncation_direction: TruncationDirection,
    /// Whether scores are the model's numbers, and not between 0 and 1.
    #[serde(default)]
    raw_scores: bool,
    /// Whether the response has the texts, too.
    #[serde(default)]
    return_text: bool,
}

/// The score of a text.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Rank {
    /// The place of the text in the request.
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    score: f32,
}

/// Returns how well each text answers the query, the best text first.
#[utoipa::path(post, path = "/rerank", tag = "Text embeddings inference", request_body = RerankRequest, responses((status = 200, description = "The scores of the texts, the best one first", body = Vec<Rank>)))]
pub(super) async fn rerank(
    State(app): State<App>,
    TurnJson(request): TurnJson<RerankRequest>,
) -> Result<Response, TgiError> {
    let RerankRequest { query, texts, truncate, truncation_direction, raw_scores, return_text } = request;
    if texts.is_empty() || texts.len() > MAX_TEXTS {
        let message = format!("`texts` must have 1 to {MAX_TEXTS} texts. Given: {}", texts.len());
        return Err(ServiceError::invalid("texts", message).into());
    }
    let mut kept = if return_text { texts.clone() } else { Vec::new() };
    let outputs =
        scores::compute(&app, None, query, texts, truncation_direction.side(truncate)).await?.outputs;
    let rank = |index: usize| {
        let score = if raw_scores { outputs[index] } else { scores::sigmoid(outputs[index]) };
        Rank { index, text: kept.get_mut(index).map(std::mem::take), score }
    };
    let ranks: Vec<Rank> = scores::best_first(&outputs).into_iter().map(rank).collect();
    let bytes = ranks.iter().map(|rank| RANK_BYTES + rank.text.as_ref().map_or(0, String::len)).sum();
    Ok(offload::json(&app, bytes, ranks).await)
}
