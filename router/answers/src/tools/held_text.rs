//! Holds back the end of a text that may belong to a call: white space, followed by the beginning
//! of a marker.
//!
//! White space before a marker is not part of the text. Therefore it is held back until another
//! character follows. The matcher reads each byte once, and each held character is examined once,
//! so that the time is linear in the text.

use millrace_text::SubstringMatcher;

/// Holds back the end of a text that may precede or contain the beginning of a marker.
#[derive(Debug)]
pub(crate) struct HeldText {
    /// White space in `text[solid..free]`, and the received part of the marker in `text[free..]`.
    text: String,
    /// The start of the held text. The text before it has been released.
    solid: usize,
    /// The text before this position is not part of a marker.
    free: usize,
    /// The white space before the last complete marker.
    space: String,
    /// `None` for a format without a marker, for which no text is held.
    mark: Option<SubstringMatcher>,
}

impl HeldText {
    /// Creates an empty buffer for a text in which this marker may occur. The marker begins with
    /// an ASCII character that is no white space. An empty marker never occurs.
    pub(crate) fn new(mark: &str) -> Self {
        debug_assert!(mark.bytes().next().is_none_or(|byte| byte.is_ascii_graphic()));
        let mark = (!mark.is_empty()).then(|| SubstringMatcher::new(mark.to_owned()));
        HeldText { text: String::new(), solid: 0, free: 0, space: String::new(), mark }
    }

    /// Holds back a character without searching for the marker.
    pub(crate) fn keep(&mut self, c: char) {
        self.text.push(c);
    }

    /// Removes and returns the white space before the last complete marker.
    pub(crate) fn take_space(&mut self) -> String {
        std::mem::take(&mut self.space)
    }

    /// Removes and returns all held text.
    pub(crate) fn take(&mut self) -> String {
        self.text.drain(..self.solid);
        (self.solid, self.free) = (0, 0);
        if let Some(mark) = &mut self.mark {
            mark.reset();
        }
        std::mem::take(&mut self.text)
    }

    /// Adds a character and releases the text that certainly precedes the marker to `content`.
    /// Returns whether the marker is complete. A complete marker and the white space before it are
    /// removed.
    pub(crate) fn push(&mut self, c: char, content: &mut String) -> bool {
        self.text.push(c);
        let Some(mark) = &mut self.mark else {
            *content += &self.take();
            return false;
        };
        let mut complete = false;
        for &byte in c.encode_utf8(&mut [0; 4]).as_bytes() {
            complete |= mark.advance(byte).is_some();
        }
        // The marker begins with an ASCII character, so this is a character boundary.
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
            // The text between is white space only.
            self.space = self.text[self.solid..self.free].to_owned();
            self.take();
        } else if self.solid > self.text.len() / 2 {
            // This moves fewer bytes than were released since the last time.
            self.text.drain(..self.solid);
            self.free -= self.solid;
            self.solid = 0;
        }
        complete
    }
}
