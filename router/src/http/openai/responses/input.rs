//! From the items of an input to the messages of a conversation.

use serde_json::{Value, json};

use super::super::error::OpenAiError;

/// The messages that the template gets: `instructions` first, then the input, which is a text or a list of messages.
pub(super) fn messages(instructions: Option<&str>, input: Value) -> Result<Vec<Value>, OpenAiError> {
    let system = instructions.map(|text| json!({"role": "system", "content": text}));
    let items = match input {
        Value::String(text) => vec![json!({"role": "user", "content": text})],
        Value::Array(items) => {
            items.iter().enumerate().map(|(i, item)| message(i, item)).collect::<Result<_, _>>()?
        }
        _ => return Err(OpenAiError::invalid("input", "`input` must be a text or a list of messages")),
    };
    if items.is_empty() {
        return Err(OpenAiError::invalid("input", "`input` cannot be empty"));
    }
    Ok(system.into_iter().chain(items).collect())
}

/// Characters of all texts.
pub(super) fn characters(messages: &[Value]) -> usize {
    messages.iter().filter_map(|message| message["content"].as_str()).map(|text| text.chars().count()).sum()
}

fn message(index: usize, item: &Value) -> Result<Value, OpenAiError> {
    let param = format!("input[{index}]");
    let wrong = |what: String| OpenAiError::invalid(&param, format!("`{param}` {what}"));
    match item.get("type").and_then(Value::as_str) {
        None | Some("message") => {}
        Some(kind) => return Err(wrong(format!("is of type `{kind}`, which is not supported"))),
    }
    let role = match item["role"].as_str() {
        Some(role @ ("user" | "assistant" | "system")) => role,
        // The newer name of the same thing, which templates do not know.
        Some("developer") => "system",
        _ => return Err(wrong("must have one of the roles user, assistant, system and developer".into())),
    };
    let content = match &item["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let mut text = String::new();
            for part in parts {
                text += match (part["type"].as_str(), part["text"].as_str()) {
                    (Some("input_text" | "output_text" | "text"), Some(part)) => part,
                    (Some(kind), _) => {
                        return Err(wrong(format!("has content of type `{kind}`, which is not supported")));
                    }
                    (None, _) => return Err(wrong("has a part of content without a type".into())),
                };
            }
            text
        }
        _ => return Err(wrong("must have a text or a list of parts as content".into())),
    };
    Ok(json!({"role": role, "content": content}))
}
