//! The errors of the place of a new model.

use std::io;

use millrace_model::Bytes;

/// The reason why a new model cannot be put in its place.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// There is something at the place of a new file.
    #[error("{path} exists; give the path of a new file")]
    FileExists {
        /// Path of the new file.
        path: String,
    },
    /// There is something at the place of a new folder.
    #[error("{path} exists and is not an empty folder; give the path of a new folder")]
    FolderExists {
        /// Path of the new folder.
        path: String,
    },
    /// There is something that no interrupted run has left.
    #[error("{path} is in the way, and no interrupted run has left it: remove it, or give another path")]
    Foreign {
        /// Path of the folder.
        path: String,
    },
    /// Another process writes to the same place.
    #[error("another process is writing {path}; wait for its end, or give another path")]
    Busy {
        /// Path of the new file or folder.
        path: String,
    },
    /// A file or folder cannot be used.
    #[error("{path}: {source}")]
    Io {
        /// Its path.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The disk is too small.
    #[error("{path}: the new checkpoint takes {needed}, but only {free} are free there")]
    Space {
        /// Path of the new file or folder.
        path: String,
        /// Bytes that are needed.
        needed: Bytes,
        /// Bytes that are free.
        free: Bytes,
    },
}
