//! The arguments of earlier tool calls.

use serde_json::{Map, Value};

/// Returns the arguments of an earlier call as an object, which is what templates write. Absent and
/// empty arguments are an object without fields.
///
/// # Errors
/// The text says what is wrong and continues a sentence that begins with the name of the field.
pub(crate) fn call_arguments(arguments: &Value) -> Result<Value, String> {
    const NO_OBJECT: &str = "must be a JSON object, or the text of one";
    let parsed = match arguments {
        Value::String(text) if text.trim().is_empty() => Value::Null,
        Value::String(text) => serde_json::from_str(text).map_err(|error| format!("{NO_OBJECT}: {error}"))?,
        other => other.clone(),
    };
    match parsed {
        Value::Null => Ok(Map::new().into()),
        Value::Object(_) => Ok(parsed),
        _ => Err(NO_OBJECT.into()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_arguments_are_an_empty_object() {
        for nothing in [json!(""), json!(" \n"), json!(null), json!("null"), json!({}), json!("{}")] {
            assert_eq!(call_arguments(&nothing), Ok(json!({})), "{nothing}");
        }
        let object = json!({"b": 1, "a": {"c": [2]}});
        assert_eq!(call_arguments(&object), Ok(object.clone()));
        assert_eq!(call_arguments(&object.to_string().into()), Ok(object));
    }

    #[test]
    fn other_values_and_half_json_are_refused() {
        for wrong in [json!([1]), json!(1), json!(true), json!("[1]"), json!("1"), json!("\"a\"")] {
            assert!(call_arguments(&wrong).unwrap_err().starts_with("must be"), "{wrong}");
        }
        let half = call_arguments(&json!("{\"city\": \"Par")).unwrap_err();
        assert!(half.contains("EOF"), "{half}");
    }
}
