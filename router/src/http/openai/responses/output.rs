//! The items of an output: messages and calls of functions, one after the other.

use serde_json::{Value, json};

use super::super::logprobs::ChatLogprobs;
use super::super::tools::{CUSTOM_INPUT, Calling};
use super::tools::{Functions, Shown};
use crate::http::blocks::{Block, Blocks, Step};
use crate::service::{FinishReason, TextEvent};
use crate::text::Tokenizer;
use crate::tools::TextArgument;

/// Who hears of what happens to the output, in the terms of OpenAI's events.
pub(super) trait Listen {
    /// An event of this kind with these fields.
    fn hear(&mut self, kind: &'static str, fields: impl FnOnce() -> Value);
}

/// Nobody: the answer is told as a whole.
impl Listen for () {
    fn hear(&mut self, _: &'static str, _: impl FnOnce() -> Value) {}
}

/// What the open item is.
enum Kind {
    Message,
    /// A call of a function.
    Call,
    /// A call of a custom tool, and its text so far.
    Custom {
        reader: TextArgument,
        input: String,
    },
}

/// Puts the items together, token by token.
pub(super) struct Output {
    blocks: Blocks,
    functions: Functions,
    /// Set if log-probabilities were asked for.
    tokenizer: Option<Tokenizer>,
    /// Log-probabilities of the open message that have been told, and those of tokens whose text is still to come.
    told: Vec<Value>,
    pending: Vec<Value>,
    /// The open item's id and kind.
    id: String,
    kind: Kind,
    /// Items that are complete.
    items: Vec<Value>,
}

impl Output {
    /// `functions` are the client's tools by the names that the model calls them by.
    pub(super) fn new(calling: Option<&Calling>, functions: Functions, tokenizer: Option<Tokenizer>) -> Self {
        Output {
            blocks: Blocks::new(calling),
            functions,
            tokenizer,
            told: Vec::new(),
            pending: Vec::new(),
            id: String::new(),
            kind: Kind::Message,
            items: Vec::new(),
        }
    }

    /// The items, when the last token has come.
    pub(super) fn items(&mut self) -> Vec<Value> {
        std::mem::take(&mut self.items)
    }

    /// Takes in a token.
    pub(super) fn push(&mut self, event: &TextEvent, to: &mut impl Listen) {
        if let Some(tokenizer) = &self.tokenizer {
            let new = ChatLogprobs::new(tokenizer, std::slice::from_ref(event));
            self.pending.extend(new.content.iter().map(|token| json!(token)));
        }
        let steps = self.blocks.push(event);
        let last = steps.len().saturating_sub(1);
        let cut = event.finished.as_ref().is_some_and(|finished| finished.reason == FinishReason::Length);
        for (at, step) in steps.into_iter().enumerate() {
            match step {
                Step::Begin(block) => self.begin(&block, to),
                Step::More(more) => self.more(&more, to),
                Step::End(block) => self.end(block, cut && at == last, to),
            }
        }
    }

    fn begin(&mut self, block: &Block, to: &mut impl Listen) {
        let (prefix, kind) = match block {
            Block::Text(_) => ("msg", Kind::Message),
            Block::Call { name, .. } if self.functions.get(name).is_some_and(|shown| shown.is_custom) => {
                ("ctc", Kind::Custom { reader: TextArgument::new(CUSTOM_INPUT), input: String::new() })
            }
            Block::Call { .. } => ("fc", Kind::Call),
        };
        let is_message = matches!(kind, Kind::Message);
        self.kind = kind;
        self.id = format!("{prefix}_{:032x}", rand::random::<u128>());
        let index = self.items.len();
        to.hear("response.output_item.added", || {
            let mut item = self.item(block, "in_progress");
            if is_message {
                item["content"] = json!([]);
            }
            json!({"output_index": index, "item": item})
        });
        if is_message {
            to.hear("response.content_part.added", || {
                self.about(json!({"content_index": 0, "part": part("", &[])}))
            });
        } else {
            self.pending.clear();
        }
    }

    fn more(&mut self, more: &str, to: &mut impl Listen) {
        match &mut self.kind {
            Kind::Message => {
                let new = std::mem::take(&mut self.pending);
                to.hear("response.output_text.delta", || {
                    self.about(json!({"content_index": 0, "delta": more, "logprobs": new}))
                });
                self.told.extend(new);
            }
            Kind::Call => {
                to.hear("response.function_call_arguments.delta", || self.about(json!({"delta": more})));
            }
            Kind::Custom { reader, .. } => {
                let text = reader.push(more);
                self.more_input(&text, to);
            }
        }
    }

    /// More of the text that a custom tool takes.
    fn more_input(&mut self, more: &str, to: &mut impl Listen) {
        let Kind::Custom { input, .. } = &mut self.kind else { return };
        if !more.is_empty() {
            input.push_str(more);
            to.hear("response.custom_tool_call_input.delta", || self.about(json!({"delta": more})));
        }
    }

    fn end(&mut self, block: Block, cut: bool, to: &mut impl Listen) {
        match &mut self.kind {
            // Tokens of a text that has been left out, such as a stop string.
            Kind::Message if !self.pending.is_empty() => self.more("", to),
            Kind::Custom { reader, .. } => {
                let rest = reader.finish();
                self.more_input(&rest, to);
            }
            Kind::Message | Kind::Call => {}
        }
        let item = self.item(&block, if cut { "incomplete" } else { "completed" });
        match &block {
            Block::Call { arguments, .. } => match &self.kind {
                Kind::Custom { input, .. } => {
                    to.hear("response.custom_tool_call_input.done", || self.about(json!({"input": input})));
                }
                Kind::Call | Kind::Message => to.hear("response.function_call_arguments.done", || {
                    self.about(json!({"name": item["name"], "arguments": arguments}))
                }),
            },
            Block::Text(text) => {
                to.hear("response.output_text.done", || {
                    self.about(json!({"content_index": 0, "text": text, "logprobs": self.told}))
                });
                to.hear("response.content_part.done", || {
                    self.about(json!({"content_index": 0, "part": part(text, &self.told)}))
                });
            }
        }
        to.hear("response.output_item.done", || json!({"output_index": self.items.len(), "item": item}));
        self.items.push(item);
        self.told.clear();
        self.pending.clear();
    }

    /// With the place of the open item.
    fn about(&self, mut fields: Value) -> Value {
        fields["item_id"] = self.id.as_str().into();
        fields["output_index"] = self.items.len().into();
        fields
    }

    fn item(&self, block: &Block, status: &str) -> Value {
        let (call_id, name, arguments) = match block {
            Block::Text(text) => {
                let content = [part(text, &self.told)];
                return json!({
                    "type": "message", "id": self.id, "status": status, "role": "assistant", "content": content,
                });
            }
            Block::Call { id, name, arguments } => (id, name, arguments),
        };
        let origin = self.functions.get(name).map(|Shown { origin, .. }| origin);
        let name = origin.map_or(name, |origin| &origin.name);
        let mut item = match &self.kind {
            Kind::Custom { input, .. } => json!({
                "type": "custom_tool_call", "id": self.id, "call_id": call_id, "name": name, "input": input, "status": status,
            }),
            Kind::Call | Kind::Message => json!({
                "type": "function_call", "id": self.id, "call_id": call_id, "name": name, "arguments": arguments,
                "status": status,
            }),
        };
        if let Some(namespace) = origin.and_then(|origin| origin.namespace.as_deref()) {
            item["namespace"] = namespace.into();
        }
        item
    }
}

/// A text in the content of a message.
fn part(text: &str, logprobs: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}
