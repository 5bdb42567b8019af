//! A reader for one call in tags, character by character: `<function=NAME>`, `<parameter=KEY>` and
//! a value for each argument, `</function>`. It converts the arguments to JSON as they arrive.

use serde_json::Value;

use super::allowed::Tool;
use super::json_call::CallProgress;

const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const END_OF_VALUE: &str = "</parameter>";
const END: &str = "</function>";
/// The maximum length of a tag in bytes, including the name in it.
const MAX_TAG_BYTES: usize = 512;

/// Reads one call.
#[derive(Debug)]
pub(super) struct TaggedCallReader {
    state: TagState,
    /// The part of the current tag or value that has not been released.
    held: String,
    /// The name of the function, and after it the name of the current argument.
    name: String,
    /// The schemas of the arguments, after the function is known.
    properties: Value,
    /// Whether the current value is a string. It is computed once per value, because a schema may
    /// be long.
    is_text: bool,
    /// Whether the call has had an argument.
    any: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TagState {
    /// In the tag with the function's name.
    Function,
    /// Before or in a tag.
    Tag,
    /// At the beginning of a value. A line break at this position is not part of the value.
    Begin,
    Value,
}

/// Whether every value of this schema is a string. Such values are written without quotes.
pub(super) fn is_text(schema: &Value) -> bool {
    schema["type"] == "string"
        || schema.get("type").is_none()
            && schema["enum"].as_array().is_some_and(|values| values.iter().all(Value::is_string))
}

/// Converts a value that may be no string to JSON. A value that is JSON and that the schema allows
/// is kept. Any other value becomes a string.
fn json(schema: &Value, text: &str) -> String {
    // Some templates write the values of earlier calls in Python's format, and models imitate it.
    let value = match text.trim() {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        value => value,
    };
    let parsed = serde_json::from_str::<Value>(value).ok();
    let allowed = |value: &Value| match schema["type"].as_array() {
        Some(types) if types.iter().any(|kind| kind == "string") => types.iter().any(|kind| {
            matches!(
                (kind.as_str(), value),
                (Some("null"), Value::Null)
                    | (Some("boolean"), Value::Bool(_))
                    | (Some("number" | "integer"), Value::Number(_))
                    | (Some("array"), Value::Array(_))
                    | (Some("object"), Value::Object(_))
            )
        }),
        _ => true,
    };
    match parsed.filter(allowed) {
        Some(_) => value.to_owned(),
        None => Value::from(text).to_string(),
    }
}

impl TaggedCallReader {
    /// Creates a reader at the beginning of a call.
    pub(super) fn new() -> Self {
        let (held, name) = (String::new(), String::new());
        TaggedCallReader {
            state: TagState::Function,
            held,
            name,
            properties: Value::Null,
            is_text: false,
            any: false,
        }
    }

    /// Returns the function's name after it is complete.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Sets the tool that the function's name refers to.
    pub(super) fn set_tool(&mut self, tool: &Tool) {
        self.properties = tool.parameters["properties"].clone();
    }

    /// Reads the next character and appends its part of the arguments to `arguments`.
    pub(super) fn push(&mut self, c: char, arguments: &mut String) -> CallProgress {
        if self.state == TagState::Tag && self.held.is_empty() && c.is_whitespace() {
            return CallProgress::Nothing;
        }
        self.held.push(c);
        match self.state {
            TagState::Function => self.tag(FUNCTION, TagState::Tag, CallProgress::Name),
            TagState::Tag if self.held == END => {
                arguments.push_str(if self.any { "}" } else { "{}" });
                CallProgress::End
            }
            TagState::Tag if END.starts_with(&self.held) => CallProgress::Nothing,
            TagState::Tag => {
                let found = self.tag(PARAMETER, TagState::Begin, CallProgress::Nothing);
                if self.state == TagState::Begin {
                    self.is_text = is_text(self.schema());
                    arguments.push_str(if self.any { ", " } else { "{" });
                    arguments.push_str(&Value::from(self.name.as_str()).to_string());
                    arguments.push_str(if self.is_text { ": \"" } else { ": " });
                    self.any = true;
                }
                found
            }
            TagState::Begin if c == '\n' => {
                self.held.clear();
                self.state = TagState::Value;
                CallProgress::Nothing
            }
            TagState::Begin | TagState::Value => {
                self.state = TagState::Value;
                self.value(arguments);
                CallProgress::Nothing
            }
        }
    }

    /// Continues a tag that starts with `begin`. At the end of the tag, its name is complete.
    fn tag(&mut self, begin: &str, next: TagState, found: CallProgress) -> CallProgress {
        let fits = self.held.starts_with(begin) || begin.starts_with(&self.held);
        if !fits || self.held.len() > MAX_TAG_BYTES {
            return CallProgress::NotACall;
        }
        let Some(name) = self.held.strip_prefix(begin).and_then(|rest| rest.strip_suffix('>')) else {
            return CallProgress::Nothing;
        };
        self.name = name.to_owned();
        self.held.clear();
        self.state = next;
        found
    }

    fn schema(&self) -> &Value {
        self.properties.get(&self.name).unwrap_or(&Value::Null)
    }

    /// Releases the part of a value that is certain. For a string, this is the text that cannot be
    /// the beginning of the closing tag. Other values are released at their end.
    fn value(&mut self, arguments: &mut String) {
        if let Some(value) = self.held.strip_suffix(END_OF_VALUE) {
            let value = value.strip_suffix('\n').unwrap_or(value);
            match self.is_text {
                true => {
                    arguments.push_str(&escaped(value));
                    arguments.push('"');
                }
                false => arguments.push_str(&json(self.schema(), value)),
            }
            self.held.clear();
            self.state = TagState::Tag;
        } else if self.is_text {
            let ends = |tail: &str| END_OF_VALUE.starts_with(tail.strip_prefix('\n').unwrap_or(tail));
            let bound = self.held.len().saturating_sub(END_OF_VALUE.len() + 1);
            let mut places = (bound..=self.held.len()).filter(|&at| self.held.is_char_boundary(at));
            let certain = places.find(|&at| ends(&self.held[at..])).unwrap_or(self.held.len());
            arguments.push_str(&escaped(&self.held[..certain]));
            self.held.drain(..certain);
        }
    }
}

/// Returns a part of a string in the form that it has in JSON.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
