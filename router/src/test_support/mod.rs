//! Test doubles that several modules share: the files of a test model and a scripted engine.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod engine;

pub(crate) use engine::{FakeEngine, Script};
use millrace_text::assets::TextAssets;
#[cfg(test)]
pub(crate) use millrace_text::test_support::{BOS, TEMPLATE, still_clock, test_data};
pub(crate) use millrace_text::test_support::{EOS, published_tokenizer, tokenizer};

use crate::assets::Assets;

/// Returns the files of a model with one token per byte, whose id is the byte, and with `<s>` and
/// `</s>`.
pub(crate) fn assets() -> Assets {
    Assets { text: millrace_text::test_support::assets(), ..Assets::default() }
}

/// Returns the same files with another chat template.
pub(crate) fn assets_with_template(template: impl Into<String>) -> Assets {
    let text = TextAssets { chat_template: Some(template.into()), ..millrace_text::test_support::assets() };
    Assets { text, ..Assets::default() }
}
