//! vLLM's fields for structured output: `structured_outputs`, and the older `guided_json`,
//! `guided_regex`, `guided_choice` and `guided_grammar`. `grammar` is the field of llama.cpp.

use millrace_answers::grammar::{Grammar, RequestedGrammar};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::error::OpenAiError;
use crate::http::grammar;

/// The most texts of a `guided_choice`.
const MAX_CHOICES: usize = 1000;

/// The fields for structured output, which are flattened into a request.
///
/// They are not a part of `GenerationFields`: serde would pass fields of a type that is flattened
/// twice to the rest of the request, too.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = Guided)]
pub(super) struct GuidedFields {
    /// vLLM's field: a JSON schema, as an object or as a text.
    #[schema(value_type = Option<Object>)]
    guided_json: Option<Value>,
    /// vLLM's field: a regular expression.
    guided_regex: Option<String>,
    /// vLLM's field: the texts among which the answer is chosen.
    guided_choice: Option<Vec<String>>,
    /// vLLM's field: a grammar in EBNF, GBNF or Lark's language.
    guided_grammar: Option<String>,
    /// llama.cpp's field: a grammar in GBNF or Lark's language. TGI's objects are accepted, too.
    #[schema(value_type = Option<String>)]
    grammar: Option<Value>,
    /// vLLM's field: an object with one of `json`, `regex`, `choice`, `grammar` and `json_object`.
    #[schema(value_type = Option<Object>)]
    structured_outputs: Option<Map<String, Value>>,
}

/// Keys of `structured_outputs` that do not change which answers are valid.
const HARMLESS: &[&str] = &["disable_fallback", "disable_any_whitespace", "_backend", "_backend_was_auto"];

impl GuidedFields {
    /// Returns the grammar of the answer, if one of the fields has one. `format` is the grammar of
    /// `response_format`.
    ///
    /// # Errors
    /// The error names the field that is wrong, or two fields that both have a grammar.
    pub(super) fn wanted(
        &self,
        format: Option<RequestedGrammar>,
    ) -> Result<Option<RequestedGrammar>, OpenAiError> {
        let mut all: Vec<RequestedGrammar> = format.into_iter().collect();
        let mut add = |field, grammar| all.push(RequestedGrammar { grammar, field, optional: false });
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
            add("guided_grammar", grammar_text("guided_grammar", text)?);
        }
        match &self.grammar {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(Value::String(text)) => add("grammar", grammar_text("grammar", text)?),
            Some(other) => {
                let grammar = grammar::from_tgi(other);
                add("grammar", grammar.map_err(|reason| OpenAiError::invalid("grammar", reason))?);
            }
        }
        if let Some(grammar) = self.structured_outputs.as_ref().map(structured).transpose()?.flatten() {
            add(STRUCTURED, grammar);
        }
        // Clients that know several servers send one constraint in the fields of each.
        all.dedup_by(|second, first| second.grammar == first.grammar);
        if let [first, second, ..] = all.as_slice() {
            let message = format!(
                "`{}` and `{}` both constrain the answer; give only one of them",
                first.field, second.field
            );
            return Err(OpenAiError::invalid(second.field, message));
        }
        Ok(all.pop())
    }
}

const STRUCTURED: &str = "structured_outputs";

/// Returns the grammar of `structured_outputs`, if it has one.
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
            "grammar" => {
                let text = value.as_str().ok_or_else(|| wrong("a text"))?;
                grammar_text("structured_outputs.grammar", text)?
            }
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

/// Returns the grammar of a JSON schema, which is an object or its text.
fn json_schema(field: &str, schema: &Value) -> Result<Grammar, OpenAiError> {
    let wrong = |reason: String| OpenAiError::invalid(field, format!("`{field}`: {reason}"));
    match schema {
        Value::Object(_) | Value::String(_) => {
            grammar::from_tgi(&json!({"type": "json", "value": schema})).map_err(wrong)
        }
        _ => Err(wrong("must be a JSON schema, as an object or as a text".into())),
    }
}

/// Returns a grammar of these texts and nothing else.
fn choice(field: &str, texts: &[String]) -> Result<Grammar, OpenAiError> {
    if texts.is_empty() || texts.len() > MAX_CHOICES {
        let message = format!("`{field}` must have 1 to {MAX_CHOICES} texts. Given: {}", texts.len());
        return Err(OpenAiError::invalid(field, message));
    }
    let texts: Vec<String> = texts.iter().map(|text| escaped(text)).collect();
    Ok(Grammar::Regex(format!("({})", texts.join("|"))))
}

/// Returns a regular expression that matches this text alone.
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

/// Returns a grammar in Lark's language or in GBNF.
fn grammar_text(field: &str, text: &str) -> Result<Grammar, OpenAiError> {
    grammar::from_text(text).map_err(|reason| OpenAiError::invalid(field, format!("`{field}`: {reason}")))
}
