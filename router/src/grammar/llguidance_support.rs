//! Masks, panics and error texts of llguidance.

use std::panic::AssertUnwindSafe;

use llguidance::api::StopReason;
use llguidance::{TokenParser, panic_utils};
use toktrie::SimpleVob;

use crate::engine::Mask;

/// Returns the tokens that may come next. If the text is complete and nothing can follow, these are
/// the tokens that end it.
///
/// # Errors
/// The reason why no mask can be computed.
pub(super) fn next_mask(parser: &mut TokenParser) -> anyhow::Result<SimpleVob> {
    match parser.stop_reason() {
        StopReason::NotStopped => parser.compute_mask(),
        _ => Ok(parser.token_env.tok_trie().eos_token_set()),
    }
}

/// Converts a set to a mask of the model's tokens. Returns `None` if no token is left.
pub(super) fn mask_of(set: &SimpleVob, vocab_size: u32) -> Option<Mask> {
    let vocab_size = vocab_size as usize;
    let mut words = set.as_slice().to_vec();
    words.truncate(vocab_size.div_ceil(32));
    if let Some(last) = words.get_mut(vocab_size / 32) {
        *last &= (1 << (vocab_size % 32)) - 1;
    }
    words.iter().any(|word| *word != 0).then(|| words.into())
}

/// Runs `work` and converts its panics to errors.
///
/// # Errors
/// The errors and the panics of `work`.
pub(super) fn catch_panics<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    panic_utils::catch_unwind(AssertUnwindSafe(work))
}

/// Returns the memory of a parser's lexer, which is nearly all memory that the parser does not
/// share with the grammar.
pub(super) fn parser_bytes(parser: &TokenParser) -> usize {
    parser.parser.lexer_stats().num_bytes
}

/// Returns the first line of an error, which is meant for the author of the grammar. The following
/// lines describe the parser's internals.
pub(super) fn error_summary(error: &anyhow::Error) -> String {
    const MAX_CHARS: usize = 300;
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default().trim();
    if line.starts_with("panic:") {
        return "it could not be processed".into();
    }
    // The parser reached its end before it accepted any text.
    if line.starts_with("NoExtension") {
        return "no text matches it".into();
    }
    line.chars().take(MAX_CHARS).collect()
}
