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
        let calls = message.get("tool_calls").and_then(Value::as_array).filter(|calls| !calls.is_empty());
        let Some(calls) = calls else { continue };
        // The text is built once: a message may have tens of thousands of calls.
        let mut text = message["content"].as_str().unwrap_or_default().to_owned();
        for call in calls {
            let function = &call["function"];
            if !text.is_empty() {
                text.push('\n');
            }
            text += &format.write(function["name"].as_str().unwrap_or_default(), &function["arguments"]);
        }
        message["content"] = text.into();
    }
}

fn append(message: &mut Value, text: &str) {
    let content = message["content"].as_str().unwrap_or_default();
    message["content"] = format!("{content}{text}").into();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use millrace_text::thread_time;

    fn messages(calls: usize) -> Vec<Value> {
        let call = json!({"function": {"name": "get", "arguments": {"n": 1}}});
        vec![json!({"role": "assistant", "content": "Wait.", "tool_calls": vec![call; calls]})]
    }

    #[test]
    fn calls_follow_the_text_in_lines_of_their_own() {
        let mut two = messages(2);
        show_calls(&mut two, ToolFormat::Json);
        let call = "{\"name\": \"get\", \"arguments\": {\"n\":1}}";
        assert_eq!(two[0]["content"], format!("Wait.\n{call}\n{call}"));
        let mut none = messages(0);
        show_calls(&mut none, ToolFormat::Json);
        assert_eq!(none[0]["content"], "Wait.");
    }

    /// Four times the calls take about four times as long. Quadratic work takes 16 times as long.
    /// The factor of 10 tolerates a noisy machine.
    #[test]
    fn many_calls_take_linear_time() {
        let time = |calls: usize| {
            let fastest = (0..5).map(|_| {
                let mut messages = messages(calls);
                let since = thread_time();
                show_calls(&mut messages, ToolFormat::Json);
                thread_time() - since
            });
            fastest.min().unwrap_or_default()
        };
        let (short, long) = (time(8_000), time(32_000));
        assert!(long < short * 10 + Duration::from_millis(50), "{short:?}, then {long:?}");
    }
}
