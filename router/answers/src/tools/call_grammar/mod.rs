//! The grammar of answers that call tools, in Lark.
//!
//! If the model must call a tool, the grammar restricts the answer from the first token. If it may
//! call a tool, the grammar restricts the answer after an opening marker. Until then the answer is
//! any text without the marker. If calls need no marker, the beginning of a call with the name of a
//! tool takes the place of the marker. If answers without calls must have a certain form, the
//! answer is either of that form or a call, from the first token on.

mod gemma;
mod tags;
mod terms;

use serde_json::{Value, json};
pub(super) use tags::{IndexedTool, ValueSchemas, tagged_calls};
use terms::definitions;
pub(super) use terms::quoted;

use super::allowed::{AllowedTools, Tool, ToolChoice};
use super::format::ToolFormat;
use super::syntax::{
    ARGS, BareCalls, CALL_ID, CallSyntax, DEEPSEEK_CALL, DEEPSEEK_SEPARATOR, FormatSyntax, KIMI_ARGUMENTS,
    KIMI_CALL,
};
use crate::grammar::{Grammar, MarkTokens, escape};

/// Returns the grammar of an answer. The answer consists of calls or, unless a tool must be called,
/// of JSON that follows the schema `answer`, or of any text if there is no schema. Returns `None`
/// if a call cannot be distinguished from a text before it is complete.
pub fn call_grammar(
    tools: &AllowedTools,
    format: ToolFormat,
    tokens: MarkTokens,
    answer: Option<&Value>,
) -> Option<Grammar> {
    let syntax = format.syntax();
    let writer = GrammarWriter { format, syntax, tokens };
    let must = tools.choice != ToolChoice::Auto;
    let answer = answer.filter(|_| !must);
    if let Some(channels) = format.channels() {
        return Some(channels.call_grammar(tools, answer, tokens));
    }
    let open = writer.open();
    let calling = match (syntax.bare, syntax.open) {
        (BareCalls::None, _) => format!("{open} calls"),
        (_, Some(_)) => format!("{open}? calls"),
        (_, None) => "calls".to_owned(),
    };
    let start = match answer {
        _ if must => format!("start: {calling}"),
        Some(_) => format!("start: answer | {calling}"),
        None if format == ToolFormat::Json => return None,
        None if !syntax.bare.is_empty() => return writer.bare(tools),
        None => writer.after_text("calls"),
    };
    let calls = writer.calls(tools.parallel);
    let (call, schemas) = match syntax.call {
        CallSyntax::Object { .. } | CallSyntax::Keyed => {
            (String::new(), vec![("call".to_owned(), json_call_schema(tools, format, syntax.call))])
        }
        CallSyntax::Named { .. } => writer.named(tools),
        CallSyntax::Tags(tags) => tagged_calls(tags, tools, tokens, syntax.marks),
        CallSyntax::Python => tags::python_calls(tools),
        CallSyntax::Gemma => gemma::gemma_calls(tools, tokens, syntax.marks),
    };
    Some(Grammar::Calls { rules: format!("{start}\n{calls}{call}"), schemas, answer: answer.cloned() })
}

struct GrammarWriter<'a> {
    format: ToolFormat,
    syntax: FormatSyntax,
    tokens: MarkTokens<'a>,
}

impl GrammarWriter<'_> {
    fn open(&self) -> String {
        self.mark(self.syntax.open.unwrap_or_default())
    }

    /// Returns the rule for a marker: a single special token, or a text with any tokens.
    fn mark(&self, mark: &str) -> String {
        self.tokens.mark(mark)
    }

    /// Returns the rules for the calls after the opening marker, which consist of the rule `call`.
    /// White space may follow the last call: many templates write it, so models generate it before
    /// they end.
    fn calls(&self, several: bool) -> String {
        const SPACE: &str = "SPACE: /[ \\n]{1,8}/\n";
        let FormatSyntax { list, closing, call, again, .. } = self.syntax;
        let marks: Vec<String> = closing.iter().map(|mark| self.mark(mark)).collect();
        if list {
            let again = if several { " (\",\" SPACE? call)*" } else { "" };
            let close = match (self.format, marks.first()) {
                // Granite has no closing marker, and Llama needs none.
                (ToolFormat::Phi4Mini | ToolFormat::Pythonic, Some(close)) => format!(" {close}?"),
                (_, Some(close)) => format!(" SPACE? {close}"),
                (_, None) => String::new(),
            };
            return format!("calls: SPACE? \"[\" SPACE? call{again} SPACE? \"]\"{close} SPACE?\n{SPACE}");
        }
        match (call, marks.as_slice()) {
            // One section has all calls.
            (CallSyntax::Tags(tags), [close]) if !tags.is_padded && self.format != ToolFormat::SeedOss => {
                let again = if several { " (SPACE? call)*" } else { "" };
                format!("calls: SPACE? call{again} SPACE? {close} SPACE?\n{SPACE}")
            }
            (CallSyntax::Named { .. }, [end @ .., close]) if !end.is_empty() => {
                let end = end.join(" ");
                let again = if several { format!(" (SPACE? call {end})*") } else { String::new() };
                format!("calls: SPACE? call {end}{again} SPACE? {close} SPACE?\n{SPACE}")
            }
            // Every call has its own markers.
            _ => {
                let open = match again {
                    Some(";") => "SEPARATOR".to_owned(),
                    Some(again) => self.mark(again),
                    None => self.open(),
                };
                let close = marks.join(" ");
                // An object without markers is one call.
                let is_single = self.format == ToolFormat::Json;
                let again =
                    if several && !is_single { format!(" (SPACE? {open} one)*") } else { String::new() };
                let space =
                    if matches!(call, CallSyntax::Named { .. }) || is_single { "" } else { "SPACE? " };
                let end = if close.is_empty() { String::new() } else { format!(" SPACE? {close}") };
                let separator = if open == "SEPARATOR" { "SEPARATOR: /; ?/\n" } else { "" };
                format!("calls: one{again} SPACE?\none: {space}call{end}\n{SPACE}{separator}")
            }
        }
    }

    /// Returns the rules for calls that begin with the tool's name. The arguments are rules of
    /// their own.
    fn named(&self, tools: &AllowedTools) -> (String, Vec<(String, Value)>) {
        let mark = |mark| self.mark(mark);
        let (before, after) = match self.format {
            ToolFormat::MistralV11 => (String::new(), format!("({} ID)? {}", mark(CALL_ID), mark(ARGS))),
            ToolFormat::DeepSeekV3 => (
                format!("{} \"function\" {}", mark(DEEPSEEK_CALL), mark(DEEPSEEK_SEPARATOR)),
                quoted("\n```json\n"),
            ),
            ToolFormat::DeepSeekV31 => (mark(DEEPSEEK_CALL), mark(DEEPSEEK_SEPARATOR)),
            ToolFormat::KimiK2 => {
                (format!("{} \"functions.\"", mark(KIMI_CALL)), format!("INDEX {}", mark(KIMI_ARGUMENTS)))
            }
            ToolFormat::Glm4 => (String::new(), quoted("\n")),
            _ => (String::new(), quoted(">")),
        };
        let (mut calls, mut schemas) = (Vec::new(), Vec::new());
        for (index, tool) in tools.callable().enumerate() {
            calls.push(format!("{before} {} {after} json_{index}", quoted(&tool.name)));
            schemas.push((format!("json_{index}"), tool.parameters.clone()));
        }
        let token = match self.format {
            ToolFormat::MistralV11 => "ID: /[a-zA-Z0-9]{9}/\n",
            ToolFormat::KimiK2 => "INDEX: /:[0-9]{1,4}/\n",
            _ => "",
        };
        (format!("call: {}\n{token}", calls.join(" | ")), schemas)
    }

    /// Returns the grammar of any text or of calls without a marker. A call is restricted after the
    /// name of a tool, because no other text begins like it.
    fn bare(&self, tools: &AllowedTools) -> Option<Grammar> {
        const SPACE: &str = r"[ \n\r\t]{0,8}";
        let (begin, end) = match self.syntax.call {
            CallSyntax::Object { .. } => (format!(r#"\{{{SPACE}"name"{SPACE}:{SPACE}""#), "\""),
            CallSyntax::Python => (format!(r"\[{SPACE}"), r"\("),
            _ => (String::new(), r"\n"),
        };
        let (mut names, mut first, mut calls) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rules, schemas) = self.rests(tools);
        for (index, tool) in tools.callable().enumerate() {
            let name = escape(&tool.name);
            rules += &format!("before_{index}[lazy]: /{SPACE}{begin}{name}{end}/\n");
            first.push(format!("before_{index} rest_{index}"));
            let head = match self.syntax.call {
                CallSyntax::Python => format!("{name}{end}"),
                _ => format!("{begin}{name}{end}"),
            };
            rules += &format!("HEAD_{index}: /{head}/\n");
            calls.push(format!("HEAD_{index} rest_{index}"));
            names.push(name);
        }
        let separator = match (tools.parallel, self.syntax.call) {
            (true, CallSyntax::Object { .. }) => Some("/; ?/"),
            (true, CallSyntax::Python) => Some("/, {0,2}/"),
            _ => None,
        };
        let again = if separator.is_some() { " (SEPARATOR call)*" } else { "" };
        let (list_open, list_close) = match self.syntax.list {
            true => ("\"[\" ", format!(" \"]\" {}?", self.mark(self.syntax.closing[0]))),
            false => ("", String::new()),
        };
        // Special tokens other than the marker may follow or begin a text.
        let open = self.syntax.open.unwrap_or_default();
        let others = self.tokens.others(&[open]).map_or_else(String::new, |others| {
            rules += "ANY: /(?s:.+)/\n";
            format!(" ({others} ANY?)*")
        });
        let mut start = format!("start: TEXT?{others} | first{again}{list_close}");
        if let Some(id) = self.special(self.syntax.open.unwrap_or_default()) {
            start += &format!(" | <[{id}]> {list_open}call{again}{list_close}");
        }
        if let Some(separator) = separator {
            rules += &format!("SEPARATOR: {separator}\n");
        }
        let names = names.join("|");
        rules += &format!(
            "first: {}\ncall: {}\nTEXT: /(?s:.+)/ & ~/{SPACE}{begin}({names}){end}(?s:.*)/\n",
            first.join(" | "),
            calls.join(" | ")
        );
        Some(Grammar::Calls { rules: format!("{start}\n{rules}"), schemas, answer: None })
    }

    /// Returns the rules for the text after the beginning of a bare call, one for each tool.
    fn rests(&self, tools: &AllowedTools) -> (String, Vec<(String, Value)>) {
        const SPACE: &str = r"[ \n\r\t]{0,8}";
        if matches!(self.syntax.call, CallSyntax::Python) {
            return tags::python_rests(tools);
        }
        let (mut rules, mut schemas) = (String::new(), Vec::new());
        for (index, tool) in tools.callable().enumerate() {
            rules += &match self.syntax.call {
                CallSyntax::Object { .. } => format!("rest_{index}: ARGUMENTS json_{index} END\n"),
                _ => format!("rest_{index}: json_{index}\n"),
            };
            schemas.push((format!("json_{index}"), tool.parameters.clone()));
        }
        if let CallSyntax::Object { arguments, .. } = self.syntax.call {
            rules +=
                &format!("ARGUMENTS: /{SPACE},{SPACE}\"{arguments}\"{SPACE}:{SPACE}/\nEND: /{SPACE}\\}}/\n");
        }
        (rules, schemas)
    }

    fn special(&self, mark: &str) -> Option<u32> {
        self.tokens.special(mark)
    }

    /// Returns the rules for any text, followed by `rule` after an opening marker.
    fn after_text(&self, rule: &str) -> String {
        let text = self.tokens.text_up_to("before", self.syntax.open.unwrap_or_default());
        format!("start: before | before_end {rule}\n{text}")
    }
}

/// Returns the schema of one call to any of the tools.
fn json_call_schema(tools: &AllowedTools, format: ToolFormat, syntax: CallSyntax) -> Value {
    let definitions = definitions(tools.callable().enumerate());
    if matches!(syntax, CallSyntax::Keyed) {
        let call = |(index, tool): (usize, &Tool)| {
            json!({
                "type": "object",
                "properties": {&tool.name: {"$ref": format!("#/$defs/{index}")}},
                "required": [tool.name],
                "additionalProperties": false,
            })
        };
        let calls: Vec<Value> = tools.callable().enumerate().map(call).collect();
        return json!({"anyOf": calls, "$defs": definitions});
    }
    let (name, arguments) = match syntax {
        CallSyntax::Object { name, arguments } => (name, arguments),
        _ => ("name", "arguments"),
    };
    // Cohere's models number their calls.
    let id = if name == "tool_name" {
        json!({"tool_call_id": {"type": "string", "maxLength": 4}})
    } else {
        json!({})
    };
    // Mistral's templates write the id after the arguments.
    let last = if format == ToolFormat::Mistral {
        json!({"id": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"}})
    } else {
        json!({})
    };
    let calls: Vec<Value> = tools
        .callable()
        .enumerate()
        .map(|(index, tool)| {
            let mut properties = id.clone();
            properties[name] = json!({"const": tool.name});
            properties[arguments] = json!({"$ref": format!("#/$defs/{index}")});
            if let Some(id) = last.get("id") {
                properties["id"] = id.clone();
            }
            json!({
                "type": "object",
                "properties": properties,
                "required": [name, arguments],
                "additionalProperties": false,
            })
        })
        .collect();
    json!({"anyOf": calls, "$defs": definitions})
}

#[cfg(test)]
pub(super) mod tests;
