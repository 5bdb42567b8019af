//! Translation of Anthropic's messages, whose contents are blocks.

use serde_json::Value;

use super::error::MessagesError;
use crate::chat::{IgnoredFields, Transcript, call_arguments};

/// The beginning of a block with the version of Claude Code, which is meant for Anthropic. The
/// block differs between sessions, so sessions would share no cached prefix if it was in the system
/// prompt.
const BILLING_PREFIX: &str = "x-anthropic-billing-header:";

/// Returns the messages for the template, the system prompt first. `reads_reasoning` says whether
/// the template may show the reasoning of earlier messages.
///
/// # Errors
/// The error names the message that is malformed or has content that is not served.
pub(super) fn messages(
    system: Option<&Value>,
    messages: &[Value],
    reads_reasoning: bool,
    ignored: &mut IgnoredFields,
) -> Result<Vec<Value>, MessagesError> {
    if messages.is_empty() {
        return Err(MessagesError::invalid("`messages` cannot be empty"));
    }
    let mut transcript = Transcript::default();
    if let Some(system) = system.filter(|system| !system.is_null()) {
        let system = system_text(system, ignored).map_err(|what| wrong("system", &what))?;
        transcript.say("system", system);
    }
    for (index, message) in messages.iter().enumerate() {
        add(message, reads_reasoning, &mut transcript)
            .map_err(|Fault { place, reason }| wrong(&format!("messages[{index}]{place}"), &reason))?;
    }
    Ok(transcript.into_messages())
}

/// The reason why a message is refused.
struct Fault {
    /// The place in the message, such as `.content[1].input`. Empty for the message itself.
    place: String,
    /// Continues a sentence that begins with the place.
    reason: String,
}

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Fault { place: String::new(), reason }
    }
}

fn wrong(param: &str, what: &str) -> MessagesError {
    MessagesError::invalid(format!("`{param}` {what}"))
}

/// Returns the system prompt without the block that is meant for Anthropic.
fn system_text(system: &Value, ignored: &mut IgnoredFields) -> Result<String, String> {
    let Value::Array(blocks) = system else { return text(system) };
    let mut prompt = String::new();
    for block in blocks {
        let text = block_text(block)?;
        if text.starts_with(BILLING_PREFIX) && !text.trim_end().contains('\n') {
            ignored.note("system.x-anthropic-billing-header");
        } else {
            prompt += &text;
        }
    }
    Ok(prompt)
}

fn add(message: &Value, reads_reasoning: bool, to: &mut Transcript) -> Result<(), Fault> {
    match message["role"].as_str() {
        Some("user") => Ok(add_user(&message["content"], to)?),
        Some("assistant") => add_assistant(&message["content"], reads_reasoning, to),
        Some("system") => {
            to.say_system(text(&message["content"])?);
            Ok(())
        }
        _ => Err("must have one of the roles user, assistant and system".to_owned().into()),
    }
}

/// Adds a user message, which is the texts of its blocks in one. Results of tools become messages
/// of their own.
fn add_user(content: &Value, to: &mut Transcript) -> Result<(), String> {
    let Value::Array(blocks) = content else {
        to.say("user", text(content)?);
        return Ok(());
    };
    let (mut pending, mut added) = (String::new(), false);
    for block in blocks {
        if block["type"] != "tool_result" {
            pending += &block_text(block)?;
            continue;
        }
        if !pending.is_empty() {
            to.say("user", std::mem::take(&mut pending));
        }
        let id = field(block, "tool_use_id")?;
        let result = result(block).map_err(|what| format!("has the result of {id}, which {what}"))?;
        if !to.result(id, result) {
            return Err(format!("has the result of {id}, but no tool was used by this id"));
        }
        added = true;
    }
    if !pending.is_empty() || !added {
        to.say("user", pending);
    }
    Ok(())
}

/// Returns the text of a tool's result. Templates have no field for a failure, so the text says it.
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

/// Adds an assistant message, which is the texts of its blocks in one. A call belongs to the text
/// before it. Thinking goes to the template, which decides in which messages it is shown. Redacted
/// thinking, which Anthropic encrypts, is left out.
fn add_assistant(content: &Value, reads_reasoning: bool, to: &mut Transcript) -> Result<(), Fault> {
    let Value::Array(blocks) = content else {
        to.say("assistant", text(content)?);
        return Ok(());
    };
    let (mut pending, mut added) = (String::new(), false);
    for (index, block) in blocks.iter().enumerate() {
        match block["type"].as_str() {
            Some("thinking") if reads_reasoning => {
                let thinking = block["thinking"].as_str().unwrap_or_default();
                if !thinking.is_empty() {
                    to.reason(thinking);
                }
            }
            Some("thinking" | "redacted_thinking") => {}
            Some("tool_use") => {
                if !pending.is_empty() {
                    to.say("assistant", std::mem::take(&mut pending));
                }
                let input = call_arguments(&block["input"])
                    .map_err(|reason| Fault { place: format!(".content[{index}].input"), reason })?;
                to.call(field(block, "id")?, field(block, "name")?, input);
                added = true;
            }
            _ => pending += &block_text(block)?,
        }
    }
    if !pending.is_empty() || !added {
        to.say("assistant", pending);
    }
    Ok(())
}

fn field<'a>(block: &'a Value, name: &str) -> Result<&'a str, String> {
    block[name].as_str().ok_or_else(|| format!("has a block of content without `{name}`"))
}

/// Returns a text, or the texts of a list of blocks.
fn text(content: &Value) -> Result<String, String> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(blocks) => {
            let mut all = String::new();
            for block in blocks {
                all += &block_text(block)?;
            }
            Ok(all)
        }
        _ => Err("must be a text or have a list of blocks as content".into()),
    }
}

/// Returns the text of a block that has one.
fn block_text(block: &Value) -> Result<String, String> {
    match (block["type"].as_str(), block["text"].as_str()) {
        (Some("text"), Some(text)) => Ok(text.to_owned()),
        (Some("text") | None, _) => Err("has a block of content without a type or text".into()),
        (Some("document"), _) => document(block),
        (Some("search_result"), _) => {
            with_source(&["title", "source"], block, plain_text(&block["content"])?)
        }
        (Some("image"), _) => {
            Err("has an image (content of type `image`), but the model reads text only".into())
        }
        (Some(kind), _) => {
            let kind: String = kind.chars().take(64).collect();
            Err(format!("has content of type `{kind}`, which is not supported here"))
        }
    }
}

/// Returns the text of a document, if its source is text.
fn document(block: &Value) -> Result<String, String> {
    let source = &block["source"];
    let text = match source["type"].as_str() {
        Some("text") => {
            source["data"].as_str().ok_or("has a document whose source has no `data`")?.to_owned()
        }
        Some("content") => plain_text(&source["content"])?,
        _ => {
            return Err(
                "has a document whose source is not of type `text` or `content`: the model reads text only"
                    .into(),
            );
        }
    };
    with_source(&["title", "context"], block, text)
}

/// Returns a text, or the texts of a list of blocks, none of which may be a document.
fn plain_text(content: &Value) -> Result<String, String> {
    let is_plain = |block: &Value| block["type"] == "text" || block["type"] == "image";
    match content {
        Value::Array(blocks) if !blocks.iter().all(is_plain) => {
            Err("has a document with content that is not text".into())
        }
        content => text(content),
    }
}

/// Returns a text below those fields of its block that say where it comes from.
fn with_source(fields: &[&str], block: &Value, text: String) -> Result<String, String> {
    let mut lines: Vec<&str> = fields.iter().filter_map(|name| block[*name].as_str()).collect();
    lines.push(&text);
    Ok(lines.join("\n\n") + "\n\n")
}
