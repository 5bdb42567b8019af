//! From the items of an input to the messages of a conversation.

use serde_json::Value;

use super::super::error::OpenAiError;
use super::super::transcript::Transcript;

/// The messages that the template gets: `instructions` first, then the input, which is a text or a list of items.
pub(super) fn messages(instructions: Option<&str>, input: &Value) -> Result<Vec<Value>, OpenAiError> {
    let mut transcript = Transcript::default();
    if let Some(text) = instructions {
        transcript.say("system", text.to_owned());
    }
    match input {
        Value::String(text) => transcript.say("user", text.clone()),
        Value::Array(items) if items.is_empty() => {
            return Err(OpenAiError::invalid("input", "`input` cannot be empty"));
        }
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(index, item)| add(index, item, &mut transcript))?;
        }
        _ => return Err(OpenAiError::invalid("input", "`input` must be a text or a list of items")),
    }
    Ok(transcript.messages())
}

fn add(index: usize, item: &Value, to: &mut Transcript) -> Result<(), OpenAiError> {
    let param = format!("input[{index}]");
    let wrong = |what: String| OpenAiError::invalid(&param, format!("`{param}` {what}"));
    let field =
        |name: &str| item[name].as_str().ok_or_else(|| wrong(format!("must have a text as its `{name}`")));
    match item.get("type").and_then(Value::as_str) {
        None | Some("message") => {
            let role = match item["role"].as_str() {
                Some(role @ ("user" | "assistant" | "system")) => role,
                // The newer name of the same thing, which templates do not know.
                Some("developer") => "system",
                _ => {
                    return Err(wrong(
                        "must have one of the roles user, assistant, system and developer".into(),
                    ));
                }
            };
            to.say(role, text(&item["content"], "content").map_err(wrong)?);
        }
        Some("function_call") => {
            to.call(field("call_id")?, field("name")?, field("arguments")?.into());
        }
        Some("function_call_output") => {
            let (id, output) = (field("call_id")?, text(&item["output"], "output").map_err(wrong)?);
            if !to.result(id, output) {
                return Err(wrong(format!(
                    "is the output of {id}, but no function was called by this `call_id`"
                )));
            }
        }
        Some(kind) => return Err(wrong(format!("is of type `{kind}`, which is not supported"))),
    }
    Ok(())
}

/// A text, or the texts of a list of parts.
fn text(content: &Value, field: &str) -> Result<String, String> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return Err(format!("must have a text or a list of parts as {field}")),
    };
    let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
        (Some("input_text" | "output_text" | "text"), Some(text)) => Ok(text.to_owned()),
        (Some(kind), _) => Err(format!("has content of type `{kind}`, which is not supported")),
        (None, _) => Err("has a part of content without a type".into()),
    };
    parts.iter().map(text).collect()
}
