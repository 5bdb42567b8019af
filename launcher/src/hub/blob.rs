//! The download of one file: it continues what an earlier attempt has left, and gets its final name
//! only after its checksum has been compared.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use millrace_formats::regular_file;
use reqwest::header::CONTENT_RANGE;
use reqwest::{Response, StatusCode};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::cache::RepositoryCache;
use super::client::{HubClient, Target, chain, shown};
use super::error::HubError;
use super::listing::{FileContent, ListedFile};
use super::paced_body::{BodyError, PacedBody};
use super::progress::DownloadProgress;
use super::retry::Failures;

/// Bytes that are read at once to hash a file that an earlier attempt has left.
const READ_SIZE: usize = 1 << 20;

/// The progress after which earlier failures no longer count.
const FORGIVING_PROGRESS: u64 = 1 << 20;

/// A file to download, at a commit.
#[derive(Debug, Clone)]
pub(super) struct FileDownload {
    /// The commit.
    pub(super) commit: String,
    /// The file.
    pub(super) file: ListedFile,
    /// Its size and checksum.
    pub(super) content: FileContent,
}

impl FileDownload {
    /// Downloads the file, unless the cache has it, and links it into the snapshot. The bytes count
    /// as progress in any case.
    ///
    /// # Errors
    /// If the attempts are used up, or a further attempt would not help.
    pub(super) async fn run(
        &self,
        client: &HubClient,
        cache: &RepositoryCache,
        progress: &DownloadProgress,
    ) -> Result<(), HubError> {
        let FileDownload { commit, file, content } = self;
        if cache.has(commit, file, content) {
            progress.add(content.size);
            return Ok(());
        }
        let _lock = cache.lock(&content.etag, &file.name).await?;
        let blob = cache.blob(&content.etag);
        if fs::metadata(&blob).is_ok_and(|found| found.len() == content.size) {
            progress.add(content.size);
        } else {
            let path = cache.partial(&content.etag);
            let mut partial = Partial::open(path, content.clone(), progress.clone()).await?;
            self.fill(client, &mut partial).await?;
            partial.finish(blob).await?;
        }
        cache.link(commit, &file.name, &content.etag)
    }

    /// Downloads the missing bytes until the checksum is right.
    async fn fill(&self, client: &HubClient, partial: &mut Partial) -> Result<(), HubError> {
        let name = &self.file.name;
        let mut failures = Failures::new(client.settings.retry_pause);
        let mut was_wrong = false;
        loop {
            let before = partial.length;
            let received = self.receive(client, partial).await;
            if partial.length >= before.saturating_add(FORGIVING_PROGRESS) {
                failures.forget();
            }
            match received {
                Ok(()) if partial.is_right() => return Ok(()),
                Ok(()) if was_wrong => return Err(HubError::Checksum { name: name.clone() }),
                Ok(()) => {
                    tracing::warn!("{name}: the checksum is wrong; downloading the file again");
                    was_wrong = true;
                    partial.clear()?;
                }
                Err(error) => failures.wait_after(error).await?,
            }
        }
    }

    /// Requests the missing bytes once, and appends them.
    async fn receive(&self, client: &HubClient, partial: &mut Partial) -> Result<(), HubError> {
        let (name, size) = (&self.file.name, self.content.size);
        if partial.length == size {
            return Ok(());
        }
        let url = client.file_url(&self.commit, name);
        let response = client.get(url, partial.length, Target::File(name)).await;
        let response = match response {
            // The server has no bytes there: what is on the disk is not the begin of its file.
            Err(HubError::Refused { status: 416, .. }) => return partial.clear_and_retry(name),
            other => other?,
        };
        if partial.length > 0 && !continues(&response, partial.length, size) {
            if response.status() == StatusCode::PARTIAL_CONTENT {
                return partial.clear_and_retry(name);
            }
            // The server ignores ranges and sends the whole file.
            partial.clear()?;
        }
        let announced = response.content_length();
        if announced.is_some_and(|bytes| partial.length.saturating_add(bytes) > size) {
            return Err(HubError::Protocol(format!(
                "{name} has {size} bytes in the list of files, but its response has more"
            )));
        }
        let mut body = PacedBody::new(response, client.settings.stall_timeout);
        loop {
            let next = body.chunk().await;
            let broken = || HubError::Broken { name: name.clone(), received: partial.length, size };
            match next {
                Ok(Some(bytes)) if partial.length + bytes.len() as u64 > size => {
                    return Err(HubError::Protocol(format!(
                        "{name} has more than the {size} bytes of the list"
                    )));
                }
                Ok(Some(bytes)) => partial.append(&bytes)?,
                Ok(None) if partial.length == size => return Ok(()),
                Ok(None) => return Err(broken()),
                Err(BodyError::Broken(error)) => {
                    let url = shown(body.response().url());
                    tracing::debug!("{url}: {}", chain(&error.without_url()));
                    return Err(broken());
                }
                Err(BodyError::Slow(reason)) => {
                    let why = format!("{name}: {reason}");
                    return Err(HubError::Connection { url: shown(body.response().url()), why });
                }
            }
        }
    }
}

/// Returns whether a response continues a file at byte `start`.
fn continues(response: &Response, start: u64, size: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let expected = format!("bytes {start}-");
    response.status() == StatusCode::PARTIAL_CONTENT
        && range.is_some_and(|range| range.starts_with(&expected) && range.ends_with(&format!("/{size}")))
}

/// The first bytes of a file on the disk, with their hash.
struct Partial {
    path: PathBuf,
    file: File,
    content: FileContent,
    hasher: Hasher,
    length: u64,
    progress: DownloadProgress,
}

impl Partial {
    /// Opens the file, and hashes the bytes that it has.
    async fn open(
        path: PathBuf,
        content: FileContent,
        progress: DownloadProgress,
    ) -> Result<Partial, HubError> {
        let opened = tokio::task::spawn_blocking(move || {
            let at = HubError::at(&path);
            let mut file = regular_file::open_or_create(&path).map_err(&at)?;
            let mut hasher = Hasher::new(&content);
            let mut length = file.metadata().map_err(&at)?.len();
            if length > content.size {
                file.set_len(0).map_err(&at)?;
                length = 0;
            }
            let mut buffer = vec![0; READ_SIZE];
            let mut left = length;
            while left > 0 {
                let part = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                file.read_exact(&mut buffer[..part]).map_err(&at)?;
                hasher.update(&buffer[..part]);
                left -= part as u64;
            }
            drop(at);
            progress.add(length);
            Ok(Partial { path, file, content, hasher, length, progress })
        });
        opened.await.unwrap_or_else(|error| Err(HubError::Protocol(error.to_string())))
    }

    /// Appends bytes. A process that ends in between leaves a file that can be continued.
    fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.file.write_all(bytes).map_err(HubError::at(&self.path))?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        self.progress.add(bytes.len() as u64);
        Ok(())
    }

    /// Forgets all bytes.
    fn clear(&mut self) -> Result<(), HubError> {
        let cleared = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        cleared.map_err(HubError::at(&self.path))?;
        self.hasher = Hasher::new(&self.content);
        self.progress.take_back(self.length);
        self.length = 0;
        Ok(())
    }

    /// Forgets all bytes, and returns an error after which the file is requested from its begin.
    fn clear_and_retry(&mut self, name: &str) -> Result<(), HubError> {
        self.clear()?;
        Err(HubError::Broken { name: name.to_owned(), received: 0, size: self.content.size })
    }

    /// Returns whether the bytes are those that the hub lists.
    fn is_right(&self) -> bool {
        self.length == self.content.size && self.hasher.clone().hexadecimal() == self.content.etag
    }

    /// Gives the file its final name, after its bytes are on the disk for good.
    async fn finish(self, blob: PathBuf) -> Result<(), HubError> {
        let finished = tokio::task::spawn_blocking(move || {
            let stored = self.file.sync_data().and_then(|()| fs::rename(&self.path, &blob));
            stored.map_err(HubError::at(&self.path))
        });
        finished.await.unwrap_or_else(|error| Err(HubError::Protocol(error.to_string())))
    }
}

/// The hash of a file's bytes so far.
#[derive(Clone)]
enum Hasher {
    /// Of a large file.
    Sha256(Sha256),
    /// Of a small file, as git computes it.
    Git(Sha1),
}

impl Hasher {
    fn new(content: &FileContent) -> Hasher {
        if content.is_sha256() {
            return Hasher::Sha256(Sha256::new());
        }
        let mut hasher = Sha1::new();
        hasher.update(format!("blob {}\0", content.size));
        Hasher::Git(hasher)
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Git(hasher) => hasher.update(bytes),
        }
    }

    fn hexadecimal(self) -> String {
        let hexadecimal = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Hasher::Sha256(hasher) => hexadecimal(&hasher.finalize()),
            Hasher::Git(hasher) => hexadecimal(&hasher.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_link_in_the_cache_is_not_written_through() {
        let folder = std::env::temp_dir().join(format!("millrace-partial-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (outside, link) = (folder.join("outside"), folder.join("blob.incomplete"));
        fs::write(&outside, "precious").unwrap();
        std::os::unix::fs::symlink(&outside, &link).unwrap();
        let content = FileContent { size: 3, etag: "0".repeat(40) };
        let opened = Partial::open(link, content, DownloadProgress::default()).await;
        let error = opened.err().expect("a link is refused").to_string();
        assert!(error.contains("blob.incomplete") && error.contains("it is a symbolic link"), "{error}");
        assert_eq!(fs::read_to_string(&outside).unwrap(), "precious");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn hashes_are_those_of_the_hub() {
        let hash = |etag: String, size: u64, bytes: &[u8]| {
            let mut hasher = Hasher::new(&FileContent { size, etag });
            hasher.update(bytes);
            hasher.hexadecimal()
        };
        // `printf hello | git hash-object --stdin` and `printf hello | sha256sum`.
        assert_eq!(hash("0".repeat(40), 5, b"hello"), "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0");
        let sha256 = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
        assert_eq!(hash("0".repeat(64), 5, b"hello"), sha256);
    }
}
