//! Messages in the forms that different templates expect.

use std::borrow::Cow;

use serde_json::Value;

use super::python::written_json;
use crate::conversation::Conversation;

/// The names of the field with an assistant's reasoning. Clients use one of the names, and
/// templates read another one.
const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

/// Returns the conversation with each reasoning under all of its names, in the same way as
/// transformers.
pub(super) fn with_reasoning(conversation: &Conversation) -> Cow<'_, Conversation> {
    if conversation.messages.iter().all(|message| missing(message).is_none()) {
        return Cow::Borrowed(conversation);
    }
    let mut conversation = conversation.clone();
    for message in &mut conversation.messages {
        let Some(reasoning) = missing(message).map(Value::from) else { continue };
        for name in REASONING {
            if message[name].is_null() {
                message[name] = reasoning.clone();
            }
        }
    }
    Cow::Owned(conversation)
}

/// Returns the reasoning of a message that does not have it under all names yet.
fn missing(message: &Value) -> Option<&str> {
    if message["role"] != "assistant" || REASONING.iter().all(|name| !message[*name].is_null()) {
        return None;
    }
    REASONING.iter().find_map(|name| message[*name].as_str())
}

/// Returns the conversation with the arguments of tool calls as JSON text, the form of the APIs.
/// Returns `None` if no arguments are an object.
///
/// Most templates write the arguments with `tojson`, which needs objects. Some templates
/// concatenate them with other text, which fails with an object.
pub(super) fn with_written_arguments(conversation: &Conversation) -> Option<Conversation> {
    let mut written = None;
    for (index, message) in conversation.messages.iter().enumerate() {
        for (call, asked) in message["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let arguments = &asked["function"]["arguments"];
            if !arguments.is_object() {
                continue;
            }
            let text = written_json(arguments)?;
            let conversation = written.get_or_insert_with(|| conversation.clone());
            let call = conversation.messages.get_mut(index)?.get_mut("tool_calls")?.get_mut(call)?;
            *call.get_mut("function")?.get_mut("arguments")? = text.into();
        }
    }
    written
}
