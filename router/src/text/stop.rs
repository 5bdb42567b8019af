//! Stop strings, found wherever they are.

/// What happens to a stop string in the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopText {
    /// It is the end of the text; nothing ever has to be held back.
    Keep,
    /// The text ends before it; what may become a stop string is held back until it is certain that it does not.
    Remove,
}

/// Looks for stop strings in a text that comes in parts.
///
/// The first stop string to be complete ends the text; of several that are complete at the same character, the
/// longest. So the result does not depend on how the text was cut. The time is linear in the text, whatever the
/// stop strings are (Knuth, Morris, Pratt, "Fast Pattern Matching in Strings").
#[derive(Debug)]
pub struct StopMatcher {
    stops: Vec<Pattern>,
    mode: StopText,
    /// What has not been returned is `held[returned..]`.
    held: String,
    returned: usize,
    /// The stop string that ended the text.
    found: Option<String>,
}

/// A text that is looked for in another one, byte by byte.
#[derive(Debug)]
pub(crate) struct Pattern {
    text: String,
    /// For each prefix, the length of its longest proper prefix that is also its suffix.
    borders: Vec<usize>,
    /// How many of its bytes the text ends with.
    matched: usize,
}

impl StopMatcher {
    /// A matcher for these strings; empty ones never match.
    pub fn new(stops: impl IntoIterator<Item = String>, mode: StopText) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).map(Pattern::new).collect();
        StopMatcher { stops, mode, held: String::new(), returned: 0, found: None }
    }

    /// Takes more text and returns what is certain to belong to the result. Nothing follows after a stop.
    pub fn push(&mut self, text: &str) -> String {
        if self.found.is_some() {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        self.held.push_str(text);
        let before = self.held.len() - text.len();
        for (i, byte) in text.bytes().enumerate() {
            let complete = self.stops.iter_mut().filter_map(|stop| stop.advance(byte)).max();
            if let Some(length) = complete {
                let end = before + i + 1;
                // A stop string that is complete lies within what was held back, or it was shown (and is to be kept).
                let stop = self.stops.iter().find(|stop| stop.matched == length && stop.text.len() == length);
                self.found = Some(stop.map_or_else(String::new, |stop| stop.text.clone()));
                self.held.truncate(if self.mode == StopText::Keep { end } else { end - length });
                return self.finish();
            }
        }
        let hold = match self.mode {
            StopText::Keep => 0,
            StopText::Remove => self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0),
        };
        let certain = self.held[self.returned..self.held.len() - hold].to_owned();
        self.returned += certain.len();
        if self.returned > self.held.len() / 2 {
            // Moves fewer bytes than have been returned since the last time, so that the time stays linear.
            self.held.drain(..self.returned);
            self.returned = 0;
        }
        certain
    }

    /// Whether a stop string was found.
    pub fn stopped(&self) -> bool {
        self.found.is_some()
    }

    /// The stop string that ended the text.
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// What was held back, now that no more text comes.
    pub fn finish(&mut self) -> String {
        self.held.drain(..std::mem::take(&mut self.returned));
        std::mem::take(&mut self.held)
    }
}

impl Pattern {
    /// A matcher that has seen nothing; `text` is not empty.
    pub(crate) fn new(text: String) -> Self {
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
        Pattern { text, borders, matched: 0 }
    }

    /// How many of the pattern's bytes the text ends with.
    pub(crate) fn matched(&self) -> usize {
        self.matched
    }

    /// Forgets the text.
    pub(crate) fn reset(&mut self) {
        self.matched = 0;
    }

    /// The length of the pattern if this byte completes it.
    pub(crate) fn advance(&mut self, byte: u8) -> Option<usize> {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && bytes[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(bytes[self.matched] == byte);
        (self.matched == bytes.len()).then_some(bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The obvious search over the whole text.
    fn naive(text: &str, stops: &[String], mode: StopText) -> (String, bool) {
        for end in 1..=text.len() {
            let Some(head) = text.get(..end) else { continue };
            let found = stops.iter().filter(|stop| !stop.is_empty() && head.ends_with(*stop));
            if let Some(longest) = found.max_by_key(|stop| stop.len()) {
                let keep = if mode == StopText::Keep { end } else { end - longest.len() };
                return (text[..keep].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    proptest! {
        #[test]
        fn any_cut_gives_what_a_search_of_the_whole_text_gives(
            parts in proptest::collection::vec("[ab€]{0,4}", 0..12),
            stops in proptest::collection::vec("[ab€]{0,5}", 0..4),
            keep in any::<bool>(),
        ) {
            let mode = if keep { StopText::Keep } else { StopText::Remove };
            let mut matcher = StopMatcher::new(stops.clone(), mode);
            let mut text = String::new();
            for part in &parts {
                text += &matcher.push(part);
                // What has been shown is never taken back.
                let (whole, _) = naive(&parts.concat(), &stops, mode);
                prop_assert!(whole.starts_with(&text));
            }
            text += &matcher.finish();
            prop_assert_eq!((text, matcher.stopped()), naive(&parts.concat(), &stops, mode));
        }
    }

    #[test]
    fn text_is_held_back_no_longer_than_needed() {
        let mut matcher = StopMatcher::new(["END".to_owned()], StopText::Remove);
        assert_eq!(matcher.push("the E"), "the ");
        assert_eq!(matcher.push("N"), "");
        assert_eq!(matcher.push("C"), "ENC");
        assert_eq!(matcher.push("xENDy"), "x");
        assert_eq!((matcher.push("more"), matcher.finish()), (String::new(), String::new()));
        let mut matcher = StopMatcher::new(["END".to_owned()], StopText::Keep);
        assert_eq!(matcher.push("the E"), "the E");
        assert_eq!(matcher.push("NDy"), "ND");
    }

    #[test]
    fn a_long_stop_string_does_not_make_each_piece_expensive() {
        // Held back are always almost 400 kB. Moving them for each of 100 000 pieces would be 40 GB.
        let stop = "a".repeat(400_000) + "b";
        let mut matcher = StopMatcher::new([stop], StopText::Remove);
        let since = std::time::Instant::now();
        let mut returned = matcher.push(&"a".repeat(400_000)).len();
        for _ in 0..100_000 {
            returned += matcher.push("aaaa").len();
        }
        assert_eq!((returned, matcher.finish().len()), (400_000, 400_000));
        assert!(since.elapsed().as_secs_f64() < 2.0, "{:?}", since.elapsed());
    }
}
