//! What `/v1/responses` is asked.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::super::error::OpenAiError;
use super::super::names::FieldNames;
use super::super::plain;
use super::super::prompt::{Chat, ChatNames};
use super::super::tools::Asked;
use super::{input, tools};
use crate::grammar::Wanted;
use crate::http::grammar;
use crate::http::ignored::{Ignored, Unserved, refused};
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
    pub(super) tools: Option<Vec<Value>>,
    pub(super) tool_choice: Option<Value>,
    pub(super) parallel_tool_calls: Option<bool>,
    pub(super) text: Option<Text>,
    #[serde(default)]
    pub(super) include: Option<Vec<String>>,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) user: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// What the text of an answer is like.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ResponseText)]
pub(in super::super) struct Text {
    pub(super) format: Option<Value>,
    verbosity: Option<String>,
}

/// What can be included.
const LOGPROBS: &str = "message.output_text.logprobs";
/// Reasoning that answers do not have, so that all of it is included.
const REASONING: &str = "reasoning.encrypted_content";

/// Fields that are not served.
const UNSERVED: &[Unserved] = &[
    refused("background", &["false"]),
    refused("context_management", &["[]"]),
    refused("conversation", &[]),
    refused("max_tool_calls", &[]),
    refused("moderation", &[]),
    refused("previous_response_id", &[]),
    refused("prompt", &[]),
    refused("reasoning", &["{}", r#"{"effort":null,"summary":null}"#, r#"{"effort":"none"}"#]),
    refused("truncation", &["\"disabled\""]),
];

impl ResponsesRequest {
    /// Refuses by name what would change the answer and is not served. `store` asks for something after the answer, which says
    /// itself that it has not been stored.
    fn check_rest(&self, ignored: &mut Ignored) -> Result<(), OpenAiError> {
        ignored.check(UNSERVED, &self.rest).map_err(OpenAiError::unsupported)?;
        if self.text.as_ref().and_then(|text| text.verbosity.as_deref()).is_some_and(|v| v != "medium") {
            return Err(OpenAiError::unsupported("text.verbosity"));
        }
        let others =
            self.include.iter().flatten().find(|include| ![LOGPROBS, REASONING].contains(&include.as_str()));
        if let Some(other) = others {
            let message = format!("`include` with `{other}` is not supported");
            return Err(OpenAiError::invalid("include", message));
        }
        Ok(())
    }

    /// The conversation. A response never continues a message of the input.
    pub(super) fn chat(&self) -> Result<Chat, OpenAiError> {
        let mut ignored = Ignored::default();
        self.check_rest(&mut ignored)?;
        let asked = Asked {
            tools: self.tools.as_deref().map(tools::functions).transpose()?,
            choice: self.tool_choice.clone(),
            parallel: self.parallel_tool_calls,
        };
        let messages = input::messages(self.instructions.as_deref(), &self.input)?;
        let names = ChatNames(FieldNames::RESPONSES);
        Ok(Chat { messages, asked, names, ignored, continue_final_message: Some(false), ..Chat::default() })
    }

    /// Whether tokens come with their probabilities.
    pub(super) fn wants_logprobs(&self) -> bool {
        self.top_logprobs.is_some_and(|top| top > 0) || self.include.iter().flatten().any(|i| i == LOGPROBS)
    }

    pub(super) fn params(&self) -> Result<Params, OpenAiError> {
        Ok(Params {
            max_new_tokens: self.max_output_tokens,
            top_n: self.top_logprobs.unwrap_or(0),
            grammar: self.format()?,
            ..plain::sampling(self.temperature, self.top_p, None)
        })
    }

    /// What the text must be.
    fn format(&self) -> Result<Option<Wanted>, OpenAiError> {
        const FIELD: &str = "text.format";
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
        let grammar = grammar::response_format(format)
            .map_err(|why| OpenAiError::invalid(FIELD, why.replace("response_format", FIELD)))?;
        Ok(grammar.map(|grammar| Wanted { grammar, field: FIELD, optional: false }))
    }
}
