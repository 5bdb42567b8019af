//! Support for black-box tests: the real binary, started on a free port, and a small HTTP client.
//!
//! A helper that cannot do its work panics, which fails the test.
#![allow(clippy::unwrap_used, reason = "everything here runs inside tests")]

mod adapter;
mod client;
#[cfg(test)]
mod features_page;
pub mod golden;
mod gpus;
pub mod hub;
mod limits;
mod long_generation;
mod model;
mod observer;
mod raw;
mod server;
mod step_log;
mod worker_node;

use std::path::PathBuf;

pub use adapter::{AdapterFolder, adapter_files};
pub use client::{EventStream, JsonResponse, post, post_with, stream};
pub use gpus::{SMALL_SERVER_FLAGS, require_simulated_gpus, start_small_server};
pub use limits::{is_running, seconds, wait_for_end_of, wait_limit, wait_until};
pub use long_generation::long_generation;
pub use model::{ModelCopy, TILDE};
pub use observer::{Latencies, ObserverClient};
pub use raw::{Attack, AttackOutcome, attack, raw_post};
pub use server::{
    Server, binary, cpu_seconds, cpu_seconds_of_ended_children, free_port, grammar_workers_of,
    named_shared_memory, private_bytes, resident_bytes, shards_of, signal, try_signal,
};
pub use step_log::{LoggedRow, LoggedStep, StepLogFile};
pub use worker_node::{SecretFile, WorkerNode};

/// Returns a folder of the test data outside of the repository. Tests that use it are ignored by
/// default. `cargo xtask test` runs them if `MILLRACE_TEST_DATA` names the folder.
pub fn test_data(folder: &str) -> PathBuf {
    let root = std::env::var_os("MILLRACE_TEST_DATA");
    let root = root.unwrap_or_else(|| panic!("MILLRACE_TEST_DATA must name the folder of the test data"));
    let path = PathBuf::from(root).join(folder);
    assert!(path.is_dir(), "MILLRACE_TEST_DATA has no folder {folder}");
    path
}
