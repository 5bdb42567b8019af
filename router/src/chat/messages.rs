//! Validation of messages, and their translation for chat templates.

use millrace_text::{Conversation, RenderedPrompt};
use serde_json::{Map, Value, json};

use super::call_arguments::call_arguments;
use super::custom_tools::CUSTOM_INPUT;
use super::error::ChatError;
use super::late_system;

/// The roles that every request may use. A template may know more.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// The fields of a request that say whether the answer continues the last message.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ContinuationOptions {
    /// Whether the answer continues the last message; by default, if it is the assistant's.
    pub(crate) continue_final_message: Option<bool>,
    /// Whether the template adds the beginning of a new message for the answer.
    pub(crate) add_generation_prompt: Option<bool>,
}

/// Returns the conversation for the template and, if the answer continues the last message, the
/// text of that message. A role must be one of [`ROLES`] or one that `knows_role` accepts.
/// `writes_late` says whether the template writes messages of a role, `system` or `developer`, that
/// follow others.
///
/// # Errors
/// [`ChatError::Invalid`] names the message that is wrong.
pub(super) fn conversation(
    messages: Vec<Value>,
    options: ContinuationOptions,
    knows_role: impl Fn(&str) -> bool,
    writes_late: impl Fn(&str) -> bool,
) -> Result<(Conversation, Option<String>), ChatError> {
    if messages.is_empty() {
        return Err(ChatError::invalid("messages", "`messages` cannot be empty"));
    }
    let continues = match (options.continue_final_message, options.add_generation_prompt) {
        (Some(true), Some(true)) => {
            let message = "`continue_final_message` and `add_generation_prompt` cannot both be true";
            return Err(ChatError::invalid("continue_final_message", message));
        }
        // A request for a new message does not continue the last one.
        (None, Some(true)) => Some(false),
        (continues, _) => continues,
    };
    let messages = messages.into_iter().enumerate().map(|(i, m)| message(i, m, &knows_role));
    let messages = messages.collect::<Result<Vec<_>, _>>()?;
    // A message ends with its tool calls, so it cannot be continued.
    let has_calls = |message: &Map<String, Value>| {
        message.get("tool_calls").and_then(Value::as_array).is_some_and(|calls| !calls.is_empty())
    };
    let is_assistant =
        |message: &Map<String, Value>| message.get("role").is_some_and(|role| role == "assistant");
    let last = messages.last().filter(|last| is_assistant(last) && !has_calls(last));
    let begun = last.and_then(|last| last.get("content")?.as_str()).filter(|text| !text.trim().is_empty());
    let begun = begun.filter(|_| continues.unwrap_or(true)).map(str::to_owned);
    if continues == Some(true) && begun.is_none() {
        let message = "`continue_final_message` needs a last message of the assistant with text";
        return Err(ChatError::invalid("continue_final_message", message));
    }
    let add_generation_prompt = begun.is_none() && options.add_generation_prompt.unwrap_or(true);
    let messages = late_system::placed(messages, writes_late).into_iter().map(Value::Object).collect();
    Ok((Conversation { messages, add_generation_prompt, ..Conversation::default() }, begun))
}

/// Removes the text that the template wrote after the unfinished text `begun`.
///
/// # Errors
/// [`ChatError::Invalid`] if the prompt does not contain `begun`.
pub(super) fn cut_after(mut prompt: RenderedPrompt, begun: &str) -> Result<RenderedPrompt, ChatError> {
    let begun = begun.trim();
    let Some(start) = prompt.text.rfind(begun) else {
        let message = "the chat template changes the last message, so that it cannot be continued";
        return Err(ChatError::invalid("messages", message));
    };
    prompt.truncate(start + begun.len());
    Ok(prompt)
}

/// Validates a message and translates it for the template: its content becomes one text, and the
/// arguments of its calls become objects.
fn message(
    index: usize,
    message: Value,
    knows_role: impl Fn(&str) -> bool,
) -> Result<Map<String, Value>, ChatError> {
    let param = format!("messages[{index}]");
    let wrong = |what: &str| ChatError::invalid(&param, format!("`{param}` {what}"));
    let Value::Object(mut message) = message else { return Err(wrong("must be an object")) };
    let Some(role) = message.get("role").and_then(Value::as_str) else {
        return Err(wrong("must have a role"));
    };
    // A template writes the role next to the special tokens of a message. An arbitrary role could
    // contain the text of such a token and so end the message.
    if !ROLES.contains(&role) && !knows_role(role) {
        let role: String = role.chars().take(64).collect();
        return Err(wrong(&format!(
            "has the unknown role {role:?}. Known roles are {} and those that the model's chat template names",
            ROLES.join(", ")
        )));
    }
    let maps_to_system = role == "developer" && !knows_role(role);
    let content = match message.get("content") {
        // Templates test whether the field exists, so an absent field stays absent.
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
        // OpenAI's newer name of the system role.
        message.insert("role".into(), "system".into());
    }
    match message.get_mut("tool_calls") {
        None => {}
        Some(Value::Null) => drop(message.remove("tool_calls")),
        Some(Value::Array(calls)) => {
            for (call_index, call) in calls.iter_mut().enumerate() {
                translate_call(call).map_err(|fault| match fault {
                    CallFault::NoName => wrong("has a tool call without a function's name"),
                    CallFault::Arguments(what) => {
                        let param = format!("{param}.tool_calls[{call_index}].function.arguments");
                        ChatError::invalid(&param, format!("`{param}` {what}"))
                    }
                })?;
            }
        }
        Some(_) => return Err(wrong("must have a list of tool calls")),
    }
    Ok(message)
}

/// The reason why a call is refused.
enum CallFault {
    /// The call has no name of a function.
    NoName,
    /// The arguments are no object.
    Arguments(String),
}

/// Parses the arguments of a call, since templates write the object and not its text.
fn translate_call(call: &mut Value) -> Result<(), CallFault> {
    if let (Some(name), Some(input)) = (call["custom"]["name"].as_str(), call["custom"]["input"].as_str()) {
        // For the model, a custom tool is a function with one string.
        let function = json!({"name": name, "arguments": {CUSTOM_INPUT: input}});
        let id = call["id"].take();
        *call = json!({"id": id, "type": "function", "function": function});
        return Ok(());
    }
    let function = call.get_mut("function").filter(|function| function["name"].is_string());
    let function = function.ok_or(CallFault::NoName)?;
    if !function["arguments"].is_object() {
        function["arguments"] = call_arguments(&function["arguments"]).map_err(CallFault::Arguments)?;
    }
    Ok(())
}

/// Returns the text of a list of content parts, all of which must be texts.
fn text_of(param: &str, parts: &[Value]) -> Result<String, ChatError> {
    let mut text = String::new();
    for part in parts {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(part)) => text += part,
            (Some("text") | None, _) => {
                let message = format!("`{param}` has a part of content without a type or text");
                return Err(ChatError::invalid(param, message));
            }
            (Some(kind), _) => {
                let message = format!("`{param}` has content of type `{kind}`, which is not supported");
                return Err(ChatError::invalid(param, message));
            }
        }
    }
    Ok(text)
}
