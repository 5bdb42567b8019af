//! The names by which clients call the model and its adapters.

use super::app::App;
use crate::engine::AdapterId;
use crate::service::{ModelInfo, ServiceError};

/// Names by which the clients of TGI and Hugging Face call whatever model is at an address.
const PLACEHOLDERS: [&str; 3] = ["", "tgi", "dummy"];

/// The name of a model that is not served.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnknownModel(pub(super) String);

impl UnknownModel {
    /// The error for the client.
    pub(super) fn message(&self) -> String {
        format!("model not found: {}. GET /v1/models lists what is served", self.0)
    }
}

/// The model, or one of its adapters, that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServedModel {
    /// The name in responses.
    pub(super) name: String,
    /// The adapter, if the request names one.
    pub(super) adapter: Option<AdapterId>,
}

/// Returns the model or the adapter that a request names.
///
/// If there are no adapters and the operator has given the model no names, a request may call it by
/// any name: some clients send a URL, others the name of a model that they know.
///
/// # Errors
/// [`UnknownModel`] if there are adapters or names, and the request uses another name.
pub(super) fn served_model(app: &App, requested: Option<&str>) -> Result<ServedModel, UnknownModel> {
    let (model, names) = (app.service.model(), &app.service.limits().model_names);
    let base = ServedModel { name: model.id.clone(), adapter: None };
    let Some(name) = requested else { return Ok(base) };
    if let Some(adapter) = model.adapter(name) {
        return Ok(ServedModel { name: adapter.info.name.clone(), adapter: Some(adapter.id) });
    }
    let has_any_name = names.is_empty() && model.adapters.named().is_empty();
    if has_any_name || is_name_of_model(app, name) { Ok(base) } else { Err(UnknownModel(name.to_owned())) }
}

/// Returns whether a request for this name is one for the model, so that no adapter may have it.
pub(super) fn is_name_of_model(app: &App, name: &str) -> bool {
    PLACEHOLDERS.contains(&name) || listed_base_names(app).any(|base| base == name)
}

/// Returns the names that the model and its adapters are listed by. The first is the model's name
/// in responses.
pub(super) fn listed_names(app: &App) -> Vec<String> {
    let adapters = app.service.model().adapters.named();
    let adapters = adapters.iter().map(|adapter| adapter.info.name.clone());
    listed_base_names(app).map(str::to_owned).chain(adapters).collect()
}

fn listed_base_names(app: &App) -> impl Iterator<Item = &str> {
    let id = app.service.model().id.as_str();
    let others = app.service.limits().model_names.iter().map(String::as_str).filter(move |name| *name != id);
    [id].into_iter().chain(others)
}

/// Returns the adapter that TGI's parameter `adapter_id` names.
///
/// # Errors
/// [`ServiceError::Validation`] names the adapters that there are.
pub(super) fn adapter_by_id(model: &ModelInfo, id: &str) -> Result<AdapterId, ServiceError> {
    if let Some(adapter) = model.adapter(id) {
        return Ok(adapter.id);
    }
    let named = model.adapters.named();
    let known: Vec<&str> = named.iter().map(|adapter| adapter.info.name.as_str()).collect();
    let known = match known[..] {
        [] => "the server has no adapters".to_owned(),
        _ => format!("the adapters are {}", known.join(", ")),
    };
    Err(ServiceError::invalid("adapter_id", format!("`adapter_id` {id} is not known: {known}")))
}
