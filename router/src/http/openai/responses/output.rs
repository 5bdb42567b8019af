//! The items of an output: reasoning, messages and tool calls, one after the other.

use millrace_answers::tools::TextArgument;
use millrace_text::Tokenizer;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::super::logprobs::ChatLogprobs;
use super::tool_set::{ClientTool, ClientTools};
use crate::chat::{AnswerBlock, AnswerEvent, AnswerFormat, BlockEvent, BlockReader, CUSTOM_INPUT};
use crate::service::FinishReason;

/// Receives OpenAI's events about an output.
pub(super) trait EventSink {
    /// Receives an event of a kind. `fields` returns its fields.
    fn emit(&mut self, kind: &'static str, fields: impl FnOnce() -> Value);
}

/// Drops all events, for a response that is sent as a whole.
impl EventSink for () {
    fn emit(&mut self, _: &'static str, _: impl FnOnce() -> Value) {}
}

/// The kind of the open item.
enum ItemKind {
    Reasoning,
    Message,
    /// A call of a function.
    FunctionCall,
    /// A call of a custom tool, with its text so far.
    CustomCall {
        reader: TextArgument,
        input: String,
    },
}

/// Builds the items of an output, token by token.
pub(super) struct ResponseOutput {
    blocks: BlockReader,
    tools: ClientTools,
    /// Set if log-probabilities were asked for.
    tokenizer: Option<Tokenizer>,
    /// Log-probabilities of the open message that have been sent.
    sent: Vec<Value>,
    /// Log-probabilities of tokens whose text is held back.
    pending: Vec<Value>,
    /// The id of the open item.
    id: String,
    kind: ItemKind,
    /// Items that are complete.
    items: Vec<Value>,
}

impl ResponseOutput {
    /// An empty output. `tokenizer` is set if log-probabilities were asked for.
    pub(super) fn new(format: &AnswerFormat, tools: ClientTools, tokenizer: Option<Tokenizer>) -> Self {
        ResponseOutput {
            blocks: BlockReader::new(format),
            tools,
            tokenizer,
            sent: Vec::new(),
            pending: Vec::new(),
            id: String::new(),
            kind: ItemKind::Message,
            items: Vec::new(),
        }
    }

    /// Takes the items of an output that is complete.
    pub(super) fn take(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.items)
    }

    /// Adds a token.
    pub(super) fn push(&mut self, event: AnswerEvent<'_>, to: &mut impl EventSink) {
        if let Some(tokenizer) = &self.tokenizer {
            let new = ChatLogprobs::new(tokenizer, std::slice::from_ref(event.generated));
            self.pending.extend(new.content.iter().map(|token| json!(token)));
        }
        if event.is_reasoning {
            // Only messages have log-probabilities.
            self.pending.clear();
        }
        let finished = event.generated.finished.as_ref();
        let events = self.blocks.push(event);
        let last = events.len().saturating_sub(1);
        let is_cut = finished.is_some_and(|finished| finished.reason == FinishReason::Length);
        for (index, event) in events.into_iter().enumerate() {
            match event {
                BlockEvent::Begin(block) => self.begin(&block, to),
                BlockEvent::Append(more) => self.append(&more, to),
                BlockEvent::End(block) => self.end(block, is_cut && index == last, to),
            }
        }
    }

    fn begin(&mut self, block: &AnswerBlock, to: &mut impl EventSink) {
        let (prefix, kind) = match block {
            AnswerBlock::Reasoning(_) => ("rs", ItemKind::Reasoning),
            AnswerBlock::Text(_) => ("msg", ItemKind::Message),
            AnswerBlock::Call { name, .. } if self.tools.get(name).is_some_and(|tool| tool.is_custom) => (
                "ctc",
                ItemKind::CustomCall { reader: TextArgument::new(CUSTOM_INPUT), input: String::new() },
            ),
            AnswerBlock::Call { .. } => ("fc", ItemKind::FunctionCall),
        };
        let is_message = matches!(kind, ItemKind::Message);
        let has_parts = is_message || matches!(kind, ItemKind::Reasoning);
        self.kind = kind;
        self.id = format!("{prefix}_{:032x}", rand::random::<u128>());
        let index = self.items.len();
        to.emit("response.output_item.added", || {
            let mut item = self.item(block, "in_progress");
            if has_parts {
                item["content"] = json!([]);
            }
            json!({"output_index": index, "item": item})
        });
        if has_parts {
            to.emit("response.content_part.added", || {
                let part = if is_message { part("", &[]) } else { reasoning_part("") };
                self.with_item(json!({"content_index": 0, "part": part}))
            });
        }
        if !is_message {
            self.pending.clear();
        }
    }

    fn append(&mut self, more: &str, to: &mut impl EventSink) {
        match &mut self.kind {
            ItemKind::Message => {
                let new = std::mem::take(&mut self.pending);
                to.emit("response.output_text.delta", || {
                    self.with_item(json!({"content_index": 0, "delta": more, "logprobs": new}))
                });
                self.sent.extend(new);
            }
            ItemKind::Reasoning => {
                to.emit("response.reasoning_text.delta", || {
                    self.with_item(json!({"content_index": 0, "delta": more}))
                });
            }
            ItemKind::FunctionCall => {
                to.emit("response.function_call_arguments.delta", || self.with_item(json!({"delta": more})));
            }
            ItemKind::CustomCall { reader, .. } => {
                let text = reader.push(more);
                self.append_input(&text, to);
            }
        }
    }

    /// Appends to the text for a custom tool.
    fn append_input(&mut self, more: &str, to: &mut impl EventSink) {
        let ItemKind::CustomCall { input, .. } = &mut self.kind else { return };
        if !more.is_empty() {
            input.push_str(more);
            to.emit("response.custom_tool_call_input.delta", || self.with_item(json!({"delta": more})));
        }
    }

    fn end(&mut self, block: AnswerBlock, is_cut: bool, to: &mut impl EventSink) {
        match &mut self.kind {
            // Tokens whose text is not sent, such as the tokens of a stop string.
            ItemKind::Message if !self.pending.is_empty() => self.append("", to),
            ItemKind::CustomCall { reader, .. } => {
                let rest = reader.finish();
                self.append_input(&rest, to);
            }
            ItemKind::Reasoning | ItemKind::Message | ItemKind::FunctionCall => {}
        }
        // A call that the model has not completed must not be run.
        let is_cut = match &block {
            AnswerBlock::Call { arguments, .. } => serde_json::from_str::<IgnoredAny>(arguments).is_err(),
            AnswerBlock::Reasoning(_) | AnswerBlock::Text(_) => is_cut,
        };
        let item = self.item(&block, if is_cut { "incomplete" } else { "completed" });
        match &block {
            AnswerBlock::Call { arguments, .. } => match &self.kind {
                ItemKind::CustomCall { input, .. } => {
                    to.emit("response.custom_tool_call_input.done", || {
                        self.with_item(json!({"input": input}))
                    });
                }
                ItemKind::FunctionCall | ItemKind::Message | ItemKind::Reasoning => to
                    .emit("response.function_call_arguments.done", || {
                        self.with_item(json!({"name": item["name"], "arguments": arguments}))
                    }),
            },
            AnswerBlock::Reasoning(text) => {
                to.emit("response.reasoning_text.done", || {
                    self.with_item(json!({"content_index": 0, "text": text}))
                });
                to.emit("response.content_part.done", || {
                    self.with_item(json!({"content_index": 0, "part": reasoning_part(text)}))
                });
            }
            AnswerBlock::Text(text) => {
                to.emit("response.output_text.done", || {
                    self.with_item(json!({"content_index": 0, "text": text, "logprobs": self.sent}))
                });
                to.emit("response.content_part.done", || {
                    self.with_item(json!({"content_index": 0, "part": part(text, &self.sent)}))
                });
            }
        }
        to.emit("response.output_item.done", || json!({"output_index": self.items.len(), "item": item}));
        self.items.push(item);
        self.sent.clear();
        self.pending.clear();
    }

    /// Adds the id and the place of the open item to the fields of an event.
    fn with_item(&self, mut fields: Value) -> Value {
        fields["item_id"] = self.id.as_str().into();
        fields["output_index"] = self.items.len().into();
        fields
    }

    /// The JSON of the open item.
    fn item(&self, block: &AnswerBlock, status: &str) -> Value {
        let (call_id, name, arguments) = match block {
            AnswerBlock::Reasoning(text) => {
                let content = [reasoning_part(text)];
                return json!({
                    "type": "reasoning", "id": self.id, "status": status, "summary": [], "content": content,
                });
            }
            AnswerBlock::Text(text) => {
                let content = [part(text, &self.sent)];
                return json!({
                    "type": "message", "id": self.id, "status": status, "role": "assistant", "content": content,
                });
            }
            AnswerBlock::Call { id, name, arguments } => (id, name, arguments),
        };
        let own_name = self.tools.get(name).map(|ClientTool { name, .. }| name);
        let name = own_name.map_or(name, |own_name| &own_name.name);
        let mut item = match &self.kind {
            ItemKind::CustomCall { input, .. } => json!({
                "type": "custom_tool_call", "id": self.id, "call_id": call_id, "name": name, "input": input, "status": status,
            }),
            ItemKind::FunctionCall | ItemKind::Message | ItemKind::Reasoning => json!({
                "type": "function_call", "id": self.id, "call_id": call_id, "name": name, "arguments": arguments,
                "status": status,
            }),
        };
        if let Some(namespace) = own_name.and_then(|own_name| own_name.namespace.as_deref()) {
            item["namespace"] = namespace.into();
        }
        item
    }
}

/// Returns the JSON of a text in the content of an item with reasoning.
fn reasoning_part(text: &str) -> Value {
    json!({"type": "reasoning_text", "text": text})
}

/// Returns the JSON of a text in the content of a message.
fn part(text: &str, logprobs: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}
