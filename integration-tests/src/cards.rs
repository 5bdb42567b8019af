//! Servers on simulated cards.

use std::process::Command;

use crate::{Server, binary};

/// Whether the binary was built with the feature `cpu-sim`, as `cargo xtask test` does.
pub fn has_simulated_cards() -> bool {
    let help = Command::new(binary()).args(["serve", "--help"]).output().unwrap();
    let there = String::from_utf8_lossy(&help.stdout).contains("cuda-sim");
    if !there {
        eprintln!("skipped: the binary has no simulated card (feature cpu-sim)");
    }
    there
}

/// What a server is started with where a step takes seconds, and every recorded size takes a step.
pub const SMALL: [&str; 8] = [
    "--max-batch-total-tokens",
    "2048",
    "--heartbeat-timeout",
    "20",
    "--max-batch-size",
    "8",
    "--cuda-graphs",
    "4",
];

/// A small server of `model` on `device`.
pub fn start_small(model: &str, device: &str, flags: &[&str]) -> Server {
    Server::start(&[&["--model-id", model, "--device", device][..], &SMALL, flags].concat())
}
