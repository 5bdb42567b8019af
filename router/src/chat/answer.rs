//! Answers: the grammar that they follow, and their text and tool calls as they are generated.

use std::collections::HashSet;
use std::sync::Arc;

use super::error::ChatError;
use super::tools::CallableTools;
use crate::grammar::{Grammar, RequestedGrammar};
use crate::service::{FinishReason, Params, Service, TextEvent};
use crate::tools::{AllowedTools, AnswerDelta, ToolCallParser, ToolChoice, ToolFormat, call_grammar};

/// The form in which the answers to one request contain tool calls.
#[derive(Debug, Clone)]
pub(crate) struct AnswerFormat {
    tools: AllowedTools,
    custom: Arc<HashSet<String>>,
    format: ToolFormat,
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
        callable: CallableTools,
        params: &mut Params,
    ) -> Result<Self, ChatError> {
        let CallableTools { tools, custom } = callable;
        let (answer, field) = match params.grammar.take() {
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
        let optional = tools.choice == ToolChoice::Auto && answer.is_none();
        let (format, tokenizer) = (service.tool_format(), service.tokenizer());
        let grammar = call_grammar(&tools, format, tokenizer, answer.as_ref());
        params.grammar = grammar.map(|grammar| RequestedGrammar { grammar, field, optional });
        params.marks = format.marks(tokenizer).into();
        Ok(AnswerFormat { tools, custom: Arc::new(custom), format })
    }

    /// Returns a reader for one answer.
    pub(crate) fn reader(&self) -> AnswerReader {
        AnswerReader { parser: ToolCallParser::new(self.format, &self.tools), format: self.format }
    }

    /// The names of the custom tools, whose calls carry a text.
    pub(crate) fn custom_tools(&self) -> &Arc<HashSet<String>> {
        &self.custom
    }
}

/// Separates the text of one answer from its tool calls, as the answer is generated.
#[derive(Debug)]
pub(crate) struct AnswerReader {
    parser: ToolCallParser,
    format: ToolFormat,
}

impl AnswerReader {
    /// Returns the text and the calls that a token adds.
    pub(crate) fn push(&mut self, event: &TextEvent) -> AnswerDelta {
        let mut delta = self.parser.push(&event.text);
        if event.finished.is_some() {
            delta.extend(self.parser.finish());
        }
        delta
    }

    /// Returns the text and the calls of a whole answer.
    pub(crate) fn read_all(&mut self, text: &str) -> AnswerDelta {
        let mut delta = self.parser.push(text);
        delta.extend(self.parser.finish());
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
}
