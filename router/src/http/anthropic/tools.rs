//! Tools in Anthropic's form.

use serde_json::{Value, json};

use crate::http::openai::{Asked, OpenAiError};

/// The same in the form of OpenAI's `/v1/chat/completions`.
pub(super) fn asked(tools: Option<&[Value]>, choice: Option<&Value>) -> Result<Asked, OpenAiError> {
    let tool = |(index, tool)| function(&format!("tools[{index}]"), tool);
    let choice = choice.filter(|choice| !choice.is_null());
    let once = choice.and_then(|choice| choice["disable_parallel_tool_use"].as_bool());
    Ok(Asked {
        tools: tools.map(|tools| tools.iter().enumerate().map(tool).collect()).transpose()?,
        choice: choice.map(chosen).transpose()?,
        parallel: once.map(|once| !once),
    })
}

fn chosen(choice: &Value) -> Result<Value, OpenAiError> {
    match (choice["type"].as_str(), choice["name"].as_str()) {
        (Some(kind @ ("auto" | "none")), _) => Ok(kind.into()),
        (Some("any"), _) => Ok("required".into()),
        (Some("tool"), Some(name)) => Ok(json!({"type": "function", "function": {"name": name}})),
        _ => {
            let message = "`tool_choice` must have one of the types auto, any, none, and tool with a `name`";
            Err(OpenAiError::invalid("tool_choice", message))
        }
    }
}

fn function(param: &str, tool: &Value) -> Result<Value, OpenAiError> {
    if let Some(kind) = tool["type"].as_str().filter(|kind| *kind != "custom") {
        let message = format!("`{param}` is of type `{kind}`, which is not supported; tools of your own are");
        return Err(OpenAiError::invalid(param, message));
    }
    if !tool["input_schema"].is_object() {
        let message = format!("`{param}` must have a JSON schema as its `input_schema`");
        return Err(OpenAiError::invalid(param, message));
    }
    let mut function = json!({"name": tool["name"]});
    if let Some(description) = tool.get("description").filter(|description| !description.is_null()) {
        function["description"] = description.clone();
    }
    function["parameters"] = tool["input_schema"].clone();
    Ok(json!({"type": "function", "function": function}))
}
