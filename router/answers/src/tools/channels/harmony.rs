//! The answers of gpt-oss: the reasoning is in the channel `analysis`, the answer in `final`, and a
//! call is a message to `functions.NAME`.
//!
//! Each message is a header, `<|message|>`, a text and an end token. The prompt ends within the
//! first header. Source: OpenAI's description of the Harmony format.

use serde_json::Value;

use super::super::allowed::{AllowedTools, Tool, ToolChoice};
use super::super::call_grammar::quoted;
use super::super::syntax::{FormatSyntax, MARKED};
use super::definition::{ChannelFormat, Channels, End, Header, Message, MessageKind, end_of};
use crate::grammar::{Grammar, MarkTokens};
use crate::reasoning::{ReasoningMarks, ReasoningStart};

/// The format.
pub(crate) const HARMONY: Channels = Channels(&Harmony);

/// The tokens of the format.
const MARKS: &[&str] =
    &["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"];
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// The tokens that end the text of a message.
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];
/// The beginning of the recipient of a call.
const FUNCTIONS: &str = "functions.";

#[derive(Debug)]
struct Harmony;

impl ChannelFormat for Harmony {
    fn begun_answer<'a>(&self, prompt: &'a str) -> &'a str {
        prompt.rsplit_once("<|start|>assistant").map_or("", |(_, begun)| begun)
    }

    fn header(&self, text: &str, is_first: bool, tools: &[Tool]) -> Header {
        if text.ends_with(MESSAGE) {
            return Header::Message(message(text, tools));
        }
        let begun = text.trim_start();
        let begins = |begin: &str| begin.starts_with(begun) || begun.starts_with(begin);
        let is_header =
            !is_first || [CHANNEL, START, "to=", "<|constrain|>", MESSAGE].into_iter().any(begins);
        if is_header { Header::Undecided } else { Header::Absent }
    }

    fn end(&self, text: &str, _kind: MessageKind, _tools: &[Tool]) -> End {
        end_of(text, &ENDS, START)
    }

    fn syntax(&self) -> FormatSyntax {
        FormatSyntax { marks: MARKS, ..MARKED }
    }

    /// Everything before the last channel is reasoning or calls.
    fn marks(&self) -> ReasoningMarks {
        ReasoningMarks { open: CHANNEL, close: "<|channel|>final<|message|>", tokens: MARKS }
    }

    fn forced_close(&self, calls: bool) -> &'static str {
        if calls {
            "<|end|><|start|>assistant"
        } else {
            "<|end|><|start|>assistant<|channel|>final<|message|>"
        }
    }

    fn reasoning_channel(&self) -> Option<(&'static str, &'static str)> {
        Some((CHANNEL, "analysis"))
    }

    /// Returns the grammar of any number of messages in the channels for reasoning and remarks, and
    /// then a call or the answer. The answer may end within the reasoning. The recipient of a call
    /// is after the role or after the channel.
    fn call_grammar(&self, tools: &AllowedTools, answer: Option<&Value>, tokens: MarkTokens) -> Grammar {
        let [start, channel, constrain, message] =
            [START, CHANNEL, "<|constrain|>", MESSAGE].map(|mark| tokens.mark(mark));
        let must = tools.choice != ToolChoice::Auto;
        let (mut calls, mut schemas) = (Vec::new(), Vec::new());
        for (index, tool) in tools.callable().enumerate() {
            let to = quoted(&format!("to=functions.{}", tool.name));
            let arguments = format!("SPACE? ({constrain}? \"json\")? {message} json_{index}");
            calls.push(format!("{channel} CALLING SPACE {to} {arguments}"));
            calls.push(format!("SPACE? {to} SPACE? {channel} CALLING {arguments}"));
            schemas.push((format!("json_{index}"), tool.parameters.clone()));
        }
        let last = match (must, answer) {
            (true, _) => "call".to_owned(),
            (false, Some(_)) => format!("call | {channel} \"final\" {message} answer"),
            (false, None) => format!("call | {channel} \"final\" {message} said"),
        };
        let thought = tokens.text_up_to("thought", "<|end|>");
        // The tokens of the format end a message.
        let part = tokens.others(MARKS);
        let part = part.map_or_else(|| "TEXT".to_owned(), |others| format!("TEXT | {others}"));
        let rules = format!(
            "start: before* ({last} | {channel} \"analysis\" {message} thought)\n\
             before: {channel} CHANNEL {message} thought_end {start} \"assistant\"\n\
             CHANNEL: \"analysis\" | \"commentary\"\nCALLING: \"commentary\" | \"analysis\"\nSPACE: \" \"\n\
             call: {}\n{thought}said: ({part})*\nTEXT: /(?s:.+)/\n",
            calls.join(" | ")
        );
        Grammar::Calls { rules, schemas, answer: answer.cloned() }
    }

    /// Returns the rules for messages in the channel `analysis`, and one in the channel `final`.
    fn answer_rules(&self, _start: ReasoningStart, _has_calls: bool, tokens: MarkTokens) -> String {
        let [channel, message, start] = [CHANNEL, MESSAGE, START].map(|mark| tokens.mark(mark));
        let thought = tokens.text_up_to("thought", "<|end|>");
        format!(
            "start: before* ({channel} \"final\" {message} @answer | {channel} \"analysis\" {message} thought)\n\
             before: {channel} \"analysis\" {message} thought_end {start} \"assistant\"\n{thought}"
        )
    }
}

/// Returns the message with this header.
fn message(header: &str, tools: &[Tool]) -> Message {
    let word =
        |text: &str| -> String { text.chars().take_while(|c| !c.is_whitespace() && *c != '<').collect() };
    let recipient = header.split_once("to=").map(|(_, rest)| word(rest)).unwrap_or_default();
    let channel = header.split_once(CHANNEL).map(|(_, rest)| word(rest)).unwrap_or_default();
    match recipient.strip_prefix(FUNCTIONS) {
        Some(name) if tools.iter().any(|tool| tool.name == name) => Message::call(name),
        // The call of an unknown function is text. Tools that OpenAI runs are called in the
        // reasoning.
        Some(_) => Message::with_text(MessageKind::Content, header),
        None if channel == "analysis" || !recipient.is_empty() => Message::new(MessageKind::Reasoning),
        None => Message::new(MessageKind::Content),
    }
}
