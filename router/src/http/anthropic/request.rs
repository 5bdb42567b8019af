//! The requests of `/v1/messages` and `/v1/messages/count_tokens`.

use millrace_answers::grammar::{Grammar, RequestedGrammar};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::error::MessagesError;
use super::input;
use super::tools;
use crate::chat::{ConversationRequest, EFFORT_VARIABLE, IgnoredFields, THINKING_VARIABLES, ThinkingOptions};
use crate::http::app::App;
use crate::http::ignored::{UnservedField, check_fields, hint, refused};
use crate::http::json_errors::flattened;
use crate::http::sampling;
use crate::http::thinking::{ThinkingFields, thinking_options};
use crate::service::Params;

/// The body of `/v1/messages/count_tokens`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct CountRequest {
    #[serde(flatten, deserialize_with = "flattened")]
    conversation: ConversationFields,
    #[serde(flatten)]
    thinking: ThinkingFields,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The body of `/v1/messages`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct MessagesRequest {
    #[serde(flatten, deserialize_with = "flattened")]
    conversation: ConversationFields,
    /// The most tokens of the answer. If they do not fit behind the prompt, the answer is shorter.
    max_tokens: u32,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    #[serde(default)]
    stop_sequences: Option<Vec<String>>,
    pub(super) stream: Option<bool>,
    /// The older name of `output_config.format`.
    output_format: Option<Value>,
    #[serde(flatten)]
    thinking: ThinkingFields,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The fields that determine the prompt. Both routes have them.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicConversation)]
struct ConversationFields {
    model: Option<String>,
    messages: Vec<Value>,
    system: Option<Value>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    thinking: Option<ThinkingConfig>,
    output_config: Option<OutputConfig>,
}

/// Whether the model thinks before it answers.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicThinking)]
struct ThinkingConfig {
    #[serde(rename = "type")]
    kind: ThinkingKind,
    /// The tokens that the model may think.
    budget_tokens: Option<i64>,
    /// Whether the answer has the text of the thinking: not if it is `omitted`.
    display: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = AnthropicThinkingKind)]
#[serde(rename_all = "snake_case")]
enum ThinkingKind {
    Adaptive,
    Enabled,
    Disabled,
}

/// Options for the form of the answer.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicOutputConfig)]
struct OutputConfig {
    /// `{"type": "json_schema", "schema"}`.
    format: Option<Value>,
    /// How thorough the model is, for chat templates that read `reasoning_effort`.
    effort: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Known fields that are not served.
const UNSERVED: &[UnservedField] = &[
    refused("container", &[]),
    hint("context_management", &[r#"{"edits":[]}"#]),
    refused("mcp_servers", &["[]"]),
    // These tiers differ from each other only at Anthropic.
    hint("service_tier", &[r#""auto""#, r#""standard_only""#]),
];

impl ConversationFields {
    /// Translates the fields for the chat core. `fields` are those about the thinking that other
    /// APIs have, and `rest` has the other fields of the request.
    fn chat(
        &self,
        app: &App,
        fields: &ThinkingFields,
        rest: &Map<String, Value>,
    ) -> Result<ConversationRequest, MessagesError> {
        let mut ignored = IgnoredFields::default();
        check_fields(UNSERVED, rest, &mut ignored).map_err(MessagesError::unsupported)?;
        let tools = tools::tool_options(self.tools.as_deref(), self.tool_choice.as_ref(), &mut ignored)?;
        let reads_reasoning = app.service.template_reads_reasoning();
        let messages = input::messages(self.system.as_ref(), &self.messages, reads_reasoning, &mut ignored)?;
        let variables = Some(self.variables(app, &mut ignored));
        let thinking = self.thinking_options(app, fields, &mut ignored)?;
        Ok(ConversationRequest {
            messages,
            tools,
            variables,
            thinking,
            ignored,
            ..ConversationRequest::default()
        })
    }

    /// Returns the budget of the thinking, and whether it is shown.
    fn thinking_options(
        &self,
        app: &App,
        fields: &ThinkingFields,
        ignored: &mut IgnoredFields,
    ) -> Result<ThinkingOptions, MessagesError> {
        const BUDGET: &str = "thinking.budget_tokens";
        let thinking = self.thinking.as_ref();
        let own = match thinking {
            Some(ThinkingConfig { kind: ThinkingKind::Disabled, .. }) => Some(("thinking.type", 0)),
            Some(ThinkingConfig { budget_tokens: Some(budget), .. }) => Some((BUDGET, *budget)),
            _ => None,
        };
        if let Some(thinking) = thinking {
            // The count of a prompt has no answer that would note it.
            let is_read =
                app.service.reasoning_format().is_some() || app.service.template_may_read("thinking_budget");
            if thinking.budget_tokens.is_some() && !is_read {
                ignored.note(BUDGET);
            }
            for (name, _) in thinking.rest.iter().filter(|(_, value)| !value.is_null()) {
                ignored.note(&format!("thinking.{name}"));
            }
        }
        let mut options = thinking_options(fields, None, own, ignored)
            .map_err(|wrong| MessagesError::invalid(wrong.message))?;
        options.is_hidden |= thinking
            .and_then(|thinking| thinking.display.as_deref())
            .is_some_and(|display| display == "omitted");
        // A request that turns the thinking off is not told that a model without thinking has none.
        if own.is_some_and(|(field, _)| field != BUDGET) {
            options.budget = options.budget.map(|(_, budget)| ("", budget));
        }
        Ok(options)
    }

    /// Returns the template variables for thinking and effort. Fields that the template does not
    /// read are noted.
    fn variables(&self, app: &App, ignored: &mut IgnoredFields) -> Map<String, Value> {
        let reads = |name: &&str| app.service.template_may_read(name);
        let mut variables = Map::new();
        if let Some(thinking) = &self.thinking {
            let thinks = json!(thinking.kind != ThinkingKind::Disabled);
            let read = THINKING_VARIABLES.into_iter().filter(reads);
            variables.extend(read.map(|name| (name.to_owned(), thinks.clone())));
            let may_think = !variables.is_empty() || app.service.reasoning_format().is_some();
            if !may_think && thinking.kind != ThinkingKind::Disabled {
                ignored.note("thinking");
            }
        }
        let Some(config) = &self.output_config else { return variables };
        match &config.effort {
            Some(effort) if reads(&EFFORT_VARIABLE) => {
                variables.insert(EFFORT_VARIABLE.to_owned(), json!(effort));
            }
            Some(_) => ignored.note("output_config.effort"),
            None => {}
        }
        for (name, _) in config.rest.iter().filter(|(_, value)| !value.is_null()) {
            ignored.note(&format!("output_config.{name}"));
        }
        variables
    }
}

impl CountRequest {
    pub(super) fn model(&self) -> Option<&str> {
        self.conversation.model.as_deref()
    }

    pub(super) fn chat(&self, app: &App) -> Result<ConversationRequest, MessagesError> {
        self.conversation.chat(app, &self.thinking, &self.rest)
    }
}

impl MessagesRequest {
    pub(super) fn model(&self) -> Option<&str> {
        self.conversation.model.as_deref()
    }

    pub(super) fn chat(&self, app: &App) -> Result<ConversationRequest, MessagesError> {
        self.conversation.chat(app, &self.thinking, &self.rest)
    }

    /// The parameters of the generation.
    pub(super) fn params(&self) -> Result<Params, MessagesError> {
        Ok(Params {
            max_new_tokens: Some(self.max_tokens),
            clamp_new_tokens: true,
            stop: self.stop_sequences.clone().unwrap_or_default(),
            grammar: self.grammar()?,
            ..sampling::sampling(self.temperature, self.top_p, self.top_k)?
        })
    }

    /// The grammar of the answer, if a field has a schema for it.
    fn grammar(&self) -> Result<Option<RequestedGrammar>, MessagesError> {
        let config = self.conversation.output_config.as_ref();
        let current = config.and_then(|config| config.format.as_ref()).filter(|format| !format.is_null());
        let old = self.output_format.as_ref().filter(|format| !format.is_null());
        let (format, field) = match (current, old) {
            (Some(format), _) => (format, "output_config.format"),
            (None, Some(format)) => (format, "output_format"),
            (None, None) => return Ok(None),
        };
        match (format["type"].as_str(), &format["schema"]) {
            (Some("json_schema"), schema @ Value::Object(_)) => {
                Ok(Some(RequestedGrammar { grammar: Grammar::Json(schema.clone()), field, optional: false }))
            }
            _ => {
                let message =
                    format!("`{field}` must have the type json_schema and an object as its `schema`");
                Err(MessagesError::invalid(message))
            }
        }
    }
}
