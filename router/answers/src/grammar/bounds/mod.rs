//! Refuses grammars that are too large before they are compiled.
//!
//! Compiling takes time and memory in proportion to the expanded size of a grammar, and a few bytes
//! can expand to much. The size in bytes is checked first, at almost no cost. All other checks are
//! linear in that size.

mod intersections;
mod lark;
mod regex;
mod schema;

use std::collections::BTreeSet;

use serde_json::Value;

use self::schema::SchemaBudget;
use super::definition::Grammar;
use super::error::GrammarError;
use super::schema::without_broken_tools;

/// The maximum size in bytes of a grammar's text, or of a schema as JSON.
const MAX_GRAMMAR_BYTES: usize = 256 << 10;

/// Refuses a grammar that has too many bytes, and returns the approximate number of bytes
/// otherwise. It stops reading at the limit.
///
/// # Errors
/// [`GrammarError::TooComplex`] if the grammar has too many bytes.
pub(super) fn size_within(grammar: &Grammar) -> Result<usize, GrammarError> {
    let mut left = Some(MAX_GRAMMAR_BYTES);
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
        Grammar::AfterReasoning { answer, .. } => return size_within(answer),
    }
    match left {
        Some(left) => Ok(MAX_GRAMMAR_BYTES - left),
        None => Err(GrammarError::too_complex(format!("more than {MAX_GRAMMAR_BYTES} bytes"))),
    }
}

/// Whether a grammar passes the bounds. The compiler checks the same bounds first; the cost fuzzer
/// measures this check alone.
#[cfg(any(test, feature = "fuzz"))]
pub fn is_within_bounds(grammar: &Grammar) -> bool {
    check(grammar).is_ok()
}

/// Replaces the schemas of tools that exceed the bounds by themselves. Returns the new grammar and
/// the places of these tools, or `None` if there are none.
pub(super) fn without_excessive_tools(grammar: &Grammar) -> Option<(Grammar, BTreeSet<usize>)> {
    let is_within = |schema: &Value| {
        let mut left = Some(MAX_GRAMMAR_BYTES);
        take_value(schema, &mut left);
        left.is_some() && SchemaBudget::of_tools().take(schema).is_ok()
    };
    without_broken_tools(grammar, &is_within)
}

/// Subtracts this many bytes from `left`, which becomes `None` if too few are left.
fn take(bytes: usize, left: &mut Option<usize>) {
    *left = left.and_then(|left| left.checked_sub(bytes));
}

/// Subtracts the bytes of a value as JSON, without escapes.
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
        Grammar::AfterReasoning { answer, .. } => check(answer),
        Grammar::Json(schema) => SchemaBudget::default().take(schema),
        // The rules come from the server and need no bounds.
        Grammar::Calls { schemas, answer, .. } => {
            let mut named = schemas.iter();
            named.try_for_each(|(name, schema)| SchemaBudget::of_tools().take_named(schema, name))?;
            answer.iter().try_for_each(|schema| SchemaBudget::default().take(schema))
        }
        Grammar::Regex(text) => regex::check(text).map(drop),
        Grammar::Lark(text) => lark::check(text),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use millrace_text::thread_time;

    /// Returns the shortest of several CPU times, which other work on the machine disturbs least.
    fn fastest(work: impl Fn()) -> Duration {
        let times = (0..5).map(|_| {
            let since = thread_time();
            work();
            thread_time() - since
        });
        times.min().unwrap_or_default()
    }

    /// Tools that exceed a limit only together are not left out.
    #[test]
    fn a_tool_is_left_out_if_it_exceeds_a_limit_by_itself() {
        let calls = |sizes: [usize; 3]| {
            let schema = |(index, size)| (format!("json_{index}"), json!({"description": "x".repeat(size)}));
            let schemas = sizes.into_iter().enumerate().map(schema).collect();
            Grammar::Calls { rules: "start: json_0 json_1 json_2".into(), schemas, answer: None }
        };
        let (reduced, left_out) = without_excessive_tools(&calls([9, MAX_GRAMMAR_BYTES, 9])).unwrap();
        assert_eq!(left_out, BTreeSet::from([1]));
        assert!(size_within(&reduced).is_ok() && check(&reduced).is_ok());
        let together = calls([MAX_GRAMMAR_BYTES / 2; 3]);
        assert!(size_within(&together).is_err() && without_excessive_tools(&together).is_none());
    }

    #[test]
    fn the_size_is_checked_before_anything_else() {
        let bomb = |size: usize| Grammar::Regex("{".repeat(size));
        for grammar in [
            bomb(1_900_000),
            Grammar::Lark("{".repeat(1_900_000)),
            Grammar::Json(json!({"enum": vec!["x"; 1_000_000]})),
            Grammar::Json(json!({"pattern": "{".repeat(1_900_000)})),
            Grammar::Json(json!(vec![vec![0; 10]; 100_000])),
        ] {
            let (mut refused, grammar) = (Ok(0), &grammar);
            let since = thread_time();
            for _ in 0..10 {
                refused = size_within(grammar);
            }
            let took = thread_time() - since;
            assert!(took < Duration::from_secs(1), "{took:?}");
            assert!(matches!(refused, Err(GrammarError::TooComplex(reason)) if reason.contains("bytes")));
        }
        assert_eq!(size_within(&bomb(1000)), Ok(1000));
    }

    /// Four times the text takes about four times as long. A quadratic check takes 16 times as
    /// long. The factor of 10 tolerates a noisy machine.
    #[test]
    fn every_pass_is_linear() {
        let unit = MAX_GRAMMAR_BYTES / 4;
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
}
