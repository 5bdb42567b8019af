//! The download of a LoRA adapter: its configuration and its weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::cache::RepositoryCache;
use super::client::HubClient;
use super::error::HubError;
use super::fetch::{ATTEMPTS_WITH_CACHE, WeightDownload, may_use_old_copy};
use super::listing::{ListedFile, Listing};
use super::repository::Repository;
use super::settings::HubSettings;

/// The files of an adapter in PEFT's layout.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Finds an adapter in the cache, or downloads it. If the hub cannot be asked, an adapter in the
/// cache is used. Returns the folder of the snapshot.
///
/// # Errors
/// If the adapter is neither on the hub nor complete in the cache.
pub(crate) async fn fetch_adapter(
    settings: HubSettings,
    repository: Repository,
) -> Result<PathBuf, HubError> {
    let Repository { id, revision } = repository.clone();
    if let Some(fault) = repository.revision_fault() {
        return Err(HubError::Unusable(format!("the revision {revision} {fault}")));
    }
    let cache = RepositoryCache::new(&settings.cache, &repository);
    let complete = cache.cached_snapshot(&revision).filter(|folder| is_complete(folder));
    if settings.offline {
        let folder = settings.cache.display();
        let absent = format!(
            "the Hugging Face cache {folder} does not have the adapter {id} at revision `{revision}`, and \
             HF_HUB_OFFLINE forbids downloads"
        );
        return complete.ok_or(HubError::Unusable(absent));
    }
    // The files of a commit never change.
    if let Some(folder) = complete.as_ref().filter(|_| repository.is_commit()) {
        return Ok(folder.clone());
    }
    let client = HubClient::new(settings, repository)?;
    let attempts = complete.is_some().then_some(ATTEMPTS_WITH_CACHE);
    let fetched = match client.listing(attempts).await {
        Ok(listing) => download(client, cache, &listing).await,
        Err(error) => Err(error),
    };
    match (fetched, complete) {
        (Err(error), Some(folder)) if may_use_old_copy(&error) => {
            tracing::warn!(
                "{error}; using the copy of {id} in the cache, which may be old: {}",
                folder.display()
            );
            Ok(folder)
        }
        (fetched, _) => fetched,
    }
}

/// Downloads the missing files of a list.
async fn download(client: HubClient, cache: RepositoryCache, listing: &Listing) -> Result<PathBuf, HubError> {
    let files = files(&client.repository.id, listing)?;
    let folder = cache.snapshot(&listing.commit);
    cache.prepare()?;
    WeightDownload::fetch_now(Arc::new(client), cache, &listing.commit, &files).await?;
    Ok(folder)
}

fn is_complete(folder: &Path) -> bool {
    FILES.iter().all(|name| folder.join(name).is_file())
}

/// Chooses the files of an adapter.
fn files(id: &str, listing: &Listing) -> Result<Vec<ListedFile>, HubError> {
    let find = |name: &str| listing.files.iter().find(|file| file.name == name).cloned();
    let chosen = FILES.map(find);
    let fault = match &chosen {
        [None, _] => format!("{id} is no adapter: it has no {}", FILES[0]),
        [_, None] if find("adapter_model.bin").is_some() => {
            format!("{id} has its weights only as a pickle file (.bin), and downloads take safetensors only")
        }
        [_, None] => format!("{id} has no {}", FILES[1]),
        [Some(_), Some(_)] => return Ok(chosen.into_iter().flatten().collect()),
    };
    Err(HubError::Unusable(fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_an_adapter_are_chosen_or_what_is_missing_is_named() {
        let chosen = |names: &[&str]| {
            let files =
                names.iter().map(|&name| ListedFile { name: name.to_owned(), content: None }).collect();
            let listing = Listing { commit: "0".repeat(40), files };
            let chosen = files_of(&listing);
            chosen.map_err(|error| error.to_string())
        };
        let all = ["README.md", FILES[1], "tokenizer.json", "adapter_model.bin", FILES[0], "optimizer.pt"];
        assert_eq!(chosen(&all).unwrap(), FILES);
        for (names, text) in [
            (&["config.json"][..], "o/n is no adapter"),
            (&[FILES[0], "adapter_model.bin"], "only as a pickle file"),
            (&[FILES[0]], "has no adapter_model.safetensors"),
        ] {
            let error = chosen(names).unwrap_err();
            assert!(error.contains(text), "{names:?}: {error}");
        }
    }

    fn files_of(listing: &Listing) -> Result<Vec<String>, HubError> {
        Ok(files("o/n", listing)?.into_iter().map(|file| file.name).collect())
    }
}
