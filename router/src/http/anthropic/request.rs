//! The requests of `/v1/messages` and `/v1/messages/count_tokens`.

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{input, tools};
use crate::grammar::{Grammar, Wanted};
use crate::http::App;
use crate::http::ignored::{Ignored, Unserved, hint, refused};
use crate::http::openai::{self, Chat, OpenAiError};
use crate::service::Params;

/// The body of `/v1/messages/count_tokens`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct CountRequest {
    #[serde(flatten)]
    conversation: Conversation,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The body of `/v1/messages`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct MessagesRequest {
    #[serde(flatten)]
    conversation: Conversation,
    /// A number that does not fit behind the prompt is lowered to what fits.
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
    rest: Map<String, Value>,
}

/// The fields that decide the prompt. Both routes have them.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicConversation)]
struct Conversation {
    model: Option<String>,
    messages: Vec<Value>,
    system: Option<Value>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
}

/// Whether the model thinks before it answers.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicThinking)]
struct Thinking {
    #[serde(rename = "type")]
    kind: ThinkingKind,
    /// No budget is kept.
    budget_tokens: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, ToSchema)]
#[schema(as = AnthropicThinkingKind)]
#[serde(rename_all = "snake_case")]
enum ThinkingKind {
    Adaptive,
    Enabled,
    Disabled,
}

/// What the answer must be like.
#[derive(Debug, Deserialize, ToSchema)]
#[schema(as = AnthropicOutputConfig)]
struct OutputConfig {
    /// `{"type": "json_schema", "schema"}`.
    format: Option<Value>,
    /// How thorough the model is. Chat templates that read `reasoning_effort` get it.
    effort: Option<String>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Fields that are not served.
const UNSERVED: &[Unserved] = &[
    refused("container", &[]),
    hint("context_management", &[r#"{"edits":[]}"#]),
    refused("mcp_servers", &["[]"]),
    // There is one tier.
    hint("service_tier", &[r#""auto""#, r#""standard_only""#]),
];

/// The variables by which chat templates turn thinking on and off.
const THINKING_VARIABLES: [&str; 2] = ["enable_thinking", "thinking"];
/// The variable by which chat templates learn how thorough the model should be.
const EFFORT_VARIABLE: &str = "reasoning_effort";

impl Conversation {
    /// The conversation for the template. `rest` has the fields that no type has.
    fn chat(&self, app: &App, rest: &Map<String, Value>) -> Result<Chat, OpenAiError> {
        let mut ignored = Ignored::default();
        ignored.check(UNSERVED, rest).map_err(OpenAiError::unsupported)?;
        let asked = tools::asked(self.tools.as_deref(), self.tool_choice.as_ref(), &mut ignored)?;
        let late_system = app.service.template_takes_late_system();
        let messages = input::messages(self.system.as_ref(), &self.messages, late_system, &mut ignored)?;
        let variables = Some(self.variables(app, &mut ignored));
        Ok(Chat { messages, asked, variables, ignored, ..Chat::default() })
    }

    /// What the template is told of thinking and effort. What it does not read is ignored.
    fn variables(&self, app: &App, ignored: &mut Ignored) -> Map<String, Value> {
        let reads = |name: &&str| app.service.template_may_read(name);
        let mut variables = Map::new();
        if let Some(thinking) = &self.thinking {
            let thinks = json!(thinking.kind != ThinkingKind::Disabled);
            let read = THINKING_VARIABLES.into_iter().filter(reads);
            variables.extend(read.map(|name| (name.to_owned(), thinks.clone())));
            if variables.is_empty() && thinking.kind != ThinkingKind::Disabled {
                ignored.note("thinking");
            } else if thinking.budget_tokens.as_ref().is_some_and(|budget| !budget.is_null()) {
                ignored.note("thinking.budget_tokens");
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
    pub(super) fn model(&self) -> Option<String> {
        self.conversation.model.clone()
    }

    pub(super) fn chat(&self, app: &App) -> Result<Chat, OpenAiError> {
        self.conversation.chat(app, &self.rest)
    }
}

impl MessagesRequest {
    pub(super) fn model(&self) -> Option<String> {
        self.conversation.model.clone()
    }

    pub(super) fn chat(&self, app: &App) -> Result<Chat, OpenAiError> {
        self.conversation.chat(app, &self.rest)
    }

    pub(super) fn params(&self) -> Result<Params, OpenAiError> {
        // Anthropic counts 0 among the valid values.
        let top_k = self.top_k.filter(|&k| k != 0);
        Ok(Params {
            max_new_tokens: Some(self.max_tokens),
            clamp_new_tokens: true,
            stop: self.stop_sequences.clone().unwrap_or_default(),
            grammar: self.grammar()?,
            ..openai::sampling(self.temperature, self.top_p, top_k)
        })
    }

    /// The JSON that the answer must be, if any.
    fn grammar(&self) -> Result<Option<Wanted>, OpenAiError> {
        let config = self.conversation.output_config.as_ref();
        let current = config.and_then(|config| config.format.as_ref()).filter(|format| !format.is_null());
        let older = self.output_format.as_ref().filter(|format| !format.is_null());
        let (format, field) = match (current, older) {
            (Some(format), _) => (format, "output_config.format"),
            (None, Some(format)) => (format, "output_format"),
            (None, None) => return Ok(None),
        };
        match (format["type"].as_str(), &format["schema"]) {
            (Some("json_schema"), schema @ Value::Object(_)) => {
                Ok(Some(Wanted { grammar: Grammar::Json(schema.clone()), field, optional: false }))
            }
            _ => {
                let message =
                    format!("`{field}` must have the type json_schema and a `schema`, which is an object");
                Err(OpenAiError::invalid(field, message))
            }
        }
    }
}
