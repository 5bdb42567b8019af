//! Messages put together from the items of an API that has calls and their results beside what was said.

use std::collections::HashMap;

use serde_json::{Value, json};

/// A conversation in the terms of `/v1/chat/completions`, as it is put together.
#[derive(Debug, Default)]
pub(in crate::http) struct Transcript {
    messages: Vec<Value>,
    /// The tool of each call, by its id.
    called: HashMap<String, String>,
}

impl Transcript {
    /// A message of text.
    pub(in crate::http) fn say(&mut self, role: &str, text: String) {
        self.messages.push(json!({"role": role, "content": text}));
    }

    /// Whether nobody but this role has said anything.
    pub(in crate::http) fn has_only(&self, role: &str) -> bool {
        self.messages.iter().all(|message| message["role"] == role)
    }

    /// Adds a paragraph to the last message. False if that is not one of text by this role.
    pub(in crate::http) fn extend_last(&mut self, role: &str, text: &str) -> bool {
        self.messages.last_mut().is_some_and(|last| extend(last, role, text))
    }

    /// Adds a paragraph to the system prompt.
    pub(in crate::http) fn extend_system(&mut self, text: &str) {
        if !self.messages.first_mut().is_some_and(|first| extend(first, "system", text)) {
            self.messages.insert(0, json!({"role": "system", "content": text}));
        }
    }

    /// A call by the assistant, which belongs to what it has said or called just before. `arguments` are an object or its
    /// JSON.
    pub(in crate::http) fn call(&mut self, id: &str, name: &str, arguments: Value) {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.say("assistant", String::new());
        }
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        if let Some(message) = self.messages.last_mut() {
            match &mut message["tool_calls"] {
                Value::Array(calls) => calls.push(call),
                none => *none = json!([call]),
            }
        }
        self.called.insert(id.to_owned(), name.to_owned());
    }

    /// What came of a call. False if there was none of this id.
    #[must_use]
    pub(in crate::http) fn result(&mut self, id: &str, text: String) -> bool {
        // Templates that write the tool's name find it here: neither API repeats it.
        let Some(name) = self.called.get(id) else { return false };
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "name": name, "content": text}));
        true
    }

    pub(in crate::http) fn messages(self) -> Vec<Value> {
        self.messages
    }
}

/// Adds a paragraph to a message of this role. False if it is another's, or has no text.
fn extend(message: &mut Value, role: &str, text: &str) -> bool {
    if message["role"] != role {
        return false;
    }
    let Value::String(content) = &mut message["content"] else { return false };
    if !content.is_empty() && !text.is_empty() {
        content.push_str("\n\n");
    }
    content.push_str(text);
    true
}
