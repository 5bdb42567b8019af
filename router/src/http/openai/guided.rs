//! vLLM's fields for structured output: `structured_outputs`, and the older `guided_json`,
//! `guided_regex`, `guided_choice` and `guided_grammar`.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::error::OpenAiError;
use crate::grammar::{Grammar, Wanted};
use crate::http::grammar;

/// Texts in a `guided_choice`.
const MOST_CHOICES: usize = 1000;

/// The fields as they are flattened into a request: beside `Common`, because serde would give what is flattened into a
/// flattened type to the other parts of the request, too.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct Guided {
    /// vLLM's: a JSON schema, as an object or as a text.
    #[schema(value_type = Option<Object>)]
    guided_json: Option<Value>,
    /// vLLM's: a regular expression.
    guided_regex: Option<String>,
    /// vLLM's: the texts that may be answered.
    guided_choice: Option<Vec<String>>,
    /// vLLM's: a grammar in Lark's language.
    guided_grammar: Option<String>,
    /// vLLM's: an object with one of `json`, `regex`, `choice`, `grammar` and `json_object`.
    #[schema(value_type = Option<Object>)]
    structured_outputs: Option<Map<String, Value>>,
}

/// Parts of `structured_outputs` that change no answer that is valid.
const HARMLESS: &[&str] = &["disable_fallback", "disable_any_whitespace", "_backend", "_backend_was_auto"];

impl Guided {
    /// What the answer must be, if one of the fields says so.
    ///
    /// # Errors
    /// If a field is wrong, or if more than one field says what the answer must be; `format` is what
    /// `response_format` says.
    pub(super) fn wanted(&self, format: Option<Wanted>) -> Result<Option<Wanted>, OpenAiError> {
        let mut all: Vec<Wanted> = format.into_iter().collect();
        let mut add = |field, grammar| all.push(Wanted { grammar, field, optional: false });
        if let Some(schema) = self.guided_json.as_ref().filter(|schema| !schema.is_null()) {
            add("guided_json", json_schema("guided_json", schema)?);
        }
        if let Some(expression) = &self.guided_regex {
            add("guided_regex", Grammar::Regex(expression.clone()));
        }
        if let Some(texts) = &self.guided_choice {
            add("guided_choice", choice("guided_choice", texts)?);
        }
        if let Some(text) = &self.guided_grammar {
            add("guided_grammar", lark("guided_grammar", text)?);
        }
        if let Some(grammar) = self.structured_outputs.as_ref().map(structured).transpose()?.flatten() {
            add(STRUCTURED, grammar);
        }
        if let [first, second, ..] = all.as_slice() {
            let message = format!(
                "`{}` and `{}` both say what the answer must be; give one of them",
                first.field, second.field
            );
            return Err(OpenAiError::invalid(second.field, message));
        }
        Ok(all.pop())
    }
}

const STRUCTURED: &str = "structured_outputs";

fn structured(fields: &Map<String, Value>) -> Result<Option<Grammar>, OpenAiError> {
    let mut found = None;
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let wrong = |what: &str| {
            let message = format!("`{STRUCTURED}.{name}` must be {what}");
            OpenAiError::invalid(STRUCTURED, message)
        };
        let grammar = match name.as_str() {
            "json" => json_schema("structured_outputs.json", value)?,
            "regex" => Grammar::Regex(value.as_str().ok_or_else(|| wrong("a text"))?.to_owned()),
            "grammar" => lark("structured_outputs.grammar", value.as_str().ok_or_else(|| wrong("a text"))?)?,
            "choice" => {
                let texts =
                    value.as_array().into_iter().flatten().map(|text| text.as_str().map(str::to_owned));
                let texts: Option<Vec<String>> = texts.collect();
                let texts = texts.filter(|_| value.is_array()).ok_or_else(|| wrong("a list of texts"))?;
                choice("structured_outputs.choice", &texts)?
            }
            "json_object" => match value.as_bool().ok_or_else(|| wrong("true or false"))? {
                true => Grammar::Json(json!({"type": "object"})),
                false => continue,
            },
            _ if *value == Value::Bool(false) || HARMLESS.contains(&name.as_str()) => continue,
            _ => {
                let name: String = name.chars().take(64).collect();
                return Err(OpenAiError::unsupported(&format!("{STRUCTURED}.{name}")));
            }
        };
        if found.replace(grammar).is_some() {
            let message =
                format!("`{STRUCTURED}` must have one of json, regex, choice, grammar and json_object");
            return Err(OpenAiError::invalid(STRUCTURED, message));
        }
    }
    Ok(found)
}

fn json_schema(field: &str, schema: &Value) -> Result<Grammar, OpenAiError> {
    let wrong = |why: String| OpenAiError::invalid(field, format!("`{field}`: {why}"));
    match schema {
        Value::Object(_) | Value::String(_) => {
            grammar::tgi(&json!({"type": "json", "value": schema})).map_err(wrong)
        }
        _ => Err(wrong("must be a JSON schema, as an object or as a text".into())),
    }
}

/// One of these texts and nothing else.
fn choice(field: &str, texts: &[String]) -> Result<Grammar, OpenAiError> {
    if texts.is_empty() || texts.len() > MOST_CHOICES {
        let message = format!("`{field}` must have 1 to {MOST_CHOICES} texts. Given: {}", texts.len());
        return Err(OpenAiError::invalid(field, message));
    }
    let texts: Vec<String> = texts.iter().map(|text| escaped(text)).collect();
    Ok(Grammar::Regex(format!("({})", texts.join("|"))))
}

/// A regular expression that matches this text alone.
fn escaped(text: &str) -> String {
    let mut expression = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            expression.push('\\');
        }
        expression.push(c);
    }
    expression
}

fn lark(field: &str, text: &str) -> Result<Grammar, OpenAiError> {
    if text.contains("::=") {
        let message =
            format!("`{field}` must be a grammar in Lark's language; GBNF (`root ::= …`) is not supported");
        return Err(OpenAiError::invalid(field, message));
    }
    Ok(Grammar::Lark(text.to_owned()))
}
