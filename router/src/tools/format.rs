//! How models write calls, and which of these a model does.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::text::Tokenizer;

/// A way to write calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `<tool_call>{"name", "arguments"}</tool_call>`, as Hermes and Qwen write it.
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, as Qwen3-Coder writes it.
    Qwen3Coder,
    /// `{"name", "parameters"}` as the whole answer, as Llama 3 writes it; a mark may come before it.
    Llama3Json,
    /// `[TOOL_CALLS][{"name", "arguments"}]`, as Mistral writes it.
    Mistral,
    /// `[TOOL_CALLS]NAME[ARGS]{…}`, once for each call, as Mistral writes it from version 11 of its tokenizers on.
    MistralV11,
    /// `{"name", "arguments"}` as the whole answer: for models that were never shown another way.
    Json,
}

/// All of them.
pub(super) const FORMATS: [Format; 6] = [
    Format::Hermes,
    Format::Qwen3Coder,
    Format::Llama3Json,
    Format::Mistral,
    Format::MistralV11,
    Format::Json,
];

/// Marks of version 11 of Mistral's tokenizers: before the arguments of a call, and before the id that a call may have.
pub(super) const ARGS: &str = "[ARGS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";

/// What a format consists of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Comes before a call, or before the list of them. A format that has none, or need not use it, writes calls and nothing
    /// else.
    pub(super) open: Option<&'static str>,
    /// Whether an answer may call tools without it.
    pub(super) bare: bool,
    /// Comes after a call.
    pub(super) close: &'static str,
    /// Whether the calls are a JSON list.
    pub(super) list: bool,
    /// Stands between calls without a list.
    pub(super) between: Option<&'static str>,
    /// How a call is written.
    pub(super) call: Call,
}

/// How a single call is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// An object with the name and, under this key, the arguments.
    Object(&'static str),
    /// The name, a mark, and the arguments as an object.
    Named,
    /// Tags around the name and around each argument.
    Tags,
}

/// The name of a format that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no format of tool calls named {name}; known are {}", FORMATS.map(|format| format.to_string()).join(", "))]
pub struct UnknownFormat {
    name: String,
}

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        FORMATS
            .into_iter()
            .find(|format| format.to_string() == name)
            .ok_or_else(|| UnknownFormat { name: name.to_owned() })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Hermes => "hermes",
            Format::Qwen3Coder => "qwen3_coder",
            Format::Llama3Json => "llama3_json",
            Format::Mistral => "mistral",
            Format::MistralV11 => "mistral_v11",
            Format::Json => "json",
        })
    }
}

impl Format {
    /// The format that a chat template asks its model for. It is known by the marks that the template writes around the
    /// calls of earlier turns, else by marks of the vocabulary.
    pub fn of(template: Option<&str>, tokenizer: &Tokenizer) -> Format {
        let written = |mark: &str| template.is_some_and(|template| template.contains(mark));
        let marked = [
            (Format::Qwen3Coder, "<function="),
            (Format::Hermes, "<tool_call>"),
            (Format::MistralV11, ARGS),
            (Format::Mistral, "[TOOL_CALLS]"),
            (Format::Llama3Json, "<|python_tag|>"),
        ];
        if let Some((format, _)) = marked.into_iter().find(|(_, mark)| written(mark)) {
            return format;
        }
        if written("\"parameters\":") && written("\"name\":") {
            return Format::Llama3Json;
        }
        let known = |mark: &str| template.is_some() && tokenizer.token_id(mark).is_some();
        marked.into_iter().find(|(_, mark)| known(mark)).map_or(Format::Json, |(format, _)| format)
    }

    pub(super) fn shape(self) -> Shape {
        let json = Shape {
            open: None,
            bare: true,
            close: "",
            list: false,
            between: None,
            call: Call::Object("arguments"),
        };
        let marked = |open, close| Shape { open: Some(open), bare: false, close, ..json };
        match self {
            Format::Hermes => marked("<tool_call>", "</tool_call>"),
            Format::Qwen3Coder => Shape { call: Call::Tags, ..marked("<tool_call>", "</tool_call>") },
            Format::Llama3Json => {
                let open = Some("<|python_tag|>");
                Shape { open, between: Some(";"), call: Call::Object("parameters"), ..json }
            }
            Format::Mistral => Shape { list: true, ..marked("[TOOL_CALLS]", "") },
            Format::MistralV11 => Shape { call: Call::Named, ..marked("[TOOL_CALLS]", "") },
            Format::Json => json,
        }
    }

    /// A call as a model writes it. `arguments` are an object.
    pub(super) fn write(self, name: &str, arguments: &Value) -> String {
        let Shape { open, bare, close, list, call, .. } = self.shape();
        let open = open.filter(|_| !bare).unwrap_or_default();
        let call = match call {
            Call::Object(key) => {
                let object = format!("{{\"name\": {}, \"{key}\": {arguments}}}", Value::from(name));
                if list { format!("[{object}]") } else { object }
            }
            Call::Named => format!("{name}{ARGS}{arguments}"),
            Call::Tags => {
                let none = Map::new();
                let tag = |(key, value): (&String, &Value)| {
                    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    format!("<parameter={key}>\n{text}\n</parameter>\n")
                };
                let tags: String = arguments.as_object().unwrap_or(&none).iter().map(tag).collect();
                format!("\n<function={name}>\n{tags}</function>\n")
            }
        };
        format!("{open}{call}{close}")
    }

    /// Special tokens that belong to the text of an answer that may call tools.
    pub fn marks(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let Shape { open, close, call, .. } = self.shape();
        let inner = if call == Call::Named { &[ARGS, CALL_ID][..] } else { &[] };
        let marks = open.iter().chain([&close]).chain(inner).filter_map(|mark| tokenizer.token_id(mark));
        marks.filter(|&id| tokenizer.is_special(id)).collect()
    }

    /// An id for a call. Mistral's templates take nothing but nine letters and digits.
    pub fn call_id(self) -> String {
        match self {
            Format::Mistral | Format::MistralV11 => format!("{:09x}", rand::random::<u64>() >> 28),
            _ => format!("call_{:024x}", rand::random::<u128>() >> 32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support;

    #[test]
    fn a_template_shows_its_format() {
        let tokenizer = test_support::tokenizer();
        let of = |template| Format::of(template, &tokenizer);
        assert_eq!(of(Some("{{ '<tool_call>\\n' }}{{ tool_call | tojson }}")), Format::Hermes);
        assert_eq!(of(Some("{{ '<tool_call>\\n<function=' ~ name }}")), Format::Qwen3Coder);
        assert_eq!(of(Some("{{ '[TOOL_CALLS]' ~ calls }}")), Format::Mistral);
        assert_eq!(of(Some("{{ '[TOOL_CALLS]' ~ name ~ '[ARGS]' ~ arguments }}")), Format::MistralV11);
        assert_eq!(of(Some("{{ '<|python_tag|>' }}")), Format::Llama3Json);
        let words = r#"respond with {"name": function, "parameters": dictionary}"#;
        assert_eq!(of(Some("{{ '\"name\": \"' ~ n ~ '\", \"parameters\": ' }}")), Format::Llama3Json);
        assert_eq!(of(Some(words)), Format::Llama3Json);
        assert_eq!(of(Some("{{ messages }}")), Format::Json);
        assert_eq!(of(None), Format::Json);
    }

    #[test]
    fn names_are_read_back() {
        for format in FORMATS {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let unknown = "pythonic".parse::<Format>().unwrap_err().to_string();
        assert!(
            unknown.ends_with("known are hermes, qwen3_coder, llama3_json, mistral, mistral_v11, json"),
            "{unknown}"
        );
    }

    #[test]
    fn ids_are_as_templates_want_them() {
        let id = Format::Mistral.call_id();
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!(Format::Hermes.call_id().len(), 29);
    }
}
