//! Tools, as requests name them and responses call them.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::error::OpenAiError;
use crate::grammar::{Grammar, Wanted};
use crate::http::App;
use crate::service::{FinishReason, Params, TextEvent};
use crate::tools::{CallDelta, Choice, Delta, Format, Parser, Tool, Tools, grammar};

/// Tools of one request at most.
const MOST: usize = 128;
/// Characters of a name at most.
const LONGEST_NAME: usize = 64;

/// What a request says of tools, in the form that `/v1/chat/completions` has for it.
#[derive(Debug, Default)]
pub(in crate::http) struct Asked {
    pub(in crate::http) tools: Option<Vec<Value>>,
    pub(in crate::http) choice: Option<Value>,
    pub(in crate::http) parallel: Option<bool>,
}

/// How calls are told from text in the answers to a request.
#[derive(Debug, Clone)]
pub(in crate::http) struct Calling {
    tools: Tools,
    format: Format,
}

impl Asked {
    /// The tools that may be called. Nothing if none may.
    pub(super) fn check(&self) -> Result<Option<Tools>, OpenAiError> {
        let tools = self.tools.as_deref().unwrap_or_default();
        let chosen = chosen(self.choice.as_ref())?;
        if tools.is_empty() {
            return match chosen {
                None | Some(Chosen { choice: Choice::Auto, only: None }) => Ok(None),
                Some(_) => Err(OpenAiError::invalid("tool_choice", "`tool_choice` needs `tools`")),
            };
        }
        if tools.len() > MOST {
            return Err(OpenAiError::invalid("tools", format!("`tools` has more than {MOST} entries")));
        }
        let mut tools =
            tools.iter().enumerate().map(|(i, asked)| tool(i, asked)).collect::<Result<Vec<_>, _>>()?;
        for (i, tool) in tools.iter().enumerate() {
            if tools[..i].iter().any(|other| other.name == tool.name) {
                let message = format!("`tools` has two functions named {}", tool.name);
                return Err(OpenAiError::invalid("tools", message));
            }
        }
        let Some(Chosen { choice, only }) = chosen else { return Ok(None) };
        let named = if let Choice::Named(name) = &choice { Some(name) } else { None };
        let unknown = named
            .into_iter()
            .chain(only.iter().flatten())
            .find(|name| !tools.iter().any(|t| t.name == **name));
        if let Some(name) = unknown {
            return Err(OpenAiError::invalid("tool_choice", format!("Tool with name {name} not found")));
        }
        if let Some(only) = only {
            tools.retain(|tool| only.contains(&tool.name));
        }
        Ok(Some(Tools { tools, choice, parallel: self.parallel.unwrap_or(true) }))
    }
}

impl Calling {
    /// Binds the answer to calls of these tools or, if none has to be called, to what `params` say of it.
    pub(super) fn new(app: &App, tools: Tools, params: &mut Params) -> Result<Self, OpenAiError> {
        let (answer, field) = match params.grammar.take() {
            None => (None, "tools"),
            // Calls have a form of their own.
            Some(Wanted { grammar: Grammar::Json(_), .. }) if tools.choice != Choice::Auto => (None, "tools"),
            Some(Wanted { grammar: Grammar::Json(schema), field, .. }) => (Some(schema), field),
            Some(Wanted { field, .. }) => {
                let message = format!("`{field}` must be JSON where tools may be called");
                return Err(OpenAiError::invalid(field, message));
            }
        };
        let optional = tools.choice == Choice::Auto && answer.is_none();
        let (format, tokenizer) = (app.service.tool_format(), app.service.tokenizer());
        let grammar = grammar(&tools, format, tokenizer, answer.as_ref());
        params.grammar = grammar.map(|grammar| Wanted { grammar, field, optional });
        params.marks = format.marks(tokenizer).into();
        Ok(Calling { tools, format })
    }

    /// A reader of one answer.
    pub(in crate::http) fn reader(&self) -> Reader {
        Reader { parser: Parser::new(self.format, &self.tools), format: self.format }
    }
}

/// Reads one answer.
#[derive(Debug)]
pub(in crate::http) struct Reader {
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
        let delta = self.delta(event);
        self.written(delta)
    }

    /// What a token brings, in no API's form.
    pub(in crate::http) fn delta(&mut self, event: &TextEvent) -> Delta {
        let mut delta = self.parser.push(&event.text);
        if event.finished.is_some() {
            delta.extend(self.parser.finish());
        }
        delta
    }

    /// An id for a call.
    pub(in crate::http) fn call_id(&self) -> String {
        self.format.call_id()
    }

    /// Whether the answer ended with its calls, and was not cut off.
    pub(in crate::http) fn called(&self, reason: FinishReason) -> bool {
        self.parser.calls() > 0 && reason != FinishReason::Length
    }

    fn written(&self, delta: Delta) -> (String, Vec<ToolCall>) {
        let call = |call: CallDelta| ToolCall {
            index: Some(call.index),
            id: call.name.is_some().then(|| self.call_id()),
            kind: call.name.is_some().then_some("function"),
            function: Function { name: call.name, arguments: call.arguments },
        };
        (delta.content, delta.calls.into_iter().map(call).collect())
    }
}

/// A choice, and the tools that it is among if not all.
struct Chosen {
    choice: Choice,
    only: Option<Vec<String>>,
}

/// OpenAI's choices in the forms of chat and of responses, and TGI's bare name. Nothing if no tool may be called.
fn chosen(choice: Option<&Value>) -> Result<Option<Chosen>, OpenAiError> {
    let of = |choice| Ok(Some(Chosen { choice, only: None }));
    let wrong = || {
        let message = "`tool_choice` must be auto, none, required, a function's name, or allowed_tools with a mode and functions";
        OpenAiError::invalid("tool_choice", message)
    };
    let Some(choice) = choice.filter(|choice| !choice.is_null()) else { return of(Choice::Auto) };
    if let Value::String(choice) = choice {
        return match choice.as_str() {
            "auto" => of(Choice::Auto),
            "none" => Ok(None),
            "required" => of(Choice::Required),
            name => of(Choice::Named(name.to_owned())),
        };
    }
    let name = |of: &Value| of["function"]["name"].as_str().or(of["name"].as_str()).map(str::to_owned);
    match choice.get("type").map(Value::as_str) {
        None | Some(Some("function")) => of(Choice::Named(name(choice).ok_or_else(wrong)?)),
        Some(Some("allowed_tools")) => {
            let allowed = choice.get("allowed_tools").unwrap_or(choice);
            let functions =
                allowed["tools"].as_array().filter(|tools| !tools.is_empty()).ok_or_else(wrong)?;
            let only = functions.iter().map(name).collect::<Option<_>>().ok_or_else(wrong)?;
            let choice = match allowed["mode"].as_str() {
                Some("auto") => Choice::Auto,
                Some("required") => Choice::Required,
                _ => return Err(wrong()),
            };
            Ok(Some(Chosen { choice, only: Some(only) }))
        }
        Some(_) => Err(wrong()),
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
