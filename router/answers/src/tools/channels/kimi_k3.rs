//! The answers of Kimi K3: an element for the reasoning, one for the answer, and one with calls.
//!
//! Special tokens take the place of brackets: `<|open|>response<|sep|>` and
//! `<|close|>response<|sep|>` surround the answer. The prompt opens the first element. Each
//! argument of a call is an element with its key and its type, and strings are written as they are.

use serde_json::Value;

use super::super::allowed::{AllowedTools, Tool, ToolChoice};
use super::super::call_grammar::{IndexedTool, ValueSchemas, quoted};
use super::super::syntax::{CallSyntax, FormatSyntax, MARKED};
use super::super::tagged_call::{TagSyntax, ValueTypes, is_text};
use super::definition::{ChannelFormat, Channels, End, Header, Message, MessageKind, end_of};
use crate::grammar::{Grammar, MarkTokens};
use crate::reasoning::{ReasoningMarks, ReasoningStart};

/// The format.
pub(crate) const KIMI_K3: Channels = Channels(&KimiK3);

const OPEN: &str = "<|open|>";
const CLOSE: &str = "<|close|>";
const SEPARATOR: &str = "<|sep|>";
const MARKS: &[&str] = &[OPEN, CLOSE, SEPARATOR];

const THINK: &str = "<|open|>think<|sep|>";
const RESPONSE: &str = "<|open|>response<|sep|>";
const TOOLS: &str = "<|open|>tools<|sep|>";
const THINK_END: &str = "<|close|>think<|sep|>";
const RESPONSE_END: &str = "<|close|>response<|sep|>";
const TOOLS_END: &str = "<|close|>tools<|sep|>";
const MESSAGE_END: &str = "<|close|>message<|sep|>";

const TAGS: TagSyntax = TagSyntax {
    function: ("<|open|>call tool=\"", "\"<|sep|>"),
    parameter: ("<|open|>argument key=\"", "\"<|sep|>"),
    key_end: "",
    types: ValueTypes::Names,
    end_of_value: "<|close|>argument<|sep|>",
    end: "<|close|>call<|sep|>",
    is_padded: false,
    verbatim: None,
    object: Some(("<|open|>json type=\"object\"<|sep|>", "<|close|>json<|sep|>")),
};

#[derive(Debug)]
struct KimiK3;

impl ChannelFormat for KimiK3 {
    fn begun_answer<'a>(&self, prompt: &'a str) -> &'a str {
        let message = prompt.rsplit_once("<|open|>message role=\"assistant\"");
        message.and_then(|(_, rest)| rest.split_once(SEPARATOR)).map_or("", |(_, begun)| begun)
    }

    fn header(&self, text: &str, _is_first: bool, _tools: &[Tool]) -> Header {
        let begun = text.trim_start();
        let begins = |begin: &str| begin.starts_with(begun) || begun.starts_with(begin);
        if !begins(OPEN) && !begins(CLOSE) {
            return Header::Absent;
        }
        if !begun.ends_with(SEPARATOR) {
            return Header::Undecided;
        }
        match begun {
            THINK => Header::Message(Message::new(MessageKind::Reasoning)),
            RESPONSE => Header::Message(Message::new(MessageKind::Content)),
            TOOLS => Header::Message(Message::with_text(MessageKind::Calls, TOOLS)),
            _ if begun.starts_with(CLOSE) => Header::Skip,
            _ => Header::Message(Message::with_text(MessageKind::Content, begun)),
        }
    }

    fn end(&self, text: &str, kind: MessageKind, _tools: &[Tool]) -> End {
        let ends: &[&str] = match kind {
            MessageKind::Reasoning => &[THINK_END, RESPONSE, TOOLS],
            MessageKind::Content => &[RESPONSE_END, MESSAGE_END, TOOLS],
            MessageKind::Arguments | MessageKind::Calls => &[TOOLS_END],
        };
        end_of(text, ends, OPEN)
    }

    fn syntax(&self) -> FormatSyntax {
        let call = CallSyntax::Tags(TAGS);
        FormatSyntax { open: Some(TOOLS), closing: &[TOOLS_END], call, marks: MARKS, ..MARKED }
    }

    fn marks(&self) -> ReasoningMarks {
        ReasoningMarks { open: THINK, close: RESPONSE, tokens: MARKS }
    }

    fn forced_close(&self, _calls: bool) -> &'static str {
        "<|close|>think<|sep|><|open|>response<|sep|>"
    }

    fn reasoning_channel(&self) -> Option<(&'static str, &'static str)> {
        Some((OPEN, "think"))
    }

    /// The prompt says whether the answer begins with the reasoning, so the rules for the reasoning
    /// surround those for calls.
    fn call_grammar_has_reasoning(&self) -> bool {
        false
    }

    /// Returns the grammar of the text of a response, its end, and calls after it.
    fn call_grammar(&self, tools: &AllowedTools, answer: Option<&Value>, tokens: MarkTokens) -> Grammar {
        let mut writer = Writer { tokens, schemas: ValueSchemas::default() };
        let calls: Vec<String> = tools
            .callable()
            .enumerate()
            .map(|(index, tool)| writer.call(&IndexedTool::new(index, tool)))
            .collect();
        let [end, open, close, last] =
            [RESPONSE_END, TOOLS, TOOLS_END, MESSAGE_END].map(|text| writer.tag(text));
        let start = match (tools.choice != ToolChoice::Auto, answer) {
            (true, _) => format!("{end} calls"),
            (false, Some(_)) => format!("answer ({end} ({last})?)? | {end} calls"),
            (false, None) => format!("said | said_end (calls | {last})?"),
        };
        let again = if tools.parallel { " call*" } else { "" };
        let said = writer.text("said", RESPONSE_END);
        let text = writer.text("text", TAGS.end_of_value);
        let argument = writer.tag("<|open|>argument key=\"");
        let rules = format!(
            "start: {start}\ncalls: {open} call{again} {close} ({last})?\ncall: {}\n{said}{text}\
             any: {argument} KEY \"\\\" type=\\\"\" TYPE {} text_end\n\
             KEY: /[A-Za-z0-9_.-]+/\nTYPE: \"string\" | OTHER_TYPE\n\
             OTHER_TYPE: \"number\" | \"boolean\" | \"null\" | \"object\" | \"array\"\nINDEX: /[1-9][0-9]{{0,3}}/\n",
            calls.join(" | "),
            writer.tag("\"<|sep|>"),
        );
        Grammar::Calls { rules, schemas: writer.schemas.schemas, answer: answer.cloned() }
    }

    fn answer_rules(&self, start: ReasoningStart, has_calls: bool, tokens: MarkTokens) -> String {
        let writer = Writer { tokens, schemas: ValueSchemas::default() };
        let [open, response, end, last] =
            [THINK, RESPONSE, RESPONSE_END, MESSAGE_END].map(|text| writer.tag(text));
        let (closed, unclosed) = match start {
            ReasoningStart::Inside => (format!("thought_end {response}"), "thought".to_owned()),
            ReasoningStart::Possible => {
                (format!("({open} thought_end {response})?"), format!("{open} thought"))
            }
        };
        let tail = if has_calls { String::new() } else { format!(" ({end} ({last})?)?") };
        let thought = match tokens.special(CLOSE) {
            Some(_) => {
                let rest = writer.tag("think<|sep|>");
                tokens.text_up_to("thinking", CLOSE)
                    + &format!("thought: thinking\nthought_end: thinking_end {rest}\n")
            }
            None => tokens.text_up_to("thought", THINK_END),
        };
        format!("start: {closed} @answer{tail} | {unclosed}\n{thought}")
    }
}

/// Writes the rules of calls.
struct Writer<'a> {
    tokens: MarkTokens<'a>,
    schemas: ValueSchemas,
}

impl Writer<'_> {
    /// Returns the rule for a text with tokens of the format.
    fn tag(&self, text: &str) -> String {
        self.tokens.sequence(text, MARKS)
    }

    /// Returns the rules for any text without tokens of the format and ends of answers, alone and
    /// with `end` after it.
    fn text(&self, name: &str, end: &str) -> String {
        let Some(_) = self.tokens.special(CLOSE) else { return self.tokens.text_up_to(name, end) };
        let free = name.to_uppercase();
        let others = self.tokens.others_within(MARKS);
        let part = others.map_or_else(|| free.clone(), |others| format!("{free} | {others}"));
        format!("{name}: ({part})*\n{name}_end: {name} {}\n{free}: /(?s:.+)/\n", self.tag(end))
    }

    /// Returns the rule for a call of one tool. The arguments have the order of their schema.
    fn call(&mut self, tool: &IndexedTool) -> String {
        let mut arguments = String::new();
        for (name, schema) in tool.arguments() {
            let argument = self.argument(tool, name, schema);
            let optional = if tool.is_required(name) { "" } else { "?" };
            arguments += &format!(" ({argument}){optional}");
        }
        if arguments.is_empty() && tool.tool.parameters["additionalProperties"] != false {
            arguments = " any*".to_owned();
        }
        let head = self.tag(&format!("{}{}\" index=\"", TAGS.function.0, tool.tool.name));
        format!("{head} INDEX {}{arguments} {}", self.tag(TAGS.function.1), self.tag(TAGS.end))
    }

    fn argument(&mut self, tool: &IndexedTool, name: &str, schema: &Value) -> String {
        let key = self.tag(&format!("{}{}\" type=\"", TAGS.parameter.0, TAGS.types.attribute(name)));
        let [after, end] = [TAGS.parameter.1, TAGS.end_of_value].map(|text| self.tag(text));
        let meant = referenced(&tool.tool.parameters, schema);
        let values = meant["enum"].as_array().filter(|_| is_text(meant));
        let text = match values {
            Some(values) => {
                let values: Vec<String> =
                    values.iter().map(|value| quoted(value.as_str().unwrap_or_default())).collect();
                format!("\"string\" {after} ({}) {end}", values.join(" | "))
            }
            None => format!("\"string\" {after} text_end"),
        };
        if is_text(meant) {
            return format!("{key} {text}");
        }
        let json = format!("OTHER_TYPE {after} {} {end}", self.schemas.rule(tool, schema));
        if may_be_text(meant) { format!("{key} ({text} | {json})") } else { format!("{key} {json}") }
    }
}

/// Returns the schema to which a schema refers in a row of references, or the schema itself.
fn referenced<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    const MAX_REFERENCES: usize = 8;
    let next = |schema: &&'a Value| root.pointer(schema["$ref"].as_str()?.strip_prefix('#')?);
    std::iter::successors(Some(schema), next).take(MAX_REFERENCES).last().unwrap_or(schema)
}

/// Whether the values of a schema may be strings or something else.
fn may_be_text(schema: &Value) -> bool {
    match &schema["type"] {
        Value::Array(types) => types.iter().any(|kind| kind == "string"),
        kind => kind.is_null(),
    }
}
