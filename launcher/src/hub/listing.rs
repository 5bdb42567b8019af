//! The list of a repository's files, with their sizes and checksums.

use reqwest::Url;
use reqwest::header::{CONTENT_LENGTH, ETAG, HeaderMap};
use serde::Deserialize;

use super::client::{HubClient, Target, chain};
use super::error::HubError;
use super::paced_body::{BodyError, PacedBody};
use super::repository::{is_hexadecimal, is_safe_file_name};
use super::retry::Failures;

/// The largest list in bytes. A list of 10,000 files has about 3 MB.
const MAX_LISTING: usize = 32 << 20;

/// The most files of a repository.
const MAX_FILES: usize = 100_000;

/// The files of a repository at a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Listing {
    /// The hash of the commit.
    pub(super) commit: String,
    /// The files.
    pub(super) files: Vec<ListedFile>,
}

/// A file of a repository, as the hub lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListedFile {
    /// The path in the repository.
    pub(super) name: String,
    /// Size and checksum. Mirrors may not list them.
    pub(super) content: Option<FileContent>,
}

/// The size and the checksum of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileContent {
    /// The size in bytes.
    pub(super) size: u64,
    /// The file's ETag, which is the name of its blob in the cache: the SHA-256 of a large file, or
    /// the hash of a small file as git computes it (SHA-1).
    pub(super) etag: String,
}

impl FileContent {
    /// Returns the description of a file, unless the ETag is no checksum. The ETag becomes the name
    /// of a file, so nothing else is accepted.
    fn new(size: u64, etag: &str) -> Option<FileContent> {
        let etag = etag.trim_start_matches("W/").trim_matches('"');
        let is_checksum = is_hexadecimal(etag, 64) || is_hexadecimal(etag, 40);
        is_checksum.then(|| FileContent { size, etag: etag.to_owned() })
    }

    /// Returns whether the ETag is the SHA-256 of the content, else it is git's hash.
    pub(super) fn is_sha256(&self) -> bool {
        self.etag.len() == 64
    }
}

/// The answer of `/api/models/ID/revision/REVISION?blobs=true`.
#[derive(Debug, Deserialize)]
struct Answer {
    sha: Option<String>,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl HubClient {
    /// Asks for the files at the revision. `attempts` bounds the failures.
    pub(super) async fn listing(&self, attempts: Option<u32>) -> Result<Listing, HubError> {
        let mut failures = Failures::new(self.settings.retry_pause);
        if let Some(attempts) = attempts {
            failures = failures.with_limit(attempts);
        }
        loop {
            match self.listing_once().await {
                Ok(listing) => return Ok(listing),
                Err(error) => failures.wait_after(error).await?,
            }
        }
    }

    async fn listing_once(&self) -> Result<Listing, HubError> {
        let id = self.repository.id.split('/');
        let path: Vec<&str> =
            ["api", "models"].into_iter().chain(id).chain(["revision", &self.repository.revision]).collect();
        let mut url = self.url(&path);
        url.set_query(Some("blobs=true"));
        let body = self.text(url, MAX_LISTING).await?;
        parse(&body)
    }

    /// Requests a small body.
    async fn text(&self, url: Url, limit: usize) -> Result<Vec<u8>, HubError> {
        let shown = super::client::shown(&url);
        let response = self.get(url, 0, Target::Listing).await?;
        let mut received = PacedBody::new(response, self.settings.stall_timeout);
        let mut body = Vec::new();
        loop {
            let chunk = received.chunk().await.map_err(|error| {
                let why = match error {
                    BodyError::Slow(reason) => reason,
                    BodyError::Broken(error) => chain(&error.without_url()),
                };
                HubError::Connection { url: shown.clone(), why }
            })?;
            let Some(chunk) = chunk else { return Ok(body) };
            if body.len() + chunk.len() > limit {
                return Err(HubError::Protocol(format!("{shown} has more than {limit} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
    }

    /// Returns size and checksum of a file. The hub is asked only if they are not listed.
    pub(super) async fn content(&self, commit: &str, file: &ListedFile) -> Result<FileContent, HubError> {
        if let Some(content) = &file.content {
            return Ok(content.clone());
        }
        let mut failures = Failures::new(self.settings.retry_pause);
        loop {
            let url = self.file_url(commit, &file.name);
            match self.head(url, Target::File(&file.name)).await {
                Ok(response) => return described(response.headers(), &file.name),
                Err(error) => failures.wait_after(error).await?,
            }
        }
    }
}

/// Parses and checks the list.
fn parse(body: &[u8]) -> Result<Listing, HubError> {
    let answer: Answer = serde_json::from_slice(body)
        .map_err(|error| HubError::Protocol(format!("the list of files is not valid: {error}")))?;
    let commit = answer.sha.filter(|sha| is_hexadecimal(sha, 40));
    let commit =
        commit.ok_or_else(|| HubError::Protocol("the list of files does not name a commit".to_owned()))?;
    if answer.siblings.len() > MAX_FILES {
        return Err(HubError::Protocol(format!("the repository has more than {MAX_FILES} files")));
    }
    let files = answer.siblings.into_iter().map(Sibling::listed).collect::<Result<_, _>>()?;
    Ok(Listing { commit, files })
}

impl Sibling {
    fn listed(self) -> Result<ListedFile, HubError> {
        let name = self.rfilename;
        if !is_safe_file_name(&name) {
            return Err(HubError::Protocol(format!(
                "it lists a file with the name {name:?}, which leads out of the folder or is no plain name"
            )));
        }
        let (size, etag) = match self.lfs {
            Some(lfs) => (lfs.size.or(self.size), lfs.sha256),
            None => (self.size, self.blob_id),
        };
        let content = size.zip(etag).and_then(|(size, etag)| FileContent::new(size, &etag));
        Ok(ListedFile { name, content })
    }
}

/// Returns size and checksum from the headers of a file. Those of a large file begin with
/// `x-linked`, because its response is a redirect.
fn described(headers: &HeaderMap, name: &str) -> Result<FileContent, HubError> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let size = header("x-linked-size").or_else(|| header(CONTENT_LENGTH.as_str()));
    let etag = header("x-linked-etag").or_else(|| header(ETAG.as_str()));
    let size = size.and_then(|size| size.trim().parse().ok());
    size.zip(etag)
        .and_then(|(size, etag)| FileContent::new(size, etag))
        .ok_or_else(|| HubError::Protocol(format!("it gives no size or no checksum (ETag) of {name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    fn listing(siblings: &str) -> Result<Listing, HubError> {
        parse(format!(r#"{{"sha": "{COMMIT}", "siblings": [{siblings}]}}"#).as_bytes())
    }

    #[test]
    fn small_files_have_hashes_of_git_and_large_ones_sha_256() {
        let sha = "a".repeat(64);
        let found = listing(&format!(
            r#"{{"rfilename": "config.json", "size": 5, "blobId": "{COMMIT}"}},
               {{"rfilename": "m.safetensors", "size": 9, "blobId": "{COMMIT}", "lfs": {{"sha256": "{sha}", "size": 9}}}},
               {{"rfilename": "unknown", "size": 9, "blobId": "../../x"}}"#
        ))
        .unwrap();
        assert_eq!(found.commit, COMMIT);
        let content = |at: usize| found.files[at].content.clone();
        assert_eq!(content(0), Some(FileContent { size: 5, etag: COMMIT.into() }));
        assert_eq!(content(1), Some(FileContent { size: 9, etag: sha }));
        assert_eq!(content(2), None);
    }

    #[test]
    fn lists_that_cannot_be_trusted_are_refused() {
        let hostile = listing(r#"{"rfilename": "../../etc/cron.d/x", "size": 1}"#).unwrap_err().to_string();
        assert!(hostile.contains("leads out of the folder"), "{hostile}");
        for body in ["{", "[]", r#"{"siblings": []}"#, r#"{"sha": "../x", "siblings": []}"#] {
            assert!(parse(body.as_bytes()).is_err(), "{body}");
        }
        assert!(listing(r#"{"rfilename": "x", "size": -1}"#).is_err());
    }

    #[test]
    fn headers_describe_files_that_the_list_does_not() {
        let mut headers = HeaderMap::new();
        headers.insert("content-length", "7".parse().unwrap());
        headers.insert("etag", format!("W/\"{COMMIT}\"").parse().unwrap());
        assert_eq!(described(&headers, "x").unwrap(), FileContent { size: 7, etag: COMMIT.into() });
        headers.insert("x-linked-size", "8".parse().unwrap());
        headers.insert("x-linked-etag", "\"../x\"".parse().unwrap());
        assert!(described(&headers, "x").is_err());
    }
}
