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

/// Characters of an expression whose repetitions are written out.
const LONGEST_EXPANDED: u64 = 100_000;

/// Keywords of JSON schema that count something.
const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

/// Refuses what is too large to be compiled. Returns the grammar's text, by which it is known.
pub(super) fn check(grammar: &Grammar) -> Result<String, GrammarError> {
    let text = match grammar {
        Grammar::Json(schema) => {
            whole_schema_within(schema)?;
            schema.to_string()
        }
        // The rules are the server's own.
        Grammar::Calls { rules, schemas, answer } => {
            let mut text = rules.clone();
            let schemas = schemas.iter().map(|(name, schema)| (name.as_str(), schema));
            for (name, schema) in schemas.chain(answer.iter().map(|schema| ("answer", schema))) {
                whole_schema_within(schema)?;
                text += &format!("{name}: {schema}\n");
            }
            text
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

fn whole_schema_within(schema: &Value) -> Result<(), GrammarError> {
    schema_within(schema, DEEPEST, &mut 0)?;
    intersections::within(schema)
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

/// Bounds nesting and counted repetitions, the latter also when they multiply. It need not understand the expression: a
/// grammar's texts are taken for expressions as well, and lines stand for themselves.
fn expression_within(text: &str) -> Result<(), GrammarError> {
    // How long each open group is when its repetitions are written out, and the last part of it.
    let (mut groups, mut last, mut classes) = (vec![0u64], 0u64, 0usize);
    let mut rest = text.char_indices();
    while let Some((at, character)) = rest.next() {
        match character {
            '\\' => {
                rest.next();
                last = 0;
            }
            '[' => classes += 1,
            ']' if classes > 0 => {
                classes -= 1;
                last = 0;
            }
            '\n' => {
                groups.truncate(1);
                classes = 0;
            }
            _ if classes > 0 => {}
            '(' => groups.push(0),
            ')' if groups.len() > 1 => {
                last = groups.pop().unwrap_or_default();
                add(&mut groups, last);
            }
            '{' => {
                let inner = text[at + 1..].split('}').next().unwrap_or_default();
                let most = inner.split([',', '.']).filter_map(|n| n.trim().parse::<u64>().ok()).max();
                if let Some(most) = most {
                    if most > MOST_REPEATED {
                        return Err(too_complex(format!("a count of more than {MOST_REPEATED}")));
                    }
                    let before = last;
                    last = before.max(1).saturating_mul(most);
                    add(&mut groups, last.saturating_sub(before));
                    // What is counted is not a part itself.
                    rest.nth(inner.chars().count());
                }
            }
            _ => last = 0,
        }
        if groups.len() + classes > MOST_BRACKETS {
            return Err(too_complex(format!("more than {MOST_BRACKETS} brackets within brackets")));
        }
        if groups.iter().any(|&length| length > LONGEST_EXPANDED) {
            return Err(too_complex(format!("repetitions of more than {LONGEST_EXPANDED} characters")));
        }
    }
    Ok(())
}

fn add(groups: &mut [u64], length: u64) {
    if let Some(group) = groups.last_mut() {
        *group = group.saturating_add(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_within_the_bounds() {
        let date = r"^[0-9]{4}-(0[1-9]|1[0-2])-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$";
        for expression in [
            r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            date,
            r"[a-z]{1,64}@[a-z]{1,100}\.[a-z]{2,50}",
            "(\\w{1,30} ){1,200}",
            "[^]]{3}[[a-z]&&[^b]]",
            r"\{\(\[",
        ] {
            assert_eq!(expression_within(expression), Ok(()), "{expression}");
        }
        let words = (0..5000).map(|i| format!("word{i}")).collect::<Vec<_>>().join("|");
        assert_eq!(expression_within(&words), Ok(()));
    }

    #[test]
    fn what_multiplies_is_not() {
        for expression in [
            "a{10001}",
            "((a{30}){30}){30}{30}",
            "(((a{99}){99}){99})",
            "(?:(?:ab){500}){500}",
            "x{9999}{9999}",
        ] {
            assert!(
                matches!(expression_within(expression), Err(GrammarError::TooComplex(_))),
                "{expression}"
            );
        }
        assert!(expression_within(&"(".repeat(65)).is_err());
        assert!(expression_within(&"[".repeat(65)).is_err());
        assert_eq!(expression_within(&"(\n".repeat(65)), Ok(()));
    }
}
