//! Ends the reasoning of an answer after a number of tokens.
//!
//! The budget is a constraint of the engine. Until the reasoning has used its budget, every token
//! is allowed, or those that the request's grammar allows. Then each mask allows exactly one token,
//! until the closing mark is complete, and the answer follows.

use std::sync::Arc;
use std::time::Duration;

use millrace_text::{Detokenizer, Tokenizer};

use super::gate::ReasoningGate;
use super::marks::{ReasoningMarks, ReasoningStart};
use crate::tools::{ChannelParser, Channels};
use crate::{Constraint, Mask};

/// The largest part of an answer's tokens that is kept for the text after the reasoning: one of so
/// many.
const ANSWER_SHARE: u32 = 8;
/// The largest number of tokens that are kept for the text after the reasoning.
const MAX_ANSWER_RESERVE: u32 = 1024;
/// White space that a model may write before it opens its reasoning, in tokens.
const SPACE_TOKENS: u32 = 2;
/// The token after the name of a channel.
const MARK_TOKENS: u32 = 1;

/// The number of tokens that the reasoning of an answer may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThinkingBudget {
    /// Any number.
    Unlimited,
    /// At most so many. With 0 the model does not think.
    Tokens(u32),
}

/// How the reasoning of an answer is found and ended.
#[derive(Debug, Clone)]
pub struct ReasoningLimit {
    /// The budget of the request.
    pub tokens: u32,
    /// The tokens that end the reasoning; not empty.
    pub closing: Arc<[u32]>,
    /// The special tokens that are shown as text.
    pub shown: Arc<[u32]>,
    /// Where the answer has reasoning.
    pub place: ReasoningPlace,
}

/// Where an answer has reasoning.
#[derive(Debug, Clone)]
pub enum ReasoningPlace {
    /// Between marks.
    Marks(ReasoningMarks, ReasoningStart),
    /// In a channel.
    Channels {
        /// The format of the channels.
        channels: Channels,
        /// The part of the answer that the prompt contains.
        begun: Arc<str>,
        /// Whether tools may be called in other channels.
        calls: bool,
    },
}

impl ReasoningLimit {
    /// Lowers the budget so that the closing mark and an answer fit into `max_new_tokens`.
    pub fn fit(&mut self, max_new_tokens: u32, tokenizer: &Tokenizer) {
        let reserve = (max_new_tokens / ANSWER_SHARE).clamp(1, MAX_ANSWER_RESERVE);
        let opening = match &self.place {
            ReasoningPlace::Marks(_, ReasoningStart::Inside) => 0,
            ReasoningPlace::Marks(marks, ReasoningStart::Possible) => {
                SPACE_TOKENS + tokens(tokenizer, marks.open)
            }
            ReasoningPlace::Channels { channels, .. } => {
                let (before, name) = channels.reasoning_channel().unwrap_or_default();
                SPACE_TOKENS + MARK_TOKENS + tokens(tokenizer, before) + tokens(tokenizer, name)
            }
        };
        let other = reserve.saturating_add(opening).saturating_add(self.closing.len() as u32);
        self.tokens = self.tokens.min(max_new_tokens.saturating_sub(other));
    }

    /// Returns the constraint of one answer and the mask of its first token. `inner` is the
    /// constraint of the answer's grammar with its first mask.
    pub fn start(
        &self,
        inner: Option<(Box<dyn Constraint>, Mask)>,
        tokenizer: &Tokenizer,
    ) -> (Box<dyn Constraint>, Mask) {
        let (inner, mask) = match inner {
            Some((inner, mask)) => (Some(inner), mask),
            None => (None, free()),
        };
        let mut limited = LimitedReasoning {
            inner,
            detokenizer: tokenizer.detokenizer(true, true).showing(self.shown.clone()),
            reader: self.reader(),
            left: self.tokens,
            closing: self.closing.clone(),
            forced: None,
            reopening: self.reopening(tokenizer),
        };
        let mask = limited.restrict(mask);
        (Box::new(limited), mask)
    }

    /// Returns the tokens with which the name of the reasoning's channel may begin, if the model
    /// chooses a channel after the reasoning.
    fn reopening(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let ReasoningPlace::Channels { calls: true, channels, .. } = self.place else { return Vec::new() };
        let (_, name) = channels.reasoning_channel().unwrap_or_default();
        let begins = (1..=name.len()).map(|length| &name[..length]);
        begins.filter_map(|begin| tokenizer.token_id(begin)).collect()
    }

    fn reader(&self) -> ReasoningReader {
        match &self.place {
            ReasoningPlace::Marks(marks, start) => ReasoningReader::Marks(ReasoningGate::new(*marks, *start)),
            ReasoningPlace::Channels { channels, begun, .. } => {
                let mut parser = ChannelParser::new(*channels, None);
                parser.continue_from(begun);
                ReasoningReader::Channels(parser)
            }
        }
    }
}

fn tokens(tokenizer: &Tokenizer, text: &str) -> u32 {
    tokenizer
        .encode_now(text, millrace_text::SpecialTokens::Omit)
        .map_or(0, |encoded| encoded.ids.len() as u32)
}

/// Finds the reasoning in the text of an answer.
enum ReasoningReader {
    Marks(ReasoningGate),
    Channels(ChannelParser),
}

impl ReasoningReader {
    fn push(&mut self, text: &str) {
        match self {
            ReasoningReader::Marks(gate) => _ = gate.push(text),
            ReasoningReader::Channels(parser) => _ = parser.push(text),
        }
    }

    fn is_reasoning(&self) -> bool {
        match self {
            ReasoningReader::Marks(gate) => gate.is_reasoning(),
            ReasoningReader::Channels(parser) => parser.is_reasoning(),
        }
    }

    fn names_channel(&self) -> bool {
        match self {
            ReasoningReader::Marks(_) => false,
            ReasoningReader::Channels(parser) => parser.names_channel(),
        }
    }
}

/// The constraint of one answer.
struct LimitedReasoning {
    inner: Option<Box<dyn Constraint>>,
    detokenizer: Detokenizer,
    reader: ReasoningReader,
    /// The number of tokens that the reasoning may still have.
    left: u32,
    closing: Arc<[u32]>,
    /// The position in `closing` of the token that the last mask has forced.
    forced: Option<usize>,
    /// The tokens with which the name of the reasoning's channel may begin. They are not allowed
    /// there after the budget.
    reopening: Vec<u32>,
}

impl LimitedReasoning {
    /// Returns the mask for the next token, if the grammar's mask is `mask`.
    fn restrict(&mut self, mask: Mask) -> Mask {
        let next = match self.forced.take() {
            Some(last) => last + 1,
            None if self.left > 0 => return mask,
            None if self.reader.names_channel() => return without(mask, &self.reopening),
            None if !self.reader.is_reasoning() => return mask,
            // The rest of a character cannot be replaced by the mark.
            None if self.detokenizer.is_within_character() => return mask,
            None => 0,
        };
        match self.closing.get(next) {
            Some(&token) if allows(&mask, token) => {
                self.forced = Some(next);
                only(token)
            }
            _ => mask,
        }
    }
}

impl Constraint for LimitedReasoning {
    fn advance(&mut self, token: u32) -> Result<Mask, String> {
        let mask = match &mut self.inner {
            Some(inner) => inner.advance(token)?,
            None => free(),
        };
        let was_reasoning = self.reader.is_reasoning();
        let text = self.detokenizer.push(token);
        self.reader.push(&text);
        self.left = self.left.saturating_sub(u32::from(was_reasoning));
        Ok(self.restrict(mask))
    }

    fn expected_cost(&self) -> Duration {
        self.inner.as_ref().map_or(Duration::ZERO, |inner| inner.expected_cost())
    }
}

/// Returns the mask that allows every token.
fn free() -> Mask {
    Arc::new([])
}

/// Returns the mask that allows one token.
fn only(token: u32) -> Mask {
    let mut words = vec![0; token as usize / 32 + 1];
    words[token as usize / 32] = 1 << (token % 32);
    words.into()
}

/// Returns the mask without these tokens. A mask that allows every token, and one that would allow
/// none, stays as it is.
fn without(mask: Mask, tokens: &[u32]) -> Mask {
    let mut words = mask.to_vec();
    for &token in tokens {
        if let Some(word) = words.get_mut(token as usize / 32) {
            *word &= !(1 << (token % 32));
        }
    }
    if words.iter().any(|&word| word != 0) { words.into() } else { mask }
}

fn allows(mask: &Mask, token: u32) -> bool {
    mask.is_empty() || mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use millrace_text::SpecialTokens;
    use millrace_text::test_support::{self, EOS};
    use serde_json::json;

    use super::*;
    use crate::grammar::{GrammarCompiler, GrammarMatcher};
    use crate::reasoning::ReasoningFormat;
    use crate::tools::{AllowedTools, Tool, ToolChoice, ToolFormat, call_grammar};

    fn limit(tokens: u32, start: ReasoningStart) -> ReasoningLimit {
        let closing = "\n</think>".bytes().map(u32::from).collect();
        let place = ReasoningPlace::Marks(ReasoningFormat::Think.marks(), start);
        ReasoningLimit { tokens, closing, shown: Arc::default(), place }
    }

    /// Returns the text that a model generates which would say `says`, one token per byte.
    fn answer(limit: &ReasoningLimit, inner: Option<(Box<dyn Constraint>, Mask)>, says: &str) -> String {
        let (mut constraint, mut mask) = limit.start(inner, &test_support::tokenizer());
        let (mut text, mut says) = (Vec::new(), says.bytes().peekable());
        while says.peek().is_some() {
            let wanted = says.next_if(|&byte| allows(&mask, byte.into()));
            let byte = wanted.unwrap_or_else(|| (0..=255).find(|&byte| allows(&mask, byte.into())).unwrap());
            text.push(byte);
            mask = constraint.advance(byte.into()).unwrap();
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    #[test]
    fn the_closing_mark_is_forced_after_the_budget() {
        use ReasoningStart::{Inside, Possible};
        for (budget, start, says, expected) in [
            (3, Inside, "Why not?", "Why\n</think> not?"),
            (0, Inside, "So.", "\n</think>So."),
            (100, Inside, "Why?</think>So.", "Why?</think>So."),
            // The model closes its reasoning with the last tokens of the budget.
            (11, Inside, "Why</think>So </think>.", "Why</think>So </think>."),
            (3, Possible, "<think>Why not?", "<think>Why\n</think> not?"),
            (0, Possible, "\n<think>Why", "\n<think>\n</think>Why"),
            (0, Possible, "So <think>.", "So <think>."),
            // A character is not cut.
            (1, Inside, "\u{fc}ber", "\u{fc}\n</think>ber"),
        ] {
            assert_eq!(answer(&limit(budget, start), None, says), expected, "{budget}: {says}");
        }
    }

    /// Allows the bytes of a text and nothing else.
    struct Text(std::vec::IntoIter<u8>);

    impl Constraint for Text {
        fn advance(&mut self, _: u32) -> Result<Mask, String> {
            self.0.next().map(|byte| only(byte.into())).ok_or_else(|| "the end".into())
        }
    }

    #[test]
    fn the_grammar_decides_when_the_mark_may_come() {
        let grammar = |text: &str| -> Option<(Box<dyn Constraint>, Mask)> {
            let mut bytes = text.as_bytes().to_vec().into_iter();
            let first = only(bytes.next().unwrap().into());
            Some((Box::new(Text(bytes)), first))
        };
        // The grammar allows no line break before the third token.
        let text = "abc\n</think>d.";
        assert_eq!(answer(&limit(1, ReasoningStart::Inside), grammar(text), "abcd"), "abc\n</think>d");
    }

    /// The channel of the reasoning is closed at the budget and not opened again, and the model may
    /// call a tool.
    #[tokio::test(start_paused = true)]
    async fn tools_may_be_called_in_channels_after_the_budget() {
        let marks = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"];
        let tokenizer = Tokenizer::new(&test_support::assets_with(&marks)).unwrap();
        let ids = |text: &str| tokenizer.encode_now(text, SpecialTokens::Omit).unwrap().ids;
        let parameters =
            json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
        let tools = AllowedTools {
            tools: vec![Tool { name: "get".into(), parameters }],
            choice: ToolChoice::Auto,
            parallel: true,
        };
        let grammar = call_grammar(&tools, ToolFormat::Harmony, (&tokenizer).into(), None).unwrap();
        let _still = test_support::still_clock();
        let compiler = GrammarCompiler::new(tokenizer.clone(), Arc::new([EOS]));
        let compiled = compiler.compile(&grammar, tokenizer.size()).await.unwrap();
        let inner: Box<dyn Constraint> = Box::new(GrammarMatcher::new(compiled.clone()));
        let closing = ids(&ReasoningFormat::Harmony.forced_close(true));
        let limit = ReasoningLimit {
            tokens: 2,
            closing: closing.clone().into(),
            shown: ids(&marks.concat()).into(),
            place: ReasoningPlace::Channels {
                channels: ToolFormat::Harmony.channels().unwrap(),
                begun: "".into(),
                calls: true,
            },
        };
        let (mut constraint, mut mask) = limit.start(Some((inner, compiled.first())), &tokenizer);
        let mut say = |mask: &mut Mask, text: &str| {
            for id in ids(text) {
                assert!(allows(mask, id), "{:?} of {text}", tokenizer.vocabulary_text(id));
                *mask = constraint.advance(id).unwrap();
            }
        };
        say(&mut mask, "<|channel|>analysis<|message|>Wh");
        for &id in &closing {
            assert_eq!(mask, only(id));
            say(&mut mask, &tokenizer.vocabulary_text(id).unwrap());
        }
        say(&mut mask, "<|channel|>");
        let begins: Vec<u8> = (0..=255).filter(|&byte| allows(&mask, byte.into())).collect();
        assert_eq!(begins, b"cf", "commentary or final");
        say(&mut mask, "commentary to=functions.get<|message|>{\"n\": 1}");
        assert!(allows(&mask, EOS));
    }

    #[test]
    fn an_answer_fits_after_the_reasoning() {
        let tokenizer = test_support::tokenizer();
        for (asked, max, expected) in
            [(16, 64, 16), (64, 64, 64 - 8 - 9), (31_999, 32_000, 32_000 - 1024 - 9), (5, 10, 0), (5, 0, 0)]
        {
            let mut limit = limit(asked, ReasoningStart::Inside);
            limit.fit(max, &tokenizer);
            assert_eq!(limit.tokens, expected, "{asked} of {max}");
        }
        let mut possible = limit(64, ReasoningStart::Possible);
        possible.fit(64, &tokenizer);
        assert_eq!(possible.tokens, 64 - 8 - 9 - 7 - 2);
        assert!(tokenizer.encode_now("</think>", SpecialTokens::Omit).unwrap().ids.len() == 8);
    }
}
