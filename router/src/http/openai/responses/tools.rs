//! Tools of `/v1/responses`, and the functions that the model is shown for them.
//!
//! A model calls functions with a name and JSON arguments. A tool in a namespace becomes a function whose name is unique in
//! the request. A custom tool, which takes a text, becomes a function with one string. Calls are translated back, so that
//! the client finds its own names in them. Tools that the provider runs have no function: they are left out.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::super::error::OpenAiError;
use super::super::tools::{CUSTOM_INPUT, MOST_TOOLS, check_function, custom_function, is_text_format};
use crate::http::ignored::Ignored;

/// Types of tools that OpenAI runs, or that only models trained for them know. Dated variants such as
/// `web_search_preview_2025_03_11` begin with one of them.
const PROVIDER_RUN: &[&str] = &[
    "apply_patch",
    "code_interpreter",
    "computer",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "shell",
    "tool_search",
    "web_search",
];

/// Whether the provider runs tools of this type.
fn is_provider_run(kind: &str) -> bool {
    PROVIDER_RUN
        .iter()
        .any(|name| kind.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))
}

/// A tool as the client named it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// A tool that a function stands for.
#[derive(Debug, Clone)]
pub(super) struct Shown {
    pub(super) origin: Origin,
    /// It takes a text instead of JSON.
    pub(super) is_custom: bool,
}

/// The tools of a request by the names of their functions.
pub(super) type Functions = HashMap<String, Shown>;

/// The tools of one request.
#[derive(Debug, Default)]
pub(super) struct ToolSet {
    /// In the form of `/v1/chat/completions`.
    pub(super) functions: Vec<Value>,
    pub(super) shown: Functions,
    /// The name of the function for each tool.
    names: HashMap<Origin, String>,
    /// Whether a tool was left out because the provider runs it.
    left_out: bool,
}

/// A tool of the request, before its function has a name.
struct Entry<'a> {
    /// Where it stands in the request.
    param: String,
    namespace: Option<&'a str>,
    name: &'a str,
    tool: &'a Value,
    is_custom: bool,
}

/// Goes through the lists of tools in a request.
struct Collector<'a, 'i> {
    entries: Vec<Entry<'a>>,
    left_out: bool,
    ignored: &'i mut Ignored,
}

impl<'a> Collector<'a, '_> {
    fn list(
        &mut self,
        place: &str,
        tools: &'a [Value],
        namespace: Option<&'a str>,
    ) -> Result<(), OpenAiError> {
        tools
            .iter()
            .enumerate()
            .try_for_each(|(index, tool)| self.tool(format!("{place}[{index}]"), tool, namespace))
    }

    fn tool(
        &mut self,
        param: String,
        tool: &'a Value,
        namespace: Option<&'a str>,
    ) -> Result<(), OpenAiError> {
        let wrong = |what: &str| Err(OpenAiError::invalid(&param, format!("`{param}` {what}")));
        let is_custom = match tool["type"].as_str() {
            Some("function") => false,
            Some("custom") => true,
            Some("namespace") if namespace.is_none() => {
                let (Some(name), Some(tools)) = (tool["name"].as_str(), tool["tools"].as_array()) else {
                    return wrong("must have a name and a list of `tools`, as it is a namespace");
                };
                return self.list(&format!("{param}.tools"), tools, Some(name));
            }
            Some(kind) if is_provider_run(kind) => {
                self.ignored.note(&param);
                self.left_out = true;
                return Ok(());
            }
            Some(kind) => {
                let kind: String = kind.chars().take(64).collect();
                return wrong(&format!(
                    "is of type `{kind}`, which is not supported; functions and custom tools are"
                ));
            }
            None => return wrong("must have the type function, custom or namespace"),
        };
        let name = check_function(&param, tool)?;
        if is_custom && !is_text_format(&tool["format"]) {
            self.ignored.note(&format!("{param}.format"));
        }
        self.entries.push(Entry { param, namespace, name, tool, is_custom });
        if self.entries.len() > MOST_TOOLS {
            return Err(OpenAiError::invalid("tools", format!("`tools` has more than {MOST_TOOLS} entries")));
        }
        Ok(())
    }
}

impl ToolSet {
    /// The tools in these lists, each with the place that it has in the request. What has no effect is noted.
    pub(super) fn new<'a>(
        lists: impl Iterator<Item = (String, &'a [Value])>,
        ignored: &mut Ignored,
    ) -> Result<Self, OpenAiError> {
        let mut collector = Collector { entries: Vec::new(), left_out: false, ignored };
        for (place, tools) in lists {
            collector.list(&place, tools, None)?;
        }
        let Collector { entries, left_out, .. } = collector;
        let mut uses = HashMap::<&str, usize>::new();
        for entry in &entries {
            *uses.entry(entry.name).or_default() += 1;
        }
        let mut set = ToolSet { left_out, ..ToolSet::default() };
        for entry in &entries {
            let is_unique = uses.get(entry.name) == Some(&1);
            set.add(entry, is_unique)?;
        }
        Ok(set)
    }

    fn add(&mut self, entry: &Entry, is_unique: bool) -> Result<(), OpenAiError> {
        // Descriptions speak of tools by their short names, so a namespace is added only where names would be equal.
        let function_name = match entry.namespace {
            Some(namespace) if !is_unique => qualified(namespace, entry.name),
            _ => entry.name.to_owned(),
        };
        let origin = Origin { namespace: entry.namespace.map(str::to_owned), name: entry.name.to_owned() };
        let shown = Shown { origin: origin.clone(), is_custom: entry.is_custom };
        if self.shown.insert(function_name.clone(), shown).is_some() {
            let message = format!("`tools` has two tools named {function_name}");
            return Err(OpenAiError::invalid("tools", message));
        }
        let mut tool = if entry.is_custom { custom_function(entry.tool) } else { function(entry.tool) };
        tool["function"]["name"] = function_name.as_str().into();
        // The name has been checked; with its namespace it may have become too long.
        check_function(&entry.param, &tool["function"])?;
        self.functions.push(tool);
        self.names.insert(origin, function_name);
        Ok(())
    }

    /// The name of the function for a tool, which earlier turns may have called and the request no longer has.
    pub(super) fn name<'a>(&'a self, namespace: Option<&str>, name: &'a str) -> &'a str {
        let origin = Origin { namespace: namespace.map(str::to_owned), name: name.to_owned() };
        self.names.get(&origin).map_or(name, String::as_str)
    }

    /// The request's `tool_choice` in the terms of the functions.
    pub(super) fn choice(&self, choice: Option<&Value>) -> Result<Option<Value>, OpenAiError> {
        let wrong = |message: String| Err(OpenAiError::invalid("tool_choice", message));
        let Some(choice) = choice.filter(|choice| !choice.is_null()) else { return Ok(None) };
        match choice["type"].as_str() {
            None if choice == "required" && self.functions.is_empty() && self.left_out => {
                wrong("`tool_choice` requires a call, but the provider runs all of `tools`, and this server runs none".into())
            }
            None if choice.is_string() => Ok(Some(choice.clone())),
            None | Some("function" | "custom") => match self.chosen(choice) {
                Some(function) => Ok(Some(function)),
                None => Ok(Some(choice.clone())),
            },
            Some("allowed_tools") => {
                let allowed = choice.get("allowed_tools").unwrap_or(choice);
                let tools = allowed["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
                let client_run = tools.iter().filter(|tool| !tool["type"].as_str().is_some_and(is_provider_run));
                // What is no function stays as it is, and is refused like any other wrong choice.
                let functions: Vec<Value> =
                    client_run.map(|tool| self.chosen(tool).unwrap_or_else(|| tool.clone())).collect();
                if functions.is_empty() && !tools.is_empty() {
                    return match allowed["mode"].as_str() {
                        Some("auto") => Ok(Some("none".into())),
                        _ => wrong(
                            "`tool_choice` requires one of several tools, which the provider runs; this server runs none"
                                .into(),
                        ),
                    };
                }
                Ok(Some(json!({"type": "allowed_tools", "mode": allowed["mode"], "tools": functions})))
            }
            Some(kind) if is_provider_run(kind) => wrong(format!(
                "`tool_choice` requires a tool of type `{}`, which the provider runs; this server runs none",
                kind.chars().take(64).collect::<String>()
            )),
            Some(_) => Ok(Some(choice.clone())),
        }
    }

    /// The function for a tool that a choice names.
    fn chosen(&self, choice: &Value) -> Option<Value> {
        let name = choice["name"].as_str().or_else(|| choice["function"]["name"].as_str())?;
        let name = self.name(choice["namespace"].as_str(), name);
        Some(json!({"type": "function", "function": {"name": name}}))
    }
}

/// The name of a function with its namespace, which may end in underscores of its own.
fn qualified(namespace: &str, name: &str) -> String {
    format!("{}__{name}", namespace.trim_end_matches('_'))
}

/// A function in the form of `/v1/chat/completions`.
fn function(tool: &Value) -> Value {
    let mut function = json!({"name": tool["name"]});
    for field in ["description", "parameters"] {
        if let Some(value) = tool.get(field).filter(|value| !value.is_null()) {
            function[field] = value.clone();
        }
    }
    json!({"type": "function", "function": function})
}

/// The arguments of the function for a call of a custom tool.
pub(super) fn custom_arguments(input: &str) -> Value {
    json!({CUSTOM_INPUT: input})
}
