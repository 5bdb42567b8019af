//! Translation of Anthropic's tools.

use serde_json::{Value, json};

use super::error::MessagesError;
use crate::chat::{IgnoredFields, ToolOptions, ToolSelection};

/// Translates the tools and the choice for the chat core.
///
/// Tools of Anthropic's own types have no `input_schema`: Anthropic runs them, or has trained its
/// models on them. They are left out and noted in `ignored`, unless the choice requires one of
/// them.
///
/// # Errors
/// The error says that a tool or the choice is malformed, or that the choice requires a
/// tool that is not served.
pub(super) fn tool_options(
    tools: Option<&[Value]>,
    choice: Option<&Value>,
    ignored: &mut IgnoredFields,
) -> Result<ToolOptions, MessagesError> {
    let choice = choice.filter(|choice| !choice.is_null());
    let disables_parallel = choice.and_then(|choice| choice["disable_parallel_tool_use"].as_bool());
    let (mut functions, mut left_out) = (Vec::new(), None);
    for (index, tool) in tools.unwrap_or_default().iter().enumerate() {
        let param = format!("tools[{index}]");
        let Some(kind) = provided_type(tool) else {
            functions.push(function(&param, tool)?);
            continue;
        };
        let name = tool["name"].as_str().unwrap_or(kind);
        if choice.is_some_and(|choice| choice["type"] == "tool" && choice["name"] == name) {
            return Err(not_served(&param, kind));
        }
        ignored.note(&format!("tools.{name}"));
        left_out.get_or_insert((param, kind));
    }
    if let (Some((param, kind)), true) = (left_out, functions.is_empty())
        && choice.is_some_and(|choice| choice["type"] == "any")
    {
        return Err(not_served(&param, kind));
    }
    Ok(ToolOptions {
        tools: functions,
        selection: choice.map(selection).transpose()?.unwrap_or_default(),
        parallel: disables_parallel.map(|disables| !disables),
    })
}

/// Returns the type of a tool that Anthropic provides. A tool with a schema is the client's own,
/// whatever its type is.
fn provided_type(tool: &Value) -> Option<&str> {
    let kind = tool["type"].as_str().filter(|kind| *kind != "custom")?;
    (!tool["input_schema"].is_object()).then_some(kind)
}

/// The error of a choice that requires a tool which Anthropic provides.
fn not_served(param: &str, kind: &str) -> MessagesError {
    let kind: String = kind.chars().take(64).collect();
    let message = format!(
        "`{param}` is of type `{kind}`, which is not supported; your own tools, with an `input_schema`, are supported"
    );
    MessagesError::invalid(message)
}

fn selection(choice: &Value) -> Result<ToolSelection, MessagesError> {
    match (choice["type"].as_str(), choice["name"].as_str()) {
        (Some("auto"), _) => Ok(ToolSelection::Auto),
        (Some("none"), _) => Ok(ToolSelection::Never),
        (Some("any"), _) => Ok(ToolSelection::Required),
        (Some("tool"), Some(name)) => Ok(ToolSelection::Named(name.to_owned())),
        _ => {
            let message = "`tool_choice` must have one of the types auto, any, none, and tool with a `name`";
            Err(MessagesError::invalid(message))
        }
    }
}

/// Translates a tool of the client to the form that chat templates read.
fn function(param: &str, tool: &Value) -> Result<Value, MessagesError> {
    if !tool["input_schema"].is_object() {
        let message = format!("`{param}` must have a JSON schema as its `input_schema`");
        return Err(MessagesError::invalid(message));
    }
    let mut function = json!({"name": tool["name"]});
    if let Some(description) = tool.get("description").filter(|description| !description.is_null()) {
        function["description"] = description.clone();
    }
    function["parameters"] = tool["input_schema"].clone();
    Ok(json!({"type": "function", "function": function}))
}
