//! From Anthropic's messages, whose contents are blocks, to those that the template gets.

use serde_json::Value;

use crate::http::openai::{OpenAiError, Transcript};

/// The messages that the template gets: the system's first.
pub(super) fn messages(system: Option<&Value>, messages: &[Value]) -> Result<Vec<Value>, OpenAiError> {
    if messages.is_empty() {
        return Err(OpenAiError::invalid("messages", "`messages` cannot be empty"));
    }
    let mut transcript = Transcript::default();
    if let Some(system) = system.filter(|system| !system.is_null()) {
        let system = text(system).map_err(|what| wrong("system", &what))?;
        transcript.say("system", system);
    }
    for (index, message) in messages.iter().enumerate() {
        add(message, &mut transcript).map_err(|what| wrong(&format!("messages[{index}]"), &what))?;
    }
    Ok(transcript.messages())
}

fn wrong(param: &str, what: &str) -> OpenAiError {
    OpenAiError::invalid(param, format!("`{param}` {what}"))
}

/// A message is the texts of its blocks in one. Results of tools are messages of their own, and a call belongs to what the
/// assistant has said before it.
fn add(message: &Value, to: &mut Transcript) -> Result<(), String> {
    let role = message["role"].as_str().filter(|role| matches!(*role, "user" | "assistant"));
    let role = role.ok_or("must have one of the roles user and assistant")?;
    let Value::Array(blocks) = &message["content"] else {
        to.say(role, text(&message["content"])?);
        return Ok(());
    };
    let (mut said, mut done) = (String::new(), false);
    let field = |block: &Value, name: &str| {
        let text = block[name].as_str().map(str::to_owned);
        text.ok_or_else(|| format!("has a block of content without `{name}`"))
    };
    for block in blocks {
        let kind = block["type"].as_str().unwrap_or_default();
        if matches!((role, kind), ("assistant", "tool_use") | ("user", "tool_result")) && !said.is_empty() {
            to.say(role, std::mem::take(&mut said));
        }
        match (role, kind) {
            ("assistant", "tool_use") => {
                let input = Some(&block["input"]).filter(|input| input.is_object());
                let input = input.ok_or("has a block of type tool_use whose `input` is no object")?;
                to.call(&field(block, "id")?, &field(block, "name")?, input.clone());
                done = true;
            }
            ("user", "tool_result") => {
                let id = field(block, "tool_use_id")?;
                let result = match &block["content"] {
                    Value::Null => String::new(),
                    content => text(content)?,
                };
                if !to.result(&id, result) {
                    return Err(format!("has the result of {id}, but no tool was used by this id"));
                }
                done = true;
            }
            _ => said += of_block(block)?,
        }
    }
    if !said.is_empty() || !done {
        to.say(role, said);
    }
    Ok(())
}

/// A text, or the texts of a list of blocks.
fn text(content: &Value) -> Result<String, String> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => blocks.iter().map(of_block).collect(),
        _ => Err("must be a text or have a list of blocks as content".into()),
    }
}

fn of_block(block: &Value) -> Result<&str, String> {
    match (block["type"].as_str(), block["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text),
        (Some("text") | None, _) => Err("has a block of content without a type or text".into()),
        (Some(kind), _) => Err(format!("has content of type `{kind}`, which is not supported here")),
    }
}
