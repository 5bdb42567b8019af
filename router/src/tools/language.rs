//! The grammar of answers that call tools, in Lark.
//!
//! A call that must come is bound from the first token. One that may come is bound from its opening mark on: until then
//! the answer is any text that does not have the mark. Where calls need no mark, the beginning of a call and the name of a
//! tool are the mark. If the answer must be of a form where it calls nothing, it is either
//! that or calls, from the first token on.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::format::{ARGS, CALL_ID, Call, Shape};
use super::{Choice, Format, Tool, Tools, tags};
use crate::grammar::Grammar;
use crate::text::Tokenizer;

/// What an answer may be: calls or, unless a tool must be called, JSON that the schema `answer` describes, any text without
/// one. Nothing if a call cannot be told from a text before it is complete.
pub fn grammar(
    tools: &Tools,
    format: Format,
    tokenizer: &Tokenizer,
    answer: Option<&Value>,
) -> Option<Grammar> {
    let shape = format.shape();
    let language = Language { shape, tokenizer };
    let must = tools.choice != Choice::Auto;
    let several = tools.parallel;
    let open = language.open();
    let answer = answer.filter(|_| !must);
    let calling = match format {
        Format::Json => "call".to_owned(),
        Format::Llama3Json => format!("{open}? calls"),
        _ => format!("{open} calls"),
    };
    let start = match (format, answer) {
        _ if must => format!("start: {calling}"),
        (_, Some(_)) => format!("start: answer | {calling}"),
        (Format::Json, None) => return None,
        (Format::Llama3Json, None) => return language.bare(tools),
        (_, None) => language.after_text("calls"),
    };
    let calls = match format {
        Format::Json => String::new(),
        Format::Hermes | Format::Qwen3Coder => {
            let close = language.mark(shape.close);
            let again = if several { format!(" (SPACE? {open} one)*") } else { String::new() };
            format!("calls: one{again} SPACE?\none: SPACE? call SPACE? {close}\nSPACE: /[ \\n]{{1,2}}/\n")
        }
        Format::Mistral => {
            let again = if several { " (\",\" SPACE? call)*" } else { "" };
            format!("calls: SPACE? \"[\" call{again} \"]\"\nSPACE: /[ \\n]{{1,2}}/\n")
        }
        Format::MistralV11 => {
            let again = if several { format!(" ({open} call)*") } else { String::new() };
            format!("calls: call{again}\n")
        }
        Format::Llama3Json => {
            let again = if several { " (SEPARATOR call)*" } else { "" };
            let separator = if several { "SEPARATOR: /; ?/\n" } else { "" };
            format!("calls: call{again}\n{separator}")
        }
    };
    let (call, schemas) = match shape.call {
        Call::Object(arguments) => (String::new(), vec![("call".to_owned(), schema(tools, arguments))]),
        Call::Named => language.named(tools),
        Call::Tags => tagged(tools),
    };
    Some(Grammar::Calls { rules: format!("{start}\n{calls}{call}"), schemas, answer: answer.cloned() })
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

    /// Calls that begin with the tool's name; the arguments are rules of their own.
    fn named(&self, tools: &Tools) -> (String, Vec<(String, Value)>) {
        let (args, id) = (self.mark(ARGS), self.mark(CALL_ID));
        let (mut calls, mut schemas) = (Vec::new(), Vec::new());
        for (index, tool) in tools.callable().enumerate() {
            calls.push(format!("{} ({id} ID)? {args} json_{index}", Value::from(tool.name.as_str())));
            schemas.push((format!("json_{index}"), tool.parameters.clone()));
        }
        (format!("call: {}\nID: /[a-zA-Z0-9]{{9}}/\n", calls.join(" | ")), schemas)
    }

    /// Any text, JSON among it, or calls without a mark. A call is bound from the name of a tool on, as no other text begins
    /// like that.
    fn bare(&self, tools: &Tools) -> Option<Grammar> {
        const BEGIN: &str = r#"\{[ \n\r\t]{0,8}"name"[ \n\r\t]{0,8}:[ \n\r\t]{0,8}"#;
        const SPACE: &str = r"[ \n\r\t]{0,8}";
        let Call::Object(arguments) = self.shape.call else { return None };
        let (mut names, mut first, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rules, mut schemas) = (String::new(), Vec::new());
        for (index, tool) in tools.callable().enumerate() {
            let name = escape(&tool.name);
            rules += &format!(
                "before_{index}[lazy]: /{SPACE}{BEGIN}\"{name}\"/\nHEAD_{index}: /{BEGIN}\"{name}\"/\n"
            );
            rules += &format!("rest_{index}: ARGUMENTS json_{index} END\n");
            first.push(format!("before_{index} rest_{index}"));
            calls.push(format!("HEAD_{index} rest_{index}"));
            schemas.push((format!("json_{index}"), tool.parameters.clone()));
            names.push(name);
        }
        let names = names.join("|");
        let again = if tools.parallel { " (SEPARATOR call)*" } else { "" };
        let mut start = format!("start: TEXT? | first{again}");
        if let Some(id) = self.special(self.shape.open.unwrap_or_default()) {
            start += &format!(" | <[{id}]> call{again}");
        }
        if tools.parallel {
            rules += "SEPARATOR: /; ?/\n";
        }
        rules += &format!(
            "first: {}\ncall: {}\nARGUMENTS: /{SPACE},{SPACE}\"{arguments}\"{SPACE}:{SPACE}/\nEND: /{SPACE}\\}}/\n\
             TEXT: /(?s:.+)/ & ~/{SPACE}{BEGIN}\"({names})\"(?s:.*)/\n",
            first.join(" | "),
            calls.join(" | ")
        );
        Some(Grammar::Calls { rules: format!("{start}\n{rules}"), schemas, answer: None })
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

/// Bytes of definitions that are copied into the schemas of arguments. A grammar with so many is refused for its size.
const MAX_COPIED: usize = 1 << 20;

/// Calls in tags: the arguments in the order of their schema, a text as it is up to its end, all else as JSON.
fn tagged(tools: &Tools) -> (String, Vec<(String, Value)>) {
    let (mut calls, mut schemas) = (Vec::new(), Vec::new());
    let mut copied = 0;
    for (index, tool) in tools.callable().enumerate() {
        let required: HashSet<&str> =
            tool.parameters["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let shared = tool.parameters.get("$defs").map(|_| definitions(std::iter::once((index, tool))));
        let size = shared.as_ref().map_or(0, |_| tool.parameters.to_string().len());
        let mut arguments = String::new();
        for (name, schema) in tool.parameters["properties"].as_object().into_iter().flatten() {
            let value = match schema["enum"].as_array().filter(|_| tags::is_text(schema)) {
                Some(values) => {
                    let text = |value: &Value| {
                        Value::from(format!("{}\n</parameter>\n", value.as_str().unwrap_or_default()))
                    };
                    let values: Vec<_> = values.iter().map(|value| text(value).to_string()).collect();
                    format!("({})", values.join(" | "))
                }
                None if tags::is_text(schema) => "text".to_owned(),
                None => {
                    let rule = format!("json_{index}_{}", schemas.len());
                    let place = format!("#/$defs/{index}");
                    let mut schema = schema.clone();
                    relocate(&mut schema, &place);
                    if let (Value::Object(schema), Some(shared)) = (&mut schema, &shared)
                        && copied < MAX_COPIED
                    {
                        copied += size;
                        schema.insert("$defs".into(), shared.clone().into());
                    }
                    schemas.push((rule.clone(), schema));
                    format!("{rule} \"\\n</parameter>\\n\"")
                }
            };
            let tag = Value::from(format!("<parameter={name}>\n"));
            arguments +=
                &format!(" ({tag} {value}){}", if required.contains(name.as_str()) { "" } else { "?" });
        }
        if arguments.is_empty() && tool.parameters["additionalProperties"] != false {
            arguments = " (ANY text)*".to_owned();
        }
        calls.push(format!(
            "{}{arguments} \"</function>\"",
            Value::from(format!("<function={}>\n", tool.name))
        ));
    }
    let rules = format!(
        "call: {}\ntext[lazy]: /(?s:.*)\\n<\\/parameter>\\n/\nANY: /<parameter=[A-Za-z0-9_.-]+>\\n/\n",
        calls.join(" | ")
    );
    (rules, schemas)
}

/// The JSON of one call to any of the tools.
fn schema(tools: &Tools, arguments: &str) -> Value {
    let calls: Vec<Value> = tools
        .callable()
        .enumerate()
        .map(|(index, tool)| {
            json!({
                "type": "object",
                "properties": {"name": {"const": tool.name}, arguments: {"$ref": format!("#/$defs/{index}")}},
                "required": ["name", arguments],
                "additionalProperties": false,
            })
        })
        .collect();
    json!({"anyOf": calls, "$defs": definitions(tools.callable().enumerate())})
}

/// The schemas of these tools' arguments, by the tools' places.
fn definitions<'a>(tools: impl Iterator<Item = (usize, &'a Tool)>) -> Map<String, Value> {
    let moved = |(index, tool): (usize, &Tool)| {
        let mut parameters = tool.parameters.clone();
        relocate(&mut parameters, &format!("#/$defs/{index}"));
        (index.to_string(), parameters)
    };
    tools.map(moved).collect()
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
