//! The field `tool_choice`, in OpenAI's forms and TGI's.

use serde_json::Value;

use crate::chat::{ChatError, ToolSelection};

/// Reads a choice: a mode, a function's name as TGI has it, or one of the objects that chat
/// completions and responses have for a function and for a list of allowed tools.
///
/// # Errors
/// [`ChatError::Invalid`] if the choice has none of these forms.
pub(in crate::http) fn tool_selection(choice: Option<&Value>) -> Result<ToolSelection, ChatError> {
    let wrong = || {
        let message = "`tool_choice` must be auto, none, required, a function's name, or allowed_tools with a mode and functions";
        ChatError::invalid("tool_choice", message)
    };
    let Some(choice) = choice.filter(|choice| !choice.is_null()) else { return Ok(ToolSelection::Auto) };
    if let Value::String(choice) = choice {
        return Ok(match choice.as_str() {
            "auto" => ToolSelection::Auto,
            "none" => ToolSelection::Never,
            "required" => ToolSelection::Required,
            name => ToolSelection::Named(name.to_owned()),
        });
    }
    match choice.get("type").map(Value::as_str) {
        None | Some(Some("function" | "custom")) => {
            Ok(ToolSelection::Named(tool_name(choice).ok_or_else(wrong)?))
        }
        Some(Some("allowed_tools")) => {
            let allowed = choice.get("allowed_tools").unwrap_or(choice);
            let tools = allowed["tools"].as_array().filter(|tools| !tools.is_empty()).ok_or_else(wrong)?;
            let names = tools.iter().map(tool_name).collect::<Option<_>>().ok_or_else(wrong)?;
            let required = match allowed["mode"].as_str() {
                Some("auto") => false,
                Some("required") => true,
                _ => return Err(wrong()),
            };
            Ok(ToolSelection::Among { names, required })
        }
        Some(_) => Err(wrong()),
    }
}

/// The name of a tool: inside of an object in chat completions, and directly in responses.
fn tool_name(tool: &Value) -> Option<String> {
    let inner = tool["function"]["name"].as_str().or(tool["custom"]["name"].as_str());
    inner.or(tool["name"].as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_form_of_a_choice_is_read() {
        let named = ToolSelection::Named("f".into());
        let among = |required| ToolSelection::Among { names: vec!["f".into(), "g".into()], required };
        let list = json!([{"type": "function", "function": {"name": "f"}}, {"type": "custom", "name": "g"}]);
        for (choice, selection) in [
            (Value::Null, ToolSelection::Auto),
            (json!("auto"), ToolSelection::Auto),
            (json!("none"), ToolSelection::Never),
            (json!("required"), ToolSelection::Required),
            (json!("f"), named.clone()),
            (json!({"type": "function", "function": {"name": "f"}}), named.clone()),
            (json!({"type": "function", "name": "f"}), named.clone()),
            (json!({"type": "custom", "custom": {"name": "f"}}), named.clone()),
            (json!({"function": {"name": "f"}}), named),
            (json!({"type": "allowed_tools", "mode": "auto", "tools": list}), among(false)),
            (
                json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": list}}),
                among(true),
            ),
        ] {
            assert_eq!(tool_selection(Some(&choice)), Ok(selection), "{choice}");
        }
        for wrong in [
            json!(5),
            json!({"type": "web_search"}),
            json!({"type": "function"}),
            json!({"type": "allowed_tools", "mode": "auto", "tools": []}),
            json!({"type": "allowed_tools", "mode": "none", "tools": list}),
            json!({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]}),
        ] {
            assert!(tool_selection(Some(&wrong)).is_err(), "{wrong}");
        }
    }
}
