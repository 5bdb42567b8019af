//! The adapters that requests may name, by name.
//!
//! An adapter never changes. Loading another one under the same name makes a new adapter with a new
//! number, and the name stands for it from then on. Requests hold the adapter that they began with.
//! When an adapter has no name any more and no request holds it, its place in the shards' pools is
//! freed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use millrace_scheduler::AdapterId;
use tokio::sync::{Mutex, oneshot};

/// An adapter of the model, as clients see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterInfo {
    /// The adapter's name in requests and answers.
    pub name: String,
    /// The repository or the folder that the adapter was read from, without the path of a folder.
    pub root: String,
    /// The name of the model that the adapter changes, if it is not the name of the served model.
    pub parent: Option<String>,
}

/// The place from which the shards read an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdapterSource {
    /// The adapter with this index in the list with which the shards were started.
    Listed(u32),
    /// This folder, on the machine of each shard.
    Folder(String),
}

/// An adapter that has a name, or that requests hold.
#[derive(Debug)]
pub struct HeldAdapter {
    /// The number of the adapter. No other adapter ever has it.
    pub id: AdapterId,
    /// The adapter as clients see it.
    pub info: AdapterInfo,
    shared: Weak<Shared>,
}

impl Drop for HeldAdapter {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.send(AdapterCommand::Free(self.id));
        }
    }
}

/// Why an adapter was not loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// An adapter has the name.
    #[error(
        "The lora adapter '{0}' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to \
         True."
    )]
    NameTaken(String),
    /// All places of the pools are taken.
    #[error(
        "All {places} places for adapters are taken (--max-loras). Unload an adapter first; the place of an adapter that \
         was unloaded or replaced is free when the last request with it has ended"
    )]
    NoPlace {
        /// Number of places.
        places: usize,
    },
    /// As many adapters are loaded as the shards keep in host memory.
    #[error(
        "{most} adapters are loaded, which is the limit (--max-cpu-loras). Unload an adapter first; an adapter that was \
         unloaded or replaced counts until the last request with it has ended"
    )]
    NoMemory {
        /// Maximum number of adapters that are loaded.
        most: usize,
    },
    /// A shard cannot load the adapter.
    #[error("{0}")]
    Refused(String),
    /// The shards are not running.
    #[error("{0}")]
    Unavailable(&'static str),
}

/// The adapters of a server. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Adapters(Arc<Shared>);

/// Sends a command to the engine, if it has not ended.
struct SendCommand(Box<dyn Fn(AdapterCommand) + Send + Sync>);

impl fmt::Debug for SendCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SendCommand")
    }
}

#[derive(Debug, Default)]
struct Shared {
    table: RwLock<Table>,
    /// The engine that serves the adapters. The adapters do not keep it running.
    commands: OnceLock<SendCommand>,
    /// Held while an adapter is loaded or unloaded, so that these changes do not overlap.
    changes: Mutex<()>,
}

impl Shared {
    /// Sends a command. It is dropped if there is no engine.
    fn send(&self, command: AdapterCommand) {
        if let Some(SendCommand(send)) = self.commands.get() {
            send(command);
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    /// The adapters that have a name, oldest name first. Readers keep a list that is replaced.
    named: Arc<[Arc<HeldAdapter>]>,
    /// All adapters, including those that only requests hold.
    all: BTreeMap<AdapterId, Weak<HeldAdapter>>,
    /// The number of the next adapter.
    next: u32,
}

impl Adapters {
    /// Creates the list of adapters that a server is started with, in the order of their indices.
    pub fn new(infos: impl IntoIterator<Item = AdapterInfo>) -> Self {
        let adapters = Adapters::default();
        for info in infos {
            let adapter = adapters.add(info);
            adapters.name(adapter);
        }
        adapters
    }

    /// Returns the adapters that have a name.
    pub fn named(&self) -> Arc<[Arc<HeldAdapter>]> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner).named.clone()
    }

    /// Returns the adapter with this name.
    pub fn get(&self, name: &str) -> Option<Arc<HeldAdapter>> {
        self.named().iter().find(|adapter| adapter.info.name == name).cloned()
    }

    /// Returns the adapter with this number if it has a name or a request holds it.
    pub fn held(&self, id: AdapterId) -> Option<Arc<HeldAdapter>> {
        self.0.table.read().unwrap_or_else(PoisonError::into_inner).all.get(&id)?.upgrade()
    }

    /// Loads an adapter on the shards and gives it its name. If another adapter has the name, it
    /// must be `in_place`; requests that hold the other adapter go on with it.
    ///
    /// The caller must await the result even if nobody is interested in it any more.
    ///
    /// # Errors
    /// [`LoadError`]. Nothing has changed then.
    pub async fn load(&self, info: AdapterInfo, folder: String, in_place: bool) -> Result<(), LoadError> {
        let _changing = self.0.changes.lock().await;
        if !in_place && self.get(&info.name).is_some() {
            return Err(LoadError::NameTaken(info.name));
        }
        let adapter = self.add(info);
        let (reply, loaded) = oneshot::channel();
        let source = AdapterSource::Folder(folder);
        self.0.send(AdapterCommand::Load(AdapterLoadCommand { adapter: adapter.id, source, reply }));
        loaded.await.unwrap_or(Err(LoadError::Unavailable("Server is shutting down")))?;
        // The last reference to the other adapter is dropped outside of the lock.
        drop(self.name(adapter));
        Ok(())
    }

    /// Takes the name of an adapter away. Returns false if there is no such adapter.
    pub async fn unload(&self, name: &str) -> bool {
        let _changing = self.0.changes.lock().await;
        self.unname(|adapter| adapter.info.name == name)
    }

    /// Takes the name of an adapter away that the shards have lost.
    pub(super) fn lose(&self, id: AdapterId) {
        self.unname(|adapter| adapter.id == id);
    }

    /// Connects the adapters with the engine that has loaded those with a name, or will load them.
    /// `send` must not keep the engine running. Only the first call has an effect.
    pub(super) fn connect(&self, send: impl Fn(AdapterCommand) + Send + Sync + 'static) {
        let _ = self.0.commands.set(SendCommand(Box::new(send)));
    }

    /// Forgets an adapter that nothing holds.
    pub(super) fn forget(&self, id: AdapterId) {
        self.0.table.write().unwrap_or_else(PoisonError::into_inner).all.remove(&id);
    }

    /// Creates an adapter without a name.
    fn add(&self, info: AdapterInfo) -> Arc<HeldAdapter> {
        let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        let id = AdapterId(table.next);
        table.next += 1;
        let adapter = Arc::new(HeldAdapter { id, info, shared: Arc::downgrade(&self.0) });
        table.all.insert(id, Arc::downgrade(&adapter));
        adapter
    }

    /// Gives an adapter its name, in the place of an adapter that has it. Returns the former list.
    fn name(&self, adapter: Arc<HeldAdapter>) -> Arc<[Arc<HeldAdapter>]> {
        let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        let mut named = table.named.to_vec();
        match named.iter_mut().find(|other| other.info.name == adapter.info.name) {
            Some(other) => *other = adapter,
            None => named.push(adapter),
        }
        std::mem::replace(&mut table.named, named.into())
    }

    /// Takes the names of these adapters away. Returns whether there was one.
    fn unname(&self, is_meant: impl Fn(&HeldAdapter) -> bool) -> bool {
        let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        let kept: Arc<[_]> = table.named.iter().filter(|adapter| !is_meant(adapter)).cloned().collect();
        let former = std::mem::replace(&mut table.named, kept);
        let has_changed = former.len() != table.named.len();
        // An adapter that is dropped sends a command, which needs no lock, but may take a moment.
        drop(table);
        drop(former);
        has_changed
    }
}

impl<T: IntoIterator<Item = AdapterInfo>> From<T> for Adapters {
    fn from(infos: T) -> Self {
        Adapters::new(infos)
    }
}

/// A command to the engine about an adapter.
#[derive(Debug)]
pub enum AdapterCommand {
    /// Load an adapter.
    Load(AdapterLoadCommand),
    /// Free the place of an adapter that has no name and no requests, if it has a place.
    Free(AdapterId),
}

/// Asks the engine to load an adapter.
#[derive(Debug)]
pub struct AdapterLoadCommand {
    /// The number of the adapter.
    pub(super) adapter: AdapterId,
    /// Where the shards read it.
    pub(crate) source: AdapterSource,
    /// Receives the result.
    pub(crate) reply: oneshot::Sender<Result<(), LoadError>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str) -> AdapterInfo {
        AdapterInfo { name: name.into(), root: "r".into(), parent: None }
    }

    /// The numbers of the adapters that an engine would free.
    fn connected(adapters: &Adapters) -> impl Fn() -> Vec<u32> {
        let freed = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = freed.clone();
        adapters.connect(move |command| match command {
            AdapterCommand::Free(AdapterId(id)) => seen.lock().unwrap().push(id),
            AdapterCommand::Load(_) => {}
        });
        move || std::mem::take(&mut *freed.lock().unwrap())
    }

    #[test]
    fn an_adapter_is_freed_when_neither_a_name_nor_a_request_holds_it() {
        let adapters = Adapters::new([info("a"), info("b")]);
        let freed = connected(&adapters);
        let running = adapters.get("a").unwrap();
        assert_eq!((running.id, adapters.held(AdapterId(1)).unwrap().id), (AdapterId(0), AdapterId(1)));

        // Another generation of `a`, in the place of the first in the list.
        let next = adapters.add(info("a"));
        drop(adapters.name(next));
        let names = |adapters: &Adapters| {
            adapters.named().iter().map(|one| (one.info.name.clone(), one.id.0)).collect::<Vec<_>>()
        };
        assert_eq!(names(&adapters), [("a".to_owned(), 2), ("b".to_owned(), 1)]);
        assert_eq!(freed(), [] as [u32; 0], "a request runs with it");
        assert_eq!(adapters.held(AdapterId(0)).unwrap().info.name, "a");
        drop(running);
        assert_eq!(freed(), [0]);
        assert!(adapters.held(AdapterId(0)).is_none());

        assert!(adapters.unname(|one| one.info.name == "b") && !adapters.unname(|one| one.info.name == "b"));
        assert_eq!(freed(), [1]);
        adapters.forget(AdapterId(1));
        let again = adapters.add(info("b"));
        assert_eq!(again.id, AdapterId(3), "a number is never used again");
        drop(again);
        assert_eq!(freed(), [3], "an adapter that was never named is freed as well");
    }

    #[tokio::test]
    async fn a_load_without_an_engine_changes_nothing() {
        let adapters = Adapters::new([info("a")]);
        for name in ["a", "b"] {
            let ended = LoadError::Unavailable("Server is shutting down");
            assert_eq!(adapters.load(info(name), "/x".into(), true).await, Err(ended));
        }
        let freed = connected(&adapters);
        assert_eq!(adapters.load(info("b"), "/x".into(), false).await.is_err(), adapters.get("b").is_none());
        assert_eq!(freed(), [3], "the number of the adapter that was not loaded");
        assert_eq!(adapters.named().iter().map(|one| one.id.0).collect::<Vec<_>>(), [0]);
    }
}
