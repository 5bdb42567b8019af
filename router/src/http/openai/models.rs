//! OpenAI's form of `/v1/models`.

use serde::Serialize;
use utoipa::ToSchema;

use crate::http::app::App;
use crate::http::model_name::listed_names;

/// The model, by one of its names.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Model)]
pub(in crate::http) struct OpenAiModel {
    id: String,
    object: &'static str,
    /// When the server was started.
    created: u64,
    owned_by: String,
    /// vLLM's field: tokens of prompt and answer together. Absent while the model is loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
}

/// The model by all of its names.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ModelList)]
pub(in crate::http) struct OpenAiModelList {
    object: &'static str,
    data: Vec<OpenAiModel>,
}

impl OpenAiModel {
    pub(in crate::http) fn new(app: &App, name: &str) -> Self {
        let ready = app.service.ready().ok();
        OpenAiModel {
            id: name.to_owned(),
            object: "model",
            created: app.started,
            owned_by: app.service.model().id.clone(),
            max_model_len: ready.map(|ready| app.service.limits().tokens(&ready).max_total),
        }
    }
}

impl OpenAiModelList {
    pub(in crate::http) fn new(app: &App) -> Self {
        let data = listed_names(app).into_iter().map(|name| OpenAiModel::new(app, name)).collect();
        OpenAiModelList { object: "list", data }
    }
}
