//! Search for one string in a text that arrives byte by byte.

/// Searches for a string with the algorithm of Knuth, Morris and Pratt.
#[derive(Debug)]
pub struct SubstringMatcher {
    pub(super) text: String,
    /// For each prefix, the length of its longest proper prefix that is also its suffix.
    borders: Vec<usize>,
    /// The number of bytes of the string with which the text so far ends.
    pub(super) matched: usize,
}

impl SubstringMatcher {
    /// Creates a matcher without any text; `text`, the string to find, is not empty.
    pub fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut borders = vec![0; bytes.len()];
        let mut border = 0;
        for i in 1..bytes.len() {
            while border > 0 && bytes[i] != bytes[border] {
                border = borders[border - 1];
            }
            border += usize::from(bytes[i] == bytes[border]);
            borders[i] = border;
        }
        SubstringMatcher { text, borders, matched: 0 }
    }

    /// Returns the number of bytes of the string with which the text so far ends.
    pub fn matched(&self) -> usize {
        self.matched
    }

    /// Forgets the text so far.
    pub fn reset(&mut self) {
        self.matched = 0;
    }

    /// Adds a byte of the text. Returns the length of the string if this byte completes it.
    pub fn advance(&mut self, byte: u8) -> Option<usize> {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        (self.matched == bytes.len()).then_some(bytes.len())
    }
}
