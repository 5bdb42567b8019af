//! The answers of Muse Glimmer: messages whose recipient is the model itself for the reasoning, the
//! user for the answer, and a tool for a call.
//!
//! Each message is ` to=RECIPIENT`, `<|message|>`, a text and an end token. The prompt ends before
//! the first recipient. The text of a call has tags, in which strings are written as they are.

use serde_json::Value;

use super::super::allowed::{AllowedTools, Tool, ToolChoice};
use super::super::call_grammar::{quoted, tagged_calls};
use super::super::syntax::{CallSyntax, FormatSyntax, MARKED};
use super::super::tagged_call::{TagSyntax, ValueTypes};
use super::definition::{ChannelFormat, Channels, End, Header, Message, MessageKind, end_of};
use crate::grammar::{Grammar, MarkTokens};
use crate::reasoning::{ReasoningMarks, ReasoningStart};

/// The format.
pub(crate) const MUSE: Channels = Channels(&Muse);

const START: &str = "<|start|>";
const MESSAGE: &str = "<|message|>";
/// The token that ends a message that another one of the same answer follows.
const MORE: &str = "<|eom|>";
const MARKS: &[&str] = &[START, MESSAGE, MORE, "<|eot|>"];
/// The tokens that end the text of a message.
const ENDS: [&str; 3] = [MORE, "<|eot|>", START];

const OPEN: &str = "<atem:function_calls>";
const CLOSE: &str = "</atem:function_calls>";
const TAGS: TagSyntax = TagSyntax {
    function: ("<atem:invoke name=\"", "\">"),
    parameter: ("<atem:parameter name=\"", "\">"),
    key_end: "",
    types: ValueTypes::Schema,
    end_of_value: "</atem:parameter>",
    end: "</atem:invoke>",
    is_padded: false,
    verbatim: None,
    object: None,
};

#[derive(Debug)]
struct Muse;

impl ChannelFormat for Muse {
    fn begun_answer<'a>(&self, prompt: &'a str) -> &'a str {
        prompt.rsplit_once("<|start|>assistant").map_or("", |(_, begun)| begun)
    }

    fn header(&self, text: &str, is_first: bool, _tools: &[Tool]) -> Header {
        if let Some(header) = text.strip_suffix(MESSAGE) {
            let recipient = header.split_once("to=").map(|(_, recipient)| recipient.trim());
            return Header::Message(Message::new(match recipient {
                Some("self") => MessageKind::Reasoning,
                Some("user") | None => MessageKind::Content,
                // A text that is no call of a known tool is content.
                Some(_) => MessageKind::Calls,
            }));
        }
        let begun = text.trim_start();
        let begins = |begin: &str| begin.starts_with(begun) || begun.starts_with(begin);
        let is_header = !is_first || ["to=", START, MESSAGE].into_iter().any(begins);
        if is_header { Header::Undecided } else { Header::Absent }
    }

    fn end(&self, text: &str, _kind: MessageKind, _tools: &[Tool]) -> End {
        end_of(text, &ENDS, START)
    }

    fn syntax(&self) -> FormatSyntax {
        let call = CallSyntax::Tags(TAGS);
        FormatSyntax { open: Some(OPEN), closing: &[CLOSE], call, marks: MARKS, ..MARKED }
    }

    /// Everything before the message to the user is reasoning or calls.
    fn marks(&self) -> ReasoningMarks {
        ReasoningMarks { open: "to=", close: "to=user<|message|>", tokens: MARKS }
    }

    fn forced_close(&self, calls: bool) -> &'static str {
        if calls { "<|eom|><|start|>assistant" } else { "<|eom|><|start|>assistant to=user<|message|>" }
    }

    fn reasoning_channel(&self) -> Option<(&'static str, &'static str)> {
        Some(("to=", "self"))
    }

    /// Returns the grammar of any number of messages to the model itself and to the user, and then
    /// calls or the answer. The answer may end within the reasoning.
    fn call_grammar(&self, tools: &AllowedTools, answer: Option<&Value>, tokens: MarkTokens) -> Grammar {
        let [start, message, more] = [START, MESSAGE, MORE].map(|mark| tokens.mark(mark));
        let (calls, schemas) = tagged_calls(TAGS, tools, tokens, MARKS);
        let names = tools.callable().enumerate();
        let calling = names.map(|(index, tool)| {
            format!(
                "{} {message} \"{OPEN}\" GAP? call_{index} GAP? \"{CLOSE}\"",
                quoted(&format!(" to={}", tool.name))
            )
        });
        let calling: Vec<String> = calling.collect();
        let again =
            if tools.parallel { format!(" ({more} {start} \"assistant\" calling)*") } else { String::new() };
        let last = match (tools.choice != ToolChoice::Auto, answer) {
            (true, _) => "calls".to_owned(),
            (false, Some(_)) => format!("calls | \" to=user\" {message} answer"),
            (false, None) => format!("calls | \" to=user\" {message} said"),
        };
        let part = tokens.others(MARKS);
        let part = part.map_or_else(|| "SAID".to_owned(), |others| format!("SAID | {others}"));
        // A remark to the user may come before calls.
        let remark =
            if tools.choice == ToolChoice::Auto && answer.is_none() { " | \" to=user\"" } else { "" };
        let rules = format!(
            "start: before* ({last} | \" to=self\" {message} thought)\n\
             before: REMARK {message} thought_end {start} \"assistant\"\nREMARK: \" to=self\"{remark}\n\
             calls: calling{again} GAP?\ncalling: {}\n{calls}{}said: ({part})*\nSAID: /(?s:.+)/\n",
            calling.join(" | "),
            tokens.text_up_to("thought", MORE),
        );
        Grammar::Calls { rules, schemas, answer: answer.cloned() }
    }

    /// Returns the rules for messages to the model itself, and one to the user.
    fn answer_rules(&self, _start: ReasoningStart, _has_calls: bool, tokens: MarkTokens) -> String {
        let [start, message] = [START, MESSAGE].map(|mark| tokens.mark(mark));
        let thought = tokens.text_up_to("thought", MORE);
        format!(
            "start: before* (\" to=user\" {message} @answer | \" to=self\" {message} thought)\n\
             before: \" to=self\" {message} thought_end {start} \"assistant\"\n{thought}"
        )
    }
}
