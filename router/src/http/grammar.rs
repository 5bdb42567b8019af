//! Grammars in the forms that requests have for them.

use millrace_answers::grammar::{self, Grammar};
use serde_json::{Value, json};

/// TGI's error for a value that is not a schema.
const NOT_SUPPORTED: &str = "grammar is not supported";

/// Reads a grammar in TGI's form, `{"type", "value"}`. The types are `json` (or `json_object`),
/// `json_schema`, `regex`, and as extensions `lark`, `gbnf` and `ebnf`.
///
/// # Errors
/// A text for the client that says what is wrong.
pub(super) fn from_tgi(grammar: &Value) -> Result<Grammar, String> {
    let value = grammar.get("value").unwrap_or(&Value::Null);
    match (grammar["type"].as_str(), value) {
        (Some("json" | "json_object"), value) => schema(value).map(Grammar::Json),
        (Some("json_schema"), value) => match value.get("schema") {
            Some(inner) => schema(inner).map(Grammar::Json),
            None => Err("grammar is not valid: a json_schema needs a `schema`".into()),
        },
        (Some("regex"), Value::String(expression)) => Ok(Grammar::Regex(expression.clone())),
        (Some("lark"), Value::String(text)) => from_text(text),
        (Some("gbnf" | "ebnf"), Value::String(text)) => grammar::to_lark(text).map(Grammar::Lark),
        (Some("regex" | "lark" | "gbnf" | "ebnf"), _) => {
            Err("grammar is not valid: the `value` must be a text".into())
        }
        _ => Err("grammar is not valid: the `type` must be json, json_schema, regex, lark or gbnf".into()),
    }
}

/// Reads a grammar in Lark's language or in GBNF, which its first rule shows.
///
/// # Errors
/// A text for the client that says what is wrong.
pub(super) fn from_text(text: &str) -> Result<Grammar, String> {
    match grammar::is_gbnf(text) {
        true => grammar::to_lark(text).map(Grammar::Lark),
        false => Ok(Grammar::Lark(text.to_owned())),
    }
}

/// Returns a schema, which is an object or the text of one.
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

/// Reads a grammar in OpenAI's form, `response_format`, or in TGI's. Returns `None` if the answer
/// is plain text.
///
/// # Errors
/// A text for the client that says what is wrong.
pub(super) fn from_response_format(format: &Value) -> Result<Option<Grammar>, String> {
    match (format["type"].as_str(), format.get("json_schema"), format.get("schema")) {
        (Some("text"), _, _) => Ok(None),
        (Some("json_schema"), Some(named), _) => match named.get("schema") {
            Some(inner @ Value::Object(_)) => Ok(Some(Grammar::Json(inner.clone()))),
            _ => Err("`response_format.json_schema` must have an object as its `schema`".into()),
        },
        // The form of other servers.
        (Some("json_object" | "json_schema"), None, Some(inner @ Value::Object(_))) => {
            Ok(Some(Grammar::Json(inner.clone())))
        }
        (Some("json_object"), _, _) if format.get("value").is_none_or(Value::is_null) => {
            Ok(Some(Grammar::Json(json!({"type": "object"}))))
        }
        (Some("json" | "json_object" | "json_schema" | "regex" | "lark" | "gbnf" | "ebnf"), _, _) => {
            from_tgi(format).map(Some)
        }
        _ => Err("`response_format.type` must be text, json_object or json_schema".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_grammar_is_read() {
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
            assert_eq!(from_response_format(&format), Ok(same.clone()), "{format}");
        }
        let any = Some(Grammar::Json(json!({"type": "object"})));
        assert_eq!(from_response_format(&json!({"type": "json_object"})), Ok(any));
        assert_eq!(from_response_format(&json!({"type": "text"})), Ok(None));
        let regex = json!({"type": "regex", "value": "a+"});
        assert_eq!(from_response_format(&regex), Ok(Some(Grammar::Regex("a+".into()))));
        assert_eq!(from_tgi(&regex), Ok(Grammar::Regex("a+".into())));
        assert_eq!(
            from_tgi(&json!({"type": "lark", "value": "start: A"})),
            Ok(Grammar::Lark("start: A".into()))
        );
    }

    #[test]
    fn gbnf_is_translated() {
        let gbnf = "root ::= \"a\" | \"b\"";
        let translated = from_text(gbnf);
        assert!(
            matches!(&translated, Ok(Grammar::Lark(text)) if text.starts_with("start: ")),
            "{translated:?}"
        );
        for kind in ["gbnf", "ebnf", "lark"] {
            assert_eq!(from_tgi(&json!({"type": kind, "value": gbnf})), translated, "{kind}");
        }
        let error = from_tgi(&json!({"type": "gbnf", "value": "start: A"})).unwrap_err();
        assert!(error.starts_with("grammar is not valid: line 1: expected `::=`"), "{error}");
    }

    #[test]
    fn errors_are_worded_like_those_of_tgi() {
        for (grammar, reason) in [
            (json!({"type": "json", "value": 5}), "grammar is not supported"),
            (json!({"type": "json", "value": "[]"}), "grammar is not supported"),
            (json!({"type": "json"}), "grammar is not supported"),
            (json!({"type": "json", "value": "{"}), "grammar is not valid: EOF while parsing"),
            (json!({"type": "json_schema", "value": {}}), "grammar is not valid: a json_schema needs"),
            (json!({"type": "regex", "value": 5}), "grammar is not valid: the `value`"),
            (json!({"type": "nonsense", "value": "a"}), "grammar is not valid: the `type`"),
            (json!("regex"), "grammar is not valid: the `type`"),
        ] {
            let error = from_tgi(&grammar).unwrap_err();
            assert!(error.starts_with(reason), "{grammar}: {error}");
        }
        for format in
            [json!({}), json!(5), json!({"type": "yaml"}), json!({"type": "json_schema", "json_schema": {}})]
        {
            assert!(from_response_format(&format).unwrap_err().contains("response_format"), "{format}");
        }
    }
}
