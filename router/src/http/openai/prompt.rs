//! From a conversation, as requests have it, to the prompt and to what may be called in its answer.

use serde_json::{Map, Value};

use super::error::OpenAiError;
use super::messages::{self, Turn};
use super::tools::{Asked, Calling};
use crate::http::App;
use crate::service::{Params, Prepared, Prompt};
use crate::text::Specials;
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
}

/// A conversation that is ready to be answered.
pub(in crate::http) struct Ready {
    pub(in crate::http) prepared: Prepared,
    /// If tools may be called.
    pub(in crate::http) calling: Option<Calling>,
    /// Of the prompt.
    pub(in crate::http) characters: usize,
}

impl Chat {
    /// The conversation as the model's template writes it.
    pub(in crate::http) async fn render(self, app: &App) -> Result<String, OpenAiError> {
        let callable = self.asked.check()?.is_some();
        self.write(app, callable).await
    }

    /// `callable`: the answer may call tools.
    async fn write(self, app: &App, callable: bool) -> Result<String, OpenAiError> {
        let turn = Turn {
            continue_final_message: self.continue_final_message,
            add_generation_prompt: self.add_generation_prompt,
        };
        let (mut conversation, begun) = messages::conversation(self.messages, turn)?;
        let (service, format) = (&app.service, app.service.tool_format());
        if !service.template_writes_calls() {
            show_calls(&mut conversation.messages, format);
        }
        let tools = self.asked.tools.filter(|tools| !tools.is_empty());
        if let Some(tools) = tools.as_deref().filter(|_| callable) {
            let unseen = (!service.template_mentions("tools")).then_some(tools);
            show_tools(&mut conversation.messages, unseen, self.tool_prompt.as_deref(), format);
        }
        conversation.tools = tools;
        conversation.documents = self.documents.filter(|documents| !documents.is_empty());
        conversation.more = variables(app, self.variables)?;
        let prompt = service.render(conversation).await?;
        match begun {
            Some(begun) => messages::cut_after(prompt, &begun),
            None => Ok(prompt),
        }
    }

    /// The prompt in tokens, and the answer bound to what `params` and the tools allow.
    pub(in crate::http) async fn prepare(self, app: &App, mut params: Params) -> Result<Ready, OpenAiError> {
        let calling = match self.asked.check()? {
            Some(tools) => Some(Calling::new(app, tools, &mut params)?),
            None => None,
        };
        let prompt = self.write(app, calling.is_some()).await?;
        let characters = prompt.chars().count();
        // The template has written what begins a prompt.
        let prepared = app.service.prepare(Prompt::Text(prompt, Specials::Omit), params).await?;
        Ok(Ready { prepared, calling, characters })
    }
}

/// Variables that templates are given anyway.
const RESERVED: [&str; 6] =
    ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"];

/// Further variables for the template. Those that it does not look at change nothing.
fn variables(app: &App, kwargs: Option<Map<String, Value>>) -> Result<Map<String, Value>, OpenAiError> {
    let mentioned = kwargs.into_iter().flatten().filter(|(name, _)| app.service.template_mentions(name));
    mentioned
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
