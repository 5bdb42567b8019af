//! What is too large before it is even tried: compiling takes time and memory in proportion to what is asked for, and a few
//! bytes can ask for a lot.

use serde_json::Value;

use super::{Grammar, GrammarError, intersections};

/// Bytes of a grammar's text, or of a schema written as JSON.
const MOST_BYTES: usize = 256 << 10;
/// Levels of a schema's objects and lists.
const DEEPEST: usize = 64;
/// Values in a schema.
const MOST_VALUES: usize = 20_000;
/// Brackets within brackets in a regular expression or Lark grammar.
const MOST_BRACKETS: usize = 64;
/// The largest count of a repetition: characters of a string, items of a list, `{n}` in an expression.
const MOST_REPEATED: u64 = 10_000;

/// Keywords of JSON schema that count something.
const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

/// Refuses what is too large to be compiled. Returns the grammar's text, by which it is known.
pub(super) fn check(grammar: &Grammar) -> Result<String, GrammarError> {
    let text = match grammar {
        Grammar::Json(schema) => {
            let mut values = 0;
            schema_within(schema, DEEPEST, &mut values)?;
            intersections::within(schema)?;
            schema.to_string()
        }
        Grammar::Regex(text) => {
            expression_within(text)?;
            text.clone()
        }
        Grammar::Lark(text) => {
            expression_within(text)?;
            if text.matches('&').count() > intersections::MOST {
                return Err(intersections::too_many());
            }
            text.clone()
        }
    };
    if text.len() > MOST_BYTES {
        return Err(too_complex(format!("{} bytes; at most {MOST_BYTES} are compiled", text.len())));
    }
    Ok(text)
}

pub(super) fn too_complex(why: impl Into<String>) -> GrammarError {
    GrammarError::TooComplex(why.into())
}

fn schema_within(schema: &Value, depth: usize, values: &mut usize) -> Result<(), GrammarError> {
    let Some(depth) = depth.checked_sub(1) else {
        return Err(too_complex(format!("the schema is more than {DEEPEST} levels deep")));
    };
    *values += 1;
    if *values > MOST_VALUES {
        return Err(too_complex(format!("the schema has more than {MOST_VALUES} values")));
    }
    match schema {
        Value::Array(items) => items.iter().try_for_each(|item| schema_within(item, depth, values)),
        Value::Object(fields) => fields.iter().try_for_each(|(name, value)| {
            let counts = COUNTS.contains(&name.as_str());
            if counts && value.as_f64().is_some_and(|count| count > MOST_REPEATED as f64) {
                return Err(too_complex(format!("`{name}` is more than {MOST_REPEATED}")));
            }
            match (name.as_str(), value) {
                ("pattern", Value::String(pattern)) => expression_within(pattern)?,
                ("patternProperties", Value::Object(patterns)) => {
                    patterns.keys().try_for_each(|pattern| expression_within(pattern))?;
                }
                _ => {}
            }
            schema_within(value, depth, values)
        }),
        _ => Ok(()),
    }
}

/// Bounds nesting and counted repetitions, the latter also when they multiply. It need not understand the expression:
/// what looks like a bracket and is none only makes it stricter.
fn expression_within(text: &str) -> Result<(), GrammarError> {
    let mut depth = 0usize;
    // What the repetitions that follow one another without a space may multiply to.
    let mut product = 1u64;
    let mut rest = text.char_indices();
    while let Some((at, character)) = rest.next() {
        match character {
            '\\' => drop(rest.next()),
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '{' => {
                let inner = text[at + 1..].split('}').next().unwrap_or_default();
                let most = inner.split([',', '.']).filter_map(|n| n.trim().parse::<u64>().ok()).max();
                if let Some(most) = most {
                    product = product.saturating_mul(most.max(1));
                    if product > MOST_REPEATED {
                        return Err(too_complex(format!(
                            "an expression repeats something more than {MOST_REPEATED} times"
                        )));
                    }
                }
            }
            '\n' | '|' => product = 1,
            _ => {}
        }
        if depth > MOST_BRACKETS {
            return Err(too_complex(format!("more than {MOST_BRACKETS} brackets within brackets")));
        }
    }
    Ok(())
}
