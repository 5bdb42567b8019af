//! What the black-box tests share: the real binary, started on a free port, and a small HTTP client.
//!
//! A helper that cannot do its work panics: a test that uses it has failed then.
#![allow(clippy::unwrap_used, reason = "everything here runs inside tests")]

mod cards;
mod client;
mod raw;
mod server;
mod story;
mod victim;
mod worker;

use std::path::PathBuf;

pub use cards::{SMALL, has_simulated_cards, start_small};
pub use client::{Answer, Stream, post, post_with, stream};
pub use raw::{Attack, Outcome, attack, raw_post};
pub use server::{Server, binary, cpu_seconds, resident_bytes, shards_of, signal};
pub use story::long_story;
pub use victim::{Latencies, Victim};
pub use worker::{SecretFile, Worker, free_port};

/// A folder of the test data that does not belong to the repository, if `MILLRACE_TEST_DATA` names one.
pub fn test_data(folder: &str) -> Option<PathBuf> {
    let Some(root) = std::env::var_os("MILLRACE_TEST_DATA") else {
        eprintln!("skipped: MILLRACE_TEST_DATA is not set");
        return None;
    };
    let path = PathBuf::from(root).join(folder);
    assert!(path.is_dir(), "MILLRACE_TEST_DATA has no folder {folder}");
    Some(path)
}
