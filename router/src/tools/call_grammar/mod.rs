//! The grammar of answers that call tools, in Lark.
//!
//! If the model must call a tool, the grammar restricts the answer from the first token. If it may
//! call a tool, the grammar restricts the answer after an opening marker. Until then the answer is
//! any text without the marker. If calls need no marker, the beginning of a call with the name of a
//! tool takes the place of the marker. If answers without calls must have a certain form, the
//! answer is either of that form or a call, from the first token on.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::allowed::{AllowedTools, Tool, ToolChoice};
use super::format::{ARGS, CALL_ID, CallSyntax, FormatSyntax, ToolFormat};
use super::tagged_call;
use crate::grammar::Grammar;
use crate::text::Tokenizer;

/// Returns the grammar of an answer. The answer consists of calls or, unless a tool must be called,
/// of JSON that follows the schema `answer`, or of any text if there is no schema. Returns `None`
/// if a call cannot be distinguished from a text before it is complete.
pub fn call_grammar(
    tools: &AllowedTools,
    format: ToolFormat,
    tokenizer: &Tokenizer,
    answer: Option<&Value>,
) -> Option<Grammar> {
    let syntax = format.syntax();
    let writer = GrammarWriter { syntax, tokenizer };
    let must = tools.choice != ToolChoice::Auto;
    let several = tools.parallel;
    let open = writer.open();
    let answer = answer.filter(|_| !must);
    let calling = match format {
        ToolFormat::Json => "call".to_owned(),
        ToolFormat::Llama3Json => format!("{open}? calls"),
        _ => format!("{open} calls"),
    };
    let start = match (format, answer) {
        _ if must => format!("start: {calling}"),
        (_, Some(_)) => format!("start: answer | {calling}"),
        (ToolFormat::Json, None) => return None,
        (ToolFormat::Llama3Json, None) => return writer.bare(tools),
        (_, None) => writer.after_text("calls"),
    };
    let calls = match format {
        ToolFormat::Json => String::new(),
        ToolFormat::Hermes | ToolFormat::Qwen3Coder => {
            let close = writer.mark(syntax.close);
            let again = if several { format!(" (SPACE? {open} one)*") } else { String::new() };
            format!("calls: one{again} SPACE?\none: SPACE? call SPACE? {close}\nSPACE: /[ \\n]{{1,2}}/\n")
        }
        ToolFormat::Mistral => {
            let again = if several { " (\",\" SPACE? call)*" } else { "" };
            format!("calls: SPACE? \"[\" call{again} \"]\"\nSPACE: /[ \\n]{{1,2}}/\n")
        }
        ToolFormat::MistralV11 => {
            let again = if several { format!(" ({open} call)*") } else { String::new() };
            format!("calls: call{again}\n")
        }
        ToolFormat::Llama3Json => {
            let again = if several { " (SEPARATOR call)*" } else { "" };
            let separator = if several { "SEPARATOR: /; ?/\n" } else { "" };
            format!("calls: call{again}\n{separator}")
        }
    };
    let (call, schemas) = match syntax.call {
        CallSyntax::Object(arguments) => {
            (String::new(), vec![("call".to_owned(), json_call_schema(tools, arguments))])
        }
        CallSyntax::Named => writer.named(tools),
        CallSyntax::Tags => tagged_calls(tools),
    };
    Some(Grammar::Calls { rules: format!("{start}\n{calls}{call}"), schemas, answer: answer.cloned() })
}

struct GrammarWriter<'a> {
    syntax: FormatSyntax,
    tokenizer: &'a Tokenizer,
}

impl GrammarWriter<'_> {
    fn open(&self) -> String {
        self.mark(self.syntax.open.unwrap_or_default())
    }

    /// Returns the rule for a marker: a single special token, or a text with any tokens.
    fn mark(&self, mark: &str) -> String {
        match self.special(mark) {
            Some(id) => format!("<[{id}]>"),
            None => Value::from(mark).to_string(),
        }
    }

    /// Returns the rules for calls that begin with the tool's name. The arguments are rules of
    /// their own.
    fn named(&self, tools: &AllowedTools) -> (String, Vec<(String, Value)>) {
        let (args, id) = (self.mark(ARGS), self.mark(CALL_ID));
        let (mut calls, mut schemas) = (Vec::new(), Vec::new());
        for (index, tool) in tools.callable().enumerate() {
            calls.push(format!("{} ({id} ID)? {args} json_{index}", Value::from(tool.name.as_str())));
            schemas.push((format!("json_{index}"), tool.parameters.clone()));
        }
        (format!("call: {}\nID: /[a-zA-Z0-9]{{9}}/\n", calls.join(" | ")), schemas)
    }

    /// Returns the grammar of any text, including JSON, or of calls without a marker. A call is
    /// restricted after the name of a tool, because no other text begins like it.
    fn bare(&self, tools: &AllowedTools) -> Option<Grammar> {
        const BEGIN: &str = r#"\{[ \n\r\t]{0,8}"name"[ \n\r\t]{0,8}:[ \n\r\t]{0,8}"#;
        const SPACE: &str = r"[ \n\r\t]{0,8}";
        let CallSyntax::Object(arguments) = self.syntax.call else { return None };
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
        if let Some(id) = self.special(self.syntax.open.unwrap_or_default()) {
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

    /// Returns the rules for any text, followed by `rule` after an opening marker.
    fn after_text(&self, rule: &str) -> String {
        let open = self.syntax.open.unwrap_or_default();
        if let Some(id) = self.special(open) {
            // Ordinary text never contains a special token.
            return format!("start: TEXT? (<[{id}]> {rule})?\nTEXT: /(?s:.+)/");
        }
        let escaped = escape(open);
        format!(
            "start: TEXT? | before {rule}\nbefore[lazy]: /(?s:.*){escaped}/\nTEXT: /(?s:.+)/ & ~/(?s:.*){escaped}(?s:.*)/"
        )
    }
}

/// Returns a regular expression that matches exactly this text.
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

/// The number of bytes of definitions that are copied into the schemas of arguments. A grammar with
/// more is refused for its size anyway.
const MAX_COPIED: usize = 1 << 20;

/// Returns the rules for calls in tags. The arguments have the order of their schema. Strings are
/// written as they are up to the closing tag, and other values are JSON.
fn tagged_calls(tools: &AllowedTools) -> (String, Vec<(String, Value)>) {
    let (mut calls, mut schemas) = (Vec::new(), Vec::new());
    let mut copied = 0;
    for (index, tool) in tools.callable().enumerate() {
        let required: HashSet<&str> =
            tool.parameters["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let shared = tool.parameters.get("$defs").map(|_| definitions(std::iter::once((index, tool))));
        let size = shared.as_ref().map_or(0, |_| tool.parameters.to_string().len());
        let mut arguments = String::new();
        for (name, schema) in tool.parameters["properties"].as_object().into_iter().flatten() {
            let value = match schema["enum"].as_array().filter(|_| tagged_call::is_text(schema)) {
                Some(values) => {
                    let text = |value: &Value| {
                        Value::from(format!("{}\n</parameter>\n", value.as_str().unwrap_or_default()))
                    };
                    let values: Vec<_> = values.iter().map(|value| text(value).to_string()).collect();
                    format!("({})", values.join(" | "))
                }
                None if tagged_call::is_text(schema) => "text".to_owned(),
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

/// Returns the schema of one call to any of the tools.
fn json_call_schema(tools: &AllowedTools, arguments: &str) -> Value {
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

/// Returns the schemas of the tools' arguments by the tools' indices.
fn definitions<'a>(tools: impl Iterator<Item = (usize, &'a Tool)>) -> Map<String, Value> {
    let moved = |(index, tool): (usize, &Tool)| {
        let mut parameters = tool.parameters.clone();
        relocate(&mut parameters, &format!("#/$defs/{index}"));
        (index.to_string(), parameters)
    };
    tools.map(moved).collect()
}

/// Changes the references of a schema to itself, so that they lead to its new place.
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
