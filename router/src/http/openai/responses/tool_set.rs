//! The tools of `/v1/responses`, and the functions that stand for them.
//!
//! A model calls functions with a name and JSON arguments. A tool in a namespace becomes a function
//! whose name is unique in the request. A custom tool, which takes a text, becomes a function with
//! one string. Calls are translated back, so that the client finds its own names in them. Tools
//! that OpenAI runs itself are left out.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::chat::{
    CUSTOM_INPUT, ChatError, IgnoredFields, MAX_TOOLS, check_function, custom_function, is_text_format,
};

/// Types of tools that OpenAI runs, or that only models trained for them know. The types of dated
/// variants, such as `web_search_preview_2025_03_11`, begin with one of these.
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

/// Returns whether OpenAI runs tools of this type.
fn is_provider_run(kind: &str) -> bool {
    PROVIDER_RUN
        .iter()
        .any(|name| kind.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')))
}

/// The client's name of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct QualifiedName {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

/// The client's tool that a function stands for.
#[derive(Debug, Clone)]
pub(super) struct ClientTool {
    pub(super) name: QualifiedName,
    /// Whether the tool takes a text instead of JSON.
    pub(super) is_custom: bool,
}

/// The client's tools by the names of the functions that stand for them.
pub(super) type ClientTools = HashMap<String, ClientTool>;

/// The tools of one request.
#[derive(Debug, Default)]
pub(super) struct ToolSet {
    /// The functions in the form that chat templates read.
    pub(super) functions: Vec<Value>,
    pub(super) client_tools: ClientTools,
    /// The name of the function for each tool.
    function_names: HashMap<QualifiedName, String>,
    /// Whether a tool was left out because OpenAI runs it.
    has_provider_tools: bool,
}

/// A tool of the request that has been validated and has no function yet.
struct RequestedTool<'a> {
    /// The path of the tool in the request.
    param: String,
    namespace: Option<&'a str>,
    name: &'a str,
    tool: &'a Value,
    is_custom: bool,
}

/// Collects the tools from the lists of a request.
struct ToolCollector<'a, 'i> {
    tools: Vec<RequestedTool<'a>>,
    has_provider_tools: bool,
    ignored: &'i mut IgnoredFields,
}

impl<'a> ToolCollector<'a, '_> {
    fn list(&mut self, place: &str, tools: &'a [Value], namespace: Option<&'a str>) -> Result<(), ChatError> {
        tools
            .iter()
            .enumerate()
            .try_for_each(|(index, tool)| self.tool(format!("{place}[{index}]"), tool, namespace))
    }

    fn tool(&mut self, param: String, tool: &'a Value, namespace: Option<&'a str>) -> Result<(), ChatError> {
        let wrong = |what: &str| Err(ChatError::invalid(&param, format!("`{param}` {what}")));
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
                self.has_provider_tools = true;
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
        self.tools.push(RequestedTool { param, namespace, name, tool, is_custom });
        if self.tools.len() > MAX_TOOLS {
            return Err(ChatError::invalid("tools", format!("`tools` has more than {MAX_TOOLS} entries")));
        }
        Ok(())
    }
}

impl ToolSet {
    /// Reads the tools of these lists, each of which comes with its path. Tools and formats that
    /// have no effect are noted.
    ///
    /// # Errors
    /// The error names the tool that is wrong.
    pub(super) fn new<'a>(
        lists: impl Iterator<Item = (String, &'a [Value])>,
        ignored: &mut IgnoredFields,
    ) -> Result<Self, ChatError> {
        let mut collector = ToolCollector { tools: Vec::new(), has_provider_tools: false, ignored };
        for (place, tools) in lists {
            collector.list(&place, tools, None)?;
        }
        let ToolCollector { tools, has_provider_tools, .. } = collector;
        let mut uses = HashMap::<&str, usize>::new();
        for tool in &tools {
            *uses.entry(tool.name).or_default() += 1;
        }
        let mut set = ToolSet { has_provider_tools, ..ToolSet::default() };
        for tool in &tools {
            let is_unique = uses.get(tool.name) == Some(&1);
            set.add(tool, is_unique)?;
        }
        Ok(set)
    }

    fn add(&mut self, requested: &RequestedTool, is_unique: bool) -> Result<(), ChatError> {
        // Descriptions mention tools by their short names, so the namespace is added only where two
        // names would be equal.
        let function_name = match requested.namespace {
            Some(namespace) if !is_unique => qualified(namespace, requested.name),
            _ => requested.name.to_owned(),
        };
        let name = QualifiedName {
            namespace: requested.namespace.map(str::to_owned),
            name: requested.name.to_owned(),
        };
        let client_tool = ClientTool { name: name.clone(), is_custom: requested.is_custom };
        if self.client_tools.insert(function_name.clone(), client_tool).is_some() {
            let message = format!("`tools` has two tools named {function_name}");
            return Err(ChatError::invalid("tools", message));
        }
        let mut tool =
            if requested.is_custom { custom_function(requested.tool) } else { function(requested.tool) };
        tool["function"]["name"] = function_name.as_str().into();
        // The name is valid, but may be too long with its namespace.
        check_function(&requested.param, &tool["function"])?;
        self.functions.push(tool);
        self.function_names.insert(name, function_name);
        Ok(())
    }

    /// Returns the name of the function for a tool. Earlier messages may have called a tool that
    /// the request no longer has; such a tool keeps its name.
    pub(super) fn function_name<'a>(&'a self, namespace: Option<&str>, name: &'a str) -> &'a str {
        let qualified = QualifiedName { namespace: namespace.map(str::to_owned), name: name.to_owned() };
        self.function_names.get(&qualified).map_or(name, String::as_str)
    }

    /// Replaces the client's tools in `tool_choice` by their functions.
    ///
    /// # Errors
    /// [`ChatError::Invalid`] if the choice requires a tool that OpenAI runs.
    pub(super) fn choice(&self, choice: Option<&Value>) -> Result<Option<Value>, ChatError> {
        let wrong = |message: String| Err(ChatError::invalid("tool_choice", message));
        let Some(choice) = choice.filter(|choice| !choice.is_null()) else { return Ok(None) };
        match choice["type"].as_str() {
            None if choice == "required" && self.functions.is_empty() && self.has_provider_tools => {
                wrong("`tool_choice` requires a call, but OpenAI runs all of `tools`, and this server runs no tools".into())
            }
            None if choice.is_string() => Ok(Some(choice.clone())),
            None | Some("function" | "custom") => match self.function_choice(choice) {
                Some(function) => Ok(Some(function)),
                None => Ok(Some(choice.clone())),
            },
            Some("allowed_tools") => {
                let allowed = choice.get("allowed_tools").unwrap_or(choice);
                let tools = allowed["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
                let client_run = tools.iter().filter(|tool| !tool["type"].as_str().is_some_and(is_provider_run));
                // A tool without a name stays as it is and is refused as a wrong choice.
                let functions: Vec<Value> =
                    client_run.map(|tool| self.function_choice(tool).unwrap_or_else(|| tool.clone())).collect();
                if functions.is_empty() && !tools.is_empty() {
                    return match allowed["mode"].as_str() {
                        Some("auto") => Ok(Some("none".into())),
                        _ => wrong(
                            "`tool_choice` requires one of several tools that OpenAI runs; this server runs no tools"
                                .into(),
                        ),
                    };
                }
                Ok(Some(json!({"type": "allowed_tools", "mode": allowed["mode"], "tools": functions})))
            }
            Some(kind) if is_provider_run(kind) => wrong(format!(
                "`tool_choice` requires a tool of type `{}`, which OpenAI runs; this server runs no tools",
                kind.chars().take(64).collect::<String>()
            )),
            Some(_) => Ok(Some(choice.clone())),
        }
    }

    /// The choice of the function for a tool, if `choice` names a tool.
    fn function_choice(&self, choice: &Value) -> Option<Value> {
        let name = choice["name"].as_str().or_else(|| choice["function"]["name"].as_str())?;
        let name = self.function_name(choice["namespace"].as_str(), name);
        Some(json!({"type": "function", "function": {"name": name}}))
    }
}

/// Returns the name of a function with its namespace, which may end in underscores of its own.
fn qualified(namespace: &str, name: &str) -> String {
    format!("{}__{name}", namespace.trim_end_matches('_'))
}

/// Returns a function in the form that chat templates read.
fn function(tool: &Value) -> Value {
    let mut function = json!({"name": tool["name"]});
    for field in ["description", "parameters"] {
        if let Some(value) = tool.get(field).filter(|value| !value.is_null()) {
            function[field] = value.clone();
        }
    }
    json!({"type": "function", "function": function})
}

/// Returns the arguments of the function that stands for a custom tool.
pub(super) fn custom_arguments(input: &str) -> Value {
    json!({CUSTOM_INPUT: input})
}
