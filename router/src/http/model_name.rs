//! The names that clients may call the model by.

use super::app::App;

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

/// Returns the name of the model in responses.
///
/// Unless the operator has given the model names, a request may call it by any name: some clients
/// send a URL, others the name of a model that they know.
///
/// # Errors
/// [`UnknownModel`] if the operator has given names and the request uses another one.
pub(super) fn served_model(app: &App, requested: Option<&str>) -> Result<String, UnknownModel> {
    let names = &app.service.limits().model_names;
    let is_served = |name: &str| {
        names.is_empty() || PLACEHOLDERS.contains(&name) || names.iter().any(|served| served == name)
    };
    match requested {
        Some(name) if !is_served(name) => Err(UnknownModel(name.to_owned())),
        _ => Ok(app.service.model().id.clone()),
    }
}

/// Returns the names that the model is listed by. The first is its name in responses.
pub(super) fn listed_names(app: &App) -> Vec<&str> {
    let id = app.service.model().id.as_str();
    let others = app.service.limits().model_names.iter().map(String::as_str).filter(|name| *name != id);
    [id].into_iter().chain(others).collect()
}
