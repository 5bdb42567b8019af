//! `--model-id`: where the files of a model are.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use millrace_shard::checkpoint::Source;

use crate::cli::ModelArgs;
use crate::demo;

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// Built into this binary.
    Demo,
    /// A folder in Hugging Face layout.
    Folder(PathBuf),
}

impl Location {
    /// The model's name for clients: the repository's if the folder is in a Hugging Face cache, else the folder's
    /// own name, however its path was `typed`.
    pub(crate) fn name(&self, typed: &str) -> String {
        let Location::Folder(folder) = self else { return typed.to_owned() };
        let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        // models--org--name/snapshots/COMMIT
        let repository =
            folder.parent().filter(|parent| parent.ends_with("snapshots")).and_then(Path::parent);
        let repository = repository.and_then(name);
        let repository = repository.as_deref().and_then(|name| name.strip_prefix("models--"));
        repository
            .map(|name| name.replacen("--", "/", 1))
            .or_else(|| name(&folder))
            .unwrap_or_else(|| typed.to_owned())
    }

    /// The commit of a snapshot in a Hugging Face cache.
    pub(crate) fn revision(&self) -> Option<String> {
        let Location::Folder(folder) = self else { return None };
        let is_snapshot = folder.parent()?.file_name()? == "snapshots";
        is_snapshot.then(|| folder.file_name().map(|name| name.to_string_lossy().into_owned()))?
    }
}

/// The checkpoint's files.
///
/// # Errors
/// As [`locate`].
pub(crate) fn source(args: &ModelArgs) -> Result<Source> {
    Ok(match locate(args)? {
        Location::Demo => Source::Memory(demo::FILES),
        Location::Folder(folder) => Source::Directory(folder),
    })
}

/// Finds the model that the command line names.
///
/// # Errors
/// If it is neither `demo`, nor a folder, nor in the local Hugging Face cache; the text says where was looked.
pub(crate) fn locate(args: &ModelArgs) -> Result<Location> {
    if args.model_id == "demo" {
        return Ok(Location::Demo);
    }
    let folder = Path::new(&args.model_id);
    if folder.is_dir() {
        return Ok(Location::Folder(folder.to_path_buf()));
    }
    if folder.exists() {
        bail!(
            "--model-id {}: this is a file; give the folder that holds config.json and the weights",
            args.model_id
        );
    }
    match args.hub_cache().cloned().or_else(hub_cache) {
        Some(cache) => locate_cached(&cache, &args.model_id, &args.revision),
        None => bail!("--model-id {}: there is no such folder", args.model_id),
    }
}

/// The snapshot of `name` at `revision` in a Hugging Face cache: `models--org--name/{refs/REV, snapshots/COMMIT}`.
fn locate_cached(cache: &Path, name: &str, revision: &str) -> Result<Location> {
    let repository = cache.join(format!("models--{}", name.replace('/', "--")));
    if !repository.is_dir() {
        bail!(
            "--model-id {name}: there is no such folder, and the Hugging Face cache {} does not have it. \
             Millrace downloads nothing: fetch the model first (`hf download {name}`) or give a folder",
            cache.display()
        );
    }
    let commit = std::fs::read_to_string(repository.join("refs").join(revision));
    let snapshot = repository.join("snapshots").join(commit.as_deref().unwrap_or(revision).trim());
    if !snapshot.is_dir() {
        bail!(
            "--model-id {name}: the Hugging Face cache {} has no revision `{revision}` of it",
            cache.display()
        );
    }
    Ok(Location::Folder(snapshot))
}

fn hub_cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("HUGGINGFACE_HUB_CACHE")
        .or_else(|| variable("HF_HUB_CACHE"))
        .or_else(|| variable("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/huggingface/hub")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_repository_is_found_by_branch_and_by_commit() {
        let cache = std::env::temp_dir().join(format!("millrace-cache-{}", std::process::id()));
        let snapshot = cache.join("models--org--tiny/snapshots/abc123");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(cache.join("models--org--tiny/refs")).unwrap();
        std::fs::write(cache.join("models--org--tiny/refs/main"), "abc123\n").unwrap();

        assert_eq!(locate_cached(&cache, "org/tiny", "main").unwrap(), Location::Folder(snapshot.clone()));
        assert_eq!(locate_cached(&cache, "org/tiny", "abc123").unwrap(), Location::Folder(snapshot));
        let unknown = locate_cached(&cache, "org/tiny", "v2").unwrap_err().to_string();
        assert!(unknown.contains("no revision `v2`"), "{unknown}");
        let absent = locate_cached(&cache, "org/other", "main").unwrap_err().to_string();
        assert!(absent.contains("hf download org/other"), "{absent}");
        std::fs::remove_dir_all(&cache).unwrap();
    }

    #[test]
    fn clients_are_told_a_name_and_no_path() {
        let base = std::env::temp_dir().join(format!("millrace-names-{}", std::process::id()));
        let snapshot = base.join("models--org--tiny--chat/snapshots/abc123");
        let folder = base.join("Llama-3.2-1B");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(folder.join("inner")).unwrap();
        let name = |folder: PathBuf| Location::Folder(folder.clone()).name(&folder.to_string_lossy());
        assert_eq!(name(folder.clone()), "Llama-3.2-1B");
        assert_eq!(name(folder.join("inner/../")), "Llama-3.2-1B");
        assert_eq!(name(folder.join(".")), "Llama-3.2-1B");
        assert_eq!(name(snapshot), "org/tiny--chat");
        assert_eq!(Location::Demo.name("demo"), "demo");
        std::fs::remove_dir_all(&base).unwrap();
    }
}
