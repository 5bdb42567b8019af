//! The request of `/v1/responses`.

use millrace_answers::grammar::RequestedGrammar;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::super::error::OpenAiError;
use super::super::tool_choice::tool_selection;
use super::input::{self, ConversationInput};
use super::tool_set::{ClientTools, ToolSet};
use crate::chat::{
    ContinuationOptions, ConversationRequest, EFFORT_VARIABLE, IgnoredFields, THINKING_VARIABLES, ToolOptions,
};
use crate::http::app::App;
use crate::http::field_names::FieldNames;
use crate::http::ignored::{UnservedField, check_fields, hint, refused};
use crate::http::thinking::{ReasoningField, ThinkingFields, thinking_options};
use crate::http::{grammar, sampling};
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
    #[serde(default, deserialize_with = "crate::http::fields::optional_object")]
    pub(super) text: Option<ResponseTextOptions>,
    pub(super) reasoning: Option<ReasoningField>,
    #[serde(flatten)]
    thinking: ThinkingFields,
    #[serde(default)]
    pub(super) include: Option<Vec<String>>,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) user: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Options for the text of an answer.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = ResponseText)]
pub(in super::super) struct ResponseTextOptions {
    pub(super) format: Option<Value>,
    verbosity: Option<String>,
}

/// The efforts of OpenAI's API.
const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The value of `include` that asks for log-probabilities.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Known fields that are not served. `store` is a hint, since the response says that it was not
/// stored.
const UNSERVED: &[UnservedField] = &[
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

/// The parts of a request that answering it needs.
pub(super) struct ResponseInput {
    pub(super) chat: ConversationRequest,
    pub(super) tools: ClientTools,
    /// The effort, if the template can read it.
    pub(super) effort: Option<String>,
}

impl ResponsesRequest {
    /// Refuses the fields that would change the answer and are not served, and notes the fields
    /// that have no effect.
    fn check_rest(&self, ignored: &mut IgnoredFields) -> Result<(), OpenAiError> {
        check_fields(UNSERVED, &self.rest, ignored).map_err(OpenAiError::unsupported)?;
        if self.text.as_ref().and_then(|text| text.verbosity.as_deref()).is_some_and(|v| v != "medium") {
            ignored.note("text.verbosity");
        }
        for (index, include) in self.include.iter().flatten().enumerate() {
            // All other values ask for something that answers of this server do not have.
            if include != LOGPROBS {
                ignored.note(&format!("include[{index}]"));
            }
        }
        Ok(())
    }

    /// Returns the effort, if the template can read it.
    fn effort(&self, app: &App, ignored: &mut IgnoredFields) -> Result<Option<String>, OpenAiError> {
        let Some(reasoning) = &self.reasoning else { return Ok(None) };
        let Some(effort) = &reasoning.effort else { return Ok(None) };
        if !EFFORTS.contains(&effort.as_str()) {
            let message = format!("`reasoning.effort` must be one of {}", EFFORTS.join(", "));
            return Err(OpenAiError::invalid("reasoning.effort", message));
        }
        // Without an effort, the reasoning ends as soon as it begins.
        let ends = effort == "none" && app.service.reasoning_format().is_some();
        let mut variables = THINKING_VARIABLES.into_iter().chain([EFFORT_VARIABLE]);
        if ends || variables.any(|name| app.service.template_may_read(name)) {
            return Ok(Some(effort.clone()));
        }
        ignored.note("reasoning.effort");
        Ok(None)
    }

    /// Translates the request for the chat core. A response never continues a message of the input.
    ///
    /// # Errors
    /// The error names the field that is wrong.
    pub(super) fn input(&self, app: &App) -> Result<ResponseInput, OpenAiError> {
        let about = |error| OpenAiError::from_chat(error, &FieldNames::RESPONSES);
        let mut ignored = IgnoredFields::default();
        self.check_rest(&mut ignored)?;
        let effort = self.effort(app, &mut ignored)?;
        let thinking = thinking_options(&self.thinking, self.reasoning.as_ref(), None, &mut ignored)?;
        let lists = input::tool_lists(self.tools.as_deref(), &self.input);
        let mut tools = ToolSet::new(lists, &mut ignored).map_err(about)?;
        let choice = tools.choice(self.tool_choice.as_ref()).map_err(about)?;
        let source = ConversationInput {
            instructions: self.instructions.as_deref(),
            input: &self.input,
            tools: &tools,
            reads_reasoning: app.service.template_reads_reasoning(),
        };
        let messages = source.messages(&mut ignored)?;
        let functions = std::mem::take(&mut tools.functions);
        let selection = tool_selection(choice.as_ref()).map_err(about)?;
        let options = ToolOptions { tools: functions, selection, parallel: self.parallel_tool_calls };
        let chat = ConversationRequest {
            messages,
            tools: options,
            effort: effort.iter().map(|effort| (EFFORT_VARIABLE, effort.as_str().into())).collect(),
            continuation: ContinuationOptions {
                continue_final_message: Some(false),
                add_generation_prompt: None,
            },
            thinking,
            ignored,
            ..ConversationRequest::default()
        };
        Ok(ResponseInput { chat, tools: tools.client_tools, effort })
    }

    /// Whether each token is reported with its log-probability.
    pub(super) fn wants_logprobs(&self) -> bool {
        self.top_logprobs.is_some_and(|top| top > 0) || self.include.iter().flatten().any(|i| i == LOGPROBS)
    }

    /// The parameters of the generation.
    pub(super) fn params(&self) -> Result<Params, OpenAiError> {
        Ok(Params {
            max_new_tokens: self.max_output_tokens,
            top_n: self.top_logprobs.unwrap_or(0),
            grammar: self.format()?,
            ..sampling::sampling(self.temperature, self.top_p, None)?
        })
    }

    /// The grammar of `text.format`, if it asks for one.
    fn format(&self) -> Result<Option<RequestedGrammar>, OpenAiError> {
        const FIELD: &str = "text.format";
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
        let grammar = grammar::from_response_format(format)
            .map_err(|reason| OpenAiError::invalid(FIELD, reason.replace("response_format", FIELD)))?;
        Ok(grammar.map(|grammar| RequestedGrammar { grammar, field: FIELD, optional: false }))
    }
}
