//! Test doubles that several modules share: a tokenizer of single bytes and a scripted engine.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod engine;
mod model;

pub(crate) use engine::{FakeEngine, Script};
#[cfg(test)]
pub(crate) use model::{BOS, TEMPLATE, assets_with, test_data};
pub(crate) use model::{EOS, assets, published_tokenizer, tokenizer};

/// Keeps the paused clock of the current runtime from moving on by itself, until the returned
/// sender is dropped.
///
/// A paused clock of tokio jumps to the next timer when all tasks wait, even if they wait for
/// another thread or for a socket. It stands still while a blocking task runs. A test whose work
/// takes real time uses this so that no timeout is over before the work is done.
#[cfg(test)]
pub(crate) fn still_clock() -> std::sync::mpsc::Sender<()> {
    let (hold, held) = std::sync::mpsc::channel();
    tokio::task::spawn_blocking(move || {
        let _ = held.recv();
    });
    hold
}
