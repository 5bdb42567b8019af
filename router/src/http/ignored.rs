//! Fields of a request that Millrace does not act on: which of them are refused, and which are
//! accepted and named in the header `x-millrace-ignored` of the answer.
//!
//! A field that would change what the model says is refused, since an answer without its effect
//! would be wrong without a word. A hint, such as `service_tier`, is accepted.

use std::collections::BTreeSet;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value};

use crate::service::Prepared;

/// Names the fields of the request that had no effect, separated by `, `.
pub(super) const HEADER: HeaderName = HeaderName::from_static("x-millrace-ignored");

/// At most so many names are kept. A request may have a million unknown fields.
const MOST: usize = 32;
/// Names of more bytes than this are not repeated.
const LONGEST: usize = 64;

/// A field that is known and not served.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unserved {
    name: &'static str,
    /// Values, written as JSON, that ask for nothing.
    neutral: &'static [&'static str],
    effect: Effect,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// It would change the answer.
    Refused,
    /// It cannot change what the model says.
    Hint,
}

/// A field that is refused unless its value is null or one of `neutral`.
pub(super) const fn refused(name: &'static str, neutral: &'static [&'static str]) -> Unserved {
    Unserved { name, neutral, effect: Effect::Refused }
}

/// A field that is accepted, and named in the header unless its value is null or one of `neutral`.
pub(super) const fn hint(name: &'static str, neutral: &'static [&'static str]) -> Unserved {
    Unserved { name, neutral, effect: Effect::Hint }
}

/// The names of fields that were accepted and had no effect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::http) struct Ignored(BTreeSet<String>);

impl Ignored {
    /// Adds a field by the path that it has in the request, such as `text.verbosity`. Names that are no plain identifiers
    /// and names beyond the first 32 are left out.
    pub(super) fn note(&mut self, field: &str) {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.[]$".contains(&byte);
        if self.0.len() < MOST && !field.is_empty() && field.len() <= LONGEST && field.bytes().all(plain) {
            self.0.insert(field.to_owned());
        }
    }

    /// Adds the keywords of a request's schemas that do not bind its answer.
    pub(super) fn note_unenforced(&mut self, prepared: &Prepared) {
        prepared.unenforced().iter().for_each(|field| self.note(field));
    }

    /// Goes through the fields of a request that no type of ours has: refuses what `table` refuses, and notes everything
    /// else that is not neutral, hints as well as fields that nobody knows.
    ///
    /// # Errors
    /// The name of the first field that is refused.
    pub(super) fn check<'a>(
        &mut self,
        table: &[Unserved],
        rest: &'a Map<String, Value>,
    ) -> Result<(), &'a str> {
        for (name, value) in rest.iter().filter(|(_, value)| !value.is_null()) {
            let known = table.iter().find(|field| field.name == name);
            if known.is_some_and(|field| field.neutral.iter().any(|neutral| is(value, neutral))) {
                continue;
            }
            if known.is_some_and(|field| field.effect == Effect::Refused) {
                return Err(name);
            }
            self.note(name);
        }
        Ok(())
    }

    /// Adds the header, unless nothing was ignored.
    pub(super) fn write(&self, headers: &mut HeaderMap) {
        if self.0.is_empty() {
            return;
        }
        let names: Vec<&str> = self.0.iter().map(String::as_str).collect();
        if let Ok(value) = HeaderValue::from_str(&names.join(", ")) {
            headers.insert(HEADER, value);
        }
    }
}

/// Whether a value is this short JSON text. A long value is not written out for that.
fn is(value: &Value, neutral: &str) -> bool {
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

    const TABLE: &[Unserved] =
        &[refused("audio", &[]), refused("echo", &["false"]), hint("service_tier", &["\"auto\""])];

    fn check(rest: Value) -> Result<Option<String>, String> {
        let Value::Object(rest) = rest else { unreachable!("the tests have objects") };
        let mut ignored = Ignored::default();
        ignored.check(TABLE, &rest).map_err(str::to_owned)?;
        let mut headers = HeaderMap::new();
        ignored.write(&mut headers);
        Ok(headers.get(HEADER).map(|value| value.to_str().unwrap_or("not text").to_owned()))
    }

    #[test]
    fn what_changes_the_answer_is_refused_and_hints_are_named() {
        assert_eq!(check(json!({"audio": {}})), Err("audio".into()));
        assert_eq!(check(json!({"echo": true})), Err("echo".into()));
        assert_eq!(check(json!({"echo": false, "audio": null, "service_tier": "auto"})), Ok(None));
        let hints = json!({"service_tier": "flex", "unknown": 1, "echo": false});
        assert_eq!(check(hints), Ok(Some("service_tier, unknown".into())));
    }

    #[test]
    fn the_header_is_short_and_has_plain_names_only() {
        let many: Map<String, Value> = (0..1000).map(|i| (format!("field{i}"), json!(1))).collect();
        let header = check(Value::Object(many)).unwrap_or_default().unwrap_or_default();
        assert_eq!(header.split(", ").count(), MOST);
        assert_eq!(check(json!({"a\r\nset-cookie: b": 1, "": 1})), Ok(None));
        assert_eq!(check(json!({"x".repeat(65): 1})), Ok(None));
    }
}
