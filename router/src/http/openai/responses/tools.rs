//! Tools in the form of `/v1/responses`, where a function's fields stand beside its type.

use serde_json::{Value, json};

use super::super::error::OpenAiError;

/// The same in the form of `/v1/chat/completions`.
pub(super) fn functions(tools: &[Value]) -> Result<Vec<Value>, OpenAiError> {
    tools.iter().enumerate().map(|(index, tool)| function(&format!("tools[{index}]"), tool)).collect()
}

fn function(param: &str, tool: &Value) -> Result<Value, OpenAiError> {
    match tool["type"].as_str() {
        Some("function") => {}
        Some(kind) => {
            let message = format!("`{param}` is of type `{kind}`, which is not supported; functions are");
            return Err(OpenAiError::invalid(param, message));
        }
        None => {
            let message = format!("`{param}` must have the type function");
            return Err(OpenAiError::invalid(param, message));
        }
    }
    let mut function = json!({"name": tool["name"]});
    for field in ["description", "parameters"] {
        if let Some(value) = tool.get(field).filter(|value| !value.is_null()) {
            function[field] = value.clone();
        }
    }
    Ok(json!({"type": "function", "function": function}))
}
