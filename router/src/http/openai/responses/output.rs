//! The items of an output: messages and calls of functions, one after the other.

use serde_json::{Value, json};

use super::super::logprobs::ChatLogprobs;
use super::super::tools::Calling;
use crate::http::blocks::{Block, Blocks, Step};
use crate::service::{FinishReason, TextEvent};
use crate::text::Tokenizer;

/// Who hears of what happens to the output, in the terms of OpenAI's events.
pub(super) trait Listen {
    /// An event of this kind with these fields.
    fn hear(&mut self, kind: &'static str, fields: impl FnOnce() -> Value);
}

/// Nobody: the answer is told as a whole.
impl Listen for () {
    fn hear(&mut self, _: &'static str, _: impl FnOnce() -> Value) {}
}

/// Puts the items together, token by token.
pub(super) struct Output {
    blocks: Blocks,
    /// Set if log-probabilities were asked for.
    tokenizer: Option<Tokenizer>,
    /// Log-probabilities of the open message that have been told, and those of tokens whose text is still to come.
    told: Vec<Value>,
    pending: Vec<Value>,
    /// The open item's id, and whether it is a call.
    id: String,
    is_call: bool,
    /// Items that are complete.
    items: Vec<Value>,
}

impl Output {
    pub(super) fn new(calling: Option<&Calling>, tokenizer: Option<Tokenizer>) -> Self {
        Output {
            blocks: Blocks::new(calling),
            tokenizer,
            told: Vec::new(),
            pending: Vec::new(),
            id: String::new(),
            is_call: false,
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
        self.is_call = matches!(block, Block::Call { .. });
        let prefix = if self.is_call { "fc" } else { "msg" };
        self.id = format!("{prefix}_{:032x}", rand::random::<u128>());
        let index = self.items.len();
        to.hear("response.output_item.added", || {
            let mut item = self.item(block, "in_progress");
            if !self.is_call {
                item["content"] = json!([]);
            }
            json!({"output_index": index, "item": item})
        });
        if self.is_call {
            self.pending.clear();
        } else {
            to.hear("response.content_part.added", || {
                self.about(json!({"content_index": 0, "part": part("", &[])}))
            });
        }
    }

    fn more(&mut self, more: &str, to: &mut impl Listen) {
        if self.is_call {
            to.hear("response.function_call_arguments.delta", || self.about(json!({"delta": more})));
            return;
        }
        let new = std::mem::take(&mut self.pending);
        to.hear("response.output_text.delta", || {
            self.about(json!({"content_index": 0, "delta": more, "logprobs": new}))
        });
        self.told.extend(new);
    }

    fn end(&mut self, block: Block, cut: bool, to: &mut impl Listen) {
        // Tokens of a text that has been left out, such as a stop string.
        if !self.is_call && !self.pending.is_empty() {
            self.more("", to);
        }
        let item = self.item(&block, if cut { "incomplete" } else { "completed" });
        match &block {
            Block::Call { name, arguments, .. } => {
                to.hear("response.function_call_arguments.done", || {
                    self.about(json!({"name": name, "arguments": arguments}))
                });
            }
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
        match block {
            Block::Text(text) => json!({
                "type": "message", "id": self.id, "status": status, "role": "assistant", "content": [part(text, &self.told)],
            }),
            Block::Call { id, name, arguments } => json!({
                "type": "function_call", "id": self.id, "call_id": id, "name": name, "arguments": arguments, "status": status,
            }),
        }
    }
}

/// A text in the content of a message.
fn part(text: &str, logprobs: &[Value]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
}
