//! A conversation, the prompt that it becomes, and the request for the service.

use millrace_answers::reasoning::ThinkingBudget;
use millrace_answers::tools::{show_calls, show_tools};
use millrace_text::{ControlTokenGuard, Conversation, RenderedPrompt};
use serde_json::{Map, Value};

use super::answer::AnswerFormat;
use super::error::ChatError;
use super::ignored::IgnoredFields;
use super::messages::{self, ContinuationOptions};
use super::tools::{CallableTools, ToolOptions};
use crate::service::{Params, Prepared, Prompt, Service};

/// A conversation, as a request of any API describes it.
#[derive(Debug, Default)]
pub(crate) struct ConversationRequest {
    /// The messages in the form that chat templates read: `{"role", "content", "tool_calls", …}`.
    pub(crate) messages: Vec<Value>,
    /// The tools of the request.
    pub(crate) tools: ToolOptions,
    /// The text that tells the model how to use its tools, instead of the usual text.
    pub(crate) tool_prompt: Option<String>,
    /// Documents for templates that support retrieval.
    pub(crate) documents: Option<Vec<Value>>,
    /// Further variables for the template.
    pub(crate) variables: Option<Map<String, Value>>,
    /// Whether and how the answer continues the last message.
    pub(crate) continuation: ContinuationOptions,
    /// Values for the template's variable `reasoning_effort`, each with the name of its field. A
    /// variable of the same name in `variables` takes precedence.
    pub(crate) effort: Vec<(&'static str, Value)>,
    /// How much the model may think, and whether this is shown.
    pub(crate) thinking: ThinkingOptions,
    /// Fields of the request that have no effect.
    pub(crate) ignored: IgnoredFields,
}

/// The fields of a request about the model's reasoning.
#[derive(Debug, Default)]
pub(crate) struct ThinkingOptions {
    /// The budget, with the name of its field.
    pub(crate) budget: Option<(&'static str, ThinkingBudget)>,
    /// Whether the reasoning is left out of the answer.
    pub(crate) is_hidden: bool,
}

/// A conversation that is ready to be answered.
pub(crate) struct PreparedChat {
    /// The validated request for the service.
    pub(crate) prepared: Prepared,
    /// The form in which the answers contain reasoning and tool calls.
    pub(crate) format: AnswerFormat,
    /// Characters of the prompt.
    pub(crate) characters: usize,
    /// Fields of the request that have no effect.
    pub(crate) ignored: IgnoredFields,
}

/// A conversation that can be rendered.
struct GuardedConversation {
    conversation: Conversation,
    /// Knows the special tokens of the client that are hidden in the conversation.
    guard: ControlTokenGuard,
    /// The text that the answer continues, if it continues the last message.
    begun: Option<String>,
}

impl ConversationRequest {
    /// Renders the conversation with the model's chat template.
    ///
    /// # Errors
    /// [`ChatError`] says what is wrong with the conversation or its tools.
    pub(crate) async fn render(mut self, service: &Service) -> Result<RenderedPrompt, ChatError> {
        self.read_thinking(service);
        let may_call = service.in_turn(|| self.tools.check(&mut self.ignored)).await?.is_some();
        self.render_checked(service, may_call).await
    }

    /// Renders and tokenizes the conversation, and constrains the answer to what `params` and the
    /// tools allow.
    ///
    /// # Errors
    /// [`ChatError`] says what is wrong with the conversation or its tools;
    /// [`ChatError::Service`] says what is wrong with `params`.
    pub(crate) async fn prepare(
        mut self,
        service: &Service,
        mut params: Params,
    ) -> Result<PreparedChat, ChatError> {
        let read_tools = || {
            let tools = self.tools.check(&mut self.ignored)?;
            let callable: Vec<String> = tools.iter().flat_map(CallableTools::names).collect();
            let may_call = tools.is_some();
            Ok::<_, ChatError>((callable, may_call, AnswerFormat::new(service, tools, &mut params)?))
        };
        let (callable, may_call, mut format) = service.in_turn(read_tools).await?;
        if self.thinking.is_hidden {
            format.hide_reasoning();
        }
        let budget = self.read_thinking(service);
        let budget_field = self.thinking.budget.map(|(field, _)| field);
        let mut ignored = std::mem::take(&mut self.ignored);
        let prompt = self.render_checked(service, may_call).await?;
        let format = format.after_prompt(service, &prompt, &mut params);
        if let Some(tokens) = budget
            && !format.limit_reasoning(tokens, service, &mut params)
            && let Some(field) = budget_field
        {
            ignored.note(field);
        }
        let characters = prompt.text.chars().count();
        let prepared = service.prepare(Prompt::Chat(prompt), params).await?;
        ignored.note_unenforced(&prepared);
        for name in prepared.tools_left_out().filter_map(|index| callable.get(index)) {
            ignored.note(&format!("tools.{name:.40}.parameters"));
        }
        Ok(PreparedChat { prepared, format, characters, ignored })
    }

    /// Renders a conversation whose tools have been checked. `may_call` says whether the answer may
    /// call tools.
    async fn render_checked(self, service: &Service, may_call: bool) -> Result<RenderedPrompt, ChatError> {
        let guarded = service.in_turn(|| self.guarded(service, may_call)).await;
        let GuardedConversation { conversation, guard, begun } =
            guarded.inspect_err(|_| Service::charge_refused_body())?;
        let prompt = service.render_guarded(conversation, guard).await?;
        match begun {
            Some(begun) => service.in_turn(|| messages::cut_after(prompt, &begun)).await,
            None => Ok(prompt),
        }
    }

    /// Validates the messages, hides the special tokens of the client in them, and adds the texts
    /// about tools. The time grows with the request.
    fn guarded(self, service: &Service, may_call: bool) -> Result<GuardedConversation, ChatError> {
        let format = service.tool_format();
        let knows_role = |role: &str| service.template_quotes(role);
        let writes_late = |role: &str| service.template_writes_late(role);
        let (mut conversation, begun) =
            messages::conversation(self.messages, self.continuation, knows_role, writes_late)?;
        conversation.tools = Some(self.tools.tools).filter(|tools| !tools.is_empty());
        conversation.documents = self.documents.filter(|documents| !documents.is_empty());
        conversation.more = template_variables(service, self.variables)?;
        // Special tokens of the client are hidden here: the parts of each message are one text by
        // now, and no text of the server's own has been added yet.
        let mut guard = service.guard();
        guard.hide_conversation(&mut conversation);
        let mut tool_prompt = self.tool_prompt.map(Value::String);
        tool_prompt.iter_mut().for_each(|text| guard.hide(text));
        if !service.template_writes_calls() {
            show_calls(&mut conversation.messages, format);
        }
        if let Some(tools) = conversation.tools.as_deref().filter(|_| may_call) {
            let unseen = (!service.template_mentions("tools")).then_some(tools);
            let tool_prompt = tool_prompt.as_ref().and_then(Value::as_str);
            show_tools(&mut conversation.messages, unseen, tool_prompt, format);
        }
        Ok(GuardedConversation { conversation, guard, begun })
    }

    /// Reads the fields about the model's reasoning: adds the variables that the template can read,
    /// and returns the number of tokens that the reasoning may have, if it is limited.
    fn read_thinking(&mut self, service: &Service) -> Option<u32> {
        let is_off = self.read_effort(service);
        let default = service.limits().default_thinking_budget;
        let tokens = match self.thinking.budget {
            Some((_, ThinkingBudget::Tokens(tokens))) => Some(tokens),
            _ if is_off => Some(0),
            Some((_, ThinkingBudget::Unlimited)) => None,
            None => default,
        };
        if let Some(tokens) = tokens {
            let thinks =
                THINKING_VARIABLES.map(|name| (name, false.into())).into_iter().filter(|_| tokens == 0);
            for (name, value) in thinks.chain([(BUDGET_VARIABLE, tokens.into())]) {
                if service.template_may_read(name) {
                    self.variables.get_or_insert_default().entry(name).or_insert(value);
                }
            }
        }
        tokens
    }

    /// Moves the efforts that the template can read to its variables, and notes those that have no
    /// effect. Returns whether one of them turns the reasoning off.
    fn read_effort(&mut self, service: &Service) -> bool {
        let mut is_off = false;
        for (field, value) in std::mem::take(&mut self.effort) {
            // A field named `effort` means the same as `reasoning_effort`.
            let name = if service.template_may_read(field) { field } else { EFFORT_VARIABLE };
            let thinks = value != "none";
            is_off |= !thinks;
            let variables =
                [(name, value)].into_iter().chain(THINKING_VARIABLES.map(|name| (name, thinks.into())));
            let read: Vec<_> = variables.filter(|(name, _)| service.template_may_read(name)).collect();
            if read.is_empty() && (thinks || service.reasoning_format().is_none()) {
                self.ignored.note(field);
            }
            for (name, value) in read {
                self.variables.get_or_insert_default().entry(name).or_insert(value);
            }
        }
        if let Some(variables) = &mut self.variables {
            rename_thinking(service, variables);
        }
        is_off
    }
}

/// The template variable for the number of tokens of the reasoning.
const BUDGET_VARIABLE: &str = "thinking_budget";
/// The template variables that turn thinking on and off.
pub(crate) const THINKING_VARIABLES: [&str; 2] = ["enable_thinking", "thinking"];
/// The template variable for the effort.
pub(crate) const EFFORT_VARIABLE: &str = "reasoning_effort";

/// Gives the variable that turns thinking on and off the name that the template reads.
fn rename_thinking(service: &Service, variables: &mut Map<String, Value>) {
    let [first, second] = THINKING_VARIABLES;
    for (given, other) in [(first, second), (second, first)] {
        if !service.template_may_read(given)
            && service.template_may_read(other)
            && let Some(thinks @ Value::Bool(_)) = variables.get(given).cloned()
        {
            variables.entry(other).or_insert(thinks);
        }
    }
}

/// Variables that the server sets itself.
const RESERVED_VARIABLES: [&str; 6] =
    ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"];

/// Returns the variables that the template may read, and drops the others, which change nothing.
fn template_variables(
    service: &Service,
    variables: Option<Map<String, Value>>,
) -> Result<Map<String, Value>, ChatError> {
    let readable = variables.into_iter().flatten().filter(|(name, _)| service.template_may_read(name));
    readable
        .map(|(name, value)| {
            let is_reserved = RESERVED_VARIABLES.contains(&name.as_str());
            let problem = match value {
                _ if is_reserved => "is set by the server or by another field of the request",
                Value::Bool(_) | Value::Number(_) | Value::String(_) => return Ok((name, value)),
                _ => "must be true, false, a number or a text",
            };
            let param = format!("chat_template_kwargs.{name}");
            Err(ChatError::invalid(&param, format!("`{param}` {problem}")))
        })
        .collect()
}
