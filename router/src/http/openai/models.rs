//! OpenAI's form of `/v1/models`, with vLLM's fields.

use serde::Serialize;
use utoipa::ToSchema;

use crate::http::app::App;
use crate::http::model_name::listed_names;

/// The model, by one of its names, or an adapter.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Model)]
pub(in crate::http) struct OpenAiModel {
    id: String,
    object: &'static str,
    /// When the server was started.
    created: u64,
    owned_by: String,
    /// vLLM's field: where the model or the adapter was read from.
    root: String,
    /// vLLM's field: the model that an adapter changes; null for the model.
    parent: Option<String>,
    /// vLLM's field: tokens of prompt and answer together. Absent while the model is loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
}

/// The model by all of its names, and its adapters.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ModelList)]
pub(in crate::http) struct OpenAiModelList {
    object: &'static str,
    data: Vec<OpenAiModel>,
}

impl OpenAiModel {
    pub(in crate::http) fn new(app: &App, name: &str) -> Self {
        let ready = app.service.ready().ok();
        let model = app.service.model();
        let adapter = model.adapters.get(name);
        let adapter = adapter.as_ref().map(|adapter| &adapter.info);
        let parent = adapter.map(|adapter| adapter.parent.as_ref().unwrap_or(&model.id).clone());
        OpenAiModel {
            id: name.to_owned(),
            object: "model",
            created: app.started,
            owned_by: model.id.clone(),
            root: adapter.map_or(&model.id, |adapter| &adapter.root).clone(),
            parent,
            max_model_len: ready.map(|ready| app.service.limits().tokens(&ready).max_total),
        }
    }
}

impl OpenAiModelList {
    pub(in crate::http) fn new(app: &App) -> Self {
        let data = listed_names(app).into_iter().map(|name| OpenAiModel::new(app, &name)).collect();
        OpenAiModelList { object: "list", data }
    }
}
