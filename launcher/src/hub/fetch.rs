//! The download of a model: its list of files, its configuration, its other small files, and then
//! its weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use millrace_formats::regular_file;
use tokio::task::JoinSet;

use super::blob::FileDownload;
use super::cache::{MAX_INDEX, MAX_MODULES, RepositoryCache, missing_file};
use super::client::HubClient;
use super::error::HubError;
use super::listing::{ListedFile, Listing};
use super::needed::{self, INDEX, MODULES, SmallFiles};
use super::progress::{DownloadProgress, Size};
use super::repository::Repository;
use super::settings::HubSettings;

/// Files that are downloaded at once.
const PARALLEL_FILES: usize = 8;

/// Failures after which the hub counts as unreachable if the cache has the model.
pub(super) const ATTEMPTS_WITH_CACHE: u32 = 2;

/// A check of the configuration in a folder, before anything else is downloaded. The text says why
/// the model cannot be run.
pub(crate) type ConfigurationCheck = fn(&Path) -> Result<(), String>;

/// A model whose small files are in the cache.
#[derive(Debug)]
pub(crate) struct FetchedModel {
    /// The folder of the snapshot.
    pub(crate) folder: PathBuf,
    /// The weights, if some are missing.
    pub(crate) weights: Option<WeightDownload>,
}

/// Weights that are not in the cache yet.
#[derive(Debug)]
pub(crate) struct WeightDownload {
    client: Arc<HubClient>,
    cache: RepositoryCache,
    commit: String,
    files: Vec<FileDownload>,
    progress: DownloadProgress,
}

impl FetchedModel {
    fn complete(folder: PathBuf) -> FetchedModel {
        FetchedModel { folder, weights: None }
    }
}

/// Finds a model in the cache, or downloads its small files. If the hub cannot be asked, a complete
/// model in the cache is used.
///
/// # Errors
/// If the model is neither on the hub nor complete in the cache, or cannot be run.
pub(crate) async fn fetch(
    settings: HubSettings,
    repository: Repository,
    needs_weights: bool,
    check: ConfigurationCheck,
) -> Result<FetchedModel, HubError> {
    if let Some(fault) = repository.revision_fault() {
        return Err(HubError::Unusable(format!("--revision {} {fault}", repository.revision)));
    }
    let cache = RepositoryCache::new(&settings.cache, &repository);
    let cached = cache.cached_snapshot(&repository.revision);
    let complete = cached.clone().filter(|folder| missing_file(folder, needs_weights).is_none());
    if settings.offline {
        let missing = cached.and_then(|folder| missing_file(&folder, needs_weights));
        let commit = cache.commit_of(&repository.revision);
        let absent = || HubError::Unusable(offline_fault(&settings.cache, &repository, commit, missing));
        return complete.map(FetchedModel::complete).ok_or_else(absent);
    }
    // The files of a commit never change.
    if let Some(folder) = complete.as_ref().filter(|_| repository.is_commit()) {
        return Ok(FetchedModel::complete(folder.clone()));
    }
    let revision = &repository.revision;
    let named_commit = cache.commit_of(revision).map(|commit| format!("{commit} that refs/{revision} names"));
    let client = HubClient::new(settings, repository)?;
    let attempts = complete.is_some().then_some(ATTEMPTS_WITH_CACHE);
    let fetched = match client.listing(attempts).await {
        Ok(listing) => fetch_listed(client, cache, &listing, needs_weights, check).await,
        Err(error) => Err(error),
    };
    match (fetched, complete) {
        (Err(error), Some(folder)) if may_use_old_copy(&error) => {
            let named = named_commit.map(|commit| format!(" (the commit {commit})")).unwrap_or_default();
            tracing::warn!(
                "{error}; using the copy in the cache, which may be old: {}{named}",
                folder.display()
            );
            Ok(FetchedModel::complete(folder))
        }
        (fetched, _) => fetched,
    }
}

/// Returns whether a complete model in the cache stands in for one that cannot be downloaded,
/// because of the hub, or because the cache cannot be written. `huggingface_hub` does so too.
pub(super) fn may_use_old_copy(error: &HubError) -> bool {
    !matches!(error, HubError::NoRevision { .. } | HubError::Unusable(_) | HubError::Checksum { .. })
}

/// Downloads the small files of a list, and checks the configuration first.
async fn fetch_listed(
    client: HubClient,
    cache: RepositoryCache,
    listing: &Listing,
    needs_weights: bool,
    check: ConfigurationCheck,
) -> Result<FetchedModel, HubError> {
    let commit = listing.commit.clone();
    let folder = cache.snapshot(&commit);
    let SmallFiles { configuration, others } =
        needed::small_files(&client.repository.id, listing, needs_weights)?;
    cache.prepare()?;
    let (client, progress) = (Arc::new(client), DownloadProgress::default());
    let mut transfer = WeightDownload { client, cache, commit, files: Vec::new(), progress };
    transfer.fetch_small(&configuration).await?;
    check(&folder).map_err(HubError::Unusable)?;
    transfer.fetch_small(&others).await?;
    if listing.files.iter().any(|file| file.name == MODULES)
        && let Ok(list) = regular_file::read(&folder.join(MODULES), MAX_MODULES)
    {
        // The server reads these before the weights of the model.
        transfer.fetch_small(&needed::module_files(listing, &list)?).await?;
    }
    if !needs_weights {
        transfer.cache.record_revision(&transfer.client.repository.revision, &transfer.commit)?;
        return Ok(FetchedModel::complete(folder));
    }
    let index = regular_file::read(&folder.join(INDEX), MAX_INDEX).ok();
    let weights = needed::weight_files(&transfer.client.repository.id, listing, index.as_deref())?;
    transfer.files = transfer.missing(&weights).await?;
    if transfer.files.is_empty() {
        transfer.cache.record_revision(&transfer.client.repository.revision, &transfer.commit)?;
        return Ok(FetchedModel::complete(folder));
    }
    transfer.check_disk()?;
    transfer.progress = DownloadProgress::default();
    for file in &transfer.files {
        transfer.progress.add_total(file.content.size);
    }
    Ok(FetchedModel { folder, weights: Some(transfer) })
}

impl WeightDownload {
    /// Returns the counters of bytes.
    pub(crate) fn progress(&self) -> DownloadProgress {
        self.progress.clone()
    }

    /// Downloads the weights. What has arrived stays in the cache if this is cancelled.
    ///
    /// # Errors
    /// If a file cannot be downloaded.
    pub(crate) async fn run(self) -> Result<(), HubError> {
        let (since, (_, bytes), id) = (Instant::now(), self.progress.bytes(), &self.client.repository);
        tracing::info!("downloading {id} at {}: {} of weights", self.commit, Size(bytes));
        self.fetch_all(&self.files).await?;
        tracing::info!("downloaded {id} in {:.1} s", since.elapsed().as_secs_f64());
        self.cache.record_revision(&self.client.repository.revision, &self.commit)
    }

    /// Downloads files into the snapshot of a commit, and waits for them.
    ///
    /// # Errors
    /// If a file cannot be downloaded, or the disk has no room for it.
    pub(super) async fn fetch_now(
        client: Arc<HubClient>,
        cache: RepositoryCache,
        commit: &str,
        files: &[ListedFile],
    ) -> Result<(), HubError> {
        let (commit, progress) = (commit.to_owned(), DownloadProgress::default());
        let mut transfer = WeightDownload { client, cache, commit, files: Vec::new(), progress };
        transfer.files = transfer.missing(files).await?;
        if transfer.files.is_empty() {
            return transfer.cache.record_revision(&transfer.client.repository.revision, &transfer.commit);
        }
        transfer.check_disk()?;
        transfer.files.iter().for_each(|file| transfer.progress.add_total(file.content.size));
        transfer.run().await
    }

    async fn fetch_small(&self, files: &[ListedFile]) -> Result<(), HubError> {
        self.fetch_all(&self.missing(files).await?).await
    }

    /// Downloads files in parallel tasks, so that their hashes are computed on several threads. The
    /// first error ends all of them.
    async fn fetch_all(&self, files: &[FileDownload]) -> Result<(), HubError> {
        let (mut waiting, mut running) = (files.iter().cloned(), JoinSet::new());
        loop {
            while running.len() < PARALLEL_FILES
                && let Some(file) = waiting.next()
            {
                let (client, cache, progress) =
                    (self.client.clone(), self.cache.clone(), self.progress.clone());
                running.spawn(async move { file.run(&client, &cache, &progress).await });
            }
            match running.join_next().await {
                Some(Ok(result)) => result?,
                Some(Err(error)) => return Err(HubError::Protocol(format!("a download failed: {error}"))),
                None => return Ok(()),
            }
        }
    }

    /// Returns the files that the snapshot does not have.
    async fn missing(&self, files: &[ListedFile]) -> Result<Vec<FileDownload>, HubError> {
        let mut missing = Vec::new();
        for file in files {
            let content = self.client.content(&self.commit, file).await?;
            if !self.cache.has(&self.commit, file, &content) {
                missing.push(FileDownload { commit: self.commit.clone(), file: file.clone(), content });
            }
        }
        Ok(missing)
    }

    /// Compares the bytes that are still to be written with the free space.
    fn check_disk(&self) -> Result<(), HubError> {
        let mut needed: u64 = 0;
        for FileDownload { content, .. } in &self.files {
            let stored = [self.cache.blob(&content.etag), self.cache.partial(&content.etag)];
            let there = stored.iter().filter_map(|path| std::fs::metadata(path).ok());
            let there = there.map(|found| found.len()).max().unwrap_or(0);
            needed = needed.saturating_add(content.size.saturating_sub(there));
        }
        match self.cache.free_bytes() {
            Some(free) if free < needed => {
                Err(HubError::DiskFull { folder: self.cache.blobs(), free, needed })
            }
            _ => Ok(()),
        }
    }
}

/// Returns why there is no model without the network.
fn offline_fault(
    cache: &Path,
    repository: &Repository,
    commit: Option<String>,
    missing: Option<String>,
) -> String {
    let Repository { id, revision } = repository;
    let named =
        commit.map(|commit| format!(" (refs/{revision} names the commit {commit})")).unwrap_or_default();
    let what = match missing {
        Some(file) => format!("has only a part of revision `{revision}`{named}: {file} is missing"),
        None => format!("does not have revision `{revision}` of it{named}"),
    };
    format!(
        "the Hugging Face cache {} {what}, and HF_HUB_OFFLINE forbids downloads: run `millrace download {id}` with a \
         network first",
        cache.display()
    )
}
