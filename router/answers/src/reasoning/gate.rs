//! Finds the beginning of the answer after the reasoning, without changing the text.
//!
//! Stop strings end the answer and not the reasoning: a stop string such as a blank line would
//! otherwise end most answers before they begin.

use millrace_text::SubstringMatcher;

use super::marks::{Opening, ReasoningMarks, ReasoningStart, opening};

/// Divides a text into the reasoning with its marks, and the answer.
#[derive(Debug)]
pub struct ReasoningGate {
    marks: ReasoningMarks,
    state: GateState,
    close: SubstringMatcher,
}

#[derive(Debug)]
enum GateState {
    /// The text so far, which may become the opening mark.
    Start(String),
    Reasoning,
    Answer,
}

impl ReasoningGate {
    /// Creates a gate for an answer.
    pub fn new(marks: ReasoningMarks, start: ReasoningStart) -> Self {
        let state = match start {
            ReasoningStart::Inside => GateState::Reasoning,
            ReasoningStart::Possible => GateState::Start(String::new()),
        };
        ReasoningGate { marks, state, close: SubstringMatcher::new(marks.close.to_owned()) }
    }

    /// Whether the text so far ends within the reasoning.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, GateState::Reasoning)
    }

    /// Adds text. Returns the text of the reasoning and the text of the answer in it. Text at the
    /// beginning is held back until it is certain.
    pub fn push(&mut self, text: &str) -> (String, String) {
        let mut reasoning = String::new();
        for (at, c) in text.char_indices() {
            // The text in which the closing mark is searched for.
            let searched = match &mut self.state {
                GateState::Answer => return (reasoning, text[at..].to_owned()),
                GateState::Reasoning => c.to_string(),
                GateState::Start(begin) => {
                    begin.push(c);
                    match opening(begin, self.marks.open) {
                        Opening::Undecided => continue,
                        Opening::Found => {
                            // The closing mark of Harmony begins like its opening mark.
                            let begin = std::mem::take(begin);
                            self.state = GateState::Reasoning;
                            begin
                        }
                        Opening::Absent => {
                            let begin = std::mem::take(begin);
                            self.state = GateState::Answer;
                            return (reasoning, begin + &text[at + c.len_utf8()..]);
                        }
                    }
                }
            };
            if searched.bytes().filter(|&byte| self.close.advance(byte).is_some()).count() > 0 {
                self.state = GateState::Answer;
            }
            reasoning += &searched;
        }
        (reasoning, String::new())
    }

    /// Ends the text and returns what was held back, which belongs to the answer.
    pub fn finish(&mut self) -> String {
        match std::mem::replace(&mut self.state, GateState::Answer) {
            GateState::Start(begin) => begin,
            GateState::Reasoning | GateState::Answer => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reasoning::ReasoningFormat;

    fn read(start: ReasoningStart, pieces: &[&str]) -> (String, String) {
        let mut gate = ReasoningGate::new(ReasoningFormat::Think.marks(), start);
        let (mut reasoning, mut answer) = (String::new(), String::new());
        for piece in pieces {
            let (more, rest) = gate.push(piece);
            reasoning += &more;
            answer += &rest;
        }
        (reasoning, answer + &gate.finish())
    }

    #[test]
    fn the_answer_begins_after_the_closing_mark() {
        for (start, text, reasoning) in [
            (ReasoningStart::Possible, "<think>\na</think>\nb</think>", "<think>\na</think>"),
            (ReasoningStart::Inside, "a</think></think>b", "a</think>"),
            (ReasoningStart::Possible, "\n\nSo.", ""),
            (ReasoningStart::Possible, " <thin", ""),
            (ReasoningStart::Inside, "ü", "ü"),
        ] {
            let expected = (reasoning.to_owned(), text[reasoning.len()..].to_owned());
            assert_eq!(read(start, &[text]), expected, "{text}");
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            assert_eq!(read(start, &characters), expected, "{text}");
        }
    }
}
