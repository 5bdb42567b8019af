//! Separates the reasoning of an answer from the rest.
//!
//! A stream is read piece by piece and a whole answer as one piece, with the same result. The end
//! of the reasoning that may be its closing mark is held back, and white space around the reasoning
//! is dropped. The time is linear in the text.
//!
//! Some models call a tool without closing their reasoning. Such a call ends the reasoning. But if
//! the closing mark follows, the model has only rehearsed the call. Therefore the text from the
//! first call on is held back until the closing mark or the end of the answer.

use super::marks::{Opening, ReasoningMarks, ReasoningStart, opening};
use crate::tools::{HeldText, ToolCallParser};

/// Reads one answer.
#[derive(Debug)]
pub struct ReasoningSplitter {
    marks: ReasoningMarks,
    state: SplitterState,
    /// The end of the reasoning that may be the closing mark, and white space before it.
    held: HeldText,
    /// Set if the answer may call tools with a marker.
    calls: Option<CallWatch>,
}

/// Watches the reasoning for a call.
#[derive(Debug)]
struct CallWatch {
    /// Reads the reasoning up to the first call of a known tool.
    parser: Box<ToolCallParser>,
    /// The text that may become a call, or the text from the first call on.
    text: String,
    has_call: bool,
}

impl CallWatch {
    /// Adds a part of the reasoning. Text that is certainly not part of a call is appended to
    /// `reasoning`.
    fn push(&mut self, part: &str, reasoning: &mut String) {
        self.text += part;
        if self.has_call {
            return;
        }
        let delta = self.parser.push(part);
        reasoning.extend(self.text.drain(..delta.content.len()));
        self.has_call = !delta.calls.is_empty();
    }
}

#[derive(Debug)]
enum SplitterState {
    /// The answer so far, which may become the opening mark.
    Start(String),
    Reasoning {
        has_begun: bool,
    },
    /// After the closing mark. Line breaks are dropped.
    Closed,
    Answer,
}

/// The text that a piece of an answer adds.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SplitText {
    /// Text of the reasoning.
    pub reasoning: String,
    /// Text of the answer.
    pub answer: String,
}

impl ReasoningSplitter {
    /// Creates a splitter for an answer.
    pub fn new(marks: ReasoningMarks, start: ReasoningStart) -> Self {
        let state = match start {
            ReasoningStart::Inside => SplitterState::Reasoning { has_begun: false },
            ReasoningStart::Possible => SplitterState::Start(String::new()),
        };
        ReasoningSplitter { marks, state, held: HeldText::new(marks.close), calls: None }
    }

    /// Makes a call in reasoning that is not closed a part of the answer. `parser` reads answers
    /// whose calls always have a marker.
    pub fn with_calls(mut self, parser: Option<ToolCallParser>) -> Self {
        self.calls =
            parser.map(|parser| CallWatch { parser: Box::new(parser), text: String::new(), has_call: false });
        self
    }

    /// Whether the text so far ends in reasoning that is not closed and calls a tool.
    pub fn has_unclosed_call(&self) -> bool {
        self.is_reasoning() && self.calls.as_ref().is_some_and(|calls| calls.has_call)
    }

    /// Whether the text so far ends within the reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, SplitterState::Reasoning { .. })
    }

    /// Adds text and returns what is certain.
    pub fn push(&mut self, text: &str) -> SplitText {
        let mut split = SplitText::default();
        for (at, c) in text.char_indices() {
            if matches!(self.state, SplitterState::Answer) {
                split.answer += &text[at..];
                break;
            }
            self.character(c, &mut split);
        }
        split
    }

    /// Ends the text and returns what was held back.
    pub fn finish(&mut self) -> SplitText {
        match std::mem::replace(&mut self.state, SplitterState::Answer) {
            SplitterState::Start(answer) => SplitText { answer, ..SplitText::default() },
            SplitterState::Reasoning { .. } => {
                let mut split = SplitText { reasoning: self.held.take(), ..SplitText::default() };
                if let Some(mut calls) = self.calls.take() {
                    let rest = std::mem::take(&mut split.reasoning);
                    calls.push(&rest, &mut split.reasoning);
                    let text = if calls.has_call { &mut split.answer } else { &mut split.reasoning };
                    text.push_str(&calls.text);
                }
                split
            }
            SplitterState::Closed | SplitterState::Answer => SplitText::default(),
        }
    }

    fn character(&mut self, c: char, split: &mut SplitText) {
        match &mut self.state {
            SplitterState::Start(begin) => {
                begin.push(c);
                match opening(begin, self.marks.open) {
                    Opening::Undecided => {}
                    Opening::Found => self.state = SplitterState::Reasoning { has_begun: false },
                    Opening::Absent => {
                        split.answer += begin;
                        self.state = SplitterState::Answer;
                    }
                }
            }
            SplitterState::Reasoning { has_begun: false } if c.is_whitespace() => {}
            SplitterState::Reasoning { has_begun } => {
                *has_begun = true;
                let Some(calls) = &mut self.calls else {
                    if self.held.push(c, &mut split.reasoning) {
                        self.state = SplitterState::Closed;
                    }
                    return;
                };
                let mut released = String::new();
                let is_closed = self.held.push(c, &mut released);
                calls.push(&released, &mut split.reasoning);
                if is_closed {
                    // A call in reasoning that is closed was not meant.
                    split.reasoning += &calls.text;
                    (self.state, self.calls) = (SplitterState::Closed, None);
                }
            }
            SplitterState::Closed if c == '\n' || c == '\r' => {}
            SplitterState::Closed | SplitterState::Answer => {
                split.answer.push(c);
                self.state = SplitterState::Answer;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reasoning::ReasoningFormat;
    use millrace_text::thread_time;

    fn read(format: ReasoningFormat, start: ReasoningStart, pieces: &[&str]) -> (String, String) {
        let mut splitter = ReasoningSplitter::new(format.marks(), start);
        let (mut reasoning, mut answer) = (String::new(), String::new());
        let splits: Vec<_> = pieces.iter().map(|piece| splitter.push(piece)).collect();
        for split in splits.into_iter().chain([splitter.finish()]) {
            reasoning += &split.reasoning;
            answer += &split.answer;
        }
        (reasoning, answer)
    }

    const CASES: &[(ReasoningFormat, ReasoningStart, &str, &str, &str)] = &[
        (
            ReasoningFormat::Think,
            ReasoningStart::Possible,
            "<think>\nWhy </thin not?\n</think>\n\nSo.",
            "Why </thin not?",
            "So.",
        ),
        (ReasoningFormat::Think, ReasoningStart::Inside, "Why?\n</think>\n\n  So.", "Why?", "  So."),
        (ReasoningFormat::Think, ReasoningStart::Inside, "</think>So </think>.", "", "So </think>."),
        (ReasoningFormat::Think, ReasoningStart::Possible, "\n<think></think>So.", "", "So."),
        (ReasoningFormat::Think, ReasoningStart::Possible, " So <think>.", "", " So <think>."),
        (ReasoningFormat::Think, ReasoningStart::Possible, "<thin", "", "<thin"),
        (ReasoningFormat::Think, ReasoningStart::Possible, "<think>Cut o", "Cut o", ""),
        (ReasoningFormat::Think, ReasoningStart::Inside, "Cut </thi", "Cut </thi", ""),
        (ReasoningFormat::Mistral, ReasoningStart::Possible, "[THINK]Ü.[/THINK]So.", "Ü.", "So."),
        (ReasoningFormat::Cohere, ReasoningStart::Inside, "Why.<|END_THINKING|>So.", "Why.", "So."),
        (
            ReasoningFormat::Gemma4,
            ReasoningStart::Possible,
            "<|channel>thought\nWhy.<channel|>So.",
            "Why.",
            "So.",
        ),
    ];

    #[test]
    fn each_answer_is_split() {
        for &(format, start, text, reasoning, answer) in CASES {
            assert_eq!(read(format, start, &[text]), (reasoning.to_owned(), answer.to_owned()), "{text}");
        }
    }

    #[test]
    fn divisions_do_not_change_the_result() {
        for &(format, start, text, ..) in CASES {
            let whole = read(format, start, &[text]);
            for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
                assert_eq!(read(format, start, &[&text[..at], &text[at..]]), whole, "{text} at {at}");
            }
        }
    }

    proptest! {
        #[test]
        fn random_divisions_do_not_change_the_result(
            parts in prop::collection::vec(prop_oneof![
                Just("<think>"), Just("</think>"), Just("<"), Just("</think"), Just("\n"), Just(" "), Just("ü"), Just("a"),
            ], 0..16),
            inside: bool,
        ) {
            let text = parts.concat();
            let start = if inside { ReasoningStart::Inside } else { ReasoningStart::Possible };
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            let format = ReasoningFormat::Think;
            prop_assert_eq!(read(format, start, &characters), read(format, start, &[&text]));
        }
    }

    #[test]
    fn the_time_is_linear_in_the_text() {
        for part in [" ", "</think", "<", "\u{2003}", "a "] {
            let text = part.repeat(200_000 / part.len());
            for start in [ReasoningStart::Inside, ReasoningStart::Possible] {
                let since = thread_time();
                read(ReasoningFormat::Think, start, &[&text]);
                let took = thread_time() - since;
                assert!(took.as_secs_f64() < 2.0, "{part:?}: {took:?}");
            }
        }
    }
}
