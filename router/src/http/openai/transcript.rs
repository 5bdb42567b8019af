//! Messages put together from the items of an API that has calls and their results beside what was said.

use std::collections::HashMap;

use serde_json::{Value, json};

/// A conversation in the terms of `/v1/chat/completions`, as it is put together.
#[derive(Debug, Default)]
pub(in crate::http) struct Transcript {
    messages: Vec<Value>,
    /// The tool of each call, by its id.
    called: HashMap<String, String>,
    /// The reasoning before the assistant's next message.
    reasoning: Option<String>,
}

impl Transcript {
    /// A message of text. Two messages of the user in a row become one, as Anthropic's API does it: agents send what they
    /// know of their environment before the question, and many templates refuse turns that do not alternate.
    pub(in crate::http) fn say(&mut self, role: &str, text: String) {
        if role == "user" && self.extend_last(role, &text) {
            return;
        }
        let mut message = json!({"role": role, "content": text});
        let reasoning = self.reasoning.take().filter(|_| role == "assistant");
        if let Some(reasoning) = reasoning {
            message["reasoning_content"] = reasoning.into();
        }
        self.messages.push(message);
    }

    /// What the assistant reasoned before the message or call that follows. Templates know it as `reasoning_content`.
    pub(in crate::http) fn reason(&mut self, text: &str) {
        let reasoning = self.reasoning.get_or_insert_default();
        if !reasoning.is_empty() {
            reasoning.push('\n');
        }
        reasoning.push_str(text);
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
        let reasoning = self.reasoning.take();
        if let Some(message) = self.messages.last_mut() {
            if let Some(more) = reasoning {
                // The calls of one message share their reasoning.
                let so_far = message["reasoning_content"].as_str().map(|text| format!("{text}\n"));
                message["reasoning_content"] = (so_far.unwrap_or_default() + &more).into();
            }
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
