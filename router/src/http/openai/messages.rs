//! The messages of a conversation, as chat templates take them.

use serde_json::{Map, Value, json};

use super::error::OpenAiError;
use super::tools::CUSTOM_INPUT;
use crate::text::{Conversation, Rendered};

/// The roles that the API knows. A template may know others.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// How a conversation is continued, as a request says.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Turn {
    pub(super) continue_final_message: Option<bool>,
    pub(super) add_generation_prompt: Option<bool>,
}

/// A conversation for the template, and the text that the answer continues if its last message is the assistant's. Roles
/// are those of the API and those that `knows_role` says the template knows.
pub(super) fn conversation(
    messages: Vec<Value>,
    turn: Turn,
    knows_role: impl Fn(&str) -> bool,
) -> Result<(Conversation, Option<String>), OpenAiError> {
    let continues = match (turn.continue_final_message, turn.add_generation_prompt) {
        (Some(true), Some(true)) => {
            let message = "`continue_final_message` and `add_generation_prompt` cannot both be true";
            return Err(OpenAiError::invalid("continue_final_message", message));
        }
        // Who asks for a new turn does not continue the last one.
        (None, Some(true)) => Some(false),
        (continues, _) => continues,
    };
    let messages = messages.into_iter().enumerate().map(|(i, m)| message(i, m, &knows_role));
    let messages = messages.collect::<Result<Vec<_>, _>>()?;
    // After its calls the assistant has nothing more to say.
    let calls = |message: &Map<String, Value>| {
        message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty())
    };
    let is_assistant =
        |message: &Map<String, Value>| message.get("role").is_some_and(|role| role == "assistant");
    let last = messages.last().filter(|last| is_assistant(last) && !calls(last));
    let begun = last.and_then(|last| last.get("content")?.as_str()).filter(|text| !text.trim().is_empty());
    let begun = begun.filter(|_| continues.unwrap_or(true)).map(str::to_owned);
    if continues == Some(true) && begun.is_none() {
        let message = "`continue_final_message` needs a last message of the assistant with text";
        return Err(OpenAiError::invalid("continue_final_message", message));
    }
    let add_generation_prompt = begun.is_none() && turn.add_generation_prompt.unwrap_or(true);
    let messages = messages.into_iter().map(Value::Object).collect();
    Ok((Conversation { messages, add_generation_prompt, ..Conversation::default() }, begun))
}

/// Cuts what the template wrote after the assistant's unfinished text.
pub(super) fn cut_after(mut prompt: Rendered, begun: &str) -> Result<Rendered, OpenAiError> {
    let begun = begun.trim();
    let Some(start) = prompt.text.rfind(begun) else {
        let message = "the chat template changes the last message, so that it cannot be continued";
        return Err(OpenAiError::invalid("messages", message));
    };
    prompt.truncate(start + begun.len());
    Ok(prompt)
}

fn message(
    index: usize,
    message: Value,
    knows_role: impl Fn(&str) -> bool,
) -> Result<Map<String, Value>, OpenAiError> {
    let param = format!("messages[{index}]");
    let wrong = |what: &str| OpenAiError::invalid(&param, format!("`{param}` {what}"));
    let Value::Object(mut message) = message else { return Err(wrong("must be an object")) };
    let Some(role) = message.get("role").and_then(Value::as_str) else {
        return Err(wrong("must have a role"));
    };
    // A template writes the role between the marks of a turn, so a role of one's own choice could be the end of one.
    if !ROLES.contains(&role) && !knows_role(role) {
        let role: String = role.chars().take(64).collect();
        return Err(wrong(&format!(
            "has the role {role:?}, which is not known. Known are {}, and those that the model's chat template names",
            ROLES.join(", ")
        )));
    }
    let maps_to_system = role == "developer" && !knows_role(role);
    let content = match message.get("content") {
        // Templates ask whether there is content: null is no text, and an absent field stays absent.
        None => None,
        Some(Value::Null) => Some(String::new()),
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => Some(text_of(&param, parts)?),
        Some(_) => return Err(wrong("must have a text or a list of parts as content")),
    };
    if let Some(content) = content {
        message.insert("content".into(), Value::String(content));
    }
    if maps_to_system {
        // The newer name of the same thing.
        message.insert("role".into(), "system".into());
    }
    let understood = match message.get_mut("tool_calls") {
        None => true,
        Some(Value::Null) => message.remove("tool_calls").is_some(),
        Some(Value::Array(calls)) => calls.iter_mut().all(call),
        Some(_) => return Err(wrong("must have a list of tool calls")),
    };
    if !understood {
        return Err(wrong("has a tool call without a function's name"));
    }
    Ok(message)
}

/// Templates write the arguments of a call as JSON, so they are given the object that the client's text stands for.
fn call(call: &mut Value) -> bool {
    if let (Some(name), Some(input)) = (call["custom"]["name"].as_str(), call["custom"]["input"].as_str()) {
        // A custom tool is a function with one string for the model.
        let function = json!({"name": name, "arguments": {CUSTOM_INPUT: input}});
        let id = call["id"].take();
        *call = json!({"id": id, "type": "function", "function": function});
        return true;
    }
    let Some(function) = call.get_mut("function").filter(|function| function["name"].is_string()) else {
        return false;
    };
    let parsed = function["arguments"].as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    if let Some(arguments @ Value::Object(_)) = parsed {
        function["arguments"] = arguments;
    }
    true
}

fn text_of(param: &str, parts: &[Value]) -> Result<String, OpenAiError> {
    let mut text = String::new();
    for part in parts {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(part)) => text += part,
            (Some("text") | None, _) => {
                let message = format!("`{param}` has a part of content without a type or text");
                return Err(OpenAiError::invalid(param, message));
            }
            (Some(kind), _) => {
                let message = format!("`{param}` has content of type `{kind}`, which is not supported");
                return Err(OpenAiError::invalid(param, message));
            }
        }
    }
    Ok(text)
}
