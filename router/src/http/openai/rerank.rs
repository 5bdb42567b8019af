//! `/v1/rerank` and `/v2/rerank`: Cohere's and Jina's form of reranking, as vLLM serves it.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{OpenAiError, OpenAiJson};
use super::params::check_rest;
use super::types::ResponseHeader;
use crate::chat::IgnoredFields;
use crate::http::app::App;
use crate::http::field_names::FieldNames;
use crate::http::model_name::served_model;
use crate::http::offload;
use crate::http::{ignored, scores};

/// The most documents of a request.
const MAX_DOCUMENTS: usize = 2048;

/// Bytes of a result without its document in JSON.
const RESULT_BYTES: usize = 60;

#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = DocumentRerankRequest)]
pub(super) struct RerankRequest {
    query: String,
    documents: Vec<Document>,
    model: Option<String>,
    /// The number of documents in the response; all if it is not given.
    top_n: Option<usize>,
    /// Whether the response has the documents, too.
    #[serde(default)]
    return_documents: bool,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A text, or an object with a text.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "each of `documents` must be a text or an object with a `text`")]
#[schema(as = RerankInput)]
enum Document {
    Text(String),
    Object(#[serde(deserialize_with = "crate::http::fields::object")] DocumentObject),
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
struct DocumentObject {
    text: String,
}

/// The documents of a response, the best one first.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RerankResponse {
    id: String,
    model: String,
    usage: RerankUsage,
    results: Vec<RerankResult>,
}

#[derive(Debug, Serialize, ToSchema)]
struct RerankUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

#[derive(Debug, Serialize, ToSchema)]
struct RerankResult {
    /// The place of the document in the request.
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RerankDocument>,
    /// Between 0 and 1.
    relevance_score: f32,
}

#[derive(Debug, Serialize, ToSchema)]
struct RerankDocument {
    text: String,
}

/// Returns how well each document answers the query, the best document first.
#[utoipa::path(post, path = "/v1/rerank", tag = "OpenAI", request_body = RerankRequest, responses((status = 200, description = "The scores of the documents, the best one first", body = RerankResponse)))]
pub(super) async fn v1(
    state: State<App>,
    request: OpenAiJson<RerankRequest>,
) -> Result<Response, OpenAiError> {
    rerank(state, request).await
}

/// The same as `/v1/rerank`, where Cohere's newer clients look for it.
#[utoipa::path(post, path = "/v2/rerank", tag = "OpenAI", request_body = RerankRequest, responses((status = 200, description = "The scores of the documents, the best one first", body = RerankResponse)))]
pub(super) async fn v2(
    state: State<App>,
    request: OpenAiJson<RerankRequest>,
) -> Result<Response, OpenAiError> {
    rerank(state, request).await
}

async fn rerank(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<RerankRequest>,
) -> Result<Response, OpenAiError> {
    let RerankRequest { query, documents, model, top_n, return_documents, rest } = request;
    let model = served_model(&app, model.as_deref())?;
    let mut ignored = IgnoredFields::default();
    check_rest(&rest, &mut ignored)?;
    let count = documents.len();
    if count == 0 || count > MAX_DOCUMENTS {
        let message = format!("`documents` must have 1 to {MAX_DOCUMENTS} texts. Given: {count}");
        return Err(OpenAiError::invalid("documents", message));
    }
    if top_n == Some(0) {
        return Err(OpenAiError::invalid("top_n", "`top_n` must be > 0"));
    }
    let text = |document| match document {
        Document::Text(text) | Document::Object(DocumentObject { text }) => text,
    };
    let texts: Vec<String> = documents.into_iter().map(text).collect();
    let mut kept = if return_documents { texts.clone() } else { Vec::new() };
    let scores = scores::compute(&app, model.adapter, query, texts, None).await;
    let scores = scores.map_err(|error| OpenAiError::from_service(error, &FieldNames::RERANK))?;
    let result = |index: usize| RerankResult {
        index,
        document: kept.get_mut(index).map(|text| RerankDocument { text: std::mem::take(text) }),
        relevance_score: scores::sigmoid(scores.outputs[index]),
    };
    let best = scores::best_first(&scores.outputs);
    let results: Vec<RerankResult> = best.into_iter().take(top_n.unwrap_or(count)).map(result).collect();
    let texts = results.iter().filter_map(|result| result.document.as_ref());
    let bytes = results.len() * RESULT_BYTES + texts.map(|document| document.text.len()).sum::<usize>();
    let usage = RerankUsage { prompt_tokens: scores.prompt_tokens, total_tokens: scores.prompt_tokens };
    let ResponseHeader { id, model, .. } = ResponseHeader::new("rerank-", model.name);
    let mut headers = HeaderMap::new();
    ignored::write_header(&ignored, &mut headers);
    let response = RerankResponse { id, model, usage, results };
    Ok((headers, offload::json(&app, bytes, response).await).into_response())
}
