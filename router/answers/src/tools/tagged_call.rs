//! A reader for one call in tags, character by character: a tag with the function's name, a tag
//! with a key and a value for each argument, and a closing tag. It converts the arguments to JSON
//! as they arrive.

use serde_json::{Map, Value};

use super::allowed::Tool;
use super::json_call::CallProgress;
use super::python_call::PythonCallReader;

/// The maximum length of a tag in bytes, including the name in it.
const MAX_TAG_BYTES: usize = 512;

/// How the tag of an argument says the type of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueTypes {
    /// The tag says nothing, so the schema decides.
    Schema,
    /// `string="true"` or `string="false"` follows the key. Other values than strings are JSON.
    IsString,
    /// The attribute `type` has the name of the JSON type. Other values than strings are JSON, and
    /// attributes have escapes. The calls are numbered by the attribute `index`.
    Names,
}

impl ValueTypes {
    /// Returns the text between the key of an argument and the type.
    pub(super) fn mark(self) -> Option<&'static str> {
        match self {
            ValueTypes::Schema => None,
            ValueTypes::IsString => Some("\" string=\""),
            ValueTypes::Names => Some("\" type=\""),
        }
    }

    /// Returns the type of a value as the tag says it.
    fn name(self, value: &Value) -> &'static str {
        match (self, value) {
            (ValueTypes::Schema, _) => "",
            (ValueTypes::IsString, Value::String(_)) => "true",
            (ValueTypes::IsString, _) => "false",
            (ValueTypes::Names, Value::String(_)) => STRING,
            (ValueTypes::Names, Value::Number(_)) => "number",
            (ValueTypes::Names, Value::Bool(_)) => "boolean",
            (ValueTypes::Names, Value::Null) => "null",
            (ValueTypes::Names, Value::Array(_)) => "array",
            (ValueTypes::Names, Value::Object(_)) => "object",
        }
    }

    /// Whether a tag with this type has a string.
    fn is_string(self, kind: &str) -> bool {
        kind == if self == ValueTypes::Names { STRING } else { "true" }
    }

    /// Writes a text as the value of an attribute.
    pub(super) fn attribute(self, text: &str) -> String {
        match self {
            ValueTypes::Names => text.replace('&', "&amp;").replace('"', "&quot;"),
            ValueTypes::Schema | ValueTypes::IsString => text.to_owned(),
        }
    }

    /// Reads the value of an attribute, up to the next attribute.
    fn read_attribute(self, value: &str) -> String {
        match self {
            ValueTypes::Names => {
                let value = value.split('"').next().unwrap_or_default();
                value.replace("&quot;", "\"").replace("&amp;", "&")
            }
            ValueTypes::Schema | ValueTypes::IsString => value.to_owned(),
        }
    }
}

/// The name of the type of strings.
const STRING: &str = "string";

/// The tags of a format.
#[derive(Debug, Clone, Copy)]
pub(super) struct TagSyntax {
    /// The texts around the function's name. If the first text is empty and the second one a line
    /// break, the line break is optional before another tag.
    pub(super) function: (&'static str, &'static str),
    /// The texts around the key of an argument.
    pub(super) parameter: (&'static str, &'static str),
    /// A tag that closes the key, before the end of the text after it.
    pub(super) key_end: &'static str,
    /// How the tag of an argument says the type of its value.
    pub(super) types: ValueTypes,
    /// The text after a value.
    pub(super) end_of_value: &'static str,
    /// The text after the last argument.
    pub(super) end: &'static str,
    /// Whether a value is on lines of its own.
    pub(super) is_padded: bool,
    /// The texts around a value that contains characters of tags.
    pub(super) verbatim: Option<(&'static str, &'static str)>,
    /// The texts around one JSON object that takes the place of all arguments.
    pub(super) object: Option<(&'static str, &'static str)>,
}

impl TagSyntax {
    /// Whether a call may begin with this character.
    pub(super) fn begins_with(&self, c: char) -> bool {
        match self.function.0.chars().next() {
            Some(first) => c == first,
            None => PythonCallReader::begins_name(c),
        }
    }

    /// Writes a call. `arguments` is an object.
    pub(super) fn write(&self, name: &str, arguments: &Value) -> String {
        let none = Map::new();
        let arguments = arguments.as_object().unwrap_or(&none);
        let tags: String = arguments.iter().map(|(key, value)| self.write_argument(key, value)).collect();
        let (before, after) = self.function;
        if self.types == ValueTypes::Names {
            return format!("{before}{name}\" index=\"1{after}{tags}{}", self.end);
        }
        let line = if after.ends_with('\n') { "" } else { "\n" };
        let first = if before.is_empty() { "" } else { "\n" };
        format!("{first}{before}{name}{after}{line}{tags}{}{first}", self.end)
    }

    fn write_argument(&self, key: &str, value: &Value) -> String {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let text = match self.verbatim {
            Some((open, close)) if value.is_string() && text.contains(['<', '&', '\n']) => {
                format!("{open}{text}{close}")
            }
            _ => text,
        };
        let (before, after) = self.parameter;
        let (mark, kind) = (self.types.mark().unwrap_or_default(), self.types.name(value));
        let pad = if self.is_padded { "\n" } else { "" };
        let line = if self.types == ValueTypes::Names { "" } else { "\n" };
        let (key, TagSyntax { key_end, end_of_value, .. }) = (self.types.attribute(key), self);
        format!("{before}{key}{mark}{kind}{key_end}{after}{pad}{text}{pad}{end_of_value}{line}")
    }
}

/// Reads one call.
#[derive(Debug)]
pub(super) struct TaggedCallReader {
    syntax: TagSyntax,
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
    /// Whether the tag of the current argument says that its value is JSON.
    is_json: bool,
    /// Whether the call has had an argument.
    any: bool,
    /// Whether the call has had an object that takes the place of all arguments.
    has_object: bool,
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
    /// In a value between the texts for values with characters of tags.
    Verbatim,
    /// In the object that takes the place of all arguments.
    Object,
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
    // A list or an object in Python's format has single quotes.
    let literal = value.starts_with(['[', '{']).then(|| PythonCallReader::literal(value)).flatten();
    let value = literal.as_deref().unwrap_or(value);
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
    pub(super) fn new(syntax: TagSyntax) -> Self {
        let (held, name) = (String::new(), String::new());
        TaggedCallReader {
            syntax,
            state: TagState::Function,
            held,
            name,
            properties: Value::Null,
            is_text: false,
            is_json: false,
            any: false,
            has_object: false,
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
        let TagSyntax { function, parameter, end, is_padded, .. } = self.syntax;
        let is_begun = match self.state {
            TagState::Begin => self.verbatim_begins(),
            TagState::Tag => self.object_begins(),
            _ => false,
        };
        if is_begun {
            return CallProgress::Nothing;
        }
        match self.state {
            TagState::Function if function == ("", "\n") => self.line(c),
            TagState::Function => {
                let found = self.tag(function, TagState::Tag, CallProgress::Name);
                self.name = self.syntax.types.read_attribute(&self.name);
                found
            }
            TagState::Tag if self.held == end => {
                match (self.has_object, self.any) {
                    (true, _) => {}
                    (false, true) => arguments.push('}'),
                    (false, false) => arguments.push_str("{}"),
                }
                CallProgress::End
            }
            TagState::Tag if end.starts_with(&self.held) => CallProgress::Nothing,
            TagState::Object => self.object(arguments),
            TagState::Tag => {
                let found = self.tag(parameter, TagState::Begin, CallProgress::Nothing);
                if self.state == TagState::Begin && !self.begin_argument(arguments) {
                    return CallProgress::NotACall;
                }
                found
            }
            TagState::Begin if c == '\n' && is_padded => {
                self.held.clear();
                self.state = TagState::Value;
                CallProgress::Nothing
            }
            TagState::Begin | TagState::Value | TagState::Verbatim => {
                if self.state == TagState::Begin {
                    self.state = TagState::Value;
                }
                self.value(arguments);
                CallProgress::Nothing
            }
        }
    }

    /// Whether the tag so far begins like the tag before an object that takes the place of all
    /// arguments. After this tag, the object follows.
    fn object_begins(&mut self) -> bool {
        let Some((open, _)) = self.syntax.object.filter(|_| !self.any && !self.has_object) else {
            return false;
        };
        if self.held == open {
            self.held.clear();
            self.state = TagState::Object;
            return true;
        }
        open.starts_with(self.held.as_str())
    }

    /// Releases the object that takes the place of all arguments after it is complete.
    fn object(&mut self, arguments: &mut String) -> CallProgress {
        let close = self.syntax.object.map_or("", |(_, close)| close);
        let Some(object) = self.held.strip_suffix(close) else { return CallProgress::Nothing };
        if serde_json::from_str::<Map<String, Value>>(object).is_err() {
            return CallProgress::NotACall;
        }
        arguments.push_str(object);
        self.held.clear();
        (self.state, self.has_object) = (TagState::Tag, true);
        CallProgress::Nothing
    }

    /// Whether the value so far begins like a value between the texts for characters of tags. After
    /// the first of the texts, the value follows.
    fn verbatim_begins(&mut self) -> bool {
        let Some((open, _)) = self.syntax.verbatim else { return false };
        if self.held == open {
            self.held.clear();
            self.state = TagState::Verbatim;
            return true;
        }
        open.starts_with(self.held.as_str())
    }

    /// Continues a name that ends with its line or before a tag.
    fn line(&mut self, c: char) -> CallProgress {
        if self.held.len() > MAX_TAG_BYTES {
            return CallProgress::NotACall;
        }
        if c != '\n' && c != '<' {
            return CallProgress::Nothing;
        }
        let name = self.held.strip_suffix(c).unwrap_or_default().trim();
        self.name = name.to_owned();
        self.held.clear();
        if c == '<' {
            self.held.push(c);
        }
        self.state = TagState::Tag;
        CallProgress::Name
    }

    /// Continues a tag, whose name is between two texts. At the end of the tag, its name is
    /// complete.
    fn tag(&mut self, (begin, end): (&str, &str), next: TagState, found: CallProgress) -> CallProgress {
        let fits = self.held.starts_with(begin) || begin.starts_with(&self.held);
        if !fits || self.held.len() > MAX_TAG_BYTES {
            return CallProgress::NotACall;
        }
        let Some(name) = self.held.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end)) else {
            return CallProgress::Nothing;
        };
        self.name = name.to_owned();
        self.held.clear();
        self.state = next;
        found
    }

    /// Begins an argument whose key, perhaps with its type, is complete. Returns false if the tag
    /// is malformed.
    fn begin_argument(&mut self, arguments: &mut String) -> bool {
        if self.has_object {
            return false;
        }
        let (mut is_string, types) = (None, self.syntax.types);
        if let Some((key, kind)) = types.mark().and_then(|mark| self.name.rsplit_once(mark)) {
            is_string = Some(types.is_string(kind));
            self.name = types.read_attribute(key);
        }
        let Some(key) = self.name.trim_end().strip_suffix(self.syntax.key_end) else { return false };
        self.name = key.to_owned();
        self.is_text = is_string.unwrap_or_else(|| is_text(self.schema()));
        self.is_json = is_string == Some(false);
        arguments.push_str(if self.any { ", " } else { "{" });
        arguments.push_str(&Value::from(self.name.as_str()).to_string());
        arguments.push_str(if self.is_text { ": \"" } else { ": " });
        self.any = true;
        true
    }

    fn schema(&self) -> &Value {
        self.properties.get(&self.name).unwrap_or(&Value::Null)
    }

    /// Releases the part of a value that is certain. For a string, this is the text that cannot be
    /// the beginning of the closing tag. Other values are released at their end.
    fn value(&mut self, arguments: &mut String) {
        let TagSyntax { end_of_value, is_padded, .. } = self.syntax;
        let verbatim = self.syntax.verbatim.filter(|_| self.state == TagState::Verbatim);
        let verbatim_end = verbatim.map(|(_, close)| [close, end_of_value].concat());
        let end_of_value = verbatim_end.as_deref().unwrap_or(end_of_value);
        if let Some(value) = self.held.strip_suffix(end_of_value) {
            let value = value.strip_suffix('\n').filter(|_| is_padded).unwrap_or(value);
            match self.is_text {
                true => {
                    arguments.push_str(&escaped(value));
                    arguments.push('"');
                }
                false if self.is_json => arguments.push_str(&json(&Value::Null, value)),
                false => arguments.push_str(&json(self.schema(), value)),
            }
            self.held.clear();
            self.state = TagState::Tag;
        } else if self.is_text {
            let ends = |tail: &str| {
                end_of_value.starts_with(tail.strip_prefix('\n').filter(|_| is_padded).unwrap_or(tail))
            };
            let bound = self.held.len().saturating_sub(end_of_value.len() + 1);
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
