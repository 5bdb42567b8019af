//! Token ids to text, one at a time.

use std::sync::Arc;

use super::pieces::Start;
use super::tokenizer::Tokenizer;

/// Turns token ids into text as they come; what it returns, one after the other, is the text of the whole sequence.
///
/// Half a character is held back until the rest of it comes. Bytes that can never become a character are replaced by
/// U+FFFD as soon as that is certain. The cost of a token is proportional to its own length.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    /// Special tokens that are text all the same.
    shown: Arc<[u32]>,
    /// An unfinished character: at most three bytes.
    pending: Vec<u8>,
    /// What is still to be taken off; [`Start::Keep`] from the first character on.
    start: Start,
    first: bool,
}

impl Detokenizer {
    pub(super) fn new(tokenizer: Tokenizer, skip_special: bool, continues: bool) -> Self {
        let start = if continues { Start::Keep } else { tokenizer.start() };
        Detokenizer {
            tokenizer,
            skip_special,
            shown: Arc::default(),
            pending: Vec::new(),
            start,
            first: !continues,
        }
    }

    /// Shows these special tokens as text.
    #[must_use]
    pub fn showing(mut self, marks: Arc<[u32]>) -> Self {
        self.shown = marks;
        self
    }

    /// The text that the token completes; empty while a character is unfinished.
    pub fn push(&mut self, id: u32) -> String {
        if self.skip_special && self.tokenizer.is_special(id) && !self.shown.contains(&id) {
            return String::new();
        }
        if !std::mem::take(&mut self.first) {
            self.pending.extend(self.tokenizer.separator().bytes());
        }
        let bytes = self.tokenizer.token_bytes(id);
        match self.start {
            Start::FirstToken => {
                self.pending.extend(bytes.iter().filter(|&&byte| byte != b' '));
                self.start = Start::Keep;
            }
            _ => self.pending.extend(bytes),
        }
        let (mut text, used) = valid_prefix(&self.pending);
        self.pending.drain(..used);
        if let Start::Strip(content, count) = self.start {
            let leading = text.chars().take(count).take_while(|&c| c == content).count();
            text.drain(..leading * content.len_utf8());
            let more = text.is_empty() && leading < count;
            self.start = if more { Start::Strip(content, count - leading) } else { Start::Keep };
        }
        text
    }

    /// The end of the text: U+FFFD if it broke off within a character, else nothing.
    pub fn finish(&mut self) -> String {
        if std::mem::take(&mut self.pending).is_empty() { String::new() } else { '\u{FFFD}'.into() }
    }
}

/// All that can be decided of `bytes`, and how many bytes that is. An unfinished character is left over.
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
    use super::*;
    use crate::test_support;
    use proptest::prelude::*;

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
            let ids = tokenizer.encode_now(&text, crate::text::Specials::Omit).unwrap().ids;
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
            // The library gives up a whole run of bytes where one is wrong; only then may the two differ.
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
            let ids = tokenizer.encode_now(&text, crate::text::Specials::Add).unwrap().ids;
            prop_assert_eq!(stream(&tokenizer, &ids, true).concat(), text);
        }
    }

    #[test]
    fn half_a_character_is_never_shown() {
        let tokenizer = test_support::tokenizer();
        let ids = tokenizer.encode_now("a€", crate::text::Specials::Omit).unwrap().ids;
        assert_eq!(stream(&tokenizer, &ids, true), ["a", "", "", "€", ""]);
        assert_eq!(stream(&tokenizer, &ids[..3], true), ["a", "", "", "\u{FFFD}"]);
        // The second lead byte makes the first one hopeless at once.
        assert_eq!(stream(&tokenizer, &[ids[1], ids[1]], true), ["", "\u{FFFD}", "\u{FFFD}"]);
    }

    #[test]
    #[ignore = "needs the published tokenizer of MILLRACE_TEST_DATA"]
    fn published_continuations_keep_their_first_space() {
        let tokenizer = test_support::published_tokenizer();
        let ids = tokenizer.encode_now("She", crate::text::Specials::Omit).unwrap().ids;
        let text = |continues| {
            let mut detokenizer = tokenizer.detokenizer(true, continues);
            ids.iter().map(|&id| detokenizer.push(id)).collect::<String>()
        };
        assert_eq!((text(false).as_str(), text(true).as_str()), ("She", " She"));
    }
}
