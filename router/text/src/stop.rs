//! Stop strings in generated text.

use super::substring::SubstringMatcher;

/// Whether a stop string is part of the returned text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopText {
    /// The returned text ends with the stop string. No text is held back.
    Keep,
    /// The returned text ends before the stop string. Text that may become a stop string is held
    /// back until it is certain.
    Remove,
}

/// Searches for stop strings in a text that arrives in parts.
///
/// The text ends at the first stop string that becomes complete. If several become complete at the
/// same character, the longest one counts. The result does not depend on how the text is divided
/// into parts. The time is linear in the text for any stop strings (Knuth, Morris, Pratt, "Fast
/// Pattern Matching in Strings").
#[derive(Debug)]
pub struct StopMatcher {
    stops: Vec<SubstringMatcher>,
    mode: StopText,
    /// `held[returned..]` has not been returned yet.
    held: String,
    returned: usize,
    /// The stop string that ended the text.
    found: Option<String>,
}

impl StopMatcher {
    /// Creates a matcher for these strings. Empty strings never match.
    pub fn new(stops: impl IntoIterator<Item = String>, mode: StopText) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).map(SubstringMatcher::new).collect();
        StopMatcher { stops, mode, held: String::new(), returned: 0, found: None }
    }

    /// Adds text and returns the part that certainly belongs to the result. After a stop string, it
    /// returns nothing.
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
                // A complete stop string lies within the held text, or its beginning was returned
                // because the mode is `Keep`.
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
            // This moves fewer bytes than were returned since the last time, so that the total time
            // stays linear.
            self.held.drain(..self.returned);
            self.returned = 0;
        }
        certain
    }

    /// Whether a stop string was found.
    pub fn stopped(&self) -> bool {
        self.found.is_some()
    }

    /// Returns the stop string that ended the text.
    pub fn found(&self) -> Option<&str> {
        self.found.as_deref()
    }

    /// Returns the held text after the last part.
    pub fn finish(&mut self) -> String {
        self.held.drain(..std::mem::take(&mut self.returned));
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::thread_time::thread_time;

    /// A simple search over the whole text, as the reference.
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
        fn any_division_gives_the_result_of_the_whole_text(
            parts in proptest::collection::vec("[ab€]{0,4}", 0..12),
            stops in proptest::collection::vec("[ab€]{0,5}", 0..4),
            keep in any::<bool>(),
        ) {
            let mode = if keep { StopText::Keep } else { StopText::Remove };
            let mut matcher = StopMatcher::new(stops.clone(), mode);
            let mut text = String::new();
            for part in &parts {
                text += &matcher.push(part);
                // Text that was returned is never withdrawn.
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
        // The matcher always holds almost 400 kB. Moving them for each of 100 000 pieces would move
        // 40 GB.
        let stop = "a".repeat(400_000) + "b";
        let mut matcher = StopMatcher::new([stop], StopText::Remove);
        let since = thread_time();
        let mut returned = matcher.push(&"a".repeat(400_000)).len();
        for _ in 0..100_000 {
            returned += matcher.push("aaaa").len();
        }
        assert_eq!((returned, matcher.finish().len()), (400_000, 400_000));
        let took = thread_time() - since;
        assert!(took.as_secs_f64() < 2.0, "{took:?}");
    }
}
