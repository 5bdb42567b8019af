//! Simulated faults, which a test triggers at a moment of its choice.

use std::fs;
use std::path::PathBuf;

/// The error of every call after the fault: that of a GPU whose kernel accessed invalid memory.
pub(super) const MESSAGE: &str =
    "cuEventSynchronize: an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS, simulated)";

/// The file that `MILLRACE_SIM_FAULT` names. Once it exists, the next call removes it and fails,
/// and so do all later calls.
#[derive(Debug)]
pub(super) struct Fault(Option<PathBuf>);

impl Fault {
    pub(super) fn from_environment() -> Fault {
        Fault(std::env::var_os("MILLRACE_SIM_FAULT").map(PathBuf::from))
    }

    /// Whether the fault happens now. If several devices check at the same time, only one of them
    /// fails.
    pub(super) fn occurs(&self) -> bool {
        self.0.as_ref().is_some_and(|file| fs::remove_file(file).is_ok())
    }
}
