//! From Anthropic's messages, whose contents are blocks, to those that the template gets.

use serde_json::Value;

use crate::http::ignored::Ignored;
use crate::http::openai::{OpenAiError, Transcript};

/// Begins a block by which Claude Code tells Anthropic its version. It differs from session to session, so a system prompt
/// that begins with it would share no cached prefix with the next session.
const BILLING: &str = "x-anthropic-billing-header:";

/// The messages that the template gets: the system's first. `late_system` says whether the template can write a system
/// message behind others.
///
/// # Errors
/// Names the message that is malformed or has content that is not served.
pub(super) fn messages(
    system: Option<&Value>,
    messages: &[Value],
    late_system: bool,
    ignored: &mut Ignored,
) -> Result<Vec<Value>, OpenAiError> {
    if messages.is_empty() {
        return Err(OpenAiError::invalid("messages", "`messages` cannot be empty"));
    }
    let mut transcript = Transcript::default();
    if let Some(system) = system.filter(|system| !system.is_null()) {
        let system = system_text(system, ignored).map_err(|what| wrong("system", &what))?;
        transcript.say("system", system);
    }
    for (index, message) in messages.iter().enumerate() {
        add(message, late_system, &mut transcript)
            .map_err(|what| wrong(&format!("messages[{index}]"), &what))?;
    }
    Ok(transcript.messages())
}

fn wrong(param: &str, what: &str) -> OpenAiError {
    OpenAiError::invalid(param, format!("`{param}` {what}"))
}

/// The system prompt, without the block that is addressed to Anthropic.
fn system_text(system: &Value, ignored: &mut Ignored) -> Result<String, String> {
    let Value::Array(blocks) = system else { return text(system) };
    let mut prompt = String::new();
    for block in blocks {
        let text = of_block(block)?;
        if text.starts_with(BILLING) && !text.trim_end().contains('\n') {
            ignored.note("system.x-anthropic-billing-header");
        } else {
            prompt += &text;
        }
    }
    Ok(prompt)
}

fn add(message: &Value, late_system: bool, to: &mut Transcript) -> Result<(), String> {
    match message["role"].as_str() {
        Some("user") => add_user(&message["content"], to),
        Some("assistant") => add_assistant(&message["content"], to),
        Some("system") => {
            add_system(text(&message["content"])?, late_system, to);
            Ok(())
        }
        _ => Err("must have one of the roles user, assistant and system".into()),
    }
}

/// A system message at the begin belongs to the system prompt. Most templates refuse or drop one that comes later: there it
/// becomes a part of the user's message before it, so that the prompt up to it stays the same and stays cached. If no user's
/// message is before it, it becomes a part of the system prompt.
fn add_system(text: String, late_system: bool, to: &mut Transcript) {
    if to.has_only("system") || !late_system {
        if to.extend_last("user", &text) {
            return;
        }
        to.extend_system(&text);
    } else {
        to.say("system", text);
    }
}

/// A user's message is the texts of its blocks in one. Results of tools are messages of their own.
fn add_user(content: &Value, to: &mut Transcript) -> Result<(), String> {
    let Value::Array(blocks) = content else {
        to.say("user", text(content)?);
        return Ok(());
    };
    let (mut said, mut done) = (String::new(), false);
    for block in blocks {
        if block["type"] != "tool_result" {
            said += &of_block(block)?;
            continue;
        }
        if !said.is_empty() {
            to.say("user", std::mem::take(&mut said));
        }
        let id = field(block, "tool_use_id")?;
        let result = result(block).map_err(|what| format!("has the result of {id}, which {what}"))?;
        if !to.result(id, result) {
            return Err(format!("has the result of {id}, but no tool was used by this id"));
        }
        done = true;
    }
    if !said.is_empty() || !done {
        to.say("user", said);
    }
    Ok(())
}

/// The text that a tool's result has. The model learns of a failure by its text alone, so a failure is told there.
fn result(block: &Value) -> Result<String, String> {
    let text = match &block["content"] {
        Value::Null => String::new(),
        content => text(content)?,
    };
    Ok(match (block["is_error"].as_bool(), text.is_empty()) {
        (Some(true), true) => "Error".into(),
        (Some(true), false) => format!("Error: {text}"),
        _ => text,
    })
}

/// An assistant's message is the texts of its blocks in one. A call belongs to what was said before it. What the model has
/// thought is left out: chat templates drop it from earlier turns, and a model cannot read what another one has encrypted.
fn add_assistant(content: &Value, to: &mut Transcript) -> Result<(), String> {
    let Value::Array(blocks) = content else {
        to.say("assistant", text(content)?);
        return Ok(());
    };
    let (mut said, mut done) = (String::new(), false);
    for block in blocks {
        match block["type"].as_str() {
            Some("thinking" | "redacted_thinking") => {}
            Some("tool_use") => {
                if !said.is_empty() {
                    to.say("assistant", std::mem::take(&mut said));
                }
                let input = Some(&block["input"]).filter(|input| input.is_object());
                let input = input.ok_or("has a block of type tool_use whose `input` is no object")?;
                to.call(field(block, "id")?, field(block, "name")?, input.clone());
                done = true;
            }
            _ => said += &of_block(block)?,
        }
    }
    if !said.is_empty() || !done {
        to.say("assistant", said);
    }
    Ok(())
}

fn field<'a>(block: &'a Value, name: &str) -> Result<&'a str, String> {
    block[name].as_str().ok_or_else(|| format!("has a block of content without `{name}`"))
}

/// A text, or the texts of a list of blocks.
fn text(content: &Value) -> Result<String, String> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let mut all = String::new();
            for block in blocks {
                all += &of_block(block)?;
            }
            Ok(all)
        }
        _ => Err("must be a text or have a list of blocks as content".into()),
    }
}

/// The text of a block that has one.
fn of_block(block: &Value) -> Result<String, String> {
    match (block["type"].as_str(), block["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        (Some("text") | None, _) => Err("has a block of content without a type or text".into()),
        (Some("document"), _) => document(block),
        (Some("search_result"), _) => titled(&["title", "source"], block, plain(&block["content"])?),
        (Some("image"), _) => {
            Err("has an image (content of type `image`), but the model reads text only".into())
        }
        (Some(kind), _) => {
            let kind: String = kind.chars().take(64).collect();
            Err(format!("has content of type `{kind}`, which is not supported here"))
        }
    }
}

/// The text of a document, if it is one of text.
fn document(block: &Value) -> Result<String, String> {
    let source = &block["source"];
    let text = match source["type"].as_str() {
        Some("text") => {
            source["data"].as_str().ok_or("has a document whose source has no `data`")?.to_owned()
        }
        Some("content") => plain(&source["content"])?,
        _ => {
            return Err(
                "has a document whose source is not of type `text` or `content`: the model reads text only"
                    .into(),
            );
        }
    };
    titled(&["title", "context"], block, text)
}

/// A text, or the blocks of a list, which must be texts themselves.
fn plain(content: &Value) -> Result<String, String> {
    let is_plain = |block: &Value| block["type"] == "text" || block["type"] == "image";
    match content {
        Value::Array(blocks) if !blocks.iter().all(is_plain) => {
            Err("has a document with content that is no text".into())
        }
        content => text(content),
    }
}

/// A text below those fields of its block that say where it is from.
fn titled(fields: &[&str], block: &Value, text: String) -> Result<String, String> {
    let mut lines: Vec<&str> = fields.iter().filter_map(|name| block[*name].as_str()).collect();
    lines.push(&text);
    Ok(lines.join("\n\n") + "\n\n")
}
