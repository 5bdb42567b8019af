//! Bounds on a client's Lark grammar, checked in one pass over its text.
//!
//! A Lark grammar can contain JSON schemas (`%json`), lists of strings (`%regex`), regular
//! expressions and nested grammars. This module finds them and applies the bounds that they have as
//! grammars of their own. It reads strings, expressions and comments in the same way as
//! llguidance's lexer, and does not know the rest of the syntax. The compiler refuses invalid
//! grammars.

use std::collections::HashMap;

use serde_json::Value;

use super::intersections;
use super::regex::{self, ExpandedLengths};
use super::schema::SchemaBudget;
use crate::grammar::error::GrammarError;

/// The maximum number of names.
const MAX_NAMES: usize = 5_000;
/// The maximum length of a chain of definitions that refer to one another. Compiling recurses along
/// such a chain, and joining the expressions of a chain of terminals takes quadratic time.
const MAX_CHAIN: usize = 200;

/// Refuses a grammar that exceeds a bound.
///
/// # Errors
/// [`GrammarError`] names the bound that is exceeded, or the part that cannot be read.
pub(super) fn check(text: &str) -> Result<(), GrammarError> {
    let mut scan = LarkScanner {
        text,
        bytes: text.as_bytes(),
        at: 0,
        schemas: SchemaBudget::default(),
        lengths: ExpandedLengths::default(),
        intersections: 0,
        names: DefinedNames::default(),
        line_begins: true,
    };
    scan.run()?;
    if scan.intersections > intersections::MAX_EXPRESSIONS {
        return Err(intersections::too_many());
    }
    if scan.names.longest_chain() > MAX_CHAIN {
        return Err(GrammarError::too_complex(format!(
            "more than {MAX_CHAIN} rules or terminals refer to one another in a row"
        )));
    }
    Ok(())
}

struct LarkScanner<'a> {
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    schemas: SchemaBudget,
    lengths: ExpandedLengths,
    /// The number of `&` between terminals.
    intersections: usize,
    names: DefinedNames<'a>,
    /// Whether only white space has come since the last line break. A name at this position is a
    /// definition.
    line_begins: bool,
}

impl<'a> LarkScanner<'a> {
    fn run(&mut self) -> Result<(), GrammarError> {
        while let Some(&byte) = self.bytes.get(self.at) {
            let next = self.bytes.get(self.at + 1);
            match byte {
                b'#' => self.skip_line(),
                b'/' if next == Some(&b'/') => self.skip_line(),
                b'/' => self.expression()?,
                b'"' => self.string()?,
                b'%' => self.directive()?,
                b'<' => self.special_token()?,
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => self.name()?,
                b'\n' => {
                    self.line_begins = true;
                    self.at += 1;
                    continue;
                }
                b' ' | b'\t' | b'\r' => {
                    self.at += 1;
                    continue;
                }
                _ => self.mark(byte)?,
            }
            self.line_begins = false;
        }
        Ok(())
    }

    fn skip_line(&mut self) {
        let rest = &self.bytes[self.at..];
        // The line break is not skipped, because the next line begins with it.
        self.at += rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len());
    }

    /// Reads `/expression/`, which ends at the next slash that is not escaped.
    fn expression(&mut self) -> Result<(), GrammarError> {
        let end = self.closing(b'/', "a regular expression")?;
        let length = regex::check(&self.text[self.at + 1..end])?;
        self.at = end + 1;
        self.lengths.part(length)
    }

    fn string(&mut self) -> Result<(), GrammarError> {
        self.at = self.closing(b'"', "a string")? + 1;
        self.lengths.part(0)
    }

    /// Returns the position of the mark that closes the current string or expression.
    fn closing(&self, mark: u8, name: &str) -> Result<usize, GrammarError> {
        let mut end = self.at + 1;
        while let Some(&byte) = self.bytes.get(end) {
            match byte {
                b'\\' => end += 2,
                _ if byte == mark => return Ok(end),
                _ => end += 1,
            }
        }
        Err(GrammarError::Invalid(format!("{name} is not closed")))
    }

    /// Reads a directive. Some directives are followed by JSON.
    fn directive(&mut self) -> Result<(), GrammarError> {
        let rest = &self.text[self.at..];
        let Some(keyword) = ["%json", "%regex", "%llguidance"].into_iter().find(|k| rest.starts_with(k))
        else {
            // The name after the sign is not defined by the grammar.
            self.at += 1;
            self.at += identifier(&self.bytes[self.at..]);
            return Ok(());
        };
        self.at += keyword.len();
        let mut values = serde_json::Deserializer::from_str(&self.text[self.at..]).into_iter::<Value>();
        let value = match values.next() {
            Some(Ok(value)) => value,
            Some(Err(error)) => return Err(GrammarError::Invalid(format!("after {keyword}: {error}"))),
            None => return Err(GrammarError::Invalid(format!("{keyword} without a value"))),
        };
        self.at += values.byte_offset();
        self.schemas.take(&value)?;
        self.lengths.part(0)
    }

    /// Reads `<name>` or `<[ids]>`, which may contain characters that have another meaning
    /// elsewhere.
    fn special_token(&mut self) -> Result<(), GrammarError> {
        let rest = &self.bytes[self.at + 1..];
        let ends = |byte: &u8| matches!(byte, b'<' | b'>') || byte.is_ascii_whitespace();
        let length = rest.iter().position(ends).unwrap_or(rest.len());
        self.at += match rest.get(length) {
            Some(b'>') => length + 2,
            _ => 1,
        };
        self.lengths.part(0)
    }

    fn name(&mut self) -> Result<(), GrammarError> {
        let length = identifier(&self.bytes[self.at..]);
        self.names.add(&self.text[self.at..self.at + length], self.line_begins)?;
        if self.line_begins {
            self.lengths = ExpandedLengths::default();
        }
        self.at += length;
        self.lengths.part(0)
    }

    fn mark(&mut self, mark: u8) -> Result<(), GrammarError> {
        self.at += 1;
        match mark {
            // These characters may precede the name that a line defines.
            b'!' | b'?' if self.line_begins => {
                self.at += self.bytes[self.at..].iter().take_while(|&&byte| byte == b'?').count();
                let is_name = self.bytes.get(self.at).is_some_and(|byte| byte.is_ascii_alphabetic());
                if is_name {
                    self.name()?
                }
            }
            b'(' | b'[' => self.lengths.open()?,
            b')' | b']' => self.lengths.close()?,
            b'&' => self.intersections += 1,
            b'{' | b'~' => {
                if let (Some(count), end) = regex::count(self.bytes, self.at) {
                    self.lengths.repeat(count)?;
                    // A line break after the digits begins a new line.
                    let digits = &self.bytes[self.at..end];
                    self.at += digits.iter().position(|&byte| byte == b'\n').unwrap_or(digits.len());
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the length of the name at the start of `bytes`.
fn identifier(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')).count()
}

/// The names of a grammar, and the names to which each definition refers.
#[derive(Default)]
struct DefinedNames<'a> {
    ids: HashMap<&'a str, usize>,
    /// The names in the definition of each name.
    refers_to: Vec<Vec<usize>>,
    /// The name whose definition is being read.
    defined: Option<usize>,
}

impl<'a> DefinedNames<'a> {
    fn add(&mut self, name: &'a str, is_defined: bool) -> Result<(), GrammarError> {
        let next = self.ids.len();
        let id = *self.ids.entry(name).or_insert(next);
        if id == self.refers_to.len() {
            self.refers_to.push(Vec::new());
        }
        if id >= MAX_NAMES {
            return Err(GrammarError::too_complex(format!("more than {MAX_NAMES} names")));
        }
        match (is_defined, self.defined) {
            (true, _) => self.defined = Some(id),
            (false, Some(defined)) => self.refers_to[defined].push(id),
            (false, None) => {}
        }
        Ok(())
    }

    /// Returns the length of the longest chain of names that refer to one another. A reference back
    /// to a name of the chain is not followed.
    fn longest_chain(&self) -> usize {
        let mut lengths: Vec<Option<usize>> = vec![None; self.refers_to.len()];
        let mut open = vec![false; self.refers_to.len()];
        for start in 0..self.refers_to.len() {
            // The names of the current chain, each with the index of its next reference and the
            // longest chain behind it.
            let mut row = vec![(start, 0, 0)];
            while let Some((id, next, longest)) = row.last_mut() {
                let id = *id;
                if lengths[id].is_some() {
                    row.pop();
                    continue;
                }
                open[id] = true;
                let Some(&to) = self.refers_to[id].get(*next) else {
                    lengths[id] = Some(*longest + 1);
                    open[id] = false;
                    row.pop();
                    continue;
                };
                match lengths[to] {
                    Some(length) => {
                        *longest = length.max(*longest);
                        *next += 1;
                    }
                    None if open[to] => *next += 1,
                    None => row.push((to, 0, 0)),
                }
            }
        }
        lengths.into_iter().flatten().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        check(text).expect_err(text).to_string()
    }

    #[test]
    fn usual_grammars_are_within_the_bounds() {
        for grammar in [
            "start: \"{\" /[0-9]{4}/ \"}\" // {20000}\n",
            "start: item+ \"(((((\"\n?item: NAME | NUMBER\nNAME: /[a-z]{1,64}/\nNUMBER: /[0-9]+/ # (((\n",
            "start: <|tool|> answer <[7-9]>\nanswer: %json {\"type\": \"string\", \"pattern\": \"^&{3}&&&&&&&&&$\"}\n",
            "start: A ~ 3..5\nA: B & ~C\nB: /a{3}/\nC: %regex {\"substring_words\": \"one two\"}\n",
            "start: a\na: \"x\" a | b\nb: a | \"y\"",
            "start: %lark { start: \"a\" }",
            "",
            "start: /a\\/b/ \"a\\\"b\"i",
        ] {
            assert_eq!(check(grammar), Ok(()), "{grammar}");
        }
    }

    #[test]
    fn inline_schemas_have_the_bounds_of_schemas() {
        let patterns = (0..40).map(|i| format!(r#"{{"pattern": "^(.*[a-c].{{5}}[d-f].*){{0,1}}x{i}$"}}"#));
        let all_of =
            format!(r#"{{"type": "string", "allOf": [{}]}}"#, patterns.collect::<Vec<_>>().join(","));
        let deep = format!(r#"{}"a"{}"#, r#"{"not":"#.repeat(70), "}".repeat(70));
        for (schema, reason) in [
            (all_of.as_str(), "expressions may be for the same text"),
            (r#"{"type": "string", "pattern": "(a{500}){500}"}"#, "repetitions of more than"),
            (r#"{"type": "array", "minItems": 20000}"#, "`minItems` at the top: more than"),
            (deep.as_str(), "levels deep"),
        ] {
            for text in [
                format!("start: %json {schema}"),
                format!("start: \"a\" %json{schema} \"b\"\n"),
                format!("start: %lark {{\n start: %json {schema}\n}}\n"),
            ] {
                assert!(refused(&text).contains(reason), "{text}");
            }
        }
        let half = format!("%json {{\"enum\": [{}1]}}", "1,".repeat(12_000));
        assert!(refused(&format!("start: {half} {half}")).contains("values"));
        assert!(refused("start: %json {").contains("after %json"));
        assert!(refused("start: %json").contains("without a value"));
    }

    #[test]
    fn expressions_and_counts_are_bounded() {
        for (grammar, reason) in [
            ("start: /(a{500}){500}/", "repetitions of more than"),
            ("start: A\nA: /a{1000}/{1000}", "repetitions of more than"),
            ("start: A ~ 20000", "a count of more than"),
            ("start: a{1,20000}", "a count of more than"),
            ("start: /a", "is not closed"),
            ("start: \"a", "is not closed"),
        ] {
            assert!(refused(grammar).contains(reason), "{grammar}");
        }
        let conjuncts = (0..10).map(|i| format!("/.*a.{{{i}}}/")).collect::<Vec<_>>().join(" & ");
        assert!(refused(&format!("start: A\nA: {conjuncts}")).contains("expressions"));
    }

    #[test]
    fn long_chains_are_refused() {
        let chain = |length: usize| {
            let links: String = (0..length).map(|i| format!("T{i}: \"a\" T{}\n", i + 1)).collect();
            format!("start: T0\n{links}T{length}: \"b\"\n")
        };
        assert_eq!(check(&chain(100)), Ok(()));
        assert!(refused(&chain(300)).contains("in a row"));
        assert!(refused(&chain(15_000)).contains("names"));
        // The chain in the opposite order, and a cycle.
        let mut lines: Vec<String> = chain(300).lines().map(str::to_owned).collect();
        lines.reverse();
        assert!(refused(&lines.join("\n")).contains("in a row"));
        let cycle: String =
            (0..4000).map(|i| format!("r{i}: r{} r{} | \"a\"\n", (i + 1) % 4000, i / 2)).collect();
        assert!(refused(&format!("start: r0\n{cycle}")).contains("in a row"));
    }
}
