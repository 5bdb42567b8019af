//! Reads the rules of a grammar in GBNF.

use std::collections::HashMap;

use crate::grammar::definition::MAX_REPETITIONS;

/// The maximum depth of groups in groups.
const MAX_DEPTH: usize = 64;

/// The name of the rule that describes the whole text.
const ROOT: &str = "root";

/// The rules of a grammar. References are indices of rules.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) rules: Vec<Alternatives>,
    /// The index of the rule for the whole text.
    pub(super) root: usize,
}

/// Sequences of elements, one of which is chosen.
pub(super) type Alternatives = Vec<Vec<Element>>;

/// A part of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Element {
    pub(super) atom: Atom,
    /// How often the atom is repeated.
    pub(super) repeat: Repeat,
}

/// A number of repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Repeat {
    pub(super) min: u32,
    /// `None` if there may be any number.
    pub(super) max: Option<u32>,
}

impl Repeat {
    pub(super) const ONCE: Repeat = Repeat { min: 1, max: Some(1) };
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Atom {
    /// A text.
    Text(String),
    /// One character, as a class of a regular expression.
    Class(String),
    Rule(usize),
    Group(Alternatives),
}

/// Returns whether a byte may be a part of a rule's name.
pub(super) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

/// Reads all rules of a grammar.
///
/// # Errors
/// The text names the line and the part that is wrong or not supported.
pub(super) fn parse(text: &str) -> Result<Rules, String> {
    let mut parser = Parser { text, at: 0, names: HashMap::new(), rules: Vec::new() };
    parser.skip_space();
    while parser.at < text.len() {
        parser.rule()?;
    }
    let root = *parser.names.get(ROOT).ok_or("there is no rule `root`")?;
    let Parser { names, rules, .. } = parser;
    let mut defined = Vec::with_capacity(rules.len());
    for (index, rule) in rules.into_iter().enumerate() {
        let name = || names.iter().find(|(_, other)| **other == index).map_or("", |(name, _)| *name);
        defined.push(rule.ok_or_else(|| format!("the rule `{}` is not defined", shortened(name())))?);
    }
    Ok(Rules { rules: defined, root })
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    names: HashMap<&'a str, usize>,
    /// The rules by their indices; `None` for names that have not been defined yet.
    rules: Vec<Option<Alternatives>>,
}

/// Returns the beginning of a text for an error.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Reads a text if it comes next.
    fn takes(&mut self, text: &str) -> bool {
        let found = self.rest().starts_with(text);
        if found {
            self.at += text.len();
        }
        found
    }

    /// Skips white space, line breaks and comments.
    fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            let space = rest.len() - rest.trim_start().len();
            self.at += space;
            if !self.rest().starts_with('#') {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    /// Returns an error with the current line.
    fn wrong(&self, what: &str) -> String {
        let line = self.text[..self.at].matches('\n').count() + 1;
        let rest = self.rest().lines().next().unwrap_or_default().trim();
        match rest.is_empty() {
            true => format!("line {line}: {what}"),
            false => format!("line {line}: {what} at `{}`", shortened(rest)),
        }
    }

    /// Reads the name of a rule, if one comes next.
    fn name(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let length = rest.bytes().take_while(|byte| is_name(*byte)).count();
        self.at += length;
        Some(&rest[..length]).filter(|name| !name.is_empty())
    }

    fn index(&mut self, name: &'a str) -> usize {
        let next = self.rules.len();
        let index = *self.names.entry(name).or_insert(next);
        if index == next {
            self.rules.push(None);
        }
        index
    }

    /// Whether the definition of the next rule begins here. Line breaks have no other meaning.
    fn is_definition(&self) -> bool {
        let rest = self.rest();
        let name = rest.bytes().take_while(|byte| is_name(*byte)).count();
        name > 0 && rest[name..].trim_start_matches([' ', '\t']).starts_with("::=")
    }

    fn rule(&mut self) -> Result<(), String> {
        let Some(name) = self.name() else { return Err(self.wrong("expected the name of a rule")) };
        let index = self.index(name);
        self.skip_space();
        if !self.takes("::=") {
            return Err(self.wrong("expected `::=` after the name of a rule"));
        }
        if self.rules[index].is_some() {
            return Err(self.wrong(&format!("the rule `{}` is defined twice", shortened(name))));
        }
        let alternatives = self.alternatives(MAX_DEPTH)?;
        self.rules[index] = Some(alternatives);
        if self.at < self.text.len() && !self.is_definition() {
            return Err(self.wrong("unexpected text"));
        }
        Ok(())
    }

    fn alternatives(&mut self, depth: usize) -> Result<Alternatives, String> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(self.wrong(&format!("more than {MAX_DEPTH} groups within groups")));
        };
        let mut alternatives = vec![Vec::new()];
        loop {
            self.skip_space();
            if self.takes("|") {
                alternatives.push(Vec::new());
                continue;
            }
            let element = match self.peek() {
                None | Some(')') => return Ok(alternatives),
                _ if self.is_definition() => return Ok(alternatives),
                _ => self.element(depth)?,
            };
            if let Some(last) = alternatives.last_mut() {
                last.push(element);
            }
        }
    }

    fn element(&mut self, depth: usize) -> Result<Element, String> {
        let atom = match self.peek() {
            Some(quote @ ('"' | '\'')) => Atom::Text(self.literal(quote)?),
            Some('[') => Atom::Class(self.class()?),
            Some('.') => {
                self.at += 1;
                Atom::Class("(?s:.)".into())
            }
            Some('(') => self.group(depth)?,
            Some('<' | '!') => return Err(self.wrong("tokens by their names or ids are not supported")),
            _ => match self.name() {
                Some(name) if self.rest().starts_with('(') => {
                    return Err(self.wrong(&format!("the function `{}` is not supported", shortened(name))));
                }
                Some(name) => Atom::Rule(self.index(name)),
                None => return Err(self.wrong("unexpected character")),
            },
        };
        let repeat = self.repeat()?;
        Ok(Element { atom, repeat })
    }

    fn group(&mut self, depth: usize) -> Result<Atom, String> {
        self.at += 1;
        if self.rest().starts_with('?') {
            return Err(self.wrong("look-ahead is not supported"));
        }
        let alternatives = self.alternatives(depth)?;
        match self.takes(")") {
            true => Ok(Atom::Group(alternatives)),
            false => Err(self.wrong("a group is not closed")),
        }
    }

    /// Reads the text in quotes.
    fn literal(&mut self, quote: char) -> Result<String, String> {
        let begin = self.at;
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => {
                    self.at = begin;
                    return Err(self.wrong("a text is not closed"));
                }
                Some(c) if c == quote => {
                    self.at += 1;
                    return Ok(text);
                }
                Some(_) => text.push(self.character()?),
            }
        }
    }

    /// Reads a class of characters as one of a regular expression.
    fn class(&mut self) -> Result<String, String> {
        let begin = self.at;
        self.at += 1;
        let is_negated = self.takes("^");
        let mut ranges = String::new();
        loop {
            match self.peek() {
                None | Some('\n') => {
                    self.at = begin;
                    return Err(self.wrong("a class is not closed"));
                }
                Some(']') => break,
                Some(_) => {}
            }
            let from = self.character()?;
            ranges += &escaped(from);
            if self.rest().starts_with('-') && !self.rest().starts_with("-]") {
                self.at += 1;
                let to = self.character()?;
                if to < from {
                    return Err(self.wrong("a range of characters ends before it begins"));
                }
                ranges.push('-');
                ranges += &escaped(to);
            }
        }
        self.at += 1;
        match (is_negated, ranges.is_empty()) {
            (true, true) => Ok("(?s:.)".into()),
            (false, true) => Err(self.wrong("an empty class matches no character")),
            (true, false) => Ok(format!("[^{ranges}]")),
            (false, false) => Ok(format!("[{ranges}]")),
        }
    }

    /// Reads a character, which may be escaped.
    fn character(&mut self) -> Result<char, String> {
        let Some(c) = self.peek() else { return Err(self.wrong("unexpected end")) };
        if c != '\\' {
            self.at += c.len_utf8();
            return Ok(c);
        }
        let escape = self.rest().chars().nth(1);
        let digits = match escape {
            Some('n') => return self.escape('\n'),
            Some('r') => return self.escape('\r'),
            Some('t') => return self.escape('\t'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) if c.is_ascii_punctuation() => return self.escape(c),
            _ => return Err(self.wrong("unknown escape")),
        };
        let code = self.rest().get(2..2 + digits).and_then(|digits| u32::from_str_radix(digits, 16).ok());
        let Some(c) = code.and_then(char::from_u32) else {
            return Err(self.wrong("an escape is no character"));
        };
        self.at += 2 + digits;
        Ok(c)
    }

    /// Skips an escape of two characters and returns its meaning.
    fn escape(&mut self, meaning: char) -> Result<char, String> {
        self.at += 2;
        Ok(meaning)
    }

    fn repeat(&mut self) -> Result<Repeat, String> {
        let mut repeat = Repeat::ONCE;
        // Several operators in a row apply one after the other only if the result is the same.
        loop {
            let next = match self.peek() {
                Some('*') => Repeat { min: 0, max: None },
                Some('+') => Repeat { min: 1, max: None },
                Some('?') => Repeat { min: 0, max: Some(1) },
                Some('{') => {
                    if repeat != Repeat::ONCE {
                        return Err(self.wrong("an element has several numbers of repetitions"));
                    }
                    return self.counts();
                }
                _ => return Ok(repeat),
            };
            if repeat != Repeat::ONCE {
                return Err(self.wrong("an element has several numbers of repetitions"));
            }
            self.at += 1;
            repeat = next;
        }
    }

    /// Reads `{least}`, `{least,}`, `{,most}` or `{least,most}`.
    fn counts(&mut self) -> Result<Repeat, String> {
        let Some(end) = self.rest().find('}').filter(|end| *end <= 32) else {
            return Err(self.wrong("a number of repetitions is not closed"));
        };
        let counts = &self.rest()[1..end];
        let count = |text: &str| text.trim().parse::<u32>().ok().filter(|count| *count <= MAX_REPETITIONS);
        let (min, max) = match counts.split_once(',') {
            None => (count(counts), count(counts).map(Some)),
            Some((min, max)) => (
                if min.trim().is_empty() { Some(0) } else { count(min) },
                if max.trim().is_empty() { Some(None) } else { count(max).map(Some) },
            ),
        };
        let (Some(min), Some(max)) = (min, max) else {
            return Err(self.wrong(&format!("repetitions must be numbers of at most {MAX_REPETITIONS}")));
        };
        if max.is_some_and(|max| max < min) {
            return Err(self.wrong("the most repetitions are fewer than the least"));
        }
        self.at += end + 1;
        Ok(Repeat { min, max })
    }
}

/// Returns a character for a class of a regular expression.
fn escaped(c: char) -> String {
    match c.is_ascii_alphanumeric() {
        true => c.to_string(),
        false => format!("\\x{{{:x}}}", u32::from(c)),
    }
}
