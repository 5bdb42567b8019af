//! Answers: the grammar that they follow, and their reasoning, text and tool calls as they are
//! generated.

use std::collections::HashSet;
use std::sync::Arc;

use super::error::ChatError;
use super::tools::CallableTools;
use crate::grammar::{Grammar, RequestedGrammar};
use crate::reasoning::{ReasoningFormat, ReasoningSplitter, ReasoningStart, after_reasoning};
use crate::service::{Answer, FinishReason, Params, Service, TextEvent};
use crate::text::RenderedPrompt;
use crate::tools::{
    AllowedTools, AnswerDelta, HarmonyParser, ToolCallParser, ToolChoice, ToolFormat, call_grammar,
};

/// The form in which the answers to one request contain reasoning and tool calls.
#[derive(Debug, Clone)]
pub(crate) struct AnswerFormat {
    /// Set if tools may be called.
    tools: Option<AllowedTools>,
    custom: Arc<HashSet<String>>,
    format: ToolFormat,
    /// The format of the reasoning, and whether the prompt opens it. `None` if it is not separated
    /// from the answer.
    reasoning: Option<(ReasoningFormat, ReasoningStart)>,
    /// The beginning of the answer that is part of the prompt, for answers in channels.
    begun: Arc<str>,
}

impl AnswerFormat {
    /// Constrains the answers of `params`: to calls of the tools if one must be called, and
    /// otherwise to calls or to what `params` already requires.
    ///
    /// # Errors
    /// [`ChatError::Invalid`] if the request requires another form than JSON, since such an answer
    /// could not be told from a call.
    pub(super) fn new(
        service: &Service,
        callable: Option<CallableTools>,
        params: &mut Params,
    ) -> Result<Self, ChatError> {
        let format = service.tool_format();
        let reasoning = service.reasoning_format().map(|format| (format, ReasoningStart::Possible));
        let answer =
            AnswerFormat { tools: None, custom: Arc::default(), format, reasoning, begun: "".into() };
        let Some(CallableTools { tools, custom }) = callable else { return Ok(answer) };
        let (schema, field) = match params.grammar.take() {
            None => (None, "tools"),
            // A call is required, and its arguments follow the tool's own schema.
            Some(RequestedGrammar { grammar: Grammar::Json(_), .. }) if tools.choice != ToolChoice::Auto => {
                (None, "tools")
            }
            Some(RequestedGrammar { grammar: Grammar::Json(schema), field, .. }) => (Some(schema), field),
            Some(RequestedGrammar { field, .. }) => {
                let message = format!("`{field}` must be JSON where tools may be called");
                return Err(ChatError::invalid(field, message));
            }
        };
        let optional = tools.choice == ToolChoice::Auto && schema.is_none();
        let grammar = call_grammar(&tools, format, service.tokenizer(), schema.as_ref());
        params.grammar = grammar.map(|grammar| RequestedGrammar { grammar, field, optional });
        Ok(AnswerFormat { tools: Some(tools), custom: Arc::new(custom), ..answer })
    }

    /// Adapts the format and `params` to the prompt, which may open the reasoning. Returns `None`
    /// if the answers are plain text.
    pub(super) fn after_prompt(
        mut self,
        service: &Service,
        prompt: &RenderedPrompt,
        params: &mut Params,
    ) -> Option<Self> {
        let tokenizer = service.tokenizer();
        let mut marks = Vec::new();
        if self.tools.is_some() {
            marks.extend(self.format.marks(tokenizer));
        }
        if let Some((format, start)) = &mut self.reasoning {
            *start = format.start(&prompt.text);
            marks.extend(format.marks().special_tokens(tokenizer));
            params.reasoning = Some((format.marks(), *start));
            // The grammar of calls in channels includes the channel of the reasoning.
            let includes_reasoning = self.tools.is_some() && self.format == ToolFormat::Harmony;
            if let Some(wanted) = params.grammar.take() {
                let grammar = match includes_reasoning {
                    true => wanted.grammar,
                    false => after_reasoning(wanted.grammar, *format, *start, tokenizer),
                };
                params.grammar = Some(RequestedGrammar { grammar, ..wanted });
            }
        }
        params.marks = marks.into();
        if self.has_channels() {
            self.begun = HarmonyParser::begun_answer(&prompt.text).into();
        }
        (self.tools.is_some() || self.reasoning.is_some()).then_some(self)
    }

    /// Whether the answers consist of messages in channels.
    fn has_channels(&self) -> bool {
        let is_harmony = self.reasoning.is_some_and(|(format, _)| format == ReasoningFormat::Harmony);
        is_harmony || self.tools.is_some() && self.format == ToolFormat::Harmony
    }

    /// Returns a reader for one answer.
    pub(crate) fn reader(&self) -> AnswerReader {
        let parser = if self.has_channels() {
            let mut parser = HarmonyParser::new(self.tools.as_ref());
            parser.continue_from(&self.begun);
            AnswerParser::Channels(parser)
        } else {
            AnswerParser::Marks {
                reasoning: self
                    .reasoning
                    .map(|(format, start)| ReasoningSplitter::new(format.marks(), start)),
                calls: self.tools.as_ref().map(|tools| Box::new(ToolCallParser::new(self.format, tools))),
            }
        };
        AnswerReader { parser, format: self.format, reasoning_tokens: 0 }
    }

    /// The names of the custom tools, whose calls carry a text.
    pub(crate) fn custom_tools(&self) -> &Arc<HashSet<String>> {
        &self.custom
    }

    /// Whether reasoning is separated from the answers.
    pub(crate) fn separates_reasoning(&self) -> bool {
        self.reasoning.is_some()
    }
}

/// Separates the text of one answer from its reasoning and its tool calls, as the answer is
/// generated.
#[derive(Debug)]
pub(crate) struct AnswerReader {
    parser: AnswerParser,
    format: ToolFormat,
    /// The tokens of the reasoning and of its marks so far.
    reasoning_tokens: usize,
}

#[derive(Debug)]
enum AnswerParser {
    /// Marks surround the reasoning, and calls follow it.
    Marks { reasoning: Option<ReasoningSplitter>, calls: Option<Box<ToolCallParser>> },
    /// The answer consists of messages in channels.
    Channels(HarmonyParser),
}

impl AnswerParser {
    fn is_reasoning(&self) -> bool {
        match self {
            AnswerParser::Marks { reasoning, .. } => {
                reasoning.as_ref().is_some_and(ReasoningSplitter::is_reasoning)
            }
            AnswerParser::Channels(parser) => parser.is_reasoning(),
        }
    }

    fn push(&mut self, text: &str, is_last: bool) -> AnswerDelta {
        let (splitter, parser) = match self {
            AnswerParser::Marks { reasoning, calls } => (reasoning, calls),
            AnswerParser::Channels(parser) => {
                let mut delta = parser.push(text);
                if is_last {
                    delta.extend(parser.finish());
                }
                return delta;
            }
        };
        let mut delta = AnswerDelta::default();
        match splitter {
            None => delta.content = text.to_owned(),
            Some(splitter) => {
                let split = splitter.push(text);
                (delta.reasoning, delta.content) = (split.reasoning, split.answer);
                if is_last {
                    let rest = splitter.finish();
                    delta.reasoning += &rest.reasoning;
                    delta.content += &rest.answer;
                }
            }
        }
        if let Some(parser) = parser {
            let content = std::mem::take(&mut delta.content);
            delta.extend(parser.push(&content));
            if is_last {
                delta.extend(parser.finish());
            }
        }
        delta
    }

    fn calls(&self) -> usize {
        match self {
            AnswerParser::Marks { calls, .. } => calls.as_ref().map_or(0, |calls| calls.calls()),
            AnswerParser::Channels(parser) => parser.calls(),
        }
    }
}

impl AnswerReader {
    /// Returns the reasoning, the text and the calls that a token adds.
    pub(crate) fn push(&mut self, event: &TextEvent) -> AnswerDelta {
        let was_reasoning = self.parser.is_reasoning();
        let delta = self.parser.push(&event.text, event.finished.is_some());
        if was_reasoning || self.parser.is_reasoning() {
            self.reasoning_tokens += 1;
        }
        delta
    }

    /// Returns the reasoning, the text and the calls of a whole answer.
    pub(crate) fn read_all(&mut self, answer: &Answer) -> AnswerDelta {
        let mut delta = AnswerDelta::default();
        answer.tokens.iter().for_each(|event| delta.extend(self.push(event)));
        delta
    }

    /// Returns a new id for a call, in the form that the model's template accepts.
    pub(crate) fn new_call_id(&self) -> String {
        self.format.call_id()
    }

    /// Returns whether the answer ended with tool calls. An answer that was cut off did not.
    pub(crate) fn ended_with_calls(&self, reason: FinishReason) -> bool {
        self.parser.calls() > 0 && reason != FinishReason::Length
    }

    /// Returns the number of tokens of the reasoning so far.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }
}
