//! The architectures whose PTX is executed, and the folders of their PTX.

use std::path::{Path, PathBuf};

/// Folder of PTX files and of what the runs write.
pub(super) const FOLDER: &str = "target/ptx";

/// An architecture whose PTX is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Architecture {
    /// The name as nvcc takes it.
    pub(super) name: &'static str,
    /// Whether it runs the modules for Hopper.
    pub(super) is_hopper: bool,
}

/// The oldest GPU that is supported, and the one with instructions of its own.
pub(super) const ARCHITECTURES: [Architecture; 2] =
    [Architecture { name: "sm_80", is_hopper: false }, Architecture { name: "sm_90a", is_hopper: true }];

/// The folder of the PTX of an architecture.
pub(super) fn ptx_folder(architecture: Architecture) -> PathBuf {
    Path::new(FOLDER).join(architecture.name)
}
