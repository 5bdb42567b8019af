//! What `/v1/messages` is asked.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{input, tools};
use crate::grammar::{Grammar, Wanted};
use crate::http::ignored::{Ignored, Unserved, refused};
use crate::http::openai::{self, Chat, OpenAiError};
use crate::service::Params;

/// The body of `/v1/messages/count_tokens`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct CountRequest {
    pub(super) model: Option<String>,
    messages: Vec<Value>,
    system: Option<Value>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
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
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    output_config: Option<OutputConfig>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// What the answer must be like.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicOutputConfig)]
pub(super) struct OutputConfig {
    /// `{"type": "json_schema", "schema"}`.
    format: Option<Value>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Fields that are not served.
const UNSERVED: &[Unserved] = &[
    refused("container", &[]),
    refused("context_management", &[]),
    refused("mcp_servers", &["[]"]),
    refused("output_format", &[]),
    refused("thinking", &[r#"{"type":"disabled"}"#]),
];

impl CountRequest {
    pub(super) fn chat(&self) -> Result<Chat, OpenAiError> {
        let mut ignored = Ignored::default();
        ignored.check(UNSERVED, &self.rest).map_err(OpenAiError::unsupported)?;
        let asked = tools::asked(self.tools.as_deref(), self.tool_choice.as_ref())?;
        let messages = input::messages(self.system.as_ref(), &self.messages)?;
        Ok(Chat { messages, asked, ignored, ..Chat::default() })
    }
}

impl MessagesRequest {
    pub(super) fn chat(&self) -> Result<Chat, OpenAiError> {
        let mut ignored = Ignored::default();
        ignored.check(UNSERVED, &self.rest).map_err(OpenAiError::unsupported)?;
        let asked = tools::asked(self.tools.as_deref(), self.tool_choice.as_ref())?;
        let messages = input::messages(self.system.as_ref(), &self.messages)?;
        Ok(Chat { messages, asked, ignored, ..Chat::default() })
    }

    pub(super) fn params(&self) -> Result<Params, OpenAiError> {
        Ok(Params {
            max_new_tokens: Some(self.max_tokens),
            stop: self.stop_sequences.clone().unwrap_or_default(),
            grammar: self.output_config.as_ref().map_or(Ok(None), OutputConfig::grammar)?,
            ..openai::sampling(self.temperature, self.top_p, self.top_k)
        })
    }
}

impl OutputConfig {
    fn grammar(&self) -> Result<Option<Wanted>, OpenAiError> {
        const FIELD: &str = "output_config.format";
        if let Some((name, _)) = self.rest.iter().find(|(_, value)| !value.is_null()) {
            return Err(OpenAiError::unsupported(&format!("output_config.{name}")));
        }
        let Some(format) = self.format.as_ref().filter(|format| !format.is_null()) else { return Ok(None) };
        match (format["type"].as_str(), &format["schema"]) {
            (Some("json_schema"), schema @ Value::Object(_)) => {
                Ok(Some(Wanted { grammar: Grammar::Json(schema.clone()), field: FIELD, optional: false }))
            }
            _ => {
                let message =
                    format!("`{FIELD}` must have the type json_schema and a `schema`, which is an object");
                Err(OpenAiError::invalid(FIELD, message))
            }
        }
    }
}
