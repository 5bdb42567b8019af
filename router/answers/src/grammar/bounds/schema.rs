//! Bounds on JSON schemas.

use serde_json::Value;

use super::{intersections, regex};
use crate::grammar::definition::MAX_REPETITIONS;
use crate::grammar::error::GrammarError;
use crate::grammar::schema::{exceeds_max_count, location};

/// The maximum depth of a schema's objects and lists.
const MAX_DEPTH: usize = 64;

/// The maximum number of values in all schemas of a grammar.
const MAX_VALUES: usize = 20_000;

/// Keywords of JSON schema with a count.
const COUNT_KEYWORDS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

/// The number of values that the schemas of a grammar may still have.
pub(super) struct SchemaBudget {
    values: usize,
    /// Whether upper counts are unbounded, because large ones are left out of the grammar.
    upper_counts_unbounded: bool,
}

impl Default for SchemaBudget {
    fn default() -> Self {
        SchemaBudget { values: MAX_VALUES, upper_counts_unbounded: false }
    }
}

/// A bound that a schema exceeds.
struct Excess {
    /// The keyword, and the keys that lead to its schema, innermost first. `None` if the bound does
    /// not concern a keyword.
    at: Option<(String, Vec<String>)>,
    reason: String,
}

impl From<String> for Excess {
    fn from(reason: String) -> Self {
        Excess { at: None, reason }
    }
}

impl SchemaBudget {
    /// Creates a budget for the schemas of tools.
    pub(super) fn of_tools() -> Self {
        SchemaBudget { upper_counts_unbounded: true, ..SchemaBudget::default() }
    }

    /// Checks a schema and subtracts its values from the budget.
    ///
    /// # Errors
    /// [`GrammarError::TooComplex`] names the bound that is exceeded.
    pub(super) fn take(&mut self, schema: &Value) -> Result<(), GrammarError> {
        self.take_named(schema, "")
    }

    /// Checks the schema of the rule with this name in the same way.
    pub(super) fn take_named(&mut self, schema: &Value, name: &str) -> Result<(), GrammarError> {
        let described = |Excess { at, reason }: Excess| match at {
            Some((keyword, keys)) => {
                let location = location(name, keys.iter().rev().map(String::as_str));
                GrammarError::too_complex(format!("`{keyword}` {location}: {reason}"))
            }
            None => GrammarError::too_complex(reason),
        };
        self.within(schema, MAX_DEPTH).map_err(described)?;
        intersections::check(schema)
    }

    fn within(&mut self, schema: &Value, depth: usize) -> Result<(), Excess> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(format!("the schema is more than {MAX_DEPTH} levels deep").into());
        };
        let Some(left) = self.values.checked_sub(1) else {
            return Err(format!("the schema has more than {MAX_VALUES} values").into());
        };
        self.values = left;
        let below = |mut excess: Excess, key: &dyn ToString| {
            excess.at.iter_mut().for_each(|(_, keys)| keys.push(key.to_string()));
            excess
        };
        match schema {
            Value::Array(items) => items.iter().enumerate().try_for_each(|(index, item)| {
                self.within(item, depth).map_err(|excess| below(excess, &index))
            }),
            Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
                self.keyword_within(name, value)?;
                self.within(value, depth).map_err(|excess| below(excess, name))
            }),
            _ => Ok(()),
        }
    }

    /// Bounds the counts and expressions of one keyword of a schema.
    fn keyword_within(&self, name: &str, value: &Value) -> Result<(), Excess> {
        let at = |reason: String| Excess { at: Some((name.to_owned(), Vec::new())), reason };
        let unbounded = self.upper_counts_unbounded && name.starts_with("max");
        if COUNT_KEYWORDS.contains(&name) && !unbounded && exceeds_max_count(value) {
            return Err(at(format!("more than {}", MAX_REPETITIONS)));
        }
        let check = |pattern: &str| match regex::check(pattern) {
            Ok(_) => Ok(()),
            Err(GrammarError::TooComplex(reason)) => Err(at(reason)),
            Err(other) => Err(at(other.to_string())),
        };
        match (name, value) {
            // The white space between parts of JSON is an option of inline schemas.
            ("pattern" | "whitespace_pattern", Value::String(pattern)) => check(pattern),
            ("patternProperties", Value::Object(patterns)) => {
                patterns.keys().try_for_each(|pattern| check(pattern))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use millrace_text::thread_time;

    #[test]
    fn a_schema_of_many_intersections_takes_a_bounded_time() {
        let long = "p".repeat(200_000);
        let references = json!({
            "allOf": (0..200).map(|i| json!({"$ref": format!("#/{long}"), "format": i.to_string()})).collect::<Vec<_>>(),
        });
        let nested = (0..60).fold(
            json!({"pattern": "a"}),
            |inner, i| json!({"allOf": [inner, {"pattern": format!("b{i}")}, {"pattern": format!("c{i}")}]}),
        );
        for schema in [references, nested] {
            let since = thread_time();
            drop(SchemaBudget::default().take(&schema));
            let time = thread_time() - since;
            assert!(time < Duration::from_secs(2), "{time:?}");
        }
    }
}
