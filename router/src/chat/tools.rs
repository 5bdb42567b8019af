//! The tools of a request, and the choice among them.

use std::collections::HashSet;

use millrace_answers::grammar::with_plain_references;
use millrace_answers::tools::{AllowedTools, Tool, ToolChoice};
use serde_json::{Value, json};

use super::custom_tools::{custom_function, is_text_format};
use super::error::ChatError;
use super::ignored::IgnoredFields;

/// The most tools of one request.
pub(crate) const MAX_TOOLS: usize = 128;
/// Characters of the longest name of a tool.
const MAX_TOOL_NAME: usize = 128;

/// The fields of a request that are about tools.
#[derive(Debug, Default)]
pub(crate) struct ToolOptions {
    /// The tools in the form that chat templates read:
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`, or a custom tool.
    pub(crate) tools: Vec<Value>,
    /// The tools that may or must be called.
    pub(crate) selection: ToolSelection,
    /// Whether an answer may have several calls; `None` allows it.
    pub(crate) parallel: Option<bool>,
}

/// The tools that an answer may or must call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum ToolSelection {
    /// The model decides whether to call a tool.
    #[default]
    Auto,
    /// No tool may be called.
    Never,
    /// At least one tool must be called.
    Required,
    /// The tool of this name must be called.
    Named(String),
    /// Only these tools may be called.
    Among {
        /// The names of the tools.
        names: Vec<String>,
        /// Whether at least one of them must be called.
        required: bool,
    },
}

/// The tools that may be called in the answers to a request.
#[derive(Debug)]
pub(super) struct CallableTools {
    pub(super) tools: AllowedTools,
    /// The names of the custom tools among them.
    pub(super) custom: HashSet<String>,
}

impl CallableTools {
    /// Returns the names of the tools that the choice permits.
    pub(super) fn names(&self) -> impl Iterator<Item = String> {
        self.tools.callable().map(|tool| tool.name.clone())
    }
}

impl ToolOptions {
    /// Validates the tools and returns those that may be called, or `None` if none may. Custom
    /// tools are replaced by functions, since templates know nothing else.
    ///
    /// # Errors
    /// [`ChatError::Invalid`] names the tool that is wrong, or the choice.
    pub(super) fn check(&mut self, ignored: &mut IgnoredFields) -> Result<Option<CallableTools>, ChatError> {
        let mut custom = HashSet::new();
        for (index, tool) in self.tools.iter_mut().enumerate() {
            if tool["type"] == "custom" && tool["custom"].is_object() {
                if !is_text_format(&tool["custom"]["format"]) {
                    ignored.note(&format!("tools[{index}].custom.format"));
                }
                *tool = custom_function(&tool["custom"]);
                custom.extend(tool["function"]["name"].as_str().map(str::to_owned));
            }
        }
        Ok(self.callable()?.map(|tools| CallableTools { tools, custom }))
    }

    fn callable(&self) -> Result<Option<AllowedTools>, ChatError> {
        if self.tools.is_empty() {
            return match self.selection {
                ToolSelection::Auto | ToolSelection::Never => Ok(None),
                _ => Err(ChatError::invalid("tool_choice", "`tool_choice` needs `tools`")),
            };
        }
        let mut tools = self.validated()?;
        let (choice, only) = match &self.selection {
            ToolSelection::Never => return Ok(None),
            ToolSelection::Auto => (ToolChoice::Auto, None),
            ToolSelection::Required => (ToolChoice::Required, None),
            ToolSelection::Named(name) => (ToolChoice::Named(name.clone()), None),
            ToolSelection::Among { names, required: true } => (ToolChoice::Required, Some(names)),
            ToolSelection::Among { names, required: false } => (ToolChoice::Auto, Some(names)),
        };
        let named = if let ToolChoice::Named(name) = &choice { Some(name) } else { None };
        let unknown = named
            .into_iter()
            .chain(only.into_iter().flatten())
            .find(|name| !tools.iter().any(|tool| tool.name == **name));
        if let Some(name) = unknown {
            return Err(ChatError::invalid("tool_choice", format!("Tool with name {name} not found")));
        }
        if let Some(only) = only {
            tools.retain(|tool| only.contains(&tool.name));
        }
        // A choice that names a function asks for one call of it.
        let parallel = self.parallel.unwrap_or(true) && !matches!(choice, ToolChoice::Named(_));
        Ok(Some(AllowedTools { tools, choice, parallel }))
    }

    /// All tools of the request, whose names differ.
    fn validated(&self) -> Result<Vec<Tool>, ChatError> {
        if self.tools.len() > MAX_TOOLS {
            return Err(ChatError::invalid("tools", format!("`tools` has more than {MAX_TOOLS} entries")));
        }
        let tools = self.tools.iter().enumerate().map(|(index, asked)| tool(index, asked));
        let tools = tools.collect::<Result<Vec<_>, _>>()?;
        for (index, tool) in tools.iter().enumerate() {
            if tools[..index].iter().any(|other| other.name == tool.name) {
                let message = format!("`tools` has two functions named {}", tool.name);
                return Err(ChatError::invalid("tools", message));
            }
        }
        Ok(tools)
    }
}

/// Validates a tool and returns its name and the schema of its arguments.
fn tool(index: usize, tool: &Value) -> Result<Tool, ChatError> {
    let param = format!("tools[{index}]");
    let wrong = |what: &str| ChatError::invalid(&param, format!("`{param}` {what}"));
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
        // References move with the schema, which only plain paths allow.
        Some(parameters) => with_plain_references(parameters.clone()),
    };
    Ok(Tool { name, parameters })
}

/// Validates the name and the parameters of a function and returns the name.
pub(crate) fn check_function<'a>(param: &str, function: &'a Value) -> Result<&'a str, ChatError> {
    let wrong = |what: &str| Err(ChatError::invalid(param, format!("`{param}` {what}")));
    let name = function["name"].as_str().unwrap_or_default();
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > MAX_TOOL_NAME || !name.chars().all(is_allowed) {
        return wrong("must have a name of at most 128 letters, digits, underscores, dots and dashes");
    }
    match function.get("parameters") {
        None | Some(Value::Null | Value::Object(_)) => Ok(name),
        Some(_) => wrong("must have a JSON schema as its `parameters`"),
    }
}
