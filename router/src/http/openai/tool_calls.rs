//! Reasoning, text and tool calls in the form of `/v1/chat/completions`.

use std::collections::HashSet;
use std::sync::Arc;

use millrace_answers::tools::{AnswerDelta, CallDelta, TextArgument, ToolFormat};
use serde::Serialize;
use utoipa::ToSchema;

use crate::chat::{AnswerFormat, CUSTOM_INPUT};

/// A tool call, or the next part of it in a stream.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ToolCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<FunctionCall>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom: Option<CustomCall>,
}

#[derive(Debug, Serialize, ToSchema)]
struct FunctionCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// A call of a custom tool, which takes a text.
#[derive(Debug, Serialize, ToSchema)]
struct CustomCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    input: String,
}

/// The parts that an answer or a token of it has.
#[derive(Debug, Default)]
pub(super) struct ChatDelta {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<ToolCall>,
}

impl ChatDelta {
    pub(super) fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty() && self.calls.is_empty()
    }
}

/// Writes the calls of one answer in the form of chats.
#[derive(Debug)]
pub(super) struct CallWriter {
    tool_format: ToolFormat,
    /// The names of the custom tools.
    custom: Arc<HashSet<String>>,
    /// The index of the last call and its text, if it is a call of a custom tool.
    custom_call: Option<(usize, TextArgument)>,
}

impl CallWriter {
    pub(super) fn new(format: &AnswerFormat) -> Self {
        CallWriter {
            tool_format: format.tool_format(),
            custom: format.custom_tools().clone(),
            custom_call: None,
        }
    }

    /// Translates the parts of a whole answer.
    pub(super) fn translate_all(&mut self, delta: AnswerDelta) -> ChatDelta {
        let mut delta = self.translate(delta, true);
        delta.calls.iter_mut().for_each(|call| call.index = None);
        delta
    }

    /// Translates the parts that a token adds. `is_last` says that nothing comes after it.
    pub(super) fn translate(&mut self, delta: AnswerDelta, is_last: bool) -> ChatDelta {
        let mut calls = Vec::new();
        for call in delta.calls {
            let begins_another = self.custom_call.as_ref().is_some_and(|(index, _)| *index != call.index);
            if begins_another {
                self.end_custom_call(&mut calls);
            }
            if call.name.as_ref().is_some_and(|name| self.custom.contains(name)) {
                self.custom_call = Some((call.index, TextArgument::new(CUSTOM_INPUT)));
            }
            calls.push(self.tool_call(call));
        }
        if is_last {
            self.end_custom_call(&mut calls);
        }
        ChatDelta { reasoning: delta.reasoning, content: delta.content, calls }
    }

    fn tool_call(&mut self, call: CallDelta) -> ToolCall {
        let CallDelta { index, name, arguments } = call;
        let id = name.is_some().then(|| self.tool_format.call_id());
        let begins = name.is_some();
        let kind = |kind| begins.then_some(kind);
        match &mut self.custom_call {
            Some((_, text)) => {
                let custom = Some(CustomCall { name, input: text.push(&arguments) });
                ToolCall { index: Some(index), id, kind: kind("custom"), function: None, custom }
            }
            None => {
                let function = Some(FunctionCall { name, arguments });
                ToolCall { index: Some(index), id, kind: kind("function"), function, custom: None }
            }
        }
    }

    /// Adds the rest of the text of a custom call that is complete.
    fn end_custom_call(&mut self, calls: &mut Vec<ToolCall>) {
        let Some((index, mut text)) = self.custom_call.take() else { return };
        let rest = text.finish();
        if rest.is_empty() {
            return;
        }
        match calls.last_mut() {
            Some(ToolCall { index: last, custom: Some(custom), .. }) if *last == Some(index) => {
                custom.input += &rest
            }
            _ => {
                let custom = Some(CustomCall { name: None, input: rest });
                calls.push(ToolCall { index: Some(index), id: None, kind: None, function: None, custom });
            }
        }
    }
}
