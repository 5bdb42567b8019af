//! Bounds on the number of expressions that restrict the same text. The cost of deciding whether
//! any text remains doubles with each expression, and references multiply it again. llguidance does
//! not bound this cost. Usual schemas need one or two expressions.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use crate::grammar::error::GrammarError;

/// The maximum number of expressions for the same text.
pub(super) const MAX_EXPRESSIONS: usize = 8;

/// The maximum number of parts of a schema for the same value. A part counts once for each
/// reference to it.
const MAX_PARTS: usize = 1000;
/// The maximum length of a chain of references.
const MAX_CHAIN: usize = 64;

/// The maximum number of visited values, counted again for each reference. A long string counts as
/// several values, because following a reference and comparing expressions take time in proportion
/// to the length.
const MAX_VISITS: usize = 200_000;
/// The number of bytes of a string that count as one value.
const BYTES_PER_VISIT: usize = 64;

/// Keywords that restrict a value in combination with other keywords.
const SHAPE_KEYWORDS: [&str; 8] = [
    "pattern",
    "format",
    "properties",
    "patternProperties",
    "additionalProperties",
    "items",
    "prefixItems",
    "not",
];

pub(super) fn too_many() -> GrammarError {
    GrammarError::too_complex(format!("more than {MAX_EXPRESSIONS} expressions may be for the same text"))
}

/// Refuses a schema in which too many expressions may restrict the same text. Where parts of the
/// schema apply together, all expressions in them count.
pub(super) fn check(schema: &Value) -> Result<(), GrammarError> {
    let mut walk = IntersectionCounter { root: schema, visits: 0, parts: HashMap::new(), few: false };
    walk.few = walk.expressions(schema)?.len() <= MAX_EXPRESSIONS;
    walk.everywhere(schema)
}

struct IntersectionCounter<'a> {
    root: &'a Value,
    visits: usize,
    /// The number of parts behind each reference.
    parts: HashMap<&'a str, usize>,
    /// Whether the whole schema has too few expressions to exceed the bound anywhere.
    few: bool,
}

impl<'a> IntersectionCounter<'a> {
    fn everywhere(&mut self, schema: &'a Value) -> Result<(), GrammarError> {
        match schema {
            Value::Object(fields) => {
                if self.parts(schema, MAX_CHAIN)? > MAX_PARTS {
                    return Err(GrammarError::too_complex(format!(
                        "more than {MAX_PARTS} schemas for the same value"
                    )));
                }
                if !self.few && holds_together(fields) && self.expressions(schema)?.len() > MAX_EXPRESSIONS {
                    return Err(too_many());
                }
                fields.values().try_for_each(|value| self.everywhere(value))
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.everywhere(item)),
            _ => Ok(()),
        }
    }

    /// Counts visits of this many values and of a string of this many bytes.
    fn visit(&mut self, values: usize, bytes: usize) -> Result<(), GrammarError> {
        self.visits += values + bytes / BYTES_PER_VISIT;
        match self.visits > MAX_VISITS {
            true => Err(GrammarError::too_complex("its references lead to too many places")),
            false => Ok(()),
        }
    }

    /// Returns the number of schemas that apply to one value.
    fn parts(&mut self, schema: &'a Value, chain: usize) -> Result<usize, GrammarError> {
        self.visit(1, 0)?;
        let Some(chain) = chain.checked_sub(1) else {
            return Err(GrammarError::too_complex("its references lead too far"));
        };
        let mut parts = 1usize;
        for name in ["allOf", "anyOf", "oneOf"] {
            for schema in schema.get(name).and_then(Value::as_array).into_iter().flatten() {
                parts = parts.saturating_add(self.parts(schema, chain)?);
            }
        }
        if let Some(Value::String(to)) = schema.get("$ref") {
            self.visit(0, to.len())?;
            let known = self.parts.get(to.as_str()).copied();
            let behind = match (known, to.strip_prefix('#').and_then(|to| self.root.pointer(to))) {
                (Some(known), _) => known,
                (None, None) => 0,
                (None, Some(target)) => {
                    // A reference that leads back to itself is refused elsewhere.
                    self.parts.insert(to, 1);
                    let behind = self.parts(target, chain)?;
                    self.parts.insert(to, behind);
                    behind
                }
            };
            parts = parts.saturating_add(behind);
        }
        Ok(parts)
    }

    /// Returns the different expressions in a part of the schema and behind its references. The
    /// search stops when there are too many.
    fn expressions(&mut self, schema: &'a Value) -> Result<HashSet<&'a str>, GrammarError> {
        let (mut found, mut referred, mut open) = (HashSet::new(), HashSet::new(), vec![schema]);
        while let Some(value) = open.pop() {
            self.visit(1, 0)?;
            match value {
                Value::Object(fields) => {
                    for (name, value) in fields {
                        self.visit(0, value.as_str().map_or(0, str::len))?;
                        match (name.as_str(), value) {
                            ("pattern" | "format", Value::String(text)) => drop(found.insert(text.as_str())),
                            ("patternProperties", Value::Object(patterns)) => {
                                for pattern in patterns.keys() {
                                    self.visit(1, pattern.len())?;
                                    found.insert(pattern.as_str());
                                }
                            }
                            ("$ref", Value::String(to)) if referred.insert(to.as_str()) => {
                                open.extend(to.strip_prefix('#').and_then(|to| self.root.pointer(to)));
                            }
                            _ => {}
                        }
                        open.push(value);
                    }
                }
                Value::Array(items) => open.extend(items),
                _ => {}
            }
            if found.len() > MAX_EXPRESSIONS {
                break;
            }
        }
        Ok(found)
    }
}

/// Whether several parts of this schema restrict the same text.
fn holds_together(fields: &Map<String, Value>) -> bool {
    let all_of = fields.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    let others = ["anyOf", "oneOf", "$ref"].iter().filter(|name| fields.contains_key(**name)).count();
    let shaped = SHAPE_KEYWORDS.iter().any(|name| fields.contains_key(*name));
    all_of + others + usize::from(shaped && all_of + others > 0) > 1
}
