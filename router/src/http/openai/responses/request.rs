//! What `/v1/responses` is asked.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::super::error::OpenAiError;
use super::super::plain;
use crate::service::Params;

#[derive(Debug, Deserialize, ToSchema)]
pub(in super::super) struct ResponsesRequest {
    pub(super) model: Option<String>,
    pub(super) input: Value,
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<u32>,
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) top_logprobs: Option<u32>,
    pub(super) stream: Option<bool>,
    #[serde(default)]
    pub(super) include: Option<Vec<String>>,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) user: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The one thing that can be included.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Fields that would change the answer and are not served, with the values that ask for nothing.
const UNSUPPORTED: &[(&str, &[&str])] = &[
    ("background", &["false"]),
    ("context_management", &["[]"]),
    ("conversation", &[]),
    ("max_tool_calls", &[]),
    ("moderation", &[]),
    ("previous_response_id", &[]),
    ("prompt", &[]),
    ("reasoning", &["{}", r#"{"effort":null,"summary":null}"#, r#"{"effort":"none"}"#]),
    ("text", &["{}", r#"{"format":{"type":"text"}}"#, r#"{"format":null}"#]),
    ("tool_choice", &["\"auto\"", "\"none\""]),
    ("tools", &["[]"]),
    ("truncation", &["\"disabled\""]),
];

impl ResponsesRequest {
    /// Refuses by name what would change the answer and is not served. `store` asks for something after the answer, which says
    /// itself that it has not been stored.
    pub(super) fn refuse_unsupported(&self) -> Result<(), OpenAiError> {
        for (name, value) in &self.rest {
            let Some((_, neutral)) = UNSUPPORTED.iter().find(|(field, _)| field == name) else { continue };
            if !value.is_null() && !neutral.contains(&value.to_string().as_str()) {
                return Err(OpenAiError::unsupported(name));
            }
        }
        let others = self.include.iter().flatten().find(|include| *include != LOGPROBS);
        if let Some(other) = others {
            let message = format!("`include` with `{other}` is not supported");
            return Err(OpenAiError::invalid("include", message));
        }
        Ok(())
    }

    /// Whether tokens come with their probabilities.
    pub(super) fn wants_logprobs(&self) -> bool {
        self.top_logprobs.is_some_and(|top| top > 0) || self.include.iter().flatten().any(|i| i == LOGPROBS)
    }

    pub(super) fn params(&self) -> Params {
        Params {
            max_new_tokens: self.max_output_tokens,
            top_n: self.top_logprobs.unwrap_or(0),
            ..plain::sampling(self.temperature, self.top_p, None)
        }
    }
}
