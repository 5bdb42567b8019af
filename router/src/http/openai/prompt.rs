//! From a conversation, as requests have it, to the prompt and to what may be called in its answer.

use serde_json::{Map, Value};

use super::error::OpenAiError;
use super::messages::{self, Turn};
use super::tools::{Asked, Calling};
use crate::http::App;
use crate::http::ignored::Ignored;
use crate::service::{Params, Prepared, Prompt};
use crate::text::Rendered;
use crate::tools::{show_calls, show_tools};

/// A conversation, in the terms of `/v1/chat/completions`.
#[derive(Debug, Default)]
pub(in crate::http) struct Chat {
    pub(in crate::http) messages: Vec<Value>,
    pub(in crate::http) asked: Asked,
    /// TGI's: how the model is told of its tools, if not as usual.
    pub(in crate::http) tool_prompt: Option<String>,
    pub(in crate::http) documents: Option<Vec<Value>>,
    /// Further variables for the template.
    pub(in crate::http) variables: Option<Map<String, Value>>,
    pub(in crate::http) continue_final_message: Option<bool>,
    pub(in crate::http) add_generation_prompt: Option<bool>,
    /// Fields of the request that have no effect.
    pub(in crate::http) ignored: Ignored,
}

/// A conversation that is ready to be answered.
pub(in crate::http) struct Ready {
    pub(in crate::http) prepared: Prepared,
    /// If tools may be called.
    pub(in crate::http) calling: Option<Calling>,
    /// Of the prompt.
    pub(in crate::http) characters: usize,
    /// Fields of the request that have no effect.
    pub(in crate::http) ignored: Ignored,
}

impl Chat {
    /// The conversation as the model's template writes it.
    pub(in crate::http) async fn render(self, app: &App) -> Result<Rendered, OpenAiError> {
        let callable = self.asked.check()?.is_some();
        self.write(app, callable).await
    }

    /// `callable`: the answer may call tools.
    async fn write(self, app: &App, callable: bool) -> Result<Rendered, OpenAiError> {
        let turn = Turn {
            continue_final_message: self.continue_final_message,
            add_generation_prompt: self.add_generation_prompt,
        };
        let (service, format) = (&app.service, app.service.tool_format());
        let knows_role = |role: &str| service.template_quotes(role);
        let (mut conversation, begun) = messages::conversation(self.messages, turn, knows_role)?;
        conversation.tools = self.asked.tools.filter(|tools| !tools.is_empty());
        conversation.documents = self.documents.filter(|documents| !documents.is_empty());
        conversation.more = variables(app, self.variables)?;
        // After the parts of a message have become one text, and before anything is added that is not the client's.
        let mut guard = service.guard();
        guard.hide_conversation(&mut conversation);
        let mut tool_prompt = self.tool_prompt.map(Value::String);
        tool_prompt.iter_mut().for_each(|text| guard.hide(text));
        if !service.template_writes_calls() {
            show_calls(&mut conversation.messages, format);
        }
        if let Some(tools) = conversation.tools.as_deref().filter(|_| callable) {
            let unseen = (!service.template_mentions("tools")).then_some(tools);
            let tool_prompt = tool_prompt.as_ref().and_then(Value::as_str);
            show_tools(&mut conversation.messages, unseen, tool_prompt, format);
        }
        let prompt = service.render_guarded(conversation, guard).await?;
        match begun {
            Some(begun) => messages::cut_after(prompt, &begun),
            None => Ok(prompt),
        }
    }

    /// The prompt in tokens, and the answer bound to what `params` and the tools allow.
    pub(in crate::http) async fn prepare(
        mut self,
        app: &App,
        mut params: Params,
    ) -> Result<Ready, OpenAiError> {
        let calling = match self.asked.check()? {
            Some(tools) => Some(Calling::new(app, tools, &mut params)?),
            None => None,
        };
        let mut ignored = std::mem::take(&mut self.ignored);
        let prompt = self.write(app, calling.is_some()).await?;
        let characters = prompt.text.chars().count();
        let prepared = app.service.prepare(Prompt::Chat(prompt), params).await?;
        ignored.note_unenforced(&prepared);
        Ok(Ready { prepared, calling, characters, ignored })
    }
}

/// Variables that templates are given anyway.
const RESERVED: [&str; 6] =
    ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"];

/// Further variables for the template. Those that it does not look at change nothing.
fn variables(app: &App, kwargs: Option<Map<String, Value>>) -> Result<Map<String, Value>, OpenAiError> {
    let readable = kwargs.into_iter().flatten().filter(|(name, _)| app.service.template_may_read(name));
    readable
        .map(|(name, value)| match value {
            _ if RESERVED.contains(&name.as_str()) => {
                let param = format!("chat_template_kwargs.{name}");
                Err(OpenAiError::invalid(
                    &param,
                    format!("`{param}` has a field of its own in a request, or none"),
                ))
            }
            Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok((name, value)),
            _ => {
                let param = format!("chat_template_kwargs.{name}");
                let message = format!("`{param}` must be true, false, a number or a text");
                Err(OpenAiError::invalid(&param, message))
            }
        })
        .collect()
}
