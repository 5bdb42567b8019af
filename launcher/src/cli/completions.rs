//! Flags of `millrace completions` and `millrace man`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// `millrace completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// `millrace man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Folder that the pages are written into
    pub(crate) folder: PathBuf,
}
