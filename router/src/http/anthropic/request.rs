//! What `/v1/messages` is asked.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::http::openai::{self, OpenAiError};
use crate::service::Params;

/// The body of `/v1/messages/count_tokens`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct CountRequest {
    pub(super) model: Option<String>,
    messages: Vec<Value>,
    system: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct MessagesRequest {
    pub(super) model: Option<String>,
    messages: Vec<Value>,
    system: Option<Value>,
    max_tokens: u32,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    #[serde(default)]
    stop_sequences: Option<Vec<String>>,
    pub(super) stream: Option<bool>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Fields that would change the answer and are not served, with the values that ask for nothing.
const UNSUPPORTED: &[(&str, &[&str])] = &[
    ("container", &[]),
    ("context_management", &[]),
    ("mcp_servers", &["[]"]),
    ("output_config", &["{}"]),
    ("output_format", &[]),
    ("thinking", &[r#"{"type":"disabled"}"#]),
    ("tool_choice", &[r#"{"type":"auto"}"#, r#"{"type":"none"}"#]),
    ("tools", &["[]"]),
];

impl CountRequest {
    pub(super) fn conversation(&self) -> Result<Vec<Value>, OpenAiError> {
        refuse_unsupported(&self.rest)?;
        conversation(self.system.as_ref(), &self.messages)
    }
}

impl MessagesRequest {
    pub(super) fn conversation(&self) -> Result<Vec<Value>, OpenAiError> {
        refuse_unsupported(&self.rest)?;
        conversation(self.system.as_ref(), &self.messages)
    }

    pub(super) fn params(&self) -> Params {
        Params {
            max_new_tokens: Some(self.max_tokens),
            stop: self.stop_sequences.clone().unwrap_or_default(),
            ..openai::sampling(self.temperature, self.top_p, self.top_k)
        }
    }
}

fn refuse_unsupported(rest: &Map<String, Value>) -> Result<(), OpenAiError> {
    for (name, value) in rest {
        let Some((_, neutral)) = UNSUPPORTED.iter().find(|(field, _)| field == name) else { continue };
        if !value.is_null() && !neutral.contains(&value.to_string().as_str()) {
            return Err(OpenAiError::unsupported(name));
        }
    }
    Ok(())
}

/// The messages that the template gets: the system's first.
fn conversation(system: Option<&Value>, messages: &[Value]) -> Result<Vec<Value>, OpenAiError> {
    if messages.is_empty() {
        return Err(OpenAiError::invalid("messages", "`messages` cannot be empty"));
    }
    let system = match system {
        None | Some(Value::Null) => None,
        Some(system) => Some(json!({"role": "system", "content": text("system", system)?})),
    };
    let messages = messages.iter().enumerate().map(|(index, message)| {
        let param = format!("messages[{index}]");
        let role = message["role"].as_str().filter(|role| matches!(*role, "user" | "assistant"));
        let Some(role) = role else {
            let text = format!("`{param}` must have one of the roles user and assistant");
            return Err(OpenAiError::invalid(&param, text));
        };
        Ok(json!({"role": role, "content": text(&param, &message["content"])?}))
    });
    system.into_iter().map(Ok).chain(messages).collect()
}

/// A text, or the texts of a list of blocks.
fn text(param: &str, content: &Value) -> Result<String, OpenAiError> {
    let wrong = |what: &str| OpenAiError::invalid(param, format!("`{param}` {what}"));
    let blocks = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(blocks) => blocks,
        _ => return Err(wrong("must be a text or have a list of blocks as content")),
    };
    let mut whole = String::new();
    for block in blocks {
        whole += match (block["type"].as_str(), block["text"].as_str()) {
            (Some("text"), Some(text)) => text,
            (Some("text") | None, _) => return Err(wrong("has a block of content without a type or text")),
            (Some(kind), _) => {
                return Err(wrong(&format!("has content of type `{kind}`, which is not supported")));
            }
        };
    }
    Ok(whole)
}
