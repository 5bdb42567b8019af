//! Tools, as requests name them and responses call them.

use std::collections::HashSet;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::error::OpenAiError;
use crate::grammar::{Grammar, Wanted};
use crate::http::App;
use crate::http::ignored::Ignored;
use crate::service::{FinishReason, Params, TextEvent};
use crate::tools::{CallDelta, Choice, Delta, Format, Parser, TextArgument, Tool, Tools, grammar};

/// Tools of one request at most.
pub(super) const MOST_TOOLS: usize = 128;
/// Characters of a name at most.
const LONGEST_NAME: usize = 128;

/// What a request says of tools, in the form that `/v1/chat/completions` has for it.
#[derive(Debug, Default)]
pub(in crate::http) struct Asked {
    pub(in crate::http) tools: Option<Vec<Value>>,
    pub(in crate::http) choice: Option<Value>,
    pub(in crate::http) parallel: Option<bool>,
}

/// The tools that may be called in the answer to a request.
#[derive(Debug)]
pub(super) struct Callable {
    tools: Tools,
    /// The names of those that take a text instead of JSON.
    custom: HashSet<String>,
}

/// How calls are told from text in the answers to a request.
#[derive(Debug, Clone)]
pub(in crate::http) struct Calling {
    tools: Tools,
    custom: Arc<HashSet<String>>,
    format: Format,
}

impl Asked {
    /// The tools that may be called. Nothing if none may. Custom tools become functions, which templates know.
    pub(super) fn check(&mut self, ignored: &mut Ignored) -> Result<Option<Callable>, OpenAiError> {
        let mut custom = HashSet::new();
        for (index, tool) in self.tools.iter_mut().flatten().enumerate() {
            if tool["type"] == "custom" && tool["custom"].is_object() {
                if !is_text_format(&tool["custom"]["format"]) {
                    ignored.note(&format!("tools[{index}].custom.format"));
                }
                *tool = custom_function(&tool["custom"]);
                custom.extend(tool["function"]["name"].as_str().map(str::to_owned));
            }
        }
        Ok(self.functions()?.map(|tools| Callable { tools, custom }))
    }

    fn functions(&self) -> Result<Option<Tools>, OpenAiError> {
        let tools = self.tools.as_deref().unwrap_or_default();
        let chosen = chosen(self.choice.as_ref())?;
        if tools.is_empty() {
            return match chosen {
                None | Some(Chosen { choice: Choice::Auto, only: None }) => Ok(None),
                Some(_) => Err(OpenAiError::invalid("tool_choice", "`tool_choice` needs `tools`")),
            };
        }
        if tools.len() > MOST_TOOLS {
            return Err(OpenAiError::invalid("tools", format!("`tools` has more than {MOST_TOOLS} entries")));
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
        // A choice that names a function asks for one call of it.
        let parallel = self.parallel.unwrap_or(true) && !matches!(choice, Choice::Named(_));
        Ok(Some(Tools { tools, choice, parallel }))
    }
}

impl Calling {
    /// Binds the answer to calls of these tools or, if none has to be called, to what `params` say of it.
    pub(super) fn new(app: &App, callable: Callable, params: &mut Params) -> Result<Self, OpenAiError> {
        let Callable { tools, custom } = callable;
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
        Ok(Calling { tools, custom: Arc::new(custom), format })
    }

    /// A reader of one answer.
    pub(in crate::http) fn reader(&self) -> Reader {
        Reader {
            parser: Parser::new(self.format, &self.tools),
            format: self.format,
            custom: self.custom.clone(),
            text: None,
        }
    }
}

/// Reads one answer.
#[derive(Debug)]
pub(in crate::http) struct Reader {
    parser: Parser,
    format: Format,
    /// The names of tools that take a text.
    custom: Arc<HashSet<String>>,
    /// The last call, by its index, if it is one of those.
    text: Option<(usize, TextArgument)>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    function: Option<Function>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom: Option<Custom>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = FunctionCall)]
struct Function {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

/// A call of a tool that takes a text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CustomCall)]
struct Custom {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    input: String,
}

impl Reader {
    /// The whole answer: its text and its calls.
    pub(super) fn whole(&mut self, text: &str) -> (String, Vec<ToolCall>) {
        let mut delta = self.parser.push(text);
        delta.extend(self.parser.finish());
        let (content, mut calls) = self.written(delta, true);
        calls.iter_mut().for_each(|call| call.index = None);
        (content, calls)
    }

    /// What a token brings.
    pub(super) fn part(&mut self, event: &TextEvent) -> (String, Vec<ToolCall>) {
        let delta = self.delta(event);
        self.written(delta, event.finished.is_some())
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

    /// What has come, in OpenAI's form. `is_last`: nothing comes after it.
    fn written(&mut self, delta: Delta, is_last: bool) -> (String, Vec<ToolCall>) {
        let mut calls = Vec::new();
        for call in delta.calls {
            let begins_other = self.text.as_ref().is_some_and(|(index, _)| *index != call.index);
            if begins_other {
                self.end_text(&mut calls);
            }
            if call.name.as_ref().is_some_and(|name| self.custom.contains(name)) {
                self.text = Some((call.index, TextArgument::new(CUSTOM_INPUT)));
            }
            calls.push(self.call(call));
        }
        if is_last {
            self.end_text(&mut calls);
        }
        (delta.content, calls)
    }

    fn call(&mut self, call: CallDelta) -> ToolCall {
        let CallDelta { index, name, arguments } = call;
        let id = name.is_some().then(|| self.format.call_id());
        let begins = name.is_some();
        let kind = |kind| begins.then_some(kind);
        match &mut self.text {
            Some((_, text)) => {
                let custom = Some(Custom { name, input: text.push(&arguments) });
                ToolCall { index: Some(index), id, kind: kind("custom"), function: None, custom }
            }
            None => {
                let function = Some(Function { name, arguments });
                ToolCall { index: Some(index), id, kind: kind("function"), function, custom: None }
            }
        }
    }

    /// Adds what is left of a text whose call is complete.
    fn end_text(&mut self, calls: &mut Vec<ToolCall>) {
        let Some((index, mut text)) = self.text.take() else { return };
        let rest = text.finish();
        if rest.is_empty() {
            return;
        }
        match calls.last_mut() {
            Some(ToolCall { index: last, custom: Some(custom), .. }) if *last == Some(index) => {
                custom.input += &rest
            }
            _ => {
                let custom = Some(Custom { name: None, input: rest });
                calls.push(ToolCall { index: Some(index), id: None, kind: None, function: None, custom });
            }
        }
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
    let name = |of: &Value| {
        let inner = of["function"]["name"].as_str().or(of["custom"]["name"].as_str());
        inner.or(of["name"].as_str()).map(str::to_owned)
    };
    match choice.get("type").map(Value::as_str) {
        None | Some(Some("function" | "custom")) => of(Choice::Named(name(choice).ok_or_else(wrong)?)),
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
        return Err(wrong("must be a function or a custom tool"));
    }
    let Some(function @ Value::Object(_)) = tool.get("function") else {
        return Err(wrong("must have a `function`"));
    };
    let name = check_function(&param, function)?.to_owned();
    let parameters = match function.get("parameters") {
        // A function without parameters.
        None | Some(Value::Null) => {
            json!({"type": "object", "properties": {}, "additionalProperties": false})
        }
        Some(parameters) => parameters.clone(),
    };
    Ok(Tool { name, parameters })
}

/// The name of a function, whose name and parameters are checked.
pub(super) fn check_function<'a>(param: &str, function: &'a Value) -> Result<&'a str, OpenAiError> {
    let wrong = |what: &str| Err(OpenAiError::invalid(param, format!("`{param}` {what}")));
    let name = function["name"].as_str().unwrap_or_default();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(allowed) {
        return wrong("must have a name of at most 128 letters, digits, underscores, dots and dashes");
    }
    match function.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(name),
        Some(_) => wrong("must have a JSON schema as its `parameters`"),
    }
}

/// The one property of the function that stands for a custom tool.
pub(super) const CUSTOM_INPUT: &str = "input";

/// Whether the format of a custom tool allows every text. A grammar is shown to the model, and does not bind it.
pub(super) fn is_text_format(format: &Value) -> bool {
    format.is_null() || format["type"] == "text"
}

/// The function that stands for a custom tool, which is an object with a name and perhaps a description and a format.
pub(super) fn custom_function(tool: &Value) -> Value {
    let mut input = json!({"type": "string"});
    // OpenAI has the definition one level deeper in chat completions than in responses.
    let format = &tool["format"];
    let grammar = if format["grammar"].is_object() { &format["grammar"] } else { format };
    if let Some(definition) = grammar["definition"].as_str() {
        let syntax = grammar["syntax"].as_str().unwrap_or("lark");
        input["description"] = format!("A text that this {syntax} grammar describes:\n{definition}").into();
    }
    let parameters = json!({
        "type": "object", "properties": {CUSTOM_INPUT: input}, "required": [CUSTOM_INPUT], "additionalProperties": false,
    });
    let mut function = json!({"name": tool["name"]});
    if let Some(description) = tool.get("description").filter(|description| description.is_string()) {
        function["description"] = description.clone();
    }
    function["parameters"] = parameters;
    json!({"type": "function", "function": function})
}
