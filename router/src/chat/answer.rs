//! Answers: the grammar that they follow, and their reasoning, text and tool calls as they are
//! generated.

use std::collections::HashSet;
use std::sync::Arc;

use millrace_answers::grammar::{Grammar, MarkTokens, RequestedGrammar};
use millrace_answers::reasoning::{
    ReasoningFormat, ReasoningPlace, ReasoningSplitter, ReasoningStart, after_reasoning,
};
use millrace_answers::tools::{
    AllowedTools, AnswerDelta, ChannelParser, Channels, ToolCallParser, ToolChoice, ToolFormat, call_grammar,
};
use millrace_text::{RenderedPrompt, Tokenizer};

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
    /// Set if the answers consist of messages in channels.
    channels: Option<Channels>,
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
        AnswerFormat { channels: None, ..AnswerFormat::of(service.tool_format(), None) }
    }

    /// The format of answers in a conversation without tools.
    fn of(format: ToolFormat, reasoning: Option<ReasoningFormat>) -> Self {
        AnswerFormat {
            tools: None,
            custom: Arc::default(),
            format,
            reasoning: reasoning.map(|format| (format, ReasoningStart::Possible)),
            channels: reasoning.and_then(ReasoningFormat::channels).or(format.channels()),
            begun: "".into(),
            hides_reasoning: false,
        }
    }

    /// The format of answers to this prompt.
    #[cfg(test)]
    pub(super) fn after(
        format: ToolFormat,
        reasoning: Option<ReasoningFormat>,
        tools: Option<AllowedTools>,
        prompt: &str,
    ) -> Self {
        let mut answer = AnswerFormat { tools, ..AnswerFormat::of(format, reasoning) };
        answer.read_prompt(prompt);
        answer
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
        let answer = AnswerFormat::of(format, service.reasoning_format());
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
        self.read_prompt(&prompt.text);
        params.marks = self.shown_tokens(service.tokenizer()).into();
        params.reasoning = match (self.reasoning, self.channels) {
            (Some((format, start)), _) => Some((format.marks(), start)),
            (None, Some(channels)) => Some((channels.marks(), channels.marks().start(&prompt.text))),
            (None, None) => None,
        };
        if let Some(wanted) = params.grammar.take() {
            let grammar = self.grammar_after_prompt(wanted.grammar, &prompt.text, mark_tokens(service));
            params.grammar = Some(RequestedGrammar { grammar, ..wanted });
        }
        self
    }

    /// Notes how the prompt begins the answer.
    fn read_prompt(&mut self, prompt: &str) {
        if let Some((format, start)) = &mut self.reasoning {
            *start = format.start(prompt);
        }
        if let Some(channels) = self.channels {
            self.begun = channels.begun_answer(prompt).into();
        }
    }

    /// Returns the special tokens that the parser reads as text.
    pub(super) fn shown_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let mut shown = Vec::new();
        if self.tools.is_some() {
            shown.extend(self.format.marks(tokenizer));
        }
        let reasoning = self.reasoning.map(|(format, _)| format.marks());
        for marks in reasoning.into_iter().chain(self.channels.map(Channels::marks)) {
            shown.extend(marks.special_tokens(tokenizer));
        }
        shown
    }

    /// Returns the grammar of an answer whose text or calls follow `grammar`: with the reasoning
    /// before it, and in the channels in which the model writes it.
    pub(super) fn grammar_after_prompt(&self, grammar: Grammar, prompt: &str, tokens: MarkTokens) -> Grammar {
        let calls = self.format.channels().filter(|_| self.tools.is_some());
        match (self.reasoning, self.channels) {
            // The grammar of calls includes the reasoning.
            _ if calls.is_some_and(Channels::call_grammar_has_reasoning) => grammar,
            (Some((format, start)), _) => after_reasoning(grammar, format, start, tokens),
            (None, Some(channels)) => channels.around(grammar, channels.marks().start(prompt), tokens),
            (None, None) => grammar,
        }
    }

    /// Leaves the reasoning out of the answers.
    pub(super) fn hide_reasoning(&mut self) {
        self.hides_reasoning = true;
    }

    /// Limits the reasoning to `tokens` tokens. Returns false if it cannot be limited, because the
    /// model has none that is separated from the answer.
    pub(super) fn limit_reasoning(&self, tokens: u32, service: &Service, params: &mut Params) -> bool {
        let Some((format, start)) = self.reasoning else { return false };
        let place = match self.channels {
            Some(channels) => {
                let (begun, calls) = (self.begun.clone(), self.tools.is_some());
                ReasoningPlace::Channels { channels, begun, calls }
            }
            None => ReasoningPlace::Marks(format.marks(), start),
        };
        params.reasoning_limit = service.reasoning_limit(tokens, format, place, params.marks.clone());
        params.reasoning_limit.is_some()
    }

    /// Returns a parser for one answer.
    pub(super) fn parser(&self) -> AnswerParser {
        if let Some(channels) = self.channels {
            let mut parser = ChannelParser::new(channels, self.tools.as_ref());
            parser.continue_from(&self.begun);
            return AnswerParser::Channels(parser);
        }
        let calls = || self.tools.as_ref().map(|tools| ToolCallParser::new(self.format, tools));
        let splitter = |(format, start): (ReasoningFormat, ReasoningStart)| {
            let calls = if self.format.always_has_marker() { calls() } else { None };
            ReasoningSplitter::new(format.marks(), start).with_calls(calls)
        };
        AnswerParser::Marks { reasoning: self.reasoning.map(splitter), calls: calls().map(Box::new) }
    }

    /// Returns a reader for one answer.
    pub(crate) fn reader(&self) -> AnswerReader {
        AnswerReader {
            parser: self.parser(),
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

/// Separates the text of one answer from its reasoning and its tool calls.
#[derive(Debug)]
pub(super) enum AnswerParser {
    /// Marks surround the reasoning, and calls follow it.
    Marks { reasoning: Option<ReasoningSplitter>, calls: Option<Box<ToolCallParser>> },
    /// The answer consists of messages in channels.
    Channels(ChannelParser),
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

    /// Adds text, which may be the last one, and returns what is certain.
    pub(super) fn push(&mut self, text: &str, is_last: bool) -> AnswerDelta {
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
        if !self.separates_reasoning {
            // The channel of the reasoning precedes the answer.
            delta.content.insert_str(0, &std::mem::take(&mut delta.reasoning));
        }
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
