//! Masks, panics and error texts of llguidance.

use std::panic::AssertUnwindSafe;

use llguidance::api::StopReason;
use llguidance::{TokenParser, panic_utils};
use toktrie::SimpleVob;

use crate::Mask;

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

/// Returns the part of an error that is meant for the author of the grammar. For an expression
/// these are all lines, which show the place and the reason. Otherwise it is the first line,
/// because the following lines describe the parser's internals.
pub(super) fn error_summary(error: &anyhow::Error) -> String {
    const MAX_CHARS: usize = 300;
    let text = error.to_string();
    if let Some(summary) = regex_error(&text) {
        return summary;
    }
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

/// Returns all lines of an error in an expression, which show the place and the reason, or the
/// reason alone if the expression is long. Returns `None` if the error is not about an expression.
fn regex_error(text: &str) -> Option<String> {
    const TITLE: &str = "regex parse error:";
    const MAX_CHARS: usize = 300;
    let error = &text[text.find(TITLE)?..];
    let reason = error.lines().rfind(|line| line.starts_with("error: "))?;
    let end = error.rfind(reason)? + reason.len();
    let whole = &error[..end];
    match whole.chars().count() <= MAX_CHARS {
        true => Some(whole.to_owned()),
        false => {
            let reason = reason.trim_start_matches("error: ");
            Some(format!("{TITLE} {reason}").chars().take(MAX_CHARS).collect())
        }
    }
}
