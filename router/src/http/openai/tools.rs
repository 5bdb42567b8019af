//! Tools, as requests name them and responses call them.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::error::OpenAiError;
use crate::grammar::Wanted;
use crate::http::App;
use crate::service::{FinishReason, Params, TextEvent};
use crate::tools::{Choice, Delta, Format, Parser, Tool, Tools, grammar};

/// Tools of one request at most.
const MOST: usize = 128;
/// Characters of a name at most.
const LONGEST_NAME: usize = 64;

/// What a request says of tools.
#[derive(Debug, Default)]
pub(super) struct Asked {
    pub(super) tools: Option<Vec<Value>>,
    pub(super) choice: Option<Value>,
    pub(super) parallel: Option<bool>,
}

/// How calls are told from text in the answers to a request.
#[derive(Debug, Clone)]
pub(super) struct Calling {
    tools: Tools,
    format: Format,
}

impl Asked {
    /// The tools that may be called. Nothing if none may.
    pub(super) fn check(&self) -> Result<Option<Tools>, OpenAiError> {
        let tools = self.tools.as_deref().unwrap_or_default();
        let choice = choice(self.choice.as_ref())?;
        if tools.is_empty() {
            return match choice {
                None | Some(Choice::Auto) => Ok(None),
                Some(_) => Err(OpenAiError::invalid("tool_choice", "`tool_choice` needs `tools`")),
            };
        }
        if tools.len() > MOST {
            return Err(OpenAiError::invalid("tools", format!("`tools` has more than {MOST} entries")));
        }
        let tools =
            tools.iter().enumerate().map(|(i, asked)| tool(i, asked)).collect::<Result<Vec<_>, _>>()?;
        for (i, tool) in tools.iter().enumerate() {
            if tools[..i].iter().any(|other| other.name == tool.name) {
                let message = format!("`tools` has two functions named {}", tool.name);
                return Err(OpenAiError::invalid("tools", message));
            }
        }
        let Some(choice) = choice else { return Ok(None) };
        if let Choice::Named(name) = &choice
            && !tools.iter().any(|tool| tool.name == *name)
        {
            return Err(OpenAiError::invalid("tool_choice", format!("Tool with name {name} not found")));
        }
        Ok(Some(Tools { tools, choice, parallel: self.parallel.unwrap_or(true) }))
    }
}

impl Calling {
    /// Binds the answer to calls of these tools.
    pub(super) fn new(app: &App, tools: Tools, params: &mut Params) -> Result<Self, OpenAiError> {
        if params.grammar.is_some() {
            let message = "Grammar and tools are mutually exclusive";
            return Err(OpenAiError::invalid("tools", message));
        }
        let optional = tools.choice == Choice::Auto;
        if optional && !app.service.template_mentions("tools") {
            let message = "the model's chat template knows no tools, so the model would not see them; \
                           `tool_choice` can be `none`, `required` or one of them";
            return Err(OpenAiError::invalid("tools", message));
        }
        let (format, tokenizer) = (app.service.tool_format(), app.service.tokenizer());
        let grammar = grammar(&tools, format, tokenizer);
        params.grammar = grammar.map(|grammar| Wanted { grammar, field: "tools", optional });
        params.marks = format.marks(tokenizer).into();
        Ok(Calling { tools, format })
    }

    /// A reader of one answer.
    pub(super) fn reader(&self) -> Reader {
        Reader { parser: Parser::new(self.format, &self.tools), format: self.format }
    }
}

/// Reads one answer.
#[derive(Debug)]
pub(super) struct Reader {
    parser: Parser,
    format: Format,
}

/// A call, or the next part of it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ToolCall {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: Function,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FunctionCall)]
struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl Reader {
    /// The whole answer: its text and its calls.
    pub(super) fn whole(&mut self, text: &str) -> (String, Vec<ToolCall>) {
        let mut delta = self.parser.push(text);
        delta.extend(self.parser.finish());
        let (content, mut calls) = self.written(delta);
        calls.iter_mut().for_each(|call| call.index = None);
        (content, calls)
    }

    /// What a token brings.
    pub(super) fn part(&mut self, event: &TextEvent) -> (String, Vec<ToolCall>) {
        let mut delta = self.parser.push(&event.text);
        if event.finished.is_some() {
            delta.extend(self.parser.finish());
        }
        self.written(delta)
    }

    /// Why the answer ended, if it was because of its calls.
    pub(super) fn finish_reason(&self, reason: FinishReason) -> Option<&'static str> {
        (self.parser.calls() > 0 && reason != FinishReason::Length).then_some("tool_calls")
    }

    fn written(&self, delta: Delta) -> (String, Vec<ToolCall>) {
        let call = |call: crate::tools::CallDelta| ToolCall {
            index: Some(call.index),
            id: call.name.is_some().then(|| self.format.call_id()),
            kind: call.name.is_some().then_some("function"),
            function: Function { name: call.name, arguments: call.arguments },
        };
        (delta.content, delta.calls.into_iter().map(call).collect())
    }
}

/// OpenAI's choices, and TGI's bare name. Nothing if no tool may be called.
fn choice(choice: Option<&Value>) -> Result<Option<Choice>, OpenAiError> {
    let named = |name: &str| Some(Choice::Named(name.to_owned()));
    match choice {
        None | Some(Value::Null) => Ok(Some(Choice::Auto)),
        Some(Value::String(choice)) => Ok(match choice.as_str() {
            "auto" => Some(Choice::Auto),
            "none" => None,
            "required" => Some(Choice::Required),
            name => named(name),
        }),
        Some(choice) => match choice["function"]["name"].as_str() {
            Some(name) => Ok(named(name)),
            None => {
                let message = "`tool_choice` must be auto, none, required or a function's name";
                Err(OpenAiError::invalid("tool_choice", message))
            }
        },
    }
}

fn tool(index: usize, tool: &Value) -> Result<Tool, OpenAiError> {
    let param = format!("tools[{index}]");
    let wrong = |what: &str| OpenAiError::invalid(&param, format!("`{param}` {what}"));
    if tool["type"].as_str().is_some_and(|kind| kind != "function") {
        return Err(wrong("must be a function"));
    }
    let Some(function @ Value::Object(_)) = tool.get("function") else {
        return Err(wrong("must have a `function`"));
    };
    let name = function["name"].as_str().unwrap_or_default();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(allowed) {
        return Err(wrong("must have a name of at most 64 letters, digits, underscores, dots and dashes"));
    }
    let parameters = match function.get("parameters") {
        // A function without parameters.
        None | Some(Value::Null) => {
            serde_json::json!({"type": "object", "properties": {}, "additionalProperties": false})
        }
        Some(parameters @ Value::Object(_)) => parameters.clone(),
        Some(_) => return Err(wrong("must have a JSON schema as its `parameters`")),
    };
    Ok(Tool { name: name.to_owned(), parameters })
}
