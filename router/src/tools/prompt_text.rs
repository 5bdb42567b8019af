//! Tools and calls as text in messages, for models whose chat template does not support them.

use serde_json::{Value, json};

use super::format::ToolFormat;

/// Appends a description of the tools to the last message that is not the assistant's, in the same
/// way as text-generation-inference. `unseen` are the tools that the template does not show.
/// `prompt` is the client's instruction on how to use them.
pub fn show_tools(
    messages: &mut Vec<Value>,
    unseen: Option<&[Value]>,
    prompt: Option<&str>,
    format: ToolFormat,
) {
    let usual = || {
        let call = format.write("NAME", &json!({"KEY": "VALUE"}));
        format!(
            "These are functions. To call one, answer with nothing but its name and arguments, like this: {call}"
        )
    };
    let text = match (unseen, prompt.filter(|prompt| !prompt.is_empty())) {
        (None, None) => return,
        (None, Some(prompt)) => format!("\n---\n{prompt}"),
        (Some(tools), prompt) => {
            let prompt = prompt.map_or_else(usual, str::to_owned);
            format!("\n---\n{}\n{prompt}", Value::from(tools))
        }
    };
    match messages.iter_mut().rfind(|message| message["role"] != "assistant") {
        Some(message) => append(message, &text),
        None => messages.insert(0, json!({"role": "system", "content": text.trim_start()})),
    }
}

/// Appends the assistant's calls to its messages, in the model's format.
pub fn show_calls(messages: &mut [Value], format: ToolFormat) {
    for message in messages {
        let calls = message.get("tool_calls").and_then(Value::as_array).cloned().unwrap_or_default();
        for call in &calls {
            let function = &call["function"];
            let between = if message["content"].as_str().is_none_or(str::is_empty) { "" } else { "\n" };
            let name = function["name"].as_str().unwrap_or_default();
            append(message, &format!("{between}{}", format.write(name, &function["arguments"])));
        }
    }
}

fn append(message: &mut Value, text: &str) {
    let content = message["content"].as_str().unwrap_or_default();
    message["content"] = format!("{content}{text}").into();
}
