//! One call in tags, character by character: `<function=NAME>`, `<parameter=KEY>` and a value for each argument,
//! `</function>`. The arguments become JSON as they come.

use serde_json::Value;

use super::Tool;
use super::scan::Found;

const FUNCTION: &str = "<function=";
const PARAMETER: &str = "<parameter=";
const END_OF_VALUE: &str = "</parameter>";
const END: &str = "</function>";
/// Bytes of a tag at most: a name and what is around it.
const LONGEST_TAG: usize = 512;

/// Reads one call.
#[derive(Debug)]
pub(super) struct Tags {
    state: State,
    /// The tag or value that is being read, as far as it has not been passed on.
    held: String,
    /// The function's name, then those of its arguments.
    name: String,
    /// The schemas of the arguments, once the function is known.
    properties: Value,
    /// Whether the value that is being read is a text; worked out once per value, as a schema may be long.
    is_text: bool,
    /// Whether there has been an argument.
    any: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// In the tag with the function's name.
    Function,
    /// Before or in a tag.
    Tag,
    /// At the beginning of a value. A line break there does not belong to it.
    Begin,
    Value,
}

/// Whether a value of this schema is a text, whatever it looks like. It is written without quotes then.
pub(super) fn is_text(schema: &Value) -> bool {
    schema["type"] == "string"
        || schema.get("type").is_none()
            && schema["enum"].as_array().is_some_and(|values| values.iter().all(Value::is_string))
}

/// What a value that is not always a text stands for: itself if it is JSON that the schema allows, else a text.
fn json(schema: &Value, text: &str) -> String {
    // Templates that write the values of earlier calls as Python does teach models to do the same.
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

impl Tags {
    /// At the beginning.
    pub(super) fn new() -> Self {
        let (held, name) = (String::new(), String::new());
        Tags { state: State::Function, held, name, properties: Value::Null, is_text: false, any: false }
    }

    /// The function's name, when it is complete.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The function is this tool.
    pub(super) fn is(&mut self, tool: &Tool) {
        self.properties = tool.parameters["properties"].clone();
    }

    /// Takes in the next character; what it adds to the arguments is put there.
    pub(super) fn push(&mut self, c: char, arguments: &mut String) -> Found {
        if self.state == State::Tag && self.held.is_empty() && c.is_whitespace() {
            return Found::Nothing;
        }
        self.held.push(c);
        match self.state {
            State::Function => self.tag(FUNCTION, State::Tag, Found::Name),
            State::Tag if self.held == END => {
                arguments.push_str(if self.any { "}" } else { "{}" });
                Found::End
            }
            State::Tag if END.starts_with(&self.held) => Found::Nothing,
            State::Tag => {
                let found = self.tag(PARAMETER, State::Begin, Found::Nothing);
                if self.state == State::Begin {
                    self.is_text = is_text(self.schema());
                    arguments.push_str(if self.any { ", " } else { "{" });
                    arguments.push_str(&Value::from(self.name.as_str()).to_string());
                    arguments.push_str(if self.is_text { ": \"" } else { ": " });
                    self.any = true;
                }
                found
            }
            State::Begin if c == '\n' => {
                self.held.clear();
                self.state = State::Value;
                Found::Nothing
            }
            State::Begin | State::Value => {
                self.state = State::Value;
                self.value(arguments);
                Found::Nothing
            }
        }
    }

    /// Reads on in a tag that begins like this. With its end the name in it is complete.
    fn tag(&mut self, begin: &str, next: State, found: Found) -> Found {
        let fits = self.held.starts_with(begin) || begin.starts_with(&self.held);
        if !fits || self.held.len() > LONGEST_TAG {
            return Found::Broken;
        }
        let Some(name) = self.held.strip_prefix(begin).and_then(|rest| rest.strip_suffix('>')) else {
            return Found::Nothing;
        };
        self.name = name.to_owned();
        self.held.clear();
        self.state = next;
        found
    }

    fn schema(&self) -> &Value {
        self.properties.get(&self.name).unwrap_or(&Value::Null)
    }

    /// Passes on what is certain of a value: of a text what cannot be the beginning of its end, else nothing before that.
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
            self.state = State::Tag;
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

/// A part of a text as it stands in JSON.
fn escaped(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
