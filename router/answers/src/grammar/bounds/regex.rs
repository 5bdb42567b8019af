//! A cheap bound on regular expressions, checked in one pass over the text.
//!
//! Compiling expands counted repetitions, so that a few characters can lead to millions of states.
//! This module computes the length of the expanded repetitions and the depth of brackets. It does
//! not understand the whole syntax. The compiler's limits bound the expressions that it misjudges.

use crate::grammar::definition::MAX_REPETITIONS;
use crate::grammar::error::GrammarError;

/// The maximum number of bytes in the braces of an escape.
const MAX_ESCAPE_BYTES: usize = 64;
/// The maximum depth of brackets.
const MAX_BRACKET_DEPTH: usize = 64;
/// The maximum number of characters of the expanded repetitions.
const MAX_EXPANDED_CHARS: u64 = 100_000;

/// Bounds the depth and the counted repetitions of an expression, including nested repetitions.
/// Returns the number of characters of the expanded repetitions.
///
/// # Errors
/// [`GrammarError::TooComplex`] names the bound that is exceeded.
pub(super) fn check(text: &str) -> Result<u64, GrammarError> {
    let bytes = text.as_bytes();
    let (mut lengths, mut classes, mut at) = (ExpandedLengths::default(), 0usize, 0);
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'\\' => {
                at = after_escape(bytes, at);
                lengths.part(0)?;
            }
            b'[' => {
                classes += 1;
                lengths.nested_within(classes)?;
            }
            b']' if classes > 0 => {
                classes -= 1;
                lengths.part(0)?;
            }
            _ if classes > 0 => {}
            b'(' => lengths.open()?,
            b')' => lengths.close()?,
            b'{' => {
                let (count, end) = count(bytes, at);
                if let Some(count) = count {
                    lengths.repeat(count)?;
                    // The count itself is not a part of the expression.
                    at = end + usize::from(bytes.get(end) == Some(&b'}'));
                }
            }
            _ => lengths.part(0)?,
        }
    }
    Ok(lengths.total())
}

/// Returns the position after an escape whose letter is at `at`. The braces of `\x{41}`,
/// `\u{1F600}` and `\p{Greek}` are not counts.
fn after_escape(bytes: &[u8], at: usize) -> usize {
    let braced =
        matches!(bytes.get(at), Some(b'x' | b'u' | b'U' | b'p' | b'P')) && bytes.get(at + 1) == Some(&b'{');
    if !braced {
        return at + 1;
    }
    // Names of classes are short. The compiler refuses an escape without an end.
    let inner = bytes.iter().skip(at + 2).take(MAX_ESCAPE_BYTES);
    let length = inner.take_while(|byte| byte.is_ascii_alphanumeric() || b"_=^-: ".contains(byte)).count();
    at + 2 + length + usize::from(bytes.get(at + 2 + length) == Some(&b'}'))
}

/// Returns the largest number of a counted repetition whose digits begin at `at`, and the position
/// after it. The number is `None` if other characters than digits, separators and spaces follow.
pub(super) fn count(bytes: &[u8], mut at: usize) -> (Option<u64>, usize) {
    let (mut most, mut number) = (None, None);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'0'..=b'9' => {
                let digit = u64::from(byte - b'0');
                number = Some(number.unwrap_or(0u64).saturating_mul(10).saturating_add(digit));
            }
            b',' | b'.' | b' ' | b'\t' | b'\r' | b'\n' => most = most.max(number.take()),
            _ => break,
        }
        at += 1;
    }
    (most.max(number), at)
}

/// Computes the lengths of nested groups with expanded repetitions.
pub(super) struct ExpandedLengths {
    /// The length of each open group, the outermost first. There is always one.
    groups: Vec<u64>,
    /// The length of the last part of the innermost group, which a count would repeat.
    last: u64,
}

impl Default for ExpandedLengths {
    fn default() -> Self {
        ExpandedLengths { groups: vec![0], last: 0 }
    }
}

impl ExpandedLengths {
    /// Begins a group.
    pub(super) fn open(&mut self) -> Result<(), GrammarError> {
        self.groups.push(0);
        self.nested_within(0)
    }

    /// Ends the innermost group, which becomes a part of the group around it.
    pub(super) fn close(&mut self) -> Result<(), GrammarError> {
        if self.groups.len() > 1 {
            let length = self.groups.pop().unwrap_or_default();
            self.part(length)?;
        }
        Ok(())
    }

    /// Adds a part to the innermost group. `length` is the length of its repetitions.
    pub(super) fn part(&mut self, length: u64) -> Result<(), GrammarError> {
        self.last = length;
        self.add(length)
    }

    /// Repeats the last part.
    pub(super) fn repeat(&mut self, count: u64) -> Result<(), GrammarError> {
        if count > u64::from(MAX_REPETITIONS) {
            return Err(GrammarError::too_complex(format!("a count of more than {MAX_REPETITIONS}")));
        }
        let before = self.last;
        self.last = before.max(1).saturating_mul(count);
        self.add(self.last.saturating_sub(before))
    }

    /// Refuses brackets that are nested too deep. `more` brackets are open besides the groups.
    fn nested_within(&self, more: usize) -> Result<(), GrammarError> {
        match self.groups.len() + more > MAX_BRACKET_DEPTH {
            true => Err(GrammarError::too_complex(format!(
                "more than {MAX_BRACKET_DEPTH} brackets within brackets"
            ))),
            false => Ok(()),
        }
    }

    fn add(&mut self, length: u64) -> Result<(), GrammarError> {
        let Some(group) = self.groups.last_mut() else { return Ok(()) };
        *group = group.saturating_add(length);
        match *group > MAX_EXPANDED_CHARS {
            true => Err(GrammarError::too_complex(format!(
                "repetitions of more than {MAX_EXPANDED_CHARS} characters"
            ))),
            false => Ok(()),
        }
    }

    fn total(&self) -> u64 {
        self.groups.iter().fold(0, |sum, &length| sum.saturating_add(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_expressions_are_within_the_bounds() {
        let date = r"^[0-9]{4}-(0[1-9]|1[0-2])-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$";
        for expression in [
            r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            date,
            r"[a-z]{1,64}@[a-z]{1,100}\.[a-z]{2,50}",
            "(\\w{1,30} ){1,200}",
            "[^]]{3}[[a-z]&&[^b]]",
            r"\{\(\[",
            "{",
            "{{{{{",
            "a{,",
            "ä{3}\\",
        ] {
            assert!(check(expression).is_ok(), "{expression}");
        }
        let words = (0..5000).map(|i| format!("word{i}")).collect::<Vec<_>>().join("|");
        assert_eq!(check(&words), Ok(0));
        assert_eq!(check("(ab{3}){5}c{2,7}"), Ok(3 * 5 + 7));
    }

    #[test]
    fn character_codes_are_not_counts() {
        for expression in
            [r"\x{1F600}", r"\u{20000}{2}", r"[\x{4e00}-\x{99999}]{3}", r"\p{Greek}\P{L}", r"\U{00020000}"]
        {
            assert!(check(expression).is_ok(), "{expression}");
        }
        assert_eq!(check(r"\x{4e00}{5}"), Ok(5));
        for expression in [r"\x{1F600}{20000}", r"\\x{20000}", r"\d{20000}", r"x{20000}"] {
            assert!(matches!(check(expression), Err(GrammarError::TooComplex(_))), "{expression}");
        }
    }

    #[test]
    fn repetitions_that_multiply_are_refused() {
        for expression in [
            "a{10001}",
            "a{99999999999999999999}",
            "a{ 3 , 20000 }",
            "((a{30}){30}){30}{30}",
            "(((a{99}){99}){99})",
            "(?:(?:ab){500}){500}",
            "x{9999}{9999}",
        ] {
            assert!(matches!(check(expression), Err(GrammarError::TooComplex(_))), "{expression}");
        }
        assert!(check(&"(".repeat(65)).is_err());
        assert!(check(&"[".repeat(65)).is_err());
        assert!(check(&"(\n".repeat(65)).is_err());
    }
}
