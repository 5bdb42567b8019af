//! How much must hold for the same text. What it costs to see whether any text is left doubles with each expression, and
//! references double it again; nothing in llguidance bounds that, and one or two is what schemas need.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::GrammarError;
use super::bounds::too_complex;

/// Expressions for the same text.
pub(super) const MOST: usize = 8;

/// Parts of a schema for the same text, each as often as references lead to it.
const MOST_PARTS: usize = 1000;
/// References to references.
const LONGEST_CHAIN: usize = 64;

/// Values looked at in all, however often references lead to them. A long text counts as several values,
/// because following a reference and comparing expressions takes time in proportion to their length.
const MOST_VISITS: usize = 200_000;
/// Bytes of text that count as a value.
const BYTES_PER_VISIT: usize = 64;

/// Keywords that stand beside others without meaning more than them.
const SHAPES: [&str; 8] = [
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
    too_complex(format!("more than {MOST} expressions may be for the same text"))
}

/// Refuses a schema in which too many expressions may be for the same text: where parts of it hold together, all
/// expressions in them are counted.
pub(super) fn within(schema: &Value) -> Result<(), GrammarError> {
    let mut walk = Walk { root: schema, visits: 0, parts: HashMap::new(), few: false };
    walk.few = walk.expressions(schema)?.len() <= MOST;
    walk.everywhere(schema)
}

struct Walk<'a> {
    root: &'a Value,
    visits: usize,
    /// The parts behind each reference.
    parts: HashMap<&'a str, usize>,
    /// Whether there are too few expressions for any place to have too many.
    few: bool,
}

impl<'a> Walk<'a> {
    fn everywhere(&mut self, schema: &'a Value) -> Result<(), GrammarError> {
        match schema {
            Value::Object(fields) => {
                if self.parts(schema, LONGEST_CHAIN)? > MOST_PARTS {
                    return Err(too_complex(format!("more than {MOST_PARTS} schemas for the same value")));
                }
                if !self.few && holds_together(fields) && self.expressions(schema)?.len() > MOST {
                    return Err(too_many());
                }
                fields.values().try_for_each(|value| self.everywhere(value))
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.everywhere(item)),
            _ => Ok(()),
        }
    }

    /// Counts looks at so many values, and at a text of so many bytes.
    fn visit(&mut self, values: usize, bytes: usize) -> Result<(), GrammarError> {
        self.visits += values + bytes / BYTES_PER_VISIT;
        match self.visits > MOST_VISITS {
            true => Err(too_complex("its references lead to too many places")),
            false => Ok(()),
        }
    }

    /// How many schemas there are for one value.
    fn parts(&mut self, schema: &'a Value, chain: usize) -> Result<usize, GrammarError> {
        self.visit(1, 0)?;
        let Some(chain) = chain.checked_sub(1) else {
            return Err(too_complex("its references lead too far"));
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

    /// The different expressions in a part of the schema and in what it refers to; a few too many are enough.
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
            if found.len() > MOST {
                break;
            }
        }
        Ok(found)
    }
}

/// Whether a text must be what several parts of this say.
fn holds_together(fields: &Map<String, Value>) -> bool {
    let all_of = fields.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
    let others = ["anyOf", "oneOf", "$ref"].iter().filter(|name| fields.contains_key(**name)).count();
    let shaped = SHAPES.iter().any(|name| fields.contains_key(*name));
    all_of + others + usize::from(shaped && all_of + others > 0) > 1
}
