//! The Hugging Face cache on disk, in the layout of Python's `huggingface_hub`:
//!
//! ```text
//! models--ORG--NAME/blobs/ETAG               a file's bytes
//! models--ORG--NAME/blobs/ETAG.incomplete    the first bytes of a file
//! models--ORG--NAME/refs/REVISION            the commit of a branch or a tag
//! models--ORG--NAME/snapshots/COMMIT/FILE    a link to the blob
//! .locks/models--ORG--NAME/ETAG.lock         held while a blob is downloaded
//! ```

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use millrace_formats::{dangling_link, regular_file};

use super::error::HubError;
use super::listing::{FileContent, ListedFile};
use super::needed::{self, INDEX};
use super::repository::Repository;

/// The time between two attempts to get a lock that another process holds.
const LOCK_POLL: Duration = Duration::from_millis(100);

/// The folder of one repository in the cache.
#[derive(Debug, Clone)]
pub(super) struct RepositoryCache {
    root: PathBuf,
    folder_name: String,
}

/// The lock of a blob. It is released when this is dropped or the process ends.
#[derive(Debug)]
pub(super) struct BlobLock(#[expect(dead_code, reason = "held for its lock")] Option<File>);

impl RepositoryCache {
    /// Returns the folder of `repository` in the cache at `root`.
    pub(super) fn new(root: &Path, repository: &Repository) -> RepositoryCache {
        RepositoryCache { root: root.to_owned(), folder_name: repository.folder_name() }
    }

    fn folder(&self) -> PathBuf {
        self.root.join(&self.folder_name)
    }

    /// Returns the folder of the blobs.
    pub(super) fn blobs(&self) -> PathBuf {
        self.folder().join("blobs")
    }

    /// Returns the path of a blob.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.blobs().join(etag)
    }

    /// Returns the path of the first bytes of a blob.
    pub(super) fn partial(&self, etag: &str) -> PathBuf {
        self.blobs().join(format!("{etag}.incomplete"))
    }

    /// Returns the folder of a commit.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    /// Returns the commit that a file in `refs` names for a revision.
    pub(super) fn commit_of(&self, revision: &str) -> Option<String> {
        let commit = regular_file::read_text(&self.folder().join("refs").join(revision), MAX_COMMIT).ok()?;
        Some(commit.trim().to_owned())
    }

    /// Returns the folder of the commit that the cache has for a revision.
    pub(super) fn cached_snapshot(&self, revision: &str) -> Option<PathBuf> {
        let commit = self.commit_of(revision);
        let snapshot = self.snapshot(commit.as_deref().unwrap_or(revision));
        snapshot.is_dir().then_some(snapshot)
    }

    /// Returns whether a snapshot has a file of the right size.
    pub(super) fn has(&self, commit: &str, file: &ListedFile, content: &FileContent) -> bool {
        let path = self.snapshot(commit).join(&file.name);
        fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() == content.size)
    }

    /// Records the commit of a revision.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn record_revision(&self, revision: &str, commit: &str) -> Result<(), HubError> {
        if revision == commit {
            return Ok(());
        }
        let path = self.folder().join("refs").join(revision);
        if regular_file::read_text(&path, MAX_COMMIT).is_ok_and(|known| known == commit) {
            return Ok(());
        }
        create_parent(&path)?;
        // Other processes never see half a commit.
        let new = path.with_file_name(format!(".{}-{}", std::process::id(), commit));
        // A link that another process has left there is not followed.
        let _ = fs::remove_file(&new);
        let created = File::create_new(&new).and_then(|mut file| file.write_all(commit.as_bytes()));
        let written = created.and_then(|()| fs::rename(&new, &path));
        written.map_err(HubError::at(&path))
    }

    /// Links a file of a snapshot to its blob.
    ///
    /// # Errors
    /// If neither a link nor a copy can be made.
    pub(super) fn link(&self, commit: &str, name: &str, etag: &str) -> Result<(), HubError> {
        let link = self.snapshot(commit).join(name);
        create_parent(&link)?;
        // From snapshots/COMMIT/a/b, the blobs are three folders up.
        let up = "../".repeat(name.split('/').count() + 1);
        let target = PathBuf::from(format!("{up}blobs/{etag}"));
        if fs::read_link(&link).is_ok_and(|known| known == target) && link.exists() {
            return Ok(());
        }
        let new = link.with_file_name(format!(".{}-{etag}", std::process::id()));
        let _ = fs::remove_file(&new);
        let blob = self.blob(etag);
        let linked = symlink(&target, &new)
            .or_else(|_| fs::hard_link(&blob, &new))
            .or_else(|_| fs::copy(&blob, &new).map(|_| ()))
            .and_then(|()| fs::rename(&new, &link));
        linked.map_err(HubError::at(&link))
    }

    /// Waits until this process alone downloads a blob.
    ///
    /// # Errors
    /// If the lock's file cannot be created.
    pub(super) async fn lock(&self, etag: &str, name: &str) -> Result<BlobLock, HubError> {
        let path = self.root.join(".locks").join(&self.folder_name).join(format!("{etag}.lock"));
        create_parent(&path)?;
        let file = regular_file::open_or_create(&path).map_err(HubError::at(&path))?;
        let mut waits = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(BlobLock(Some(file))),
                Err(TryLockError::WouldBlock) => {
                    if !std::mem::replace(&mut waits, true) {
                        tracing::info!("another process downloads {name}; waiting for it");
                    }
                    tokio::time::sleep(LOCK_POLL).await;
                }
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                    tracing::warn!("{}: this file system has no locks", path.display());
                    return Ok(BlobLock(None));
                }
                Err(TryLockError::Error(error)) => return Err(HubError::Io { path, error }),
            }
        }
    }

    /// Checks that the cache can be written.
    ///
    /// # Errors
    /// If its folders cannot be created.
    pub(super) fn prepare(&self) -> Result<(), HubError> {
        let blobs = self.blobs();
        fs::create_dir_all(&blobs).map_err(HubError::at(&blobs))
    }

    /// Returns the free bytes of the file system. `None` if the system does not say.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        free_bytes(&self.blobs())
    }
}

/// Returns the first file that a snapshot lacks, or `None` if the model can be loaded from it. A
/// link whose target does not exist is named with the target.
pub(super) fn missing_file(snapshot: &Path, needs_weights: bool) -> Option<String> {
    let name = missing_name(snapshot, needs_weights)?;
    Some(match dangling_link(&snapshot.join(&name)) {
        Some(link) => format!("{name} ({link})"),
        None => name,
    })
}

fn missing_name(snapshot: &Path, needs_weights: bool) -> Option<String> {
    let has = |name: &str| snapshot.join(name).is_file();
    // A link without a target was a file that the download has chosen.
    let is_broken = |name: &str| dangling_link(&snapshot.join(name)).is_some();
    if !has("config.json") {
        return Some("config.json".to_owned());
    }
    if let Some(small) = needed::small_names().find(|name| is_broken(name)) {
        return Some(small.to_owned());
    }
    if let Some(module) = missing_module(snapshot) {
        return Some(module);
    }
    if !needs_weights || has("model.safetensors") {
        return None;
    }
    if is_broken("model.safetensors") {
        return Some("model.safetensors".to_owned());
    }
    if let Ok(index) = regular_file::read(&snapshot.join(INDEX), MAX_INDEX) {
        let files = needed::index_files(&index).unwrap_or_default();
        return files.into_iter().find(|name| !has(name));
    }
    let mut names = fs::read_dir(snapshot).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_weights =
        |path: &PathBuf| path.extension().is_some_and(|end| end == "safetensors") && path.is_file();
    (!names.any(|path| is_weights(&path))).then(|| "the weights (*.safetensors)".to_owned())
}

/// The maximum number of bytes of a file with the commit of a branch.
const MAX_COMMIT: u64 = 1 << 10;

/// The maximum number of bytes of the index of the weights.
pub(super) const MAX_INDEX: u64 = 256 << 20;

/// The maximum number of bytes of the list of modules.
pub(super) const MAX_MODULES: u64 = 1 << 20;

/// Returns the first file of a module of sentence-transformers that a snapshot lacks.
fn missing_module(snapshot: &Path) -> Option<String> {
    let list = regular_file::read(&snapshot.join(needed::MODULES), MAX_MODULES).ok()?;
    let has = |name: &str| snapshot.join(name).is_file();
    needed::module_folders(&list).into_iter().find_map(|module| {
        let configuration = format!("{}/config.json", module.path);
        if module.is_configured && !has(&configuration) {
            return Some(configuration);
        }
        let weights = needed::MODULE_WEIGHTS.map(|name| format!("{}/{name}", module.path));
        if !module.has_weights || weights.iter().any(|name| has(name)) {
            return None;
        }
        let is_broken = |name: &&String| dangling_link(&snapshot.join(name)).is_some();
        weights.iter().find(is_broken).or(weights.first()).cloned()
    })
}

fn create_parent(path: &Path) -> Result<(), HubError> {
    match path.parent() {
        Some(parent) => fs::create_dir_all(parent).map_err(HubError::at(parent)),
        None => Ok(()),
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(unix)]
fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn cache(folder: &Path) -> RepositoryCache {
        RepositoryCache::new(folder, &Repository::named("org/name", "main").unwrap())
    }

    #[test]
    fn links_and_revisions_have_the_layout_of_the_cache() {
        let folder = std::env::temp_dir().join(format!("millrace-layout-{}", std::process::id()));
        let cache = cache(&folder);
        cache.prepare().unwrap();
        fs::write(cache.blob("e1"), "one").unwrap();
        for name in ["config.json", "1_Pooling/config.json"] {
            cache.link(COMMIT, name, "e1").unwrap();
            cache.link(COMMIT, name, "e1").unwrap();
            assert_eq!(fs::read_to_string(cache.snapshot(COMMIT).join(name)).unwrap(), "one");
        }
        let link = cache.snapshot(COMMIT).join("config.json");
        assert_eq!(fs::read_link(link).unwrap(), Path::new("../../blobs/e1"));
        for revision in ["main", "refs/pr/1"] {
            assert_eq!(cache.cached_snapshot(revision), None);
            cache.record_revision(revision, COMMIT).unwrap();
            assert_eq!(cache.cached_snapshot(revision), Some(cache.snapshot(COMMIT)));
        }
        assert_eq!(cache.cached_snapshot(COMMIT), Some(cache.snapshot(COMMIT)));
        assert!(folder.join("models--org--name/refs/refs/pr/1").is_file());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_snapshot_is_complete_when_all_weights_of_its_index_are_there() {
        let folder = std::env::temp_dir().join(format!("millrace-complete-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        assert_eq!(missing_file(&folder, true).as_deref(), Some("config.json"));
        write("config.json", "{}");
        assert_eq!(missing_file(&folder, false), None);
        assert!(missing_file(&folder, true).unwrap().contains("weights"));
        write(INDEX, r#"{"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}"#);
        write("a.safetensors", "");
        assert_eq!(missing_file(&folder, true).as_deref(), Some("b.safetensors"));
        write("b.safetensors", "");
        assert_eq!(missing_file(&folder, true), None);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[tokio::test]
    async fn a_lock_is_held_by_one_at_a_time() {
        let folder = std::env::temp_dir().join(format!("millrace-lock-{}", std::process::id()));
        let cache = cache(&folder);
        let first = cache.lock("e1", "x").await.unwrap();
        let second = tokio::time::timeout(Duration::from_millis(300), cache.lock("e1", "x")).await;
        assert!(second.is_err(), "two holders");
        drop(first);
        cache.lock("e1", "x").await.unwrap();
        fs::remove_dir_all(&folder).unwrap();
    }
}
