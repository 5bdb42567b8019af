//! Tools in Anthropic's form.

use serde_json::{Value, json};

use crate::http::ignored::Ignored;
use crate::http::openai::{Asked, OpenAiError};

/// The same in the form of OpenAI's `/v1/chat/completions`.
///
/// Tools of Anthropic's own types have no `input_schema`: Anthropic runs them, or has trained its models on them. They are
/// left out and noted in `ignored`, unless the choice requires one of them.
///
/// # Errors
/// If the tools or the choice are malformed, or the choice leaves nothing but tools that are not served.
pub(super) fn asked(
    tools: Option<&[Value]>,
    choice: Option<&Value>,
    ignored: &mut Ignored,
) -> Result<Asked, OpenAiError> {
    let choice = choice.filter(|choice| !choice.is_null());
    let once = choice.and_then(|choice| choice["disable_parallel_tool_use"].as_bool());
    let (mut functions, mut left_out) = (Vec::new(), None);
    for (index, tool) in tools.unwrap_or_default().iter().enumerate() {
        let param = format!("tools[{index}]");
        let Some(kind) = provided(tool) else {
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
    Ok(Asked {
        tools: tools.map(|_| functions),
        choice: choice.map(chosen).transpose()?,
        parallel: once.map(|once| !once),
    })
}

/// The type of a tool that Anthropic provides. A tool with a schema is the client's own, whatever its type.
fn provided(tool: &Value) -> Option<&str> {
    let kind = tool["type"].as_str().filter(|kind| *kind != "custom")?;
    (!tool["input_schema"].is_object()).then_some(kind)
}

fn not_served(param: &str, kind: &str) -> OpenAiError {
    let kind: String = kind.chars().take(64).collect();
    let message = format!(
        "`{param}` is of type `{kind}`, which is not supported; tools of your own, with an `input_schema`, are"
    );
    OpenAiError::invalid(param, message)
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
