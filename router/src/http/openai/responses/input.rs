//! From the items of an input to the messages of a conversation.

use std::collections::HashSet;

use serde_json::Value;

use super::super::error::OpenAiError;
use super::super::transcript::Transcript;
use super::tools::{ToolSet, custom_arguments};
use crate::http::ignored::Ignored;

/// Items about what the provider, or a tool that it knows, has done. There is nothing in them that a template could show.
const SKIPPED: &[&str] = &[
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

/// An item that brings tools. Codex sends one instead of the field `tools` for some models.
const ADDITIONAL_TOOLS: &str = "additional_tools";

/// Every list of tools of a request, with the place that it has there.
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

/// What the messages of a conversation are made from.
pub(super) struct Source<'a> {
    pub(super) instructions: Option<&'a str>,
    pub(super) input: &'a Value,
    pub(super) tools: &'a ToolSet,
    /// Whether the template could show the reasoning of earlier turns.
    pub(super) reads_reasoning: bool,
}

impl Source<'_> {
    /// The messages that the template gets: `instructions` first, then the input, which is a text or a list of items.
    /// Items that have no effect are noted.
    pub(super) fn messages(&self, ignored: &mut Ignored) -> Result<Vec<Value>, OpenAiError> {
        let mut reader =
            Reader { source: self, transcript: Transcript::default(), skipped: HashSet::new(), ignored };
        if let Some(text) = self.instructions {
            reader.say("system", text.to_owned());
        }
        match self.input {
            Value::String(text) => reader.say("user", text.clone()),
            Value::Array(items) if items.is_empty() => {
                return Err(OpenAiError::invalid("input", "`input` cannot be empty"));
            }
            Value::Array(items) => {
                let mut says_something = false;
                for (index, item) in items.iter().enumerate() {
                    says_something |= reader.item(index, item)?;
                }
                if !says_something {
                    let message = "`input` has no message. Items that it refers to are not stored, and those of tools \
                                   that the provider runs cannot be shown to the model";
                    return Err(OpenAiError::invalid("input", message));
                }
            }
            _ => return Err(OpenAiError::invalid("input", "`input` must be a text or a list of items")),
        }
        Ok(reader.transcript.messages())
    }
}

struct Reader<'a, 's> {
    source: &'a Source<'s>,
    transcript: Transcript,
    /// The ids of calls that have been skipped.
    skipped: HashSet<&'a str>,
    ignored: &'a mut Ignored,
}

impl<'a> Reader<'a, '_> {
    /// Adds a message. Instructions at the beginning become one message: many templates take no more than one, and Codex
    /// sends several.
    fn say(&mut self, role: &str, text: String) {
        let joins =
            role == "system" && self.transcript.has_only(role) && self.transcript.extend_last(role, &text);
        if !joins {
            self.transcript.say(role, text);
        }
    }

    /// Adds an item. Returns whether it is a message, a call or the output of one.
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
                    // The newer name of the same thing, which templates do not know.
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
                let (id, arguments) = (field("call_id")?, field("arguments")?.into());
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
            // Its tools have been read with the others.
            Some(ADDITIONAL_TOOLS) => return Ok(false),
            Some(kind) if SKIPPED.contains(&kind) => {
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
        let name = self.source.tools.name(item["namespace"].as_str(), name);
        self.transcript.call(id, name, arguments);
    }

    /// Reasoning belongs to the message or call after it. Its encrypted form means nothing here.
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

/// A text, or the texts of a list of parts.
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
