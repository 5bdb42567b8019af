//! The answers of Functionary from version 3.2 on: messages that begin with `>>>`, a recipient and
//! a line break. The recipient `all` is the user, and any other one is a tool, whose arguments
//! follow.
//!
//! The prompt ends with the first `>>>`. The mark is ordinary text, so that it begins a message
//! only if a known recipient follows it on its line.

use serde_json::Value;

use super::super::allowed::{AllowedTools, Tool, ToolChoice};
use super::super::call_grammar::quoted;
use super::super::syntax::{CallSyntax, FormatSyntax, MARKED};
use super::definition::{ChannelFormat, Channels, End, Header, Message, MessageKind};
use crate::grammar::{Grammar, MarkTokens, escape};
use crate::reasoning::{ReasoningMarks, ReasoningStart};

/// The format.
pub(in crate::tools) const FUNCTIONARY: Channels = Channels(&Functionary);

const MARK: &str = ">>>";
/// The recipient of a text for the user.
const USER: &str = "all";

#[derive(Debug)]
struct Functionary;

/// A text that may be a recipient and a line break.
enum Recipient<'a> {
    Undecided,
    Unknown,
    User,
    Tool(&'a str),
}

impl Recipient<'_> {
    fn of<'a>(line: &'a str, tools: &[Tool]) -> Recipient<'a> {
        let names = || tools.iter().map(|tool| tool.name.as_str());
        match line.strip_suffix('\n') {
            Some(USER) => Recipient::User,
            Some(name) if names().any(|known| known == name) => Recipient::Tool(name),
            None if names().chain([USER]).any(|known| known.starts_with(line)) => Recipient::Undecided,
            _ => Recipient::Unknown,
        }
    }
}

impl ChannelFormat for Functionary {
    fn begun_answer<'a>(&self, prompt: &'a str) -> &'a str {
        prompt.rsplit_once("assistant<|end_header_id|>\n\n>>>").map_or("", |(_, begun)| begun)
    }

    fn header(&self, text: &str, _is_first: bool, tools: &[Tool]) -> Header {
        match Recipient::of(text.strip_prefix(MARK).unwrap_or(text), tools) {
            Recipient::Undecided => Header::Undecided,
            Recipient::Unknown => Header::Absent,
            Recipient::User => Header::Message(Message::new(MessageKind::Content)),
            Recipient::Tool(name) => Header::Message(Message::call(name)),
        }
    }

    fn end(&self, text: &str, _kind: MessageKind, tools: &[Tool]) -> End {
        let Some(line) = text.strip_prefix(MARK) else {
            return if MARK.starts_with(text) { End::Undecided } else { End::Absent };
        };
        match Recipient::of(line, tools) {
            Recipient::Undecided => End::Undecided,
            Recipient::Unknown => End::Absent,
            Recipient::User | Recipient::Tool(_) => End::Complete { begins_header: true },
        }
    }

    fn syntax(&self) -> FormatSyntax {
        let call = CallSyntax::Named {
            before: "",
            after: "\n",
            find: |head| head.strip_suffix('\n').unwrap_or_default(),
        };
        FormatSyntax { open: Some(MARK), call, ..MARKED }
    }

    /// The recipient of a text is no part of the text.
    fn marks(&self) -> ReasoningMarks {
        ReasoningMarks { open: MARK, close: "all\n", tokens: &[] }
    }

    /// Returns the grammar of a text for the user, and of calls. Other text than a known recipient
    /// may follow the mark in a text.
    fn call_grammar(&self, tools: &AllowedTools, answer: Option<&Value>, tokens: MarkTokens) -> Grammar {
        let name_call =
            |(index, tool): (usize, &Tool)| format!("{} json_{index}", quoted(&format!("{}\n", tool.name)));
        let calls: Vec<String> = tools.callable().enumerate().map(name_call).collect();
        let schemas = tools.callable().enumerate();
        let schemas =
            schemas.map(|(index, tool)| (format!("json_{index}"), tool.parameters.clone())).collect();
        let again = if tools.parallel { format!(" (SPACE? \"{MARK}\" call)*") } else { String::new() };
        let (start, said) = match (tools.choice != ToolChoice::Auto, answer) {
            (true, _) => ("calls", String::new()),
            (false, Some(_)) => ("calls | \"all\\n\" answer", String::new()),
            (false, None) => ("calls | \"all\\n\" (said | said_before)", said_rules(tools, tokens, &again)),
        };
        let calls = calls.join(" | ");
        let rules = format!(
            "start: {start}\ncalls: call{again} SPACE?\ncall: {calls}\n{said}SPACE: /[ \\n]{{1,8}}/\n"
        );
        Grammar::Calls { rules, schemas, answer: answer.cloned() }
    }

    fn answer_rules(&self, start: ReasoningStart, _has_calls: bool, _tokens: MarkTokens) -> String {
        match start {
            ReasoningStart::Inside => "start: \"all\\n\" @answer\n".to_owned(),
            // The prompt names the recipient.
            ReasoningStart::Possible => "start: @answer\n".to_owned(),
        }
    }
}

/// Returns the rules for any text for the user, alone and with calls after it. `again` stands for
/// further calls.
fn said_rules(tools: &AllowedTools, tokens: MarkTokens, again: &str) -> String {
    let others = tokens.others(&[]).map_or_else(String::new, |others| format!("(TEXT? {others})* "));
    let (mut rules, mut before, mut names) = (String::new(), Vec::new(), vec![USER.to_owned()]);
    for (index, tool) in tools.callable().enumerate() {
        let name = escape(&tool.name);
        rules += &format!("before_{index}[lazy]: /(?s:.*)>>>{name}\\n/\n");
        before.push(format!("{others}before_{index} json_{index}"));
        names.push(name);
    }
    let (before, names) = (before.join(" | "), names.join("|"));
    format!(
        "said: {others}TEXT?\nsaid_before: ({before}){again} SPACE?\n{rules}\
         TEXT: /(?s:.+)/ & ~/(?s:.*)>>>({names})\\n(?s:.*)/\n"
    )
}
