//! Streaming conversion of token ids to text.

use std::sync::Arc;

use super::token_bytes::LeadingTrim;
use super::tokenizer::Tokenizer;

/// Converts token ids to text one at a time. The returned strings, concatenated, are the text of
/// the whole sequence.
///
/// An incomplete character is held back until its remaining bytes arrive. Bytes that can never
/// become a character are replaced by U+FFFD as soon as that is certain. The cost of a token is
/// proportional to its own length.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Special tokens that are shown as text even if special tokens are skipped.
    shown: Arc<[u32]>,
    /// The bytes of an incomplete character: at most three.
    pending: Vec<u8>,
    /// The characters still to be removed from the start of the text; [`LeadingTrim::Keep`] after
    /// the first character.
    leading_trim: LeadingTrim,
    first: bool,
}

impl Detokenizer {
    fn new(tokenizer: Tokenizer, skip_special: bool, continues: bool) -> Self {
        let leading_trim = if continues { LeadingTrim::Keep } else { tokenizer.leading_trim() };
        Detokenizer {
            tokenizer,
            skip_special,
            shown: Arc::default(),
            pending: Vec::new(),
            leading_trim,
            first: !continues,
        }
    }

    /// Shows these special tokens as text.
    #[must_use]
    pub fn showing(mut self, marks: Arc<[u32]>) -> Self {
        self.shown = marks;
        self
    }

    /// Adds a token and returns the text that it completes. The text is empty while a character is
    /// incomplete.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(id) && !self.shown.contains(&id) {
            return String::new();
        }
        if !std::mem::take(&mut self.first) {
            self.pending.extend(self.tokenizer.separator().bytes());
        }
        let bytes = self.tokenizer.token_bytes(id);
        match self.leading_trim {
            LeadingTrim::FirstToken => {
                self.pending.extend(bytes.iter().filter(|&&byte| byte != b' '));
                self.leading_trim = LeadingTrim::Keep;
            }
            _ => self.pending.extend(bytes),
        }
        let (mut text, used) = valid_prefix(&self.pending);
        self.pending.drain(..used);
        if let LeadingTrim::Strip(content, count) = self.leading_trim {
            let leading = text.chars().take(count).take_while(|&c| c == content).count();
            text.drain(..leading * content.len_utf8());
            let more = text.is_empty() && leading < count;
            self.leading_trim =
                if more { LeadingTrim::Strip(content, count - leading) } else { LeadingTrim::Keep };
        }
        text
    }

    /// Whether the text so far ends within a character.
    pub fn is_within_character(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Ends the text. Returns U+FFFD if the text ends within a character, and an empty string
    /// otherwise.
    pub fn finish(&mut self) -> String {
        if std::mem::take(&mut self.pending).is_empty() { String::new() } else { '\u{FFFD}'.into() }
    }
}

impl Tokenizer {
    /// Returns a new detokenizer. If the text `continues` another one, its leading space is kept.
    pub fn detokenizer(&self, skip_special: bool, continues: bool) -> Detokenizer {
        Detokenizer::new(self.clone(), skip_special, continues)
    }
}

/// Decodes `bytes` up to an incomplete character at the end. Returns the text and the number of
/// bytes used.
fn valid_prefix(bytes: &[u8]) -> (String, usize) {
    let mut text = String::with_capacity(bytes.len());
    let mut used = 0;
    loop {
        match std::str::from_utf8(&bytes[used..]) {
            Ok(valid) => {
                text.push_str(valid);
                return (text, bytes.len());
            }
            Err(error) => {
                let valid = used + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[used..valid]));
                let Some(invalid) = error.error_len() else { return (text, valid) };
                text.push('\u{FFFD}');
                used = valid + invalid;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_support;

    fn stream(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> Vec<String> {
        let mut detokenizer = tokenizer.detokenizer(skip_special, false);
        let mut texts: Vec<_> = ids.iter().map(|&id| detokenizer.push(id)).collect();
        texts.push(detokenizer.finish());
        texts
    }

    proptest! {
        #[test]
        fn byte_level_streams_what_the_library_decodes(
            ids in proptest::collection::vec(0u32..300, 0..40),
            skip in any::<bool>(),
        ) {
            let tokenizer = test_support::tokenizer();
            let whole = tokenizer.library_decode(&ids, skip);
            prop_assert_eq!(stream(&tokenizer, &ids, skip).concat(), whole);
        }

        #[test]
        fn no_text_is_changed_by_being_encoded_and_streamed(text in "\\PC{0,40}") {
            let tokenizer = test_support::tokenizer();
            let ids = tokenizer.encode_now(&text, crate::SpecialTokens::Omit).unwrap().ids;
            prop_assert_eq!(stream(&tokenizer, &ids, true).concat(), text);
        }

        #[test]
        #[ignore = "needs the published tokenizer of MILLRACE_TEST_DATA"]
        fn published_byte_fallback_streams_what_the_library_decodes(
            ids in proptest::collection::vec(0u32..512, 0..40),
            skip in any::<bool>(),
        ) {
            let tokenizer = test_support::published_tokenizer();
            let streamed = stream(&tokenizer, &ids, skip).concat();
            // The library replaces a whole run of bytes if one of them is invalid. The two may
            // differ only then.
            if streamed.contains('\u{FFFD}') {
                let bytes: Vec<u8> = ids
                    .iter()
                    .filter(|&&id| !(skip && tokenizer.is_special(id)))
                    .flat_map(|&id| tokenizer.token_bytes(id).to_vec())
                    .collect();
                let whole = String::from_utf8_lossy(&bytes).into_owned();
                prop_assert_eq!(streamed, whole.strip_prefix(' ').unwrap_or(&whole));
            } else {
                prop_assert_eq!(streamed, tokenizer.library_decode(&ids, skip));
            }
        }

        #[test]
        #[ignore = "needs the published tokenizer of MILLRACE_TEST_DATA"]
        fn published_byte_fallback_round_trips_any_text(text in "\\PC{1,40}") {
            let tokenizer = test_support::published_tokenizer();
            let ids = tokenizer.encode_now(&text, crate::SpecialTokens::Add).unwrap().ids;
            prop_assert_eq!(stream(&tokenizer, &ids, true).concat(), text);
        }
    }

    #[test]
    fn an_incomplete_character_is_never_shown() {
        let tokenizer = test_support::tokenizer();
        let ids = tokenizer.encode_now("a€", crate::SpecialTokens::Omit).unwrap().ids;
        assert_eq!(stream(&tokenizer, &ids, true), ["a", "", "", "€", ""]);
        assert_eq!(stream(&tokenizer, &ids[..3], true), ["a", "", "", "\u{FFFD}"]);
        // The second lead byte makes the first one invalid at once.
        assert_eq!(stream(&tokenizer, &[ids[1], ids[1]], true), ["", "\u{FFFD}", "\u{FFFD}"]);
    }

    #[test]
    #[ignore = "needs the published tokenizer of MILLRACE_TEST_DATA"]
    fn published_continuations_keep_their_first_space() {
        let tokenizer = test_support::published_tokenizer();
        let ids = tokenizer.encode_now("She", crate::SpecialTokens::Omit).unwrap().ids;
        let text = |continues| {
            let mut detokenizer = tokenizer.detokenizer(true, continues);
            ids.iter().map(|&id| detokenizer.push(id)).collect::<String>()
        };
        assert_eq!((text(false).as_str(), text(true).as_str()), ("She", " She"));
    }
}
