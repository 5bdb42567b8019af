//! The end of a text that cannot be passed on yet: white space, and after it the beginning of a mark.
//!
//! White space before a mark does not belong to the text, so it is held back until something else follows it. The matcher
//! takes each byte once and each held character is examined once, so the time is linear in the text.

use crate::text::Pattern;

/// Holds back the end of a text that may be followed by, or already contain the beginning of, an opening mark.
#[derive(Debug)]
pub(super) struct Held {
    /// White space in `text[solid..free]`, and in `text[free..]` as much of the mark as has come.
    text: String,
    /// Where the held text begins; what is before it has been passed on already.
    solid: usize,
    /// Everything before this position is known to be no part of a mark.
    free: usize,
    /// `None` for a format without a mark: no text has to be held back.
    mark: Option<Pattern>,
}

impl Held {
    /// Nothing held, for a text that this mark may interrupt. The mark is ASCII without white space; an empty one never
    /// occurs.
    pub(super) fn new(mark: &str) -> Self {
        debug_assert!(mark.bytes().all(|byte| byte.is_ascii_graphic()));
        let mark = (!mark.is_empty()).then(|| Pattern::new(mark.to_owned()));
        Held { text: String::new(), solid: 0, free: 0, mark }
    }

    /// Holds back a character without looking for the mark.
    pub(super) fn keep(&mut self, c: char) {
        self.text.push(c);
    }

    /// Everything that is held, which is held no longer.
    pub(super) fn take(&mut self) -> String {
        self.text.drain(..self.solid);
        (self.solid, self.free) = (0, 0);
        if let Some(mark) = &mut self.mark {
            mark.reset();
        }
        std::mem::take(&mut self.text)
    }

    /// Takes in a character and adds to `content` what is certain to belong to the text. Returns whether the mark is
    /// complete; the mark and the white space before it are gone then.
    pub(super) fn push(&mut self, c: char, content: &mut String) -> bool {
        self.text.push(c);
        let Some(mark) = &mut self.mark else {
            *content += &self.take();
            return false;
        };
        let mut complete = false;
        for &byte in c.encode_utf8(&mut [0; 4]).as_bytes() {
            complete |= mark.advance(byte).is_some();
        }
        // The mark is ASCII, so this is between two characters.
        let free = self.text.len() - mark.matched();
        let released = &self.text[self.free..free];
        let last = released.char_indices().rfind(|(_, c)| !c.is_whitespace());
        if let Some((at, c)) = last {
            let end = self.free + at + c.len_utf8();
            *content += &self.text[self.solid..end];
            self.solid = end;
        }
        self.free = free;
        if complete {
            self.take();
        } else if self.solid > self.text.len() / 2 {
            // Moves fewer bytes than have been passed on since the last time.
            self.text.drain(..self.solid);
            self.free -= self.solid;
            self.solid = 0;
        }
        complete
    }
}
