//! Fields that are not served: which of them are refused, and which are accepted and named in the
//! header `x-millrace-ignored` of the response.
//!
//! A field that would change the answer is refused, since the client would otherwise get a wrong
//! answer without an error. A hint, such as `service_tier`, is accepted.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::chat::IgnoredFields;

/// The header with the names of the fields that had no effect, separated by `, `.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-millrace-ignored");

/// A known field that is not served.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnservedField {
    name: &'static str,
    /// Values, written as JSON, that have no effect in the original API either.
    neutral: &'static [&'static str],
    effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// The field would change the answer.
    Refused,
    /// The field cannot change the answer.
    Hint,
}

/// A field that is refused, unless its value is null or one of `neutral`.
pub(super) const fn refused(name: &'static str, neutral: &'static [&'static str]) -> UnservedField {
    UnservedField { name, neutral, effect: Effect::Refused }
}

/// A field that is accepted, and named in the header unless its value is null or one of `neutral`.
pub(super) const fn hint(name: &'static str, neutral: &'static [&'static str]) -> UnservedField {
    UnservedField { name, neutral, effect: Effect::Hint }
}

/// Checks the fields of a request that its type does not have: refuses those that `table` refuses,
/// and notes all others whose values are not neutral, hints as well as unknown fields.
///
/// # Errors
/// The name of the first field that is refused.
pub(super) fn check_fields<'a>(
    table: &[UnservedField],
    rest: &'a Map<String, Value>,
    ignored: &mut IgnoredFields,
) -> Result<(), &'a str> {
    for (name, value) in rest.iter().filter(|(_, value)| !value.is_null()) {
        let known = table.iter().find(|field| field.name == name);
        if known.is_some_and(|field| field.neutral.iter().any(|neutral| is_neutral(value, neutral))) {
            continue;
        }
        if known.is_some_and(|field| field.effect == Effect::Refused) {
            return Err(name);
        }
        ignored.note(name);
    }
    Ok(())
}

/// Adds the header with the names, unless there are none.
pub(super) fn write_header(ignored: &IgnoredFields, headers: &mut HeaderMap) {
    let names = ignored.names();
    if names.is_empty() {
        return;
    }
    if let Ok(value) = HeaderValue::from_str(&names.join(", ")) {
        headers.insert(HEADER, value);
    }
}

/// Returns whether a value equals `neutral`, a short JSON text. Long values are not compared.
fn is_neutral(value: &Value, neutral: &str) -> bool {
    match value {
        Value::Array(list) if list.len() > 4 => false,
        Value::Object(map) if map.len() > 4 => false,
        Value::String(text) if text.len() > neutral.len() => false,
        value => serde_json::from_str::<Value>(neutral).is_ok_and(|neutral| neutral == *value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TABLE: &[UnservedField] =
        &[refused("audio", &[]), refused("echo", &["false"]), hint("service_tier", &["\"auto\""])];

    fn check(rest: Value) -> Result<Option<String>, String> {
        let Value::Object(rest) = rest else { unreachable!("the tests have objects") };
        let mut ignored = IgnoredFields::default();
        check_fields(TABLE, &rest, &mut ignored).map_err(str::to_owned)?;
        let mut headers = HeaderMap::new();
        write_header(&ignored, &mut headers);
        Ok(headers.get(HEADER).map(|value| value.to_str().unwrap_or("not text").to_owned()))
    }

    #[test]
    fn fields_that_change_the_answer_are_refused_and_hints_are_named() {
        assert_eq!(check(json!({"audio": {}})), Err("audio".into()));
        assert_eq!(check(json!({"echo": true})), Err("echo".into()));
        assert_eq!(check(json!({"echo": false, "audio": null, "service_tier": "auto"})), Ok(None));
        let hints = json!({"service_tier": "flex", "unknown": 1, "echo": false});
        assert_eq!(check(hints), Ok(Some("service_tier, unknown".into())));
    }

    #[test]
    fn the_header_is_short_and_only_has_plain_names() {
        let many: Map<String, Value> = (0..1000).map(|i| (format!("field{i}"), json!(1))).collect();
        let header = check(Value::Object(many)).unwrap_or_default().unwrap_or_default();
        assert_eq!(header.split(", ").count(), 32);
        assert_eq!(check(json!({"a\r\nset-cookie: b": 1, "": 1})), Ok(None));
        assert_eq!(check(json!({"x".repeat(65): 1})), Ok(None));
    }
}
