//! Test doubles that several modules share: a tokenizer of single bytes and a scripted engine.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod engine;
mod model;

pub(crate) use engine::{FakeEngine, Script};
#[cfg(test)]
pub(crate) use model::{BOS, TEMPLATE, assets_with, test_data};
pub(crate) use model::{EOS, assets, published_tokenizer, tokenizer};
