//! A fault of the simulated device at a moment of a test's choice.

use std::fs;
use std::path::PathBuf;

/// What every call answers from then on: the words of a card whose kernel has gone astray.
pub(super) const WORDS: &str =
    "cuEventSynchronize: an illegal memory access was encountered (CUDA_ERROR_ILLEGAL_ADDRESS, simulated)";

/// `MILLRACE_SIM_FAULT` names a file. Once it is there, the next call takes it away and fails, and so do all after it.
#[derive(Debug)]
pub(super) struct Fault(Option<PathBuf>);

impl Fault {
    pub(super) fn from_environment() -> Fault {
        Fault(std::env::var_os("MILLRACE_SIM_FAULT").map(PathBuf::from))
    }

    /// Of several devices that ask at the same time one is struck.
    pub(super) fn strikes(&self) -> bool {
        self.0.as_ref().is_some_and(|file| fs::remove_file(file).is_ok())
    }
}
