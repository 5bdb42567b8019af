//! Anthropic's form of `/v1/models`, for clients that send the header `anthropic-version`.

use axum::http::HeaderMap;
use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::app::App;
use crate::http::model_name::listed_names;

/// The model, by one of its names, or an adapter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(in crate::http) struct AnthropicModel {
    #[serde(rename = "type")]
    kind: &'static str,
    id: String,
    display_name: String,
    /// When the server was started, in the form of RFC 3339.
    created_at: String,
}

/// The model by all of its names and its adapters, which are all on one page.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::http) struct AnthropicModelList {
    data: Vec<AnthropicModel>,
    has_more: bool,
    first_id: Option<String>,
    last_id: Option<String>,
}

/// Returns whether a request comes from one of Anthropic's clients, which always send this header.
pub(in crate::http) fn is_client(headers: &HeaderMap) -> bool {
    headers.contains_key("anthropic-version")
}

impl AnthropicModel {
    pub(in crate::http) fn new(app: &App, name: &str) -> Self {
        let started =
            i64::try_from(app.started).ok().and_then(|seconds| DateTime::from_timestamp(seconds, 0));
        let created_at = started.unwrap_or(DateTime::<Utc>::UNIX_EPOCH);
        AnthropicModel {
            kind: "model",
            id: name.to_owned(),
            display_name: name.to_owned(),
            created_at: created_at.to_rfc3339_opts(SecondsFormat::Secs, true),
        }
    }
}

impl AnthropicModelList {
    pub(in crate::http) fn new(app: &App) -> Self {
        let data: Vec<_> =
            listed_names(app).into_iter().map(|name| AnthropicModel::new(app, &name)).collect();
        let id = |model: Option<&AnthropicModel>| model.map(|model| model.id.clone());
        let (first_id, last_id) = (id(data.first()), id(data.last()));
        AnthropicModelList { data, has_more: false, first_id, last_id }
    }
}
