//! A cheap bound on regular expressions, in one pass over the text.
//!
//! Compiling writes counted repetitions out, so a few characters can ask for millions of states. This
//! module finds out how long the repetitions become and how deep brackets nest. It does not need to
//! understand the expression: whatever it misjudges is still bounded by the limits of the compiler.

use super::GrammarError;
use super::bounds::too_complex;

/// Bytes in the braces of an escape.
const LONGEST_ESCAPE: usize = 64;
/// Levels of brackets.
const MOST_BRACKETS: usize = 64;
/// The largest count of one repetition: characters of a string, items of a list, `{n}` in an expression.
pub(super) const MOST_REPEATED: u64 = 10_000;
/// Characters of the text when all repetitions are written out.
const LONGEST_EXPANDED: u64 = 100_000;

/// Bounds nesting and counted repetitions of an expression, also where repetitions multiply. Returns how
/// many characters the repetitions have when they are written out.
///
/// # Errors
/// [`GrammarError::TooComplex`] names the bound that is exceeded.
pub(super) fn within(text: &str) -> Result<u64, GrammarError> {
    let bytes = text.as_bytes();
    let (mut lengths, mut classes, mut at) = (Lengths::default(), 0usize, 0);
    while let Some(&byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'\\' => {
                at = escaped(bytes, at);
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
                    // The count is not a part of the expression itself.
                    at = end + usize::from(bytes.get(end) == Some(&b'}'));
                }
            }
            _ => lengths.part(0)?,
        }
    }
    Ok(lengths.total())
}

/// The place after an escape whose letter is at `at`. `\x{41}`, `\u{1F600}` and `\p{Greek}` have braces that count nothing.
fn escaped(bytes: &[u8], at: usize) -> usize {
    let braced =
        matches!(bytes.get(at), Some(b'x' | b'u' | b'U' | b'p' | b'P')) && bytes.get(at + 1) == Some(&b'{');
    if !braced {
        return at + 1;
    }
    // Names of classes are short; what has no end is refused by the compiler.
    let inner = bytes.iter().skip(at + 2).take(LONGEST_ESCAPE);
    let length = inner.take_while(|byte| byte.is_ascii_alphanumeric() || b"_=^-: ".contains(byte)).count();
    at + 2 + length + usize::from(bytes.get(at + 2 + length) == Some(&b'}'))
}

/// The largest number of a counted repetition whose digits begin at `at`, and the place after it. No number
/// is found if something other than digits, separators and spaces stands there.
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

/// How long nested, repeated groups become when the repetitions are written out.
pub(super) struct Lengths {
    /// The length of each open group, the outermost first. There is always one.
    groups: Vec<u64>,
    /// The length of the last part of the innermost group, which a count would repeat.
    last: u64,
}

impl Default for Lengths {
    fn default() -> Self {
        Lengths { groups: vec![0], last: 0 }
    }
}

impl Lengths {
    /// A group begins.
    pub(super) fn open(&mut self) -> Result<(), GrammarError> {
        self.groups.push(0);
        self.nested_within(0)
    }

    /// The innermost group ends and becomes a part of the one around it.
    pub(super) fn close(&mut self) -> Result<(), GrammarError> {
        if self.groups.len() > 1 {
            let length = self.groups.pop().unwrap_or_default();
            self.part(length)?;
        }
        Ok(())
    }

    /// A part of the innermost group, whose repetitions have this length.
    pub(super) fn part(&mut self, length: u64) -> Result<(), GrammarError> {
        self.last = length;
        self.add(length)
    }

    /// The last part is repeated.
    pub(super) fn repeat(&mut self, count: u64) -> Result<(), GrammarError> {
        if count > MOST_REPEATED {
            return Err(too_complex(format!("a count of more than {MOST_REPEATED}")));
        }
        let before = self.last;
        self.last = before.max(1).saturating_mul(count);
        self.add(self.last.saturating_sub(before))
    }

    /// Refuses brackets that nest too deep, where `more` others are open besides the groups.
    fn nested_within(&self, more: usize) -> Result<(), GrammarError> {
        match self.groups.len() + more > MOST_BRACKETS {
            true => Err(too_complex(format!("more than {MOST_BRACKETS} brackets within brackets"))),
            false => Ok(()),
        }
    }

    fn add(&mut self, length: u64) -> Result<(), GrammarError> {
        let Some(group) = self.groups.last_mut() else { return Ok(()) };
        *group = group.saturating_add(length);
        match *group > LONGEST_EXPANDED {
            true => Err(too_complex(format!("repetitions of more than {LONGEST_EXPANDED} characters"))),
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
    fn expressions_that_people_write_are_within_the_bounds() {
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
            assert!(within(expression).is_ok(), "{expression}");
        }
        let words = (0..5000).map(|i| format!("word{i}")).collect::<Vec<_>>().join("|");
        assert_eq!(within(&words), Ok(0));
        assert_eq!(within("(ab{3}){5}c{2,7}"), Ok(3 * 5 + 7));
    }

    #[test]
    fn the_number_of_a_character_is_no_count() {
        for expression in
            [r"\x{1F600}", r"\u{20000}{2}", r"[\x{4e00}-\x{99999}]{3}", r"\p{Greek}\P{L}", r"\U{00020000}"]
        {
            assert!(within(expression).is_ok(), "{expression}");
        }
        assert_eq!(within(r"\x{4e00}{5}"), Ok(5));
        for expression in [r"\x{1F600}{20000}", r"\\x{20000}", r"\d{20000}", r"x{20000}"] {
            assert!(matches!(within(expression), Err(GrammarError::TooComplex(_))), "{expression}");
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
            assert!(matches!(within(expression), Err(GrammarError::TooComplex(_))), "{expression}");
        }
        assert!(within(&"(".repeat(65)).is_err());
        assert!(within(&"[".repeat(65)).is_err());
        assert!(within(&"(\n".repeat(65)).is_err());
    }
}
