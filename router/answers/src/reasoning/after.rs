//! Grammars that restrict the text after the reasoning.

use serde_json::Value;

use super::format::ReasoningFormat;
use super::marks::ReasoningStart;
use crate::grammar::{Grammar, MarkTokens};

/// Returns a grammar of answers that begin with any reasoning and continue with a text of `answer`.
/// After a prompt that does not open the reasoning, the answer may also begin at once. The
/// reasoning may contain everything, and the answer may end within it.
pub fn after_reasoning(
    answer: Grammar,
    format: ReasoningFormat,
    start: ReasoningStart,
    tokens: MarkTokens,
) -> Grammar {
    if let Some(channels) = format.channels() {
        return channels.around(answer, start, tokens);
    }
    Grammar::AfterReasoning { rules: marked(format, start, tokens), answer: Box::new(answer) }
}

/// Returns the rules for reasoning between marks.
fn marked(format: ReasoningFormat, start: ReasoningStart, tokens: MarkTokens) -> String {
    let marks = format.marks();
    let thought = tokens.text_up_to("thought", marks.close);
    let open = text(marks.open, marks.tokens, tokens);
    let (closed, unclosed) = match start {
        ReasoningStart::Inside => ("thought_end SPACE?".to_owned(), "thought".to_owned()),
        ReasoningStart::Possible => {
            (format!("(SPACE? {open} thought_end SPACE?)?"), format!("SPACE? {open} thought"))
        }
    };
    let (before, after) = around_answer(format, tokens);
    format!("start: {closed} {before}@answer{after} | {unclosed}\n{thought}SPACE: /[ \\n]{{1,4}}/\n")
}

/// Returns the rules for the marks that a model may write before and after an answer of any form.
/// They are no part of the answer's text.
fn around_answer(format: ReasoningFormat, tokens: MarkTokens) -> (String, String) {
    let marks = format.answer_marks().iter();
    let marks: Vec<_> =
        marks.filter_map(|(before, after)| Some((tokens.special(before)?, tokens.special(after)?))).collect();
    if marks.is_empty() {
        return (String::new(), String::new());
    }
    let any =
        |ids: Vec<u32>| format!("<[{}]>?", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
    let (before, after) = marks.into_iter().unzip();
    (any(before) + " ", format!(" {}", any(after)))
}

/// Returns the rule for a mark, of which `special` may be special tokens.
fn text(mark: &str, special: &[&str], tokens: MarkTokens) -> String {
    let found = |token: &&str| Some((mark.strip_prefix(*token)?, tokens.special(token)?));
    match special.iter().find_map(found) {
        Some(("", id)) => format!("<[{id}]>"),
        Some((rest, id)) => format!("<[{id}]> {}", Value::from(rest)),
        None => Value::from(mark).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millrace_text::test_support::{self, EOS};
    use millrace_text::{SpecialTokens, Tokenizer};
    use serde_json::json;

    use super::*;
    use crate::Constraint;
    use crate::grammar::{GrammarCompiler, GrammarMatcher};

    /// Whether the grammar allows a text, and whether it may end there.
    async fn allows(tokenizer: &Tokenizer, grammar: &Grammar, text: &str) -> Option<bool> {
        let _still = test_support::still_clock();
        let compiler = GrammarCompiler::new(tokenizer.clone(), Arc::new([EOS]));
        let compiled = compiler.compile(grammar, tokenizer.size()).await.unwrap();
        let (mut matcher, mut mask) = (GrammarMatcher::new(compiled.clone()), compiled.first());
        let is_allowed = |mask: &crate::Mask, id: u32| mask[id as usize / 32] >> (id % 32) & 1 == 1;
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
        let marked = Tokenizer::new(&test_support::assets_with(&marks)).unwrap();
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
                let after = |start| {
                    after_reasoning(grammar.clone(), ReasoningFormat::Think, start, (&tokenizer).into())
                };
                let (inside, possible) = (after(ReasoningStart::Inside), after(ReasoningStart::Possible));
                let answer = "{\"n\": 12}";
                for (grammar, text, expected) in [
                    (&inside, format!("Why <b> {{\n</think>\n\n{answer}"), Some(true)),
                    (&inside, "Why</think>{\"n\": 1".into(), Some(false)),
                    // An answer may end within its reasoning, which may contain anything.
                    (&inside, "Why".into(), Some(true)),
                    (&inside, String::new(), Some(true)),
                    (&inside, "Why <|message|> </thin".into(), Some(true)),
                    (&inside, "A <|message|></think>{\"n\": 1}".into(), Some(true)),
                    (&possible, "<think>Why".into(), Some(true)),
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
                let grammar = after_reasoning(grammar, ReasoningFormat::Harmony, start, (&tokenizer).into());
                let last = "<|channel|>final<|message|>{\"n\": 12}";
                let thought = "<|channel|>analysis<|message|>Why {<|end|><|start|>assistant";
                for (text, expected) in [
                    (last.to_owned(), Some(true)),
                    (format!("{thought}{last}"), Some(true)),
                    (format!("{thought}{thought}{last}"), Some(true)),
                    (thought.into(), Some(false)),
                    // An answer may end within its reasoning.
                    ("<|channel|>analysis<|message|>Why".into(), Some(true)),
                    (format!("{thought}<|channel|>analysis<|message|>"), Some(true)),
                    ("{\"n\"".into(), None),
                    ("<|channel|>final<|message|>no".into(), None),
                ] {
                    assert_eq!(allows(&tokenizer, &grammar, &text).await, expected, "{grammar:?}: {text}");
                }
            }
        }
    }
}
