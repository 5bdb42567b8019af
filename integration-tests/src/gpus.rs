//! Servers on simulated GPUs.

use std::process::Command;

use crate::{Server, binary};

/// Fails the test if the binary has no simulated GPU. Only a release build lacks it, or a binary
/// that was built by hand.
///
/// # Panics
/// If the binary was built without the feature `cpu-sim`.
pub fn require_simulated_gpus() {
    let help = Command::new(binary()).args(["serve", "--help"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&help.stdout).contains("cuda-sim"),
        "{} has no simulated GPU; run `cargo xtask test`, which builds it with the feature millrace/cpu-sim",
        binary().display()
    );
}

/// Flags for simulated GPUs, where a step takes seconds, and where each captured batch size takes a
/// step.
pub const SMALL_SERVER_FLAGS: [&str; 8] = [
    "--max-batch-total-tokens",
    "2048",
    "--heartbeat-timeout",
    "120",
    "--max-batch-size",
    "8",
    "--cuda-graphs",
    "4",
];

/// Starts a server of `model` on `device` with [`SMALL_SERVER_FLAGS`].
pub fn start_small_server(model: &str, device: &str, flags: &[&str]) -> Server {
    Server::start(&[&["--model-id", model, "--device", device][..], &SMALL_SERVER_FLAGS, flags].concat())
}
