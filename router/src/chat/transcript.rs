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
    pub(crate) fn has_only(&self, role: &str) -> bool {
        self.messages.iter().all(|message| message["role"] == role)
    }

    /// Adds a paragraph to the last message. Returns false if that message has another role or no
    /// text.
    pub(crate) fn extend_last(&mut self, role: &str, text: &str) -> bool {
        self.messages.last_mut().is_some_and(|last| extend(last, role, text))
    }

    /// Adds a paragraph to the system prompt.
    fn extend_system(&mut self, text: &str) {
        if !self.messages.first_mut().is_some_and(|first| extend(first, "system", text)) {
            self.messages.insert(0, json!({"role": "system", "content": text}));
        }
    }

    /// Adds a system message at any place of the conversation. `late_system` says whether the
    /// template writes system messages behind others; most templates refuse or drop them.
    ///
    /// Where the template does not write it, the text is appended to the user message before it, so
    /// that the prompt up to there stays the same and stays cached. Without a user message before
    /// it, the text becomes a part of the system prompt.
    pub(crate) fn say_system(&mut self, text: String, late_system: bool) {
        if late_system && !self.has_only("system") {
            self.say("system", text);
        } else if !self.extend_last("user", &text) {
            self.extend_system(&text);
        }
    }

    /// Adds a tool call to the assistant's last message, or to a new one. `arguments` are an object
    /// or its JSON.
    pub(crate) fn call(&mut self, id: &str, name: &str, arguments: Value) {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.say("assistant", String::new());
        }
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let reasoning = self.reasoning.take();
        if let Some(message) = self.messages.last_mut() {
            if let Some(more) = reasoning {
                // All calls of one message share its reasoning.
                let so_far = message["reasoning_content"].as_str().map(|text| format!("{text}\n"));
                message["reasoning_content"] = (so_far.unwrap_or_default() + &more).into();
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
    if !content.is_empty() && !text.is_empty() {
        content.push_str("\n\n");
    }
    content.push_str(text);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The roles and texts of a conversation that ends with the system message `late`.
    fn with_late_system(before: &[(&str, &str)], late_system: bool) -> Vec<(String, String)> {
        let mut transcript = Transcript::default();
        before.iter().for_each(|(role, text)| transcript.say(role, (*text).to_owned()));
        transcript.say_system("late".into(), late_system);
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let messages = transcript.into_messages();
        messages.iter().map(|message| (text(&message["role"]), text(&message["content"]))).collect()
    }

    #[test]
    fn a_late_system_message_is_placed_where_the_template_writes_it() {
        let message = |role: &str, text: &str| (role.to_owned(), text.to_owned());
        let user = [("system", "s"), ("user", "u")];
        let expected = [message("system", "s"), message("user", "u"), message("system", "late")];
        assert_eq!(with_late_system(&user, true), expected);
        assert_eq!(with_late_system(&user, false), [message("system", "s"), message("user", "u\n\nlate")]);
        // Behind an answer there is no user message to append to.
        let answered = [("user", "u"), ("assistant", "a")];
        let expected = [message("system", "late"), message("user", "u"), message("assistant", "a")];
        assert_eq!(with_late_system(&answered, false), expected);
        // System messages at the beginning are one message in any case.
        for late_system in [false, true] {
            assert_eq!(with_late_system(&[("system", "s")], late_system), [message("system", "s\n\nlate")]);
            assert_eq!(with_late_system(&[], late_system), [message("system", "late")]);
        }
    }
}
