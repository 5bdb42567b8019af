//! What the black-box tests share: the real binary, started on a free port, and a small HTTP client.
//!
//! A helper that cannot do its work panics: a test that uses it has failed then.
#![allow(clippy::unwrap_used, reason = "everything here runs inside tests")]

mod cards;
mod client;
mod model;
mod raw;
mod server;
mod story;
mod victim;
mod worker;

use std::path::PathBuf;

pub use cards::{SMALL, has_simulated_cards, start_small};
pub use client::{Answer, Stream, post, post_with, stream};
pub use model::{ModelCopy, TILDE};
pub use raw::{Attack, Outcome, attack, raw_post};
pub use server::{Server, binary, cpu_seconds, grammar_workers_of, resident_bytes, shards_of, signal};
pub use story::long_story;
pub use victim::{Latencies, Victim};
pub use worker::{SecretFile, Worker, free_port};

/// A folder of the test data that does not belong to the repository. Tests that use it are ignored unless they are asked for:
/// `cargo xtask test` does so where `MILLRACE_TEST_DATA` names it.
pub fn test_data(folder: &str) -> PathBuf {
    let root = std::env::var_os("MILLRACE_TEST_DATA");
    let root = root.unwrap_or_else(|| panic!("MILLRACE_TEST_DATA must name the folder of the test data"));
    let path = PathBuf::from(root).join(folder);
    assert!(path.is_dir(), "MILLRACE_TEST_DATA has no folder {folder}");
    path
}
