//! Custom tools: tools that take a text instead of JSON.
//!
//! Models call functions with JSON arguments. A custom tool is therefore shown to the model as a
//! function with one string property, and the string of a call is the text for the tool.

use serde_json::{Value, json};

/// The one property of the function that stands for a custom tool.
pub(crate) const CUSTOM_INPUT: &str = "input";

/// Returns whether the format of a custom tool allows every text. Another format is a grammar,
/// which is shown to the model and does not constrain the answer.
pub(crate) fn is_text_format(format: &Value) -> bool {
    format.is_null() || format["type"] == "text"
}

/// Returns the function that stands for a custom tool. `tool` is an object with a name, and
/// optionally a description and a format.
pub(crate) fn custom_function(tool: &Value) -> Value {
    let mut input = json!({"type": "string"});
    // The definition is one level deeper in OpenAI's chat completions than in its responses.
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
