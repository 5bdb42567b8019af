//! User-defined symbols: pieces that are found in a text before any others.

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};

/// A set of symbols. Clones share the same data.
#[derive(Debug, Clone)]
pub(crate) struct Symbols {
    /// `None` if there are no symbols.
    matcher: Option<AhoCorasick>,
}

impl Symbols {
    /// Creates a set.
    ///
    /// # Errors
    /// If the symbols need an automaton with more states than are possible.
    pub(crate) fn new(texts: impl IntoIterator<Item = String>) -> Result<Self, aho_corasick::BuildError> {
        let texts: Vec<String> = texts.into_iter().collect();
        let matcher = match texts.is_empty() {
            true => None,
            false => Some(
                AhoCorasick::builder()
                    .match_kind(MatchKind::LeftmostLongest)
                    .start_kind(StartKind::Anchored)
                    .build(&texts)?,
            ),
        };
        Ok(Symbols { matcher })
    }

    /// Returns the length of the longest symbol that begins at a place in a text.
    pub(super) fn longest_at(&self, text: &str, at: usize) -> Option<usize> {
        let input = Input::new(text).range(at..).anchored(Anchored::Yes);
        self.matcher.as_ref()?.try_find(input).ok()?.map(|found| found.len())
    }
}
