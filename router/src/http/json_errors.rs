//! Errors of request bodies whose fields have the wrong types, in the terms of JSON.
//!
//! serde describes such an error in the terms of Rust (`expected u32`) and gives its place in the
//! body as a line and a column. Clients get the name of the field instead.

use std::error::Error as _;

use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error as _};
use serde_json::Value;

/// An error with the path of a field in the body.
type PathError = serde_path_to_error::Error<serde_json::Error>;

/// Surrounds the path of a field that is flattened into a request. It is no part of any JSON text.
const MARK: char = '\u{1}';
/// Characters of the longest path that an error shows.
const MAX_PATH: usize = 128;

/// The reason why a body is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BodyError {
    pub(super) status: StatusCode,
    /// The error for the client.
    pub(super) message: String,
    /// The path of the field that is wrong, if the error is about one.
    pub(super) param: Option<String>,
}

/// Deserializes the fields that are flattened into a request. serde forgets the path of such
/// fields, so this function adds it to the error.
///
/// # Errors
/// The error of the field, which [`BodyError`] can read.
pub(super) fn flattened<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    serde_path_to_error::deserialize(deserializer).map_err(|error| {
        let path = error.path().to_string();
        D::Error::custom(format!("{MARK}{path}{MARK}{}", error.into_inner()))
    })
}

/// Converts a body that has been parsed already.
///
/// # Errors
/// The error names the field that is wrong.
pub(super) fn typed<T: DeserializeOwned>(body: Value) -> Result<T, BodyError> {
    serde_path_to_error::deserialize(body).map_err(|error| BodyError::of_type(&error))
}

impl From<JsonRejection> for BodyError {
    fn from(rejection: JsonRejection) -> Self {
        let about_type = match &rejection {
            JsonRejection::JsonDataError(error) => {
                let mut cause = error.source();
                while let Some(other) = cause.filter(|cause| !cause.is::<PathError>()) {
                    cause = other.source();
                }
                cause.and_then(|cause| cause.downcast_ref::<PathError>())
            }
            _ => None,
        };
        match about_type {
            Some(error) => Self::of_type(error),
            None => BodyError { status: rejection.status(), message: rejection.body_text(), param: None },
        }
    }
}

impl BodyError {
    /// The error of a body that is JSON and has fields of wrong types. OpenAI and Anthropic answer
    /// it like a text that is no JSON.
    fn of_type(error: &PathError) -> Self {
        let text = error.inner().to_string();
        let (path, text) = match text.strip_prefix(MARK).and_then(|rest| rest.split_once(MARK)) {
            Some((path, text)) => (path.to_owned(), text),
            None => (error.path().to_string(), text.as_str()),
        };
        let (path, message) = describe(if path == "." { "" } else { &path }, without_place(text));
        let param = Some(path).filter(|path| !path.is_empty());
        BodyError { status: StatusCode::BAD_REQUEST, message, param }
    }
}

/// Returns the path of the field that is wrong, and the error for the client.
fn describe(path: &str, text: &str) -> (String, String) {
    let field = |prefix: &str| text.strip_prefix(prefix).and_then(|rest| rest.split('`').next());
    if let Some(missing) = field("missing field `") {
        let path = joined(path, missing);
        let message = format!("`{path}` is required");
        return (path, message);
    }
    if let Some(twice) = field("duplicate field `") {
        let path = joined(path, twice);
        let message = format!("`{path}` is given twice");
        return (path, message);
    }
    let path = shortened(path);
    let name = if path.is_empty() { "the body".to_owned() } else { format!("`{path}`") };
    let mismatch = text.strip_prefix("invalid type: ").or_else(|| text.strip_prefix("invalid value: "));
    let message = if let Some((found, expected)) = mismatch.and_then(|rest| rest.rsplit_once(", expected ")) {
        format!("{name} must be {}, not {}", expectation(expected, found), kind(found, expected))
    } else if let Some((_, known)) =
        text.strip_prefix("unknown variant `").and_then(|rest| rest.rsplit_once("`, expected "))
    {
        format!("{name} must be {known}")
    } else if text.starts_with("data did not match any variant") {
        format!("{name} has a value of the wrong type")
    } else if text.contains('`') {
        // The error is a sentence of this server that names the field.
        text.to_owned()
    } else {
        format!("{name}: {text}")
    };
    (path, message)
}

/// Returns the path of a field of an object.
fn joined(path: &str, field: &str) -> String {
    shortened(&if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") })
}

/// Returns the beginning of a path, in which a client may have keys of any length.
fn shortened(path: &str) -> String {
    path.chars().take(MAX_PATH).collect()
}

/// Removes the line and the column from the end of an error.
fn without_place(text: &str) -> &str {
    let place = text.rfind(" at line ").filter(|&at| {
        let numbers = text[at + " at line ".len()..].split(" column ");
        numbers.clone().count() == 2 && numbers.into_iter().all(|number| number.parse::<usize>().is_ok())
    });
    place.map_or(text, |at| &text[..at])
}

/// The types of numbers, with the least and the greatest number of those that are whole.
const INTEGERS: [(&str, i128, i128); 8] = [
    ("u8", 0, u8::MAX as i128),
    ("u16", 0, u16::MAX as i128),
    ("u32", 0, u32::MAX as i128),
    ("u64", 0, u64::MAX as i128),
    ("usize", 0, usize::MAX as i128),
    ("i32", i32::MIN as i128, i32::MAX as i128),
    ("i64", i64::MIN as i128, i64::MAX as i128),
    ("isize", isize::MIN as i128, isize::MAX as i128),
];

fn is_number(expected: &str) -> bool {
    matches!(expected, "f32" | "f64") || INTEGERS.iter().any(|(name, ..)| *name == expected)
}

/// Describes the type that a field must have.
fn expectation(expected: &str, found: &str) -> String {
    if let Some((_, least, greatest)) = INTEGERS.iter().find(|(name, ..)| *name == expected) {
        return match (found.starts_with("integer "), *least) {
            (true, least) => format!("a whole number from {least} to {greatest}"),
            (false, 0) => "a whole number of at least 0".into(),
            (false, _) => "a whole number".into(),
        };
    }
    match expected {
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        "a borrowed string" | "string" | "str" => "a string",
        _ if expected.starts_with("struct ") => "an object",
        _ if expected.starts_with("a tuple") || expected.starts_with("tuple") => "a list",
        _ if expected.starts_with("string or map") || expected.starts_with("enum ") => "a string",
        other => other,
    }
    .into()
}

/// Describes the value that was found. Numbers are shown if their size may be what is wrong.
fn kind(found: &str, expected: &str) -> String {
    let number = |text: &str| {
        let text = text.trim_matches('`');
        if is_number(expected) { text.to_owned() } else { "a number".to_owned() }
    };
    if let Some(value) = found.strip_prefix("integer ").or_else(|| found.strip_prefix("floating point ")) {
        return number(value);
    }
    let kinds = [
        ("boolean", "a boolean"),
        ("string", "a string"),
        ("character", "a string"),
        ("number", "a number"),
        ("sequence", "a list"),
        ("map", "an object"),
        ("newtype", "an object"),
    ];
    let kind = kinds.iter().find(|(prefix, _)| found.starts_with(prefix));
    kind.map_or("null", |(_, name)| name).to_owned()
}

#[cfg(test)]
mod tests {
    use axum::Json;
    use serde_json::{Map, json};

    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only errors are of interest")]
    struct Request {
        model: String,
        list: Option<Vec<Inner>>,
        #[serde(flatten, deserialize_with = "flattened")]
        shared: Shared,
        #[serde(flatten)]
        rest: Map<String, Value>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only errors are of interest")]
    struct Shared {
        count: Option<u32>,
        offset: Option<i64>,
        options: Option<Inner>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[expect(dead_code, reason = "only errors are of interest")]
    struct Inner {
        share: f32,
        kind: Option<Kind>,
        on: Option<bool>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        One,
        Two,
    }

    fn error(body: &Value) -> BodyError {
        Json::<Request>::from_bytes(body.to_string().as_bytes())
            .map(|Json(request)| request)
            .map_err(BodyError::from)
            .unwrap_err()
    }

    #[test]
    fn errors_of_types_name_the_field_in_the_terms_of_json() {
        for (more, param, message) in [
            (json!({"model": 5}), "model", "`model` must be a string, not a number"),
            (json!({"model": null}), "model", "`model` must be a string, not null"),
            (json!({"list": {}}), "list", "`list` must be a list, not an object"),
            (json!({"list": [1]}), "list[0]", "`list[0]` must be an object, not a number"),
            (json!({"list": [{}]}), "list[0].share", "`list[0].share` is required"),
            (
                json!({"list": [{"share": "much, expected u32"}]}),
                "list[0].share",
                "`list[0].share` must be a number, not a string",
            ),
            (
                json!({"list": [{"share": 1, "kind": "three"}]}),
                "list[0].kind",
                "`list[0].kind` must be `one` or `two`",
            ),
            (json!({"count": "x"}), "count", "`count` must be a whole number of at least 0, not a string"),
            (json!({"count": 1.5}), "count", "`count` must be a whole number of at least 0, not 1.5"),
            (json!({"count": -1}), "count", "`count` must be a whole number from 0 to 4294967295, not -1"),
            (json!({"offset": []}), "offset", "`offset` must be a whole number, not a list"),
            (
                json!({"options": {"share": 1, "on": "yes"}}),
                "options.on",
                "`options.on` must be true or false, not a string",
            ),
            (json!({"options": {}}), "options.share", "`options.share` is required"),
        ] {
            let mut body = json!({"model": "m"});
            if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more.clone()) {
                body.extend(more);
            }
            let error = error(&body);
            assert_eq!((error.param.as_deref(), error.message.as_str()), (Some(param), message), "{more}");
            assert_eq!(typed::<Request>(body).unwrap_err(), error, "{more}");
        }
        let missing = error(&json!({}));
        assert_eq!(missing.message, "`model` is required");
        let list = error(&json!([]));
        assert_eq!((list.param, list.message.as_str()), (None, "the body must be an object, not a list"));
    }
}
