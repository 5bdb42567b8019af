//! The grammar of answers that call tools, in Lark.
//!
//! A call that must come is bound from the first token. One that may come is bound from its opening mark on: until then
//! the answer is any text that does not have the mark.

use serde_json::{Map, Value, json};

use super::format::Shape;
use super::{Choice, Format, Tools};
use crate::grammar::Grammar;
use crate::text::Tokenizer;

/// What an answer may be. Nothing if it cannot be told a call from a text before it is complete.
pub fn grammar(tools: &Tools, format: Format, tokenizer: &Tokenizer) -> Option<Grammar> {
    let shape = format.shape();
    let language = Language { shape, tokenizer };
    let must = tools.choice != Choice::Auto;
    let several = tools.parallel;
    let start = match (format, must) {
        (Format::Json, false) => return None,
        (Format::Json, true) => "start: call".to_owned(),
        (Format::Hermes, true) => format!("start: {open} rest", open = language.open()),
        (Format::Mistral, true) => format!("start: {open} list", open = language.open()),
        (Format::Llama3Json, true) => format!("start: {open}? calls", open = language.open()),
        (Format::Hermes, false) => language.after_text("rest"),
        (Format::Mistral, false) => language.after_text("list"),
        (Format::Llama3Json, false) => {
            let open = language.open();
            format!("start: TEXT? | {open}? calls\nTEXT: /[ \\n]*[^ \\n{{](?s:.*)/")
        }
    };
    let rules = match format {
        Format::Json => String::new(),
        Format::Hermes => {
            let (open, close) = (language.open(), language.mark(shape.close));
            let again = if several { format!(" (SPACE? {open} one)*") } else { String::new() };
            format!("rest: one{again} SPACE?\none: SPACE? call SPACE? {close}\nSPACE: /[ \\n]{{1,20}}/\n")
        }
        Format::Mistral => {
            let again = if several { " (\",\" SPACE? call)*" } else { "" };
            format!("list: SPACE? \"[\" call{again} \"]\"\nSPACE: /[ \\n]{{1,20}}/\n")
        }
        Format::Llama3Json => {
            let again = if several { " (SEPARATOR call)*" } else { "" };
            let separator = if several { "SEPARATOR: /; ?/\n" } else { "" };
            format!("calls: call{again}\n{separator}")
        }
    };
    let call = schema(tools, shape.arguments);
    Some(Grammar::Calls { rules: format!("{start}\n{rules}"), call })
}

struct Language<'a> {
    shape: Shape,
    tokenizer: &'a Tokenizer,
}

impl Language<'_> {
    fn open(&self) -> String {
        self.mark(self.shape.open.unwrap_or_default())
    }

    /// A mark is one special token, or a text however it is cut into tokens.
    fn mark(&self, mark: &str) -> String {
        match self.special(mark) {
            Some(id) => format!("<[{id}]>"),
            None => Value::from(mark).to_string(),
        }
    }

    fn special(&self, mark: &str) -> Option<u32> {
        self.tokenizer.token_id(mark).filter(|&id| self.tokenizer.is_special(id))
    }

    /// Any text, and after an opening mark what `rule` says.
    fn after_text(&self, rule: &str) -> String {
        let open = self.shape.open.unwrap_or_default();
        if let Some(id) = self.special(open) {
            // No text has a special token in it.
            return format!("start: TEXT? (<[{id}]> {rule})?\nTEXT: /(?s:.+)/");
        }
        let escaped = escape(open);
        format!(
            "start: TEXT? | before {rule}\nbefore[lazy]: /(?s:.*){escaped}/\nTEXT: /(?s:.+)/ & ~/(?s:.*){escaped}(?s:.*)/"
        )
    }
}

/// A text as an expression that matches it and nothing else.
fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if !character.is_ascii_alphanumeric() && character != '_' && character != '<' && character != '>' {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

/// The JSON of one call to any of the tools.
fn schema(tools: &Tools, arguments: &str) -> Value {
    let (mut definitions, mut calls) = (Map::new(), Vec::new());
    for (index, tool) in tools.callable().enumerate() {
        let place = format!("#/$defs/{index}");
        let mut parameters = tool.parameters.clone();
        relocate(&mut parameters, &place);
        definitions.insert(index.to_string(), parameters);
        calls.push(json!({
            "type": "object",
            "properties": {"name": {"const": tool.name}, arguments: {"$ref": place}},
            "required": ["name", arguments],
            "additionalProperties": false,
        }));
    }
    json!({"anyOf": calls, "$defs": definitions})
}

/// A schema's references to itself lead to its new place.
fn relocate(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(inner) = reference.strip_prefix('#')
            {
                *reference = format!("{place}{inner}");
            }
            fields.values_mut().for_each(|value| relocate(value, place));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| relocate(item, place)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
