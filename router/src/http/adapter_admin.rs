//! The rights of an administrator, and the paths that need them.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::keys::ApiKeys;
use crate::engine::AdapterInfo;

/// The paths of the routes, which need the admin key instead of an API key.
pub(super) const ADMIN_PATHS: [&str; 3] =
    ["/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/restart_groups"];

/// An adapter that was found where an administrator said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundAdapter {
    /// The adapter as clients see it.
    pub info: AdapterInfo,
    /// The folder that the shards read.
    pub folder: String,
}

/// The reason why there is no adapter where an administrator said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FindError {
    /// Nothing is there.
    NotFound(String),
    /// The folder or the repository is no adapter that the server can load.
    Refused(String),
}

/// Finds the adapter with a name and a path: a folder, or a repository of the hub, which is
/// downloaded. It is called where it may block.
pub type FindAdapter = Arc<dyn Fn(&str, &str) -> Result<FoundAdapter, FindError> + Send + Sync>;

/// The holders of the right to load and unload adapters while the server runs, and the places where
/// adapters are found.
#[derive(Clone, Default)]
pub struct AdapterAdmin {
    /// The admin keys; if there is none, nobody may.
    pub(super) keys: ApiKeys,
    /// Absent if the server has no place for adapters.
    pub(super) find: Option<FindAdapter>,
    /// Held while an adapter is found and loaded, so that at most one is on its way.
    pub(super) turn: Arc<Mutex<()>>,
}

impl fmt::Debug for AdapterAdmin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterAdmin").field("can_load", &self.find.is_some()).finish_non_exhaustive()
    }
}

impl AdapterAdmin {
    /// Lets the holders of `keys` load what `find` finds. Without `find`, the server has no place
    /// for adapters.
    pub fn new(keys: ApiKeys, find: Option<FindAdapter>) -> Self {
        AdapterAdmin { keys, find, turn: Arc::default() }
    }
}
