//! Errors of the hub. Their texts say what the user can do.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::progress::Size;

/// Reasons why a model cannot be downloaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    /// The hub cannot be reached, or a connection to it broke.
    #[error("{url} cannot be reached: {why}")]
    Connection {
        /// The address without its query.
        url: String,
        /// The error of the network.
        why: String,
    },
    /// A file ended before its size.
    #[error("{name}: the connection broke after {received} of {size} bytes")]
    Broken {
        /// The file.
        name: String,
        /// Bytes so far.
        received: u64,
        /// Bytes of the whole file.
        size: u64,
    },
    /// The server is overloaded or faulty.
    #[error("{url} answered with status {status}")]
    Server {
        /// The address without its query.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The pause that the server asks for.
        retry_after: Option<Duration>,
    },
    /// Too many requests.
    #[error(
        "the hub limits the rate of requests (status 429){}; an HF_TOKEN raises the limit",
        retry_after.map(|pause| format!(" and asks for a pause of {} s", pause.as_secs())).unwrap_or_default()
    )]
    RateLimited {
        /// The pause that the server asks for.
        retry_after: Option<Duration>,
    },
    /// The repository does not exist, or only with a token.
    #[error(
        "the hub has no repository {id}, or it is private: check the name{}",
        if *has_token { ", and that the token may read it" } else { ", or set HF_TOKEN to a token that may read it" }
    )]
    NoRepository {
        /// The name of the repository.
        id: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The token is not valid.
    #[error(
        "the hub does not accept the token (HF_TOKEN, HF_TOKEN_PATH or the file `token` in HF_HOME): {why}"
    )]
    Token {
        /// The text of the hub.
        why: String,
    },
    /// The authors want to be asked first.
    #[error(
        "access to {id} is restricted: accept its licence at {page}{}{}",
        if *has_token { " with the account of the token" } else { ", and set HF_TOKEN to a token of that account" },
        if why.is_empty() { String::new() } else { format!(" (the hub says: {why})") }
    )]
    Gated {
        /// The name of the repository.
        id: String,
        /// Its page.
        page: String,
        /// Whether a token was sent.
        has_token: bool,
        /// The text of the hub.
        why: String,
    },
    /// The revision does not exist.
    #[error("{id} has no revision `{revision}`; check --revision")]
    NoRevision {
        /// The name of the repository.
        id: String,
        /// The revision.
        revision: String,
    },
    /// A file has vanished.
    #[error("the hub lists {name}, but does not have it (status 404)")]
    NoFile {
        /// The file.
        name: String,
    },
    /// The hub refuses a request for another reason.
    #[error("{url} answered with status {status}{}", if why.is_empty() { String::new() } else { format!(": {why}") })]
    Refused {
        /// The address without its query.
        url: String,
        /// The HTTP status.
        status: u16,
        /// The text of the hub.
        why: String,
    },
    /// The answer of the hub is not what the protocol says.
    #[error("the hub's answer cannot be used: {0}")]
    Protocol(String),
    /// The bytes of a file are not those that the hub lists.
    #[error("{name}: the checksum is wrong after a second download; a proxy or the hub delivers wrong bytes")]
    Checksum {
        /// The file.
        name: String,
    },
    /// The disk has no room for the files.
    #[error("{} has {} free, but the download needs {}", folder.display(), Size(*free), Size(*needed))]
    DiskFull {
        /// The cache.
        folder: PathBuf,
        /// Free bytes.
        free: u64,
        /// Bytes to write.
        needed: u64,
    },
    /// A file of the cache cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The repository holds no model that Millrace runs.
    #[error("{0}")]
    Unusable(String),
}

impl HubError {
    /// Returns a conversion of errors of the system at `path`.
    pub(super) fn at(path: &Path) -> impl Fn(std::io::Error) -> HubError {
        move |error| HubError::Io { path: path.to_owned(), error }
    }

    /// Returns whether the same request may succeed later.
    pub(super) fn is_transient(&self) -> bool {
        matches!(
            self,
            HubError::Connection { .. }
                | HubError::Broken { .. }
                | HubError::Server { .. }
                | HubError::RateLimited { .. }
        )
    }

    /// Returns the pause that the server asks for.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            HubError::Server { retry_after, .. } | HubError::RateLimited { retry_after } => *retry_after,
            _ => None,
        }
    }
}
