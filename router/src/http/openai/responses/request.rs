//! What `/v1/responses` is asked.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::super::error::OpenAiError;
use super::super::names::FieldNames;
use super::super::plain;
use super::super::prompt::{Chat, ChatNames};
use super::super::tools::Asked;
use super::input::{self, Source};
use super::tools::{Functions, ToolSet};
use crate::grammar::Wanted;
use crate::http::ignored::{Ignored, Unserved, hint, refused};
use crate::http::{App, grammar};
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
    pub(super) reasoning: Option<Reasoning>,
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

/// How the model reasons.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ResponseReasoning)]
pub(in super::super) struct Reasoning {
    effort: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The efforts that OpenAI knows.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];
/// The variable of templates for it.
const EFFORT: &str = "reasoning_effort";

/// What can be included.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Fields that are not served. `store` asks for something after the answer, which says itself that it has not been stored.
const UNSERVED: &[Unserved] = &[
    refused("background", &["false"]),
    refused("context_management", &["[]"]),
    refused("conversation", &[]),
    refused("moderation", &[]),
    refused("previous_response_id", &[]),
    refused("prompt", &[]),
    hint("max_tool_calls", &[]),
    hint("service_tier", &["\"auto\"", "\"default\""]),
    hint("store", &["false"]),
    hint("truncation", &["\"disabled\""]),
];

/// A request in the terms of this server.
pub(super) struct Asking {
    pub(super) chat: Chat,
    /// The client's tools by the names of the functions that the model calls.
    pub(super) functions: Functions,
    /// The effort, if the template could read it.
    pub(super) effort: Option<String>,
}

impl ResponsesRequest {
    /// Refuses by name what would change the answer and is not served, and notes what has no effect.
    fn check_rest(&self, ignored: &mut Ignored) -> Result<(), OpenAiError> {
        ignored.check(UNSERVED, &self.rest).map_err(OpenAiError::unsupported)?;
        if self.text.as_ref().and_then(|text| text.verbosity.as_deref()).is_some_and(|v| v != "medium") {
            ignored.note("text.verbosity");
        }
        for (index, include) in self.include.iter().flatten().enumerate() {
            // Everything else that can be included is something that answers do not have.
            if include != LOGPROBS {
                ignored.note(&format!("include[{index}]"));
            }
        }
        Ok(())
    }

    /// The effort, if the template could read it.
    fn effort(&self, app: &App, ignored: &mut Ignored) -> Result<Option<String>, OpenAiError> {
        let Some(reasoning) = &self.reasoning else { return Ok(None) };
        for (name, _) in reasoning.rest.iter().filter(|(_, value)| !value.is_null()) {
            ignored.note(&format!("reasoning.{name}"));
        }
        let Some(effort) = &reasoning.effort else { return Ok(None) };
        if !EFFORTS.contains(&effort.as_str()) {
            let message = format!("`reasoning.effort` must be one of {}", EFFORTS.join(", "));
            return Err(OpenAiError::invalid("reasoning.effort", message));
        }
        if app.service.template_may_read(EFFORT) {
            return Ok(Some(effort.clone()));
        }
        ignored.note("reasoning.effort");
        Ok(None)
    }

    /// The conversation. A response never continues a message of the input.
    pub(super) fn asking(&self, app: &App) -> Result<Asking, OpenAiError> {
        let mut ignored = Ignored::default();
        self.check_rest(&mut ignored)?;
        let effort = self.effort(app, &mut ignored)?;
        let mut tools = ToolSet::new(input::tool_lists(self.tools.as_deref(), &self.input), &mut ignored)?;
        let choice = tools.choice(self.tool_choice.as_ref())?;
        let source = Source {
            instructions: self.instructions.as_deref(),
            input: &self.input,
            tools: &tools,
            reads_reasoning: ["reasoning_content", "reasoning", "thinking"]
                .iter()
                .any(|name| app.service.template_may_read(name)),
        };
        let messages = source.messages(&mut ignored)?;
        let functions = std::mem::take(&mut tools.functions);
        let asked = Asked { tools: Some(functions), choice, parallel: self.parallel_tool_calls };
        let variables = effort.iter().map(|effort| (EFFORT.to_owned(), effort.as_str().into())).collect();
        let chat = Chat {
            messages,
            asked,
            variables: Some(variables),
            names: ChatNames(FieldNames::RESPONSES),
            ignored,
            continue_final_message: Some(false),
            ..Chat::default()
        };
        Ok(Asking { chat, functions: tools.shown, effort })
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
