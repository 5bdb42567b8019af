//! Answers: the grammar that they follow, and their reasoning, text and tool calls as they are
//! generated.

use std::collections::HashSet;
use std::sync::Arc;

use millrace_answers::grammar::{Grammar, MarkTokens, RequestedGrammar};
use millrace_answers::reasoning::{
    ReasoningFormat, ReasoningPlace, ReasoningSplitter, ReasoningStart, after_reasoning,
};
use millrace_answers::tools::{
    AllowedTools, AnswerDelta, HarmonyParser, ToolCallParser, ToolChoice, ToolFormat, call_grammar,
};
use millrace_text::RenderedPrompt;

use super::error::ChatError;
use super::tools::CallableTools;
use crate::service::{FinishReason, Params, Service, TextEvent};

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
    /// Whether the reasoning is left out of the answers.
    hides_reasoning: bool,
}

/// The reasoning, the text and the calls that a token adds to an answer.
#[derive(Debug)]
pub(crate) struct AnswerEvent<'a> {
    pub(crate) delta: AnswerDelta,
    /// Whether the token, or the call before it, belongs to the reasoning.
    pub(crate) is_reasoning: bool,
    /// The token. Its text is not separated.
    pub(crate) generated: &'a TextEvent,
}

impl AnswerFormat {
    /// The format of answers that are plain text.
    pub(crate) fn plain(service: &Service) -> Self {
        AnswerFormat {
            tools: None,
            custom: Arc::default(),
            format: service.tool_format(),
            reasoning: None,
            begun: "".into(),
            hides_reasoning: false,
        }
    }

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
        let answer = AnswerFormat { reasoning, ..AnswerFormat::plain(service) };
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
        let grammar = call_grammar(&tools, format, mark_tokens(service), schema.as_ref());
        params.grammar = grammar.map(|grammar| RequestedGrammar { grammar, field, optional });
        Ok(AnswerFormat { tools: Some(tools), custom: Arc::new(custom), ..answer })
    }

    /// Adapts the format and `params` to the prompt, which may open the reasoning.
    pub(super) fn after_prompt(
        mut self,
        service: &Service,
        prompt: &RenderedPrompt,
        params: &mut Params,
    ) -> Self {
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
                    false => after_reasoning(wanted.grammar, *format, *start, mark_tokens(service)),
                };
                params.grammar = Some(RequestedGrammar { grammar, ..wanted });
            }
        }
        params.marks = marks.into();
        if self.has_channels() {
            self.begun = HarmonyParser::begun_answer(&prompt.text).into();
        }
        self
    }

    /// Leaves the reasoning out of the answers.
    pub(super) fn hide_reasoning(&mut self) {
        self.hides_reasoning = true;
    }

    /// Limits the reasoning to `tokens` tokens. Returns false if it cannot be limited, because the
    /// model has none that is separated from the answer.
    pub(super) fn limit_reasoning(&self, tokens: u32, service: &Service, params: &mut Params) -> bool {
        let Some((format, start)) = self.reasoning else { return false };
        let place = match self.has_channels() {
            true => ReasoningPlace::Channels { begun: self.begun.clone(), calls: self.tools.is_some() },
            false => ReasoningPlace::Marks(format.marks(), start),
        };
        params.reasoning_limit = service.reasoning_limit(tokens, format, place, params.marks.clone());
        params.reasoning_limit.is_some()
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
            let calls = || self.tools.as_ref().map(|tools| ToolCallParser::new(self.format, tools));
            let splitter = |(format, start): (ReasoningFormat, ReasoningStart)| {
                let calls = if self.format.always_has_marker() { calls() } else { None };
                ReasoningSplitter::new(format.marks(), start).with_calls(calls)
            };
            AnswerParser::Marks { reasoning: self.reasoning.map(splitter), calls: calls().map(Box::new) }
        };
        AnswerReader {
            parser,
            hides_reasoning: self.hides_reasoning,
            separates_reasoning: self.reasoning.is_some(),
            reasoning_tokens: 0,
            unclosed_call_tokens: 0,
        }
    }

    /// The names of the custom tools, whose calls carry a text.
    pub(crate) fn custom_tools(&self) -> &Arc<HashSet<String>> {
        &self.custom
    }

    /// The format of calls, which knows the form of their ids.
    pub(crate) fn tool_format(&self) -> ToolFormat {
        self.format
    }
}

/// Separates the text of one answer from its reasoning and its tool calls, as the answer is
/// generated.
#[derive(Debug)]
pub(crate) struct AnswerReader {
    parser: AnswerParser,
    hides_reasoning: bool,
    separates_reasoning: bool,
    /// The tokens of the reasoning and of its marks so far.
    reasoning_tokens: usize,
    /// The tokens of a call in reasoning that is not closed. They are part of the reasoning if it
    /// is closed later.
    unclosed_call_tokens: usize,
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

    fn has_unclosed_call(&self) -> bool {
        match self {
            AnswerParser::Marks { reasoning, .. } => {
                reasoning.as_ref().is_some_and(ReasoningSplitter::has_unclosed_call)
            }
            AnswerParser::Channels(_) => false,
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
    /// Returns what a token adds.
    pub(crate) fn read<'a>(&mut self, event: &'a TextEvent) -> AnswerEvent<'a> {
        let reasoning_tokens = self.reasoning_tokens;
        let was_reasoning = self.parser.is_reasoning();
        let had_call = self.parser.has_unclosed_call();
        let mut delta = self.parser.push(&event.text, event.finished.is_some());
        if self.hides_reasoning {
            delta.reasoning.clear();
        }
        if self.parser.has_unclosed_call() || had_call && event.finished.is_some() {
            self.unclosed_call_tokens += 1;
        } else if was_reasoning || self.parser.is_reasoning() {
            self.reasoning_tokens += 1 + std::mem::take(&mut self.unclosed_call_tokens);
        }
        AnswerEvent { delta, is_reasoning: self.reasoning_tokens > reasoning_tokens, generated: event }
    }

    /// Returns whether the answer ended with tool calls. An answer that was cut off did not.
    pub(crate) fn ended_with_calls(&self, reason: FinishReason) -> bool {
        self.parser.calls() > 0 && reason != FinishReason::Length
    }

    /// Returns the number of tokens of the reasoning so far, if it is separated from the answer.
    pub(crate) fn reasoning_tokens(&self) -> Option<usize> {
        self.separates_reasoning.then_some(self.reasoning_tokens)
    }
}

/// Returns the special tokens that the model can generate. Before the model is loaded, these are
/// all tokens of its tokenizer; no request is answered then.
fn mark_tokens(service: &Service) -> MarkTokens<'_> {
    let vocab_size = service.ready().map_or(u32::MAX, |ready| ready.vocab_size);
    MarkTokens::new(service.tokenizer(), vocab_size, service.end_tokens())
}
