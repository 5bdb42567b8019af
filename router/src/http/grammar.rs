//! Grammars as requests write them.

use serde_json::{Value, json};

use crate::grammar::Grammar;

/// Why a grammar in a request is none, in TGI's words.
pub(super) const NOT_SUPPORTED: &str = "grammar is not supported";

/// TGI's shape: `{"type", "value"}`, with `json` (or `json_object`), `json_schema` and `regex`; `lark` is an extension.
///
/// # Errors
/// What is wrong with it.
pub(super) fn tgi(grammar: &Value) -> Result<Grammar, String> {
    let value = grammar.get("value").unwrap_or(&Value::Null);
    match (grammar["type"].as_str(), value) {
        (Some("json" | "json_object"), value) => schema(value).map(Grammar::Json),
        (Some("json_schema"), value) => match value.get("schema") {
            Some(inner) => schema(inner).map(Grammar::Json),
            None => Err("grammar is not valid: a json_schema needs a `schema`".into()),
        },
        (Some("regex"), Value::String(expression)) => Ok(Grammar::Regex(expression.clone())),
        (Some("lark"), Value::String(text)) => Ok(Grammar::Lark(text.clone())),
        (Some("regex" | "lark"), _) => Err("grammar is not valid: the `value` must be a text".into()),
        _ => Err("grammar is not valid: the `type` must be json, json_schema, regex or lark".into()),
    }
}

/// A schema as an object, or as JSON in a text.
fn schema(value: &Value) -> Result<Value, String> {
    match value {
        Value::Object(_) => Ok(value.clone()),
        Value::String(text) => match serde_json::from_str(text) {
            Ok(schema @ Value::Object(_)) => Ok(schema),
            Ok(_) => Err(NOT_SUPPORTED.into()),
            Err(error) => Err(format!("grammar is not valid: {error}")),
        },
        _ => Err(NOT_SUPPORTED.into()),
    }
}

/// OpenAI's `response_format`; TGI's shapes are understood as well. Nothing for a text without form.
///
/// # Errors
/// What is wrong with it.
pub(super) fn response_format(format: &Value) -> Result<Option<Grammar>, String> {
    match (format["type"].as_str(), format.get("json_schema"), format.get("schema")) {
        (Some("text"), _, _) => Ok(None),
        (Some("json_schema"), Some(named), _) => match named.get("schema") {
            Some(inner @ Value::Object(_)) => Ok(Some(Grammar::Json(inner.clone()))),
            _ => Err("`response_format.json_schema` must have a `schema`, which is an object".into()),
        },
        // As other servers take it.
        (Some("json_object" | "json_schema"), None, Some(inner @ Value::Object(_))) => {
            Ok(Some(Grammar::Json(inner.clone())))
        }
        (Some("json_object"), _, _) if format.get("value").is_none_or(Value::is_null) => {
            Ok(Some(Grammar::Json(json!({"type": "object"}))))
        }
        (Some("json" | "json_object" | "json_schema" | "regex" | "lark"), _, _) => tgi(format).map(Some),
        _ => Err("`response_format.type` must be text, json_object or json_schema".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_is_understood() {
        let object = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let same = Some(Grammar::Json(object.clone()));
        let text = object.to_string();
        for format in [
            json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": object}}),
            json!({"type": "json_schema", "value": {"name": "n", "schema": object}}),
            json!({"type": "json_schema", "value": {"schema": text}}),
            json!({"type": "json_schema", "schema": object}),
            json!({"type": "json_object", "schema": object}),
            json!({"type": "json_object", "value": object}),
            json!({"type": "json", "value": object}),
            json!({"type": "json", "value": text}),
        ] {
            assert_eq!(response_format(&format), Ok(same.clone()), "{format}");
        }
        let any = Some(Grammar::Json(json!({"type": "object"})));
        assert_eq!(response_format(&json!({"type": "json_object"})), Ok(any));
        assert_eq!(response_format(&json!({"type": "text"})), Ok(None));
        let regex = json!({"type": "regex", "value": "a+"});
        assert_eq!(response_format(&regex), Ok(Some(Grammar::Regex("a+".into()))));
        assert_eq!(tgi(&regex), Ok(Grammar::Regex("a+".into())));
        assert_eq!(tgi(&json!({"type": "lark", "value": "start: A"})), Ok(Grammar::Lark("start: A".into())));
    }

    #[test]
    fn what_is_wrong_is_said_as_tgi_says_it() {
        for (grammar, why) in [
            (json!({"type": "json", "value": 5}), "grammar is not supported"),
            (json!({"type": "json", "value": "[]"}), "grammar is not supported"),
            (json!({"type": "json"}), "grammar is not supported"),
            (json!({"type": "json", "value": "{"}), "grammar is not valid: EOF while parsing"),
            (json!({"type": "json_schema", "value": {}}), "grammar is not valid: a json_schema needs"),
            (json!({"type": "regex", "value": 5}), "grammar is not valid: the `value`"),
            (json!({"type": "nonsense", "value": "a"}), "grammar is not valid: the `type`"),
            (json!("regex"), "grammar is not valid: the `type`"),
        ] {
            let error = tgi(&grammar).unwrap_err();
            assert!(error.starts_with(why), "{grammar}: {error}");
        }
        for format in
            [json!({}), json!(5), json!({"type": "yaml"}), json!({"type": "json_schema", "json_schema": {}})]
        {
            assert!(response_format(&format).unwrap_err().contains("response_format"), "{format}");
        }
    }
}
