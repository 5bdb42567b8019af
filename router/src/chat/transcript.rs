//! Messages built from the items of an API whose calls and results are not messages of their own.

use std::collections::HashMap;

use serde_json::{Value, json};

/// The messages of a conversation, built item by item.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    messages: Vec<Value>,
    /// The name of the tool of each call, by the id of the call.
    tool_names: HashMap<String, String>,
    /// The reasoning before the assistant's next message.
    reasoning: Option<String>,
}

impl Transcript {
    /// Adds a message of text. Two user messages in a row become one, as in Anthropic's API: agents
    /// send a description of their environment before the question, and many templates refuse
    /// messages whose roles do not alternate.
    pub(crate) fn say(&mut self, role: &str, text: String) {
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

    /// Adds reasoning to the assistant's next message or call. Templates read it as
    /// `reasoning_content`.
    pub(crate) fn reason(&mut self, text: &str) {
        let reasoning = self.reasoning.get_or_insert_default();
        if !reasoning.is_empty() {
            reasoning.push('\n');
        }
        reasoning.push_str(text);
    }

    /// Returns whether all messages so far have this role.
    fn has_only(&self, role: &str) -> bool {
        self.messages.iter().all(|message| message["role"] == role)
    }

    /// Adds a paragraph to the last message. Returns false if that message has another role or no
    /// text.
    fn extend_last(&mut self, role: &str, text: &str) -> bool {
        self.messages.last_mut().is_some_and(|last| extend(last, role, text))
    }

    /// Adds a system message at any place of the conversation. System messages at the beginning
    /// become one: agents send several, and many templates take only one. The chat core moves later
    /// ones where the template does not write them.
    pub(crate) fn say_system(&mut self, text: String) {
        if !(self.has_only("system") && self.extend_last("system", &text)) {
            self.say("system", text);
        }
    }

    /// Adds a tool call to the assistant's last message, or to a new one. `arguments` are an
    /// object.
    pub(crate) fn call(&mut self, id: &str, name: &str, arguments: Value) {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.say("assistant", String::new());
        }
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let reasoning = self.reasoning.take();
        if let Some(message) = self.messages.last_mut() {
            if let Some(more) = reasoning {
                // All calls of one message share its reasoning.
                match &mut message["reasoning_content"] {
                    Value::String(so_far) => {
                        so_far.push('\n');
                        so_far.push_str(&more);
                    }
                    none => *none = more.into(),
                }
            }
            match &mut message["tool_calls"] {
                Value::Array(calls) => calls.push(call),
                none => *none = json!([call]),
            }
        }
        self.tool_names.insert(id.to_owned(), name.to_owned());
    }

    /// Adds the result of a call. Returns false if no call has this id.
    #[must_use]
    pub(crate) fn result(&mut self, id: &str, text: String) -> bool {
        // Some templates write the tool's name, which neither Anthropic's nor OpenAI's results
        // have.
        let Some(name) = self.tool_names.get(id) else { return false };
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "name": name, "content": text}));
        true
    }

    /// Returns the messages in the form that chat templates read.
    pub(crate) fn into_messages(self) -> Vec<Value> {
        self.messages
    }
}

/// Adds a paragraph to a message. Returns false if the message has another role or no text.
fn extend(message: &mut Value, role: &str, text: &str) -> bool {
    if message["role"] != role {
        return false;
    }
    let Value::String(content) = &mut message["content"] else { return false };
    add_paragraph(content, text);
    true
}

/// Adds a paragraph to a text.
pub(super) fn add_paragraph(to: &mut String, text: &str) {
    if !to.is_empty() && !text.is_empty() {
        to.push_str("\n\n");
    }
    to.push_str(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_messages_at_the_beginning_become_one() {
        let mut transcript = Transcript::default();
        for text in ["a", "b"] {
            transcript.say_system(text.into());
        }
        transcript.say("user", "u".into());
        transcript.say_system("late".into());
        let message = |role: &str, text: &str| json!({"role": role, "content": text});
        let expected = [message("system", "a\n\nb"), message("user", "u"), message("system", "late")];
        assert_eq!(transcript.into_messages(), expected);
    }

    #[test]
    fn calls_of_one_message_share_its_reasoning() {
        let mut transcript = Transcript::default();
        for (id, thought) in [("1", "why"), ("2", "how")] {
            transcript.reason(thought);
            transcript.call(id, "f", json!({}));
        }
        let messages = transcript.into_messages();
        assert_eq!(messages.len(), 1);
        assert_eq!(messages[0]["reasoning_content"], "why\nhow");
        assert_eq!(messages[0]["tool_calls"].as_array().map(Vec::len), Some(2));
    }
}
