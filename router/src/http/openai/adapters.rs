//! vLLM's `/v1/load_lora_adapter` and `/v1/unload_lora_adapter`.

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;
use tokio::sync::Mutex;
use utoipa::ToSchema;

use super::error::{OpenAiError, OpenAiJson};
use crate::engine::LoadError;
use crate::http::adapter_admin::{AdapterAdmin, FindAdapter, FindError, FoundAdapter};
use crate::http::admin_key::{AdminKey, forbidden};
use crate::http::app::App;
use crate::http::model_name::is_name_of_model;

/// The most bytes of a name, which is a label of metrics, and of a path.
const MAX_NAME_BYTES: usize = 256;
const MAX_PATH_BYTES: usize = 4096;

/// The right to load and unload adapters, which a request with the admin key has.
pub(super) struct AdminRight {
    find: FindAdapter,
    turn: Arc<Mutex<()>>,
}

impl FromRequestParts<App> for AdminRight {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let AdminKey = AdminKey::from_request_parts(parts, app).await?;
        let AdapterAdmin { find, turn, .. } = &app.config.adapter_admin;
        let find = find.clone().ok_or_else(|| forbidden("--enable-lora (ENABLE_LORA)"))?;
        Ok(AdminRight { find, turn: turn.clone() })
    }
}

/// The adapter to load.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct LoadLoraAdapter {
    /// The name by which requests choose the adapter.
    #[serde(default)]
    lora_name: String,
    /// A folder of the server's machine in PEFT's layout, or a repository of the hub.
    #[serde(default)]
    lora_path: String,
    /// Whether the adapter may take the name of another one. Requests that have begun go on with
    /// the other one.
    #[serde(default)]
    load_inplace: bool,
}

/// The adapter to unload.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct UnloadLoraAdapter {
    /// The name of the adapter.
    #[serde(default)]
    lora_name: String,
}

/// Loads a LoRA adapter. It needs the admin key.
#[utoipa::path(post, path = "/v1/load_lora_adapter", tag = "OpenAI", operation_id = "load_lora_adapter", request_body = LoadLoraAdapter, responses((status = 200, description = "The adapter is loaded", body = String, content_type = "text/plain")))]
pub(super) async fn load(
    right: AdminRight,
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<LoadLoraAdapter>,
) -> Result<String, OpenAiError> {
    // The engine takes commands for adapters once it is ready.
    app.service.ready()?;
    check(&app, &request)?;
    let turn = right.turn.lock_owned().await;
    let name = request.lora_name.clone();
    // The work goes on if the client leaves: otherwise a loaded adapter might have no name.
    let work = tokio::spawn(async move {
        let loaded = find_and_load(&app, right.find, request).await;
        drop(turn);
        loaded
    });
    work.await.map_err(|_| OpenAiError::internal())??;
    tracing::info!("the adapter {name:?} is loaded");
    Ok(format!("Success: LoRA adapter '{name}' added successfully."))
}

/// Unloads a LoRA adapter. Requests that have begun with it go on. It needs the admin key.
#[utoipa::path(post, path = "/v1/unload_lora_adapter", tag = "OpenAI", operation_id = "unload_lora_adapter", request_body = UnloadLoraAdapter, responses((status = 200, description = "The adapter has no name any more", body = String, content_type = "text/plain")))]
pub(super) async fn unload(
    _: AdminRight,
    State(app): State<App>,
    OpenAiJson(UnloadLoraAdapter { lora_name: name }): OpenAiJson<UnloadLoraAdapter>,
) -> Result<String, OpenAiError> {
    app.service.ready()?;
    if name.is_empty() {
        let message = "'lora_name' needs to be provided to unload a LoRA adapter.";
        return Err(OpenAiError::invalid("lora_name", message));
    }
    if !app.service.model().adapters.unload(&name).await {
        let message = format!("The lora adapter '{name}' cannot be found.");
        return Err(OpenAiError::plain(StatusCode::NOT_FOUND, message));
    }
    tracing::info!("the adapter {name:?} is unloaded");
    Ok(format!("Success: LoRA adapter '{name}' removed successfully."))
}

/// Checks everything that needs no file.
fn check(app: &App, request: &LoadLoraAdapter) -> Result<(), OpenAiError> {
    let LoadLoraAdapter { lora_name: name, lora_path: path, load_inplace } = request;
    if name.is_empty() || path.is_empty() {
        let message = "Both 'lora_name' and 'lora_path' must be provided.";
        return Err(OpenAiError::invalid("lora_name", message));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(OpenAiError::invalid("lora_name", format!("A name has at most {MAX_NAME_BYTES} bytes")));
    }
    if path.len() > MAX_PATH_BYTES {
        return Err(OpenAiError::invalid("lora_path", format!("A path has at most {MAX_PATH_BYTES} bytes")));
    }
    if is_name_of_model(app, name) {
        return Err(OpenAiError::invalid("lora_name", format!("{name} is a name of the model")));
    }
    if !load_inplace && app.service.model().adapters.get(name).is_some() {
        return Err(LoadError::NameTaken(name.clone()).into());
    }
    Ok(())
}

async fn find_and_load(app: &App, find: FindAdapter, request: LoadLoraAdapter) -> Result<(), OpenAiError> {
    let LoadLoraAdapter { lora_name: name, lora_path: path, load_inplace } = request;
    let found =
        tokio::task::spawn_blocking(move || find(&name, &path)).await.map_err(|_| OpenAiError::internal())?;
    let FoundAdapter { info, folder } = found?;
    Ok(app.service.model().adapters.load(info, folder, load_inplace).await?)
}

impl From<FindError> for OpenAiError {
    fn from(error: FindError) -> Self {
        match error {
            FindError::NotFound(message) => OpenAiError::plain(StatusCode::NOT_FOUND, message),
            FindError::Refused(message) => OpenAiError::invalid("lora_path", message),
        }
    }
}

impl From<LoadError> for OpenAiError {
    fn from(error: LoadError) -> Self {
        let message = error.to_string();
        match error {
            LoadError::NameTaken(_) | LoadError::NoPlace { .. } | LoadError::NoMemory { .. } => {
                OpenAiError::invalid("lora_name", message)
            }
            LoadError::Refused(_) => OpenAiError::invalid("lora_path", message),
            LoadError::Unavailable(_) => OpenAiError::plain(StatusCode::SERVICE_UNAVAILABLE, message),
        }
    }
}
