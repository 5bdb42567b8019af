//! Refuses grammars that are too large before they are compiled.
//!
//! Compiling takes time and memory in proportion to what a grammar asks for, and a few bytes can ask for a
//! lot. The size is looked at first and costs almost nothing. All other checks are linear in that size.

use serde_json::Value;

use super::schema::{beyond, place};
use super::{Grammar, GrammarError, expression, intersections, lark};

/// Bytes of a grammar's text, or of a schema written as JSON.
const MOST_BYTES: usize = 256 << 10;
/// Levels of a schema's objects and lists.
const DEEPEST: usize = 64;
/// Values in a schema, or in all schemas of a grammar together.
const MOST_VALUES: usize = 20_000;

/// Keywords of JSON schema that count something.
const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

/// Refuses a grammar by its size alone, and says about how many bytes it has. Not more than the largest
/// size is looked at, whatever the grammar holds.
///
/// # Errors
/// [`GrammarError::TooComplex`] if it has too many bytes.
pub(super) fn size_within(grammar: &Grammar) -> Result<usize, GrammarError> {
    let mut left = Some(MOST_BYTES);
    match grammar {
        Grammar::Json(schema) => take_value(schema, &mut left),
        Grammar::Regex(text) | Grammar::Lark(text) => take(text.len(), &mut left),
        Grammar::Calls { rules, schemas, answer } => {
            take(rules.len(), &mut left);
            for (name, schema) in schemas {
                take(name.len(), &mut left);
                take_value(schema, &mut left);
            }
            answer.iter().for_each(|schema| take_value(schema, &mut left));
        }
    }
    match left {
        Some(left) => Ok(MOST_BYTES - left),
        None => Err(too_complex(format!("more than {MOST_BYTES} bytes"))),
    }
}

/// Takes so many bytes of what is `left`, which becomes nothing if there are too few.
fn take(bytes: usize, left: &mut Option<usize>) {
    *left = left.and_then(|left| left.checked_sub(bytes));
}

/// Takes the bytes of a value written as JSON, escapes aside.
fn take_value(value: &Value, left: &mut Option<usize>) {
    if left.is_none() {
        return;
    }
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => take(4, left),
        Value::String(text) => take(text.len() + 2, left),
        Value::Array(items) => {
            take(2 + items.len(), left);
            for item in items {
                if left.is_none() {
                    return;
                }
                take_value(item, left);
            }
        }
        Value::Object(fields) => {
            take(2 + 4 * fields.len(), left);
            for (name, value) in fields {
                if left.is_none() {
                    return;
                }
                take(name.len(), left);
                take_value(value, left);
            }
        }
    }
}

/// Refuses a grammar that is too complex to be compiled. The work is linear in its size, which
/// [`size_within`] bounds.
///
/// # Errors
/// [`GrammarError`] names the bound that is exceeded.
pub(super) fn check(grammar: &Grammar) -> Result<(), GrammarError> {
    match grammar {
        Grammar::Json(schema) => SchemaBudget::default().take(schema),
        // The rules are the server's own.
        Grammar::Calls { schemas, answer, .. } => {
            let mut named = schemas.iter();
            named.try_for_each(|(name, schema)| SchemaBudget::of_tools().take_named(schema, name))?;
            answer.iter().try_for_each(|schema| SchemaBudget::default().take(schema))
        }
        Grammar::Regex(text) => expression::within(text).map(drop),
        Grammar::Lark(text) => lark::within(text),
    }
}

pub(super) fn too_complex(why: impl Into<String>) -> GrammarError {
    GrammarError::TooComplex(why.into())
}

/// What the schemas of a grammar may still hold.
pub(super) struct SchemaBudget {
    values: usize,
    /// Whether counts that bound something from above may be as large as they like, because they are left out.
    most_is_unbounded: bool,
}

impl Default for SchemaBudget {
    fn default() -> Self {
        SchemaBudget { values: MOST_VALUES, most_is_unbounded: false }
    }
}

/// What is wrong with a schema.
struct Excess {
    /// The keyword, and the keys that lead to its schema from the inside out, if it is a keyword.
    at: Option<(String, Vec<String>)>,
    why: String,
}

impl From<String> for Excess {
    fn from(why: String) -> Self {
        Excess { at: None, why }
    }
}

impl SchemaBudget {
    /// For the schemas of tools.
    fn of_tools() -> Self {
        SchemaBudget { most_is_unbounded: true, ..SchemaBudget::default() }
    }

    /// Checks a schema and takes its values from the budget.
    ///
    /// # Errors
    /// [`GrammarError::TooComplex`] names the bound that is exceeded.
    pub(super) fn take(&mut self, schema: &Value) -> Result<(), GrammarError> {
        self.take_named(schema, "")
    }

    /// The same for the schema of a rule of this name.
    fn take_named(&mut self, schema: &Value, name: &str) -> Result<(), GrammarError> {
        let described = |Excess { at, why }: Excess| match at {
            Some((keyword, keys)) => {
                let place = place(name, keys.iter().rev().map(String::as_str));
                too_complex(format!("`{keyword}` {place}: {why}"))
            }
            None => too_complex(why),
        };
        self.within(schema, DEEPEST).map_err(described)?;
        intersections::within(schema)
    }

    fn within(&mut self, schema: &Value, depth: usize) -> Result<(), Excess> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(format!("the schema is more than {DEEPEST} levels deep").into());
        };
        let Some(left) = self.values.checked_sub(1) else {
            return Err(format!("the schema has more than {MOST_VALUES} values").into());
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
        let at = |why: String| Excess { at: Some((name.to_owned(), Vec::new())), why };
        let unbounded = self.most_is_unbounded && name.starts_with("max");
        if COUNTS.contains(&name) && !unbounded && beyond(value) {
            return Err(at(format!("more than {}", expression::MOST_REPEATED)));
        }
        let check = |pattern: &str| match expression::within(pattern) {
            Ok(_) => Ok(()),
            Err(GrammarError::TooComplex(why)) => Err(at(why)),
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
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;

    /// The shortest of some runs, which other work on the machine disturbs least.
    fn fastest(work: impl Fn()) -> Duration {
        let times = (0..5).map(|_| {
            let since = Instant::now();
            work();
            since.elapsed()
        });
        times.min().unwrap_or_default()
    }

    #[test]
    fn the_size_is_refused_before_anything_else_is_looked_at() {
        let bomb = |size: usize| Grammar::Regex("{".repeat(size));
        for grammar in [
            bomb(1_900_000),
            Grammar::Lark("{".repeat(1_900_000)),
            Grammar::Json(json!({"enum": vec!["x"; 1_000_000]})),
            Grammar::Json(json!({"pattern": "{".repeat(1_900_000)})),
            Grammar::Json(json!(vec![vec![0; 10]; 100_000])),
        ] {
            let (mut refused, grammar) = (Ok(0), &grammar);
            let since = Instant::now();
            for _ in 0..10 {
                refused = size_within(grammar);
            }
            assert!(since.elapsed() < Duration::from_secs(1));
            assert!(matches!(refused, Err(GrammarError::TooComplex(why)) if why.contains("bytes")));
        }
        assert_eq!(size_within(&bomb(1000)), Ok(1000));
    }

    /// Twice the text takes about twice the time. Something quadratic takes 16 times as long for four times
    /// the text; 10 leaves room for a noisy machine.
    #[test]
    fn every_pass_is_linear() {
        let unit = MOST_BYTES / 4;
        type Make = fn(usize) -> Grammar;
        let grammars: [(&str, Make); 10] = [
            ("braces", |n| Grammar::Regex("{".repeat(n))),
            ("braces and digits", |n| Grammar::Regex("{1".repeat(n / 2))),
            ("digits", |n| Grammar::Regex(format!("{{{}", "1,".repeat(n / 2)))),
            ("classes", |n| Grammar::Regex("[a]".repeat(n / 3))),
            ("braces in Lark", |n| Grammar::Lark("{".repeat(n))),
            ("opened special tokens", |n| Grammar::Lark("<".repeat(n))),
            ("keywords", |n| Grammar::Lark("%json {} ".repeat(n / 9))),
            ("expressions", |n| Grammar::Lark("/a{1}/ ".repeat(n / 7))),
            ("comments", |n| Grammar::Lark("#\n".repeat(n / 2))),
            ("names", |n| Grammar::Lark(format!("a: {}", "b ".repeat(n / 2)))),
        ];
        for (name, make) in grammars {
            let (once, often) = (make(unit), make(4 * unit));
            let time = |grammar: &Grammar| fastest(|| drop(check(grammar)));
            let (short, long) = (time(&once), time(&often));
            assert!(long < short * 10 + Duration::from_millis(20), "{name}: {short:?}, then {long:?}");
        }
    }

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
            let time = fastest(|| drop(SchemaBudget::default().take(&schema)));
            assert!(time < Duration::from_secs(2), "{time:?}");
        }
    }
}
