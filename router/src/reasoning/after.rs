//! Grammars that restrict the text after the reasoning.

use super::format::{ReasoningFormat, ReasoningStart};
use crate::grammar::Grammar;
use crate::text::Tokenizer;

/// Returns a grammar of answers that begin with any reasoning and continue with a text of `answer`.
/// After a prompt that does not open the reasoning, the answer may also begin at once.
pub(crate) fn after_reasoning(
    answer: Grammar,
    format: ReasoningFormat,
    start: ReasoningStart,
    tokenizer: &Tokenizer,
) -> Grammar {
    let rules = Rules { tokenizer };
    let marks = format.marks();
    let rules = match format {
        ReasoningFormat::Harmony => rules.harmony(),
        _ => {
            let thought = rules.up_to("thought", marks.close);
            let open = rules.text(marks.open, marks.tokens);
            let begin = match start {
                ReasoningStart::Inside => "thought SPACE?".to_owned(),
                ReasoningStart::Possible => format!("(SPACE? {open} thought SPACE?)?"),
            };
            format!("start: {begin} @answer\n{thought}SPACE: /[ \\n]{{1,4}}/\n")
        }
    };
    Grammar::AfterReasoning { rules, answer: Box::new(answer) }
}

/// Writes rules in Lark.
struct Rules<'a> {
    tokenizer: &'a Tokenizer,
}

impl Rules<'_> {
    fn special(&self, mark: &str) -> Option<u32> {
        self.tokenizer.token_id(mark).filter(|&id| self.tokenizer.is_special(id))
    }

    /// Returns the rule for a mark, of which `tokens` may be special tokens.
    fn text(&self, mark: &str, tokens: &[&str]) -> String {
        let special = |token: &&str| Some((mark.strip_prefix(*token)?, self.special(token)?));
        match tokens.iter().find_map(special) {
            Some(("", id)) => format!("<[{id}]>"),
            Some((rest, id)) => format!("<[{id}]> {}", quoted(rest)),
            None => quoted(mark),
        }
    }

    /// Returns a rule for any text up to a mark and the mark.
    fn up_to(&self, name: &str, mark: &str) -> String {
        match self.special(mark) {
            // Ordinary text never contains a special token.
            Some(id) => format!("{name}: THOUGHT? <[{id}]>\nTHOUGHT: /(?s:.+)/\n"),
            None => format!("{name}[lazy]: /(?s:.*){}/\n", escaped(mark)),
        }
    }

    /// Returns the rules for messages in the channel `analysis`, and one in the channel `final`.
    fn harmony(&self) -> String {
        let mark = |mark: &str| self.text(mark, &[mark]);
        let (channel, message, start) = (mark("<|channel|>"), mark("<|message|>"), mark("<|start|>"));
        let thought = self.up_to("thought", "<|end|>");
        format!(
            "start: before* {channel} \"final\" {message} @answer\n\
             before: {channel} \"analysis\" {message} thought {start} \"assistant\"\n{thought}"
        )
    }
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Returns a regular expression that matches exactly this text.
fn escaped(text: &str) -> String {
    let is_special = |c: char| c.is_ascii_punctuation() && !matches!(c, '_' | '<' | '>');
    let escape = |c: char| if is_special(c) { format!("\\{c}") } else { c.to_string() };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::engine::Constraint;
    use crate::grammar::{GrammarCompiler, GrammarMatcher};
    use crate::test_support::{self, EOS};
    use crate::text::SpecialTokens;

    /// Whether the grammar allows a text, and whether it may end there.
    async fn allows(tokenizer: &Tokenizer, grammar: &Grammar, text: &str) -> Option<bool> {
        let _still = test_support::still_clock();
        let compiler = GrammarCompiler::new(tokenizer.clone(), Arc::new([EOS]));
        let compiled = compiler.compile(grammar, tokenizer.size()).await.unwrap();
        let (mut matcher, mut mask) = (GrammarMatcher::new(compiled.clone()), compiled.first());
        let is_allowed = |mask: &crate::engine::Mask, id: u32| mask[id as usize / 32] >> (id % 32) & 1 == 1;
        for id in tokenizer.encode_now(text, SpecialTokens::Omit).unwrap().ids {
            if !is_allowed(&mask, id) {
                return None;
            }
            mask = matcher.advance(id).unwrap();
        }
        Some(is_allowed(&mask, EOS))
    }

    /// Two tokenizers: the marks are special tokens in one and ordinary text in the other.
    fn tokenizers() -> [Tokenizer; 2] {
        let marks = ["<think>", "</think>", "<|start|>", "<|channel|>", "<|message|>", "<|end|>"];
        let marked = Tokenizer::new(&test_support::assets_with(&marks), 1).unwrap();
        [test_support::tokenizer(), marked]
    }

    fn grammars() -> [Grammar; 3] {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
                            "additionalProperties": false});
        let lark = "start: \"{\" /\"n\": [0-9]+/ END\nEND: \"}\"\n";
        [Grammar::Json(schema), Grammar::Regex("\\{\"n\": [0-9]+\\}".into()), Grammar::Lark(lark.into())]
    }

    #[tokio::test(start_paused = true)]
    async fn the_answer_after_the_reasoning_is_constrained() {
        for tokenizer in tokenizers() {
            for grammar in grammars() {
                let after =
                    |start| after_reasoning(grammar.clone(), ReasoningFormat::Think, start, &tokenizer);
                let (inside, possible) = (after(ReasoningStart::Inside), after(ReasoningStart::Possible));
                let answer = "{\"n\": 12}";
                for (grammar, text, expected) in [
                    (&inside, format!("Why <b> {{\n</think>\n\n{answer}"), Some(true)),
                    (&inside, "Why</think>{\"n\": 1".into(), Some(false)),
                    (&inside, "Why".into(), Some(false)),
                    (&inside, "Why</think>no".into(), None),
                    (&possible, format!("<think>\nWhy\n</think>\n\n{answer}"), Some(true)),
                    (&possible, answer.into(), Some(true)),
                    (&possible, "Why".into(), None),
                    (&possible, "<think>Why</think>no".into(), None),
                ] {
                    assert_eq!(allows(&tokenizer, grammar, &text).await, expected, "{grammar:?}: {text}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_final_channel_is_constrained() {
        for tokenizer in tokenizers() {
            for grammar in grammars() {
                let start = ReasoningStart::Possible;
                let grammar = after_reasoning(grammar, ReasoningFormat::Harmony, start, &tokenizer);
                let last = "<|channel|>final<|message|>{\"n\": 12}";
                let thought = "<|channel|>analysis<|message|>Why {<|end|><|start|>assistant";
                for (text, expected) in [
                    (last.to_owned(), Some(true)),
                    (format!("{thought}{last}"), Some(true)),
                    (format!("{thought}{thought}{last}"), Some(true)),
                    (thought.into(), Some(false)),
                    ("{\"n\"".into(), None),
                    ("<|channel|>final<|message|>no".into(), None),
                ] {
                    assert_eq!(allows(&tokenizer, &grammar, &text).await, expected, "{grammar:?}: {text}");
                }
            }
        }
    }
}
