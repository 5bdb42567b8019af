//! Values by patterns of module names, as `rank_pattern` and `alpha_pattern` of PEFT have them.
//!
//! A pattern is a regular expression for the end of a module's name, from the start of the name or
//! after a dot. The first pattern that matches decides. Almost all patterns are plain names, which
//! are compared without a compiled expression.

use std::collections::HashSet;
use std::fmt;

use regex::{Regex, RegexBuilder};
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

use super::error::shortened;

/// The largest number of patterns of one key.
const MAX_PATTERNS: usize = 4096;
/// The largest number of patterns that are not plain names.
const MAX_EXPRESSIONS: usize = 256;
/// The largest size of a compiled expression in bytes.
const MAX_COMPILED: usize = 1 << 18;

/// Values by patterns, in the order in which the patterns are tried.
#[derive(Debug)]
pub(super) struct Patterns<T>(Vec<(Pattern, T)>);

/// A pattern of module names.
#[derive(Debug)]
enum Pattern {
    /// The characters of a plain name. A dot stands for any character, as in an expression.
    Name {
        characters: Vec<char>,
        /// Whether the name must be the whole name of the module.
        whole: bool,
    },
    /// An expression that matches the whole name of a module.
    Expression(Regex),
}

impl<T: Copy> Patterns<T> {
    /// Compiles patterns. An error continues a sentence after the name of the key.
    pub(super) fn new(pairs: Vec<(String, T)>) -> Result<Self, String> {
        if pairs.len() > MAX_PATTERNS {
            return Err(format!("has {} patterns, more than the limit of {MAX_PATTERNS}", pairs.len()));
        }
        let (mut patterns, mut expressions) = (Vec::with_capacity(pairs.len()), 0);
        for (text, value) in pairs {
            let pattern = Pattern::new(&text).map_err(|error| {
                format!("has the pattern {}, which is not supported: {error}", shortened(&text))
            })?;
            expressions += usize::from(matches!(pattern, Pattern::Expression(_)));
            if expressions > MAX_EXPRESSIONS {
                return Err(format!("has more than {MAX_EXPRESSIONS} regular expressions"));
            }
            patterns.push((pattern, value));
        }
        Ok(Patterns(patterns))
    }

    /// Returns the value of the first pattern that matches a module's name.
    pub(super) fn find(&self, module: &str) -> Option<T> {
        self.0.iter().find(|(pattern, _)| pattern.matches(module)).map(|(_, value)| *value)
    }
}

impl Pattern {
    fn new(text: &str) -> Result<Self, regex::Error> {
        let (whole, name) = match text.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')) {
            return Ok(Pattern::Name { characters: name.chars().collect(), whole });
        }
        let expression = format!(r"^(?:.*\.)?(?:{text})$");
        RegexBuilder::new(&expression).size_limit(MAX_COMPILED).build().map(Pattern::Expression)
    }

    fn matches(&self, module: &str) -> bool {
        let (characters, whole) = match self {
            Pattern::Name { characters, whole } => (characters, *whole),
            Pattern::Expression(expression) => return expression.is_match(module),
        };
        let mut rest = module.chars().rev();
        let is_end = characters.iter().rev().all(|&wanted| match rest.next() {
            Some(found) => wanted == found || wanted == '.' && found != '\n',
            None => false,
        });
        is_end && matches!((rest.next(), whole), (None, _) | (Some('.'), false))
    }
}

/// Reads an object as pairs in the order of the file. An absent value and `null` are empty.
pub(super) fn pairs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, Value)>, D::Error> {
    struct PairsVisitor;

    impl<'de> Visitor<'de> for PairsVisitor {
        type Value = Vec<(String, Value)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object with a number for each pattern")
        }

        fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let (mut pairs, mut seen) = (Vec::new(), HashSet::new());
            while let Some((pattern, value)) = map.next_entry::<String, Value>()? {
                if !seen.insert(pattern.clone()) {
                    return Err(A::Error::custom(format_args!("{} is given twice", shortened(&pattern))));
                }
                pairs.push((pattern, value));
            }
            Ok(pairs)
        }
    }

    deserializer.deserialize_any(PairsVisitor)
}
