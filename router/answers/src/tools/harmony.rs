//! Reads the answers of gpt-oss, which are messages in channels: the reasoning is in the channel
//! `analysis`, the answer in `final`, and a call is a message to `functions.NAME`.
//!
//! Each message is a header, `<|message|>`, a text and an end token. The prompt ends within the
//! first header. Source: OpenAI's description of the Harmony format.

use super::allowed::AllowedTools;
use super::delta::{AnswerDelta, CallDelta};

/// The tokens of the format.
pub(super) const MARKS: &[&str] =
    &["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"];
const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
/// The tokens that end the text of a message.
const ENDS: [&str; 4] = ["<|end|>", "<|call|>", "<|return|>", START];
/// The maximum length of a header in bytes.
const MAX_HEADER_BYTES: usize = 512;
/// The beginning of the recipient of a call.
const FUNCTIONS: &str = "functions.";

/// Parses one answer.
#[derive(Debug)]
pub struct HarmonyParser {
    /// The names of the tools that may be called.
    tools: Vec<String>,
    /// The number of calls that the answer may have.
    max_calls: usize,
    calls: usize,
    state: HarmonyState,
    /// The header so far, or the end of a text that may be the beginning of a token.
    held: String,
    has_reasoning: bool,
    has_content: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HarmonyState {
    /// In a header, of the first message or of a later one.
    Header { is_first: bool },
    /// In a text, at whose beginning no character has been read.
    Body { kind: MessageKind, is_empty: bool },
    /// The answer has as many calls as it may have.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageKind {
    Reasoning,
    Content,
    Call,
}

impl HarmonyParser {
    /// Creates a parser for an answer that may call these tools.
    pub fn new(tools: Option<&AllowedTools>) -> Self {
        HarmonyParser {
            tools: tools.iter().flat_map(|tools| tools.callable()).map(|tool| tool.name.clone()).collect(),
            max_calls: if tools.is_none_or(|tools| tools.parallel) { usize::MAX } else { 1 },
            calls: 0,
            state: HarmonyState::Header { is_first: true },
            held: String::new(),
            has_reasoning: false,
            has_content: false,
        }
    }

    /// Reads the part of the prompt that belongs to the answer: a header or a text that the answer
    /// continues.
    pub fn continue_from(&mut self, begun: &str) {
        self.push(begun);
        (self.has_reasoning, self.has_content) = (false, false);
    }

    /// Returns the part of a prompt that belongs to the answer.
    pub fn begun_answer(prompt: &str) -> &str {
        prompt.rsplit_once("<|start|>assistant").map_or("", |(_, begun)| begun)
    }

    /// Returns the number of calls so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Whether the text so far ends within the reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, HarmonyState::Body { kind: MessageKind::Reasoning, .. })
    }

    /// Whether the name of a channel comes next.
    pub fn names_channel(&self) -> bool {
        matches!(self.state, HarmonyState::Header { .. }) && self.held.ends_with(CHANNEL)
    }

    /// Adds text and returns the reasoning, the content and the parts of calls in it.
    pub fn push(&mut self, text: &str) -> AnswerDelta {
        let mut delta = AnswerDelta::default();
        for c in text.chars() {
            match self.state {
                HarmonyState::Done => {}
                HarmonyState::Header { is_first } => self.header(c, is_first, &mut delta),
                HarmonyState::Body { .. } => self.body(c, &mut delta),
            }
        }
        delta
    }

    /// Ends the text and returns what was held back.
    pub fn finish(&mut self) -> AnswerDelta {
        let mut delta = AnswerDelta::default();
        if let HarmonyState::Body { .. } = self.state {
            let held = std::mem::take(&mut self.held);
            self.release(&held, &mut delta);
            self.end_body(&mut delta);
        }
        self.state = HarmonyState::Done;
        delta
    }

    fn header(&mut self, c: char, is_first: bool, delta: &mut AnswerDelta) {
        self.held.push(c);
        if self.held.ends_with(MESSAGE) {
            let header = std::mem::take(&mut self.held);
            self.begin_body(&header, delta);
            return;
        }
        // A model that does not use the format, and a header without an end.
        let begins_header = |begin: &str| {
            begin.starts_with(self.held.trim_start()) || self.held.trim_start().starts_with(begin)
        };
        let is_header =
            !is_first || [CHANNEL, START, "to=", "<|constrain|>", MESSAGE].into_iter().any(begins_header);
        if !is_header || self.held.len() > MAX_HEADER_BYTES {
            let text = std::mem::take(&mut self.held);
            self.state = HarmonyState::Body { kind: MessageKind::Content, is_empty: true };
            text.chars().for_each(|c| self.body(c, delta));
        }
    }

    /// Begins the text of a message with this header.
    fn begin_body(&mut self, header: &str, delta: &mut AnswerDelta) {
        let word =
            |text: &str| -> String { text.chars().take_while(|c| !c.is_whitespace() && *c != '<').collect() };
        let recipient = header.split_once("to=").map(|(_, rest)| word(rest)).unwrap_or_default();
        let channel = header.split_once(CHANNEL).map(|(_, rest)| word(rest)).unwrap_or_default();
        let function = recipient.strip_prefix(FUNCTIONS);
        let kind = match function {
            Some(name) if self.tools.iter().any(|tool| tool == name) => {
                let name = Some(name.to_owned());
                delta.calls.push(CallDelta { index: self.calls, name, arguments: String::new() });
                MessageKind::Call
            }
            // The call of an unknown function is text. Tools that OpenAI runs are called in the
            // reasoning.
            Some(_) => MessageKind::Content,
            None if channel == "analysis" || !recipient.is_empty() => MessageKind::Reasoning,
            None => MessageKind::Content,
        };
        self.state = HarmonyState::Body { kind, is_empty: true };
        if function.is_some() && kind == MessageKind::Content {
            self.release(header, delta);
        }
    }

    fn body(&mut self, c: char, delta: &mut AnswerDelta) {
        self.held.push(c);
        if ENDS.contains(&self.held.as_str()) {
            let is_start = self.held == START;
            self.held.clear();
            self.end_body(delta);
            if self.state != HarmonyState::Done {
                self.state = HarmonyState::Header { is_first: false };
                if is_start {
                    self.held.push_str(START);
                }
            }
        } else if !ENDS.iter().any(|end| end.starts_with(&self.held)) {
            // Tokens contain `<` only at their beginning, so that only the last character may begin
            // another token.
            let mut text = std::mem::take(&mut self.held);
            if c == '<' {
                text.pop();
                self.held.push(c);
            }
            self.release(&text, delta);
        }
    }

    /// Adds text to the part of the answer to which the current message belongs. Messages of one
    /// part are on lines of their own.
    fn release(&mut self, text: &str, delta: &mut AnswerDelta) {
        let HarmonyState::Body { kind, is_empty } = &mut self.state else { return };
        let text = if *is_empty && *kind == MessageKind::Call { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        let begins = std::mem::take(is_empty);
        let (part, has_text) = match kind {
            MessageKind::Call => return delta.call(self.calls, None, text),
            MessageKind::Reasoning => (&mut delta.reasoning, &mut self.has_reasoning),
            MessageKind::Content => (&mut delta.content, &mut self.has_content),
        };
        if begins && *has_text {
            part.push('\n');
        }
        *has_text = true;
        part.push_str(text);
    }

    fn end_body(&mut self, delta: &mut AnswerDelta) {
        let HarmonyState::Body { kind: MessageKind::Call, is_empty } = self.state else { return };
        if is_empty {
            delta.call(self.calls, None, "{}");
        }
        self.calls += 1;
        if self.calls >= self.max_calls {
            self.state = HarmonyState::Done;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::tools::{Tool, ToolChoice};

    /// Returns the reasoning, the content, and the names and arguments of the calls.
    fn read(pieces: &[&str], parallel: bool) -> (String, String, Vec<(String, String)>) {
        let tool = |name: &str| Tool { name: name.into(), parameters: json!({}) };
        let tools =
            AllowedTools { tools: vec![tool("get"), tool("set")], choice: ToolChoice::Auto, parallel };
        let mut parser = HarmonyParser::new(Some(&tools));
        let mut whole = AnswerDelta::default();
        pieces.iter().for_each(|piece| whole.extend(parser.push(piece)));
        whole.extend(parser.finish());
        let calls: Vec<_> =
            whole.calls.into_iter().map(|call| (call.name.unwrap(), call.arguments)).collect();
        assert_eq!(calls.len(), parser.calls());
        (whole.reasoning, whole.content, calls)
    }

    const CALLS: &str = "<|channel|>analysis<|message|>I < need <| it.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>\
        <|start|>assistant<|channel|>commentary to=functions.get <|constrain|>json<|message|>{\"n\": \"<|\"}<|call|>\
        <|start|>assistant to=functions.set<|channel|>commentary json<|message|><|call|>";

    #[test]
    fn messages_are_divided_by_their_channels() {
        let answer = "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>\
                      <|start|>assistant<|channel|>final<|message|>Hello <b>.<|return|>";
        assert_eq!(read(&[answer], true), ("One.\nTwo.".into(), "Hello <b>.".into(), vec![]));
        let calls = |count: usize| {
            let calls = [("get", "{\"n\": \"<|\"}"), ("set", "{}")];
            calls.into_iter().take(count).map(|(name, text)| (name.into(), text.into())).collect::<Vec<_>>()
        };
        assert_eq!(read(&[CALLS], true), ("I < need <| it.".into(), "Wait.".into(), calls(2)));
        assert_eq!(read(&[CALLS], false).2, calls(1));
    }

    #[test]
    fn malformed_answers_are_text() {
        for (answer, reasoning, content) in [
            ("Hello.", "", "Hello."),
            ("<b> <|", "", "<b> <|"),
            ("", "", ""),
            ("<|channel|>analysis<|message|>cut o", "cut o", ""),
            ("<|channel|>ana", "", ""),
            ("<|channel|>final<|message|>a<|en", "", "a<|en"),
            ("<|channel|>analysis to=python<|message|>1+1<|call|>", "1+1", ""),
            (
                "<|channel|>commentary to=functions.other<|message|>{}<|call|>",
                "",
                "<|channel|>commentary to=functions.other<|message|>{}",
            ),
        ] {
            assert_eq!(read(&[answer], true), (reasoning.into(), content.into(), vec![]), "{answer}");
        }
        let endless = format!("<|channel|>{}", "x".repeat(10_000));
        assert_eq!(read(&[&endless], true).1, endless);
    }

    #[test]
    fn a_continued_message_keeps_its_channel() {
        let prompt = "<|start|>user<|message|>hi<|end|><|start|>assistant<|channel|>final<|message|>It is";
        let mut parser = HarmonyParser::new(None);
        parser.continue_from(HarmonyParser::begun_answer(prompt));
        assert_eq!(parser.push(" sunny.").content, " sunny.");
        let mut parser = HarmonyParser::new(None);
        parser.continue_from(HarmonyParser::begun_answer("<|start|>assistant"));
        assert_eq!(parser.push("<|channel|>analysis<|message|>why").reasoning, "why");
        assert!(parser.is_reasoning());
    }

    proptest! {
        #[test]
        fn divisions_do_not_change_the_result(
            parts in prop::collection::vec(prop_oneof![
                Just("<|start|>"), Just("assistant"), Just("<|channel|>"), Just("analysis"), Just("final"), Just("commentary"),
                Just(" to=functions.get"), Just("<|message|>"), Just("<|end|>"), Just("<|call|>"), Just("<"), Just("<|"),
                Just("{\"a\": 1}"), Just(" "), Just("\n"), Just("ü"), Just("<|constrain|>json"),
            ], 0..24),
            parallel: bool,
        ) {
            let answer = parts.concat();
            let whole = read(&[&answer], parallel);
            let characters: Vec<String> = answer.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            prop_assert_eq!(read(&characters, parallel), whole);
        }
    }
}
