//! The sources of a release: a commit, and the binary of an architecture.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::elf::{Architecture, Elf};
use super::steps::output;

/// The version and the time of the commit.
pub(super) struct Release {
    /// The version of the workspace.
    pub(super) version: String,
    /// Seconds since 1970, which all files of a release are dated with.
    pub(super) time: String,
}

impl Release {
    /// The release that the last commit is.
    ///
    /// # Errors
    /// If the folder is no checkout, or its manifest has no version.
    pub(super) fn of_commit() -> Result<Release, String> {
        let time = output(Command::new("git").args(["log", "-1", "--format=%ct"]))?.trim().to_owned();
        let manifest = fs::read_to_string("Cargo.toml").map_err(|e| format!("Cargo.toml: {e}"))?;
        let version = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
        let version = version.ok_or("Cargo.toml has no version")?.trim_end_matches('"').to_owned();
        Ok(Release { version, time })
    }

    /// Returns the name of an archive, without the ending.
    pub(super) fn name(&self, architecture: Architecture) -> String {
        format!("millrace-{}-{}", self.version, architecture.name())
    }
}

/// The sources of a release for one architecture.
pub(super) struct Files<'a> {
    pub(super) release: &'a Release,
    pub(super) elf: &'a Elf,
    /// The binary, not stripped.
    pub(super) binary: &'a Path,
    /// The binary that runs on this machine.
    pub(super) native: &'a Path,
}
