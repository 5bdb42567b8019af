//! Translation of input items to messages.

use std::collections::HashSet;

use serde_json::Value;

use super::super::error::OpenAiError;
use super::tool_set::{ToolSet, custom_arguments};
use crate::chat::{IgnoredFields, Transcript, call_arguments};

/// Types of items about tools that only OpenAI or its models know. Templates cannot show them.
const SKIPPED_ITEMS: &[&str] = &[
    "apply_patch_call",
    "apply_patch_call_output",
    "code_interpreter_call",
    "compaction",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "ghost_snapshot",
    "image_generation_call",
    "item_reference",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
];

/// The type of an item that has tools. For some models, Codex sends it instead of the field
/// `tools`.
const ADDITIONAL_TOOLS: &str = "additional_tools";

/// Returns the lists of tools in a request, each with its path.
pub(super) fn tool_lists<'a>(
    tools: Option<&'a [Value]>,
    input: &'a Value,
) -> impl Iterator<Item = (String, &'a [Value])> {
    let items = input.as_array().map(Vec::as_slice).unwrap_or_default();
    let additional = items.iter().enumerate().filter(|(_, item)| item["type"] == ADDITIONAL_TOOLS);
    let lists = additional.filter_map(|(index, item)| {
        Some((format!("input[{index}].tools"), item["tools"].as_array()?.as_slice()))
    });
    tools.map(|tools| ("tools".to_owned(), tools)).into_iter().chain(lists)
}

/// The parts of a request that become messages.
pub(super) struct ConversationInput<'a> {
    pub(super) instructions: Option<&'a str>,
    pub(super) input: &'a Value,
    pub(super) tools: &'a ToolSet,
    /// Whether the template can show the reasoning of earlier messages.
    pub(super) reads_reasoning: bool,
}

impl ConversationInput<'_> {
    /// Returns the messages for the template: first the instructions, then the input, which is a
    /// text or a list of items. Items that have no effect are noted.
    ///
    /// # Errors
    /// The error names the item that is wrong.
    pub(super) fn messages(&self, ignored: &mut IgnoredFields) -> Result<Vec<Value>, OpenAiError> {
        let mut reader =
            ItemReader { source: self, transcript: Transcript::default(), skipped: HashSet::new(), ignored };
        if let Some(text) = self.instructions {
            reader.say("system", text.to_owned());
        }
        match self.input {
            Value::String(text) => reader.say("user", text.clone()),
            Value::Array(items) if items.is_empty() => {
                return Err(OpenAiError::invalid("input", "`input` cannot be empty"));
            }
            Value::Array(items) => {
                let mut has_message = false;
                for (index, item) in items.iter().enumerate() {
                    has_message |= reader.item(index, item)?;
                }
                if !has_message {
                    let message = "`input` has no message. This server stores no items that it could refer to, and \
                                   items of tools that OpenAI runs cannot be shown to the model";
                    return Err(OpenAiError::invalid("input", message));
                }
            }
            _ => return Err(OpenAiError::invalid("input", "`input` must be a text or a list of items")),
        }
        Ok(reader.transcript.into_messages())
    }
}

/// Translates the items one after the other.
struct ItemReader<'a, 's> {
    source: &'a ConversationInput<'s>,
    transcript: Transcript,
    /// The ids of calls that have been skipped, whose outputs are skipped, too.
    skipped: HashSet<&'a str>,
    ignored: &'a mut IgnoredFields,
}

impl<'a> ItemReader<'a, '_> {
    /// Adds a message.
    fn say(&mut self, role: &str, text: String) {
        match role {
            "system" => self.transcript.say_system(text),
            role => self.transcript.say(role, text),
        }
    }

    /// Adds an item. Returns whether it is a message, a call or the output of a call.
    fn item(&mut self, index: usize, item: &'a Value) -> Result<bool, OpenAiError> {
        let param = format!("input[{index}]");
        let wrong = |what: String| OpenAiError::invalid(&param, format!("`{param}` {what}"));
        let field = |name: &str| {
            item[name].as_str().ok_or_else(|| wrong(format!("must have a text as its `{name}`")))
        };
        match item.get("type").and_then(Value::as_str) {
            None | Some("message") => {
                let role = match item["role"].as_str() {
                    Some(role @ ("user" | "assistant" | "system")) => role,
                    // OpenAI's newer name of the system role, which templates do not know.
                    Some("developer") => "system",
                    _ => {
                        return Err(wrong(
                            "must have one of the roles user, assistant, system and developer".into(),
                        ));
                    }
                };
                self.say(role, text(&item["content"], "content").map_err(wrong)?);
            }
            Some("function_call") => {
                let id = field("call_id")?;
                let arguments = call_arguments(&item["arguments"]).map_err(|what| {
                    let param = format!("{param}.arguments");
                    OpenAiError::invalid(&param, format!("`{param}` {what}"))
                })?;
                self.call(id, item, field("name")?, arguments);
            }
            Some("custom_tool_call") => {
                let (id, arguments) = (field("call_id")?, custom_arguments(field("input")?));
                self.call(id, item, field("name")?, arguments);
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                let (id, output) = (field("call_id")?, text(&item["output"], "output").map_err(wrong)?);
                if self.skipped.contains(id) {
                    self.ignored.note(&param);
                    return Ok(false);
                }
                if !self.transcript.result(id, output) {
                    return Err(wrong(format!(
                        "is the output of {id}, but no function was called by this `call_id`"
                    )));
                }
            }
            Some("reasoning") => {
                self.reason(&param, item);
                return Ok(false);
            }
            // `tool_lists` has found its tools.
            Some(ADDITIONAL_TOOLS) => return Ok(false),
            Some(kind) if SKIPPED_ITEMS.contains(&kind) => {
                self.ignored.note(&param);
                self.skipped.extend(item["call_id"].as_str());
                return Ok(false);
            }
            Some(kind) => {
                let kind: String = kind.chars().take(64).collect();
                return Err(wrong(format!("is of type `{kind}`, which is not supported")));
            }
        }
        Ok(true)
    }

    fn call(&mut self, id: &str, item: &Value, name: &str, arguments: Value) {
        let name = self.source.tools.function_name(item["namespace"].as_str(), name);
        self.transcript.call(id, name, arguments);
    }

    /// Adds reasoning to the message or call after it. The encrypted form is for OpenAI alone.
    fn reason(&mut self, param: &str, item: &Value) {
        let texts = |field: &str| -> Vec<&str> {
            item[field].as_array().into_iter().flatten().filter_map(|part| part["text"].as_str()).collect()
        };
        let whole = texts("content");
        let text = if whole.is_empty() { texts("summary") } else { whole }.join("\n");
        match text.is_empty() || !self.source.reads_reasoning {
            true => self.ignored.note(param),
            false => self.transcript.reason(&text),
        }
    }
}

/// Returns a text, or the texts of a list of parts.
fn text(content: &Value, field: &str) -> Result<String, String> {
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) => parts,
        _ => return Err(format!("must have a text or a list of parts as {field}")),
    };
    let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str(), part["refusal"].as_str()) {
        (Some("input_text" | "output_text" | "text"), Some(text), _) | (Some("refusal"), _, Some(text)) => {
            Ok(text.to_owned())
        }
        (Some(kind), ..) => {
            let kind: String = kind.chars().take(64).collect();
            Err(format!("has content of type `{kind}`, which is not supported"))
        }
        (None, ..) => Err("has a part of content without a type".into()),
    };
    parts.iter().map(text).collect()
}
