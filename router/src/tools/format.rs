//! The formats in which models write calls, and the detection of a model's format.

use std::fmt;
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::text::Tokenizer;

/// A format of tool calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolFormat {
    /// `<tool_call>{"name", "arguments"}</tool_call>`, the format of Hermes and Qwen.
    Hermes,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, the
    /// format of Qwen3-Coder.
    Qwen3Coder,
    /// `{"name", "parameters"}` as the whole answer, the format of Llama 3. A marker may precede
    /// it.
    Llama3Json,
    /// `[TOOL_CALLS][{"name", "arguments"}]`, the format of Mistral.
    Mistral,
    /// `[TOOL_CALLS]NAME[ARGS]{…}`, once for each call, the format of Mistral from tokenizer
    /// version 11 on.
    MistralV11,
    /// `{"name", "arguments"}` as the whole answer, for models that were trained on no other
    /// format.
    Json,
}

/// All formats.
pub(super) const FORMATS: [ToolFormat; 6] = [
    ToolFormat::Hermes,
    ToolFormat::Qwen3Coder,
    ToolFormat::Llama3Json,
    ToolFormat::Mistral,
    ToolFormat::MistralV11,
    ToolFormat::Json,
];

/// Markers of Mistral's tokenizers from version 11 on: before the arguments of a call, and before
/// the optional id of a call.
pub(super) const ARGS: &str = "[ARGS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";

/// The elements of a format.
#[derive(Debug, Clone, Copy)]
pub(super) struct FormatSyntax {
    /// The marker before a call or a list of calls. If a format has no marker or need not use it,
    /// an answer with calls consists of calls only.
    pub(super) open: Option<&'static str>,
    /// Whether an answer may call tools without the marker.
    pub(super) bare: bool,
    /// The text after a call.
    pub(super) close: &'static str,
    /// Whether the calls are a JSON list.
    pub(super) list: bool,
    /// The separator between calls that are not a list.
    pub(super) between: Option<&'static str>,
    /// The syntax of a single call.
    pub(super) call: CallSyntax,
}

/// The syntax of a single call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallSyntax {
    /// An object with the name and, under this key, the arguments.
    Object(&'static str),
    /// The name, a marker, and the arguments as an object.
    Named,
    /// Tags around the name and around each argument.
    Tags,
}

/// The error for an unknown format name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown tool call format {name}; the supported formats are {}", FORMATS.map(|format| format.to_string()).join(", "))]
pub struct UnknownToolFormat {
    name: String,
}

impl FromStr for ToolFormat {
    type Err = UnknownToolFormat;

    fn from_str(name: &str) -> Result<Self, UnknownToolFormat> {
        FORMATS
            .into_iter()
            .find(|format| format.to_string() == name)
            .ok_or_else(|| UnknownToolFormat { name: name.to_owned() })
    }
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ToolFormat::Hermes => "hermes",
            ToolFormat::Qwen3Coder => "qwen3_coder",
            ToolFormat::Llama3Json => "llama3_json",
            ToolFormat::Mistral => "mistral",
            ToolFormat::MistralV11 => "mistral_v11",
            ToolFormat::Json => "json",
        })
    }
}

impl ToolFormat {
    /// Detects the format of a model: by the markers that its chat template writes around earlier
    /// calls, else by the markers in its vocabulary.
    pub fn of(template: Option<&str>, tokenizer: &Tokenizer) -> ToolFormat {
        let written = |mark: &str| template.is_some_and(|template| template.contains(mark));
        let marked = [
            (ToolFormat::Qwen3Coder, "<function="),
            (ToolFormat::Hermes, "<tool_call>"),
            (ToolFormat::MistralV11, ARGS),
            (ToolFormat::Mistral, "[TOOL_CALLS]"),
            (ToolFormat::Llama3Json, "<|python_tag|>"),
        ];
        if let Some((format, _)) = marked.into_iter().find(|(_, mark)| written(mark)) {
            return format;
        }
        if written("\"parameters\":") && written("\"name\":") {
            return ToolFormat::Llama3Json;
        }
        let known = |mark: &str| template.is_some() && tokenizer.token_id(mark).is_some();
        marked.into_iter().find(|(_, mark)| known(mark)).map_or(ToolFormat::Json, |(format, _)| format)
    }

    pub(super) fn syntax(self) -> FormatSyntax {
        let json = FormatSyntax {
            open: None,
            bare: true,
            close: "",
            list: false,
            between: None,
            call: CallSyntax::Object("arguments"),
        };
        let marked = |open, close| FormatSyntax { open: Some(open), bare: false, close, ..json };
        match self {
            ToolFormat::Hermes => marked("<tool_call>", "</tool_call>"),
            ToolFormat::Qwen3Coder => {
                FormatSyntax { call: CallSyntax::Tags, ..marked("<tool_call>", "</tool_call>") }
            }
            ToolFormat::Llama3Json => {
                let open = Some("<|python_tag|>");
                FormatSyntax { open, between: Some(";"), call: CallSyntax::Object("parameters"), ..json }
            }
            ToolFormat::Mistral => FormatSyntax { list: true, ..marked("[TOOL_CALLS]", "") },
            ToolFormat::MistralV11 => FormatSyntax { call: CallSyntax::Named, ..marked("[TOOL_CALLS]", "") },
            ToolFormat::Json => json,
        }
    }

    /// Writes a call in this format. `arguments` is an object.
    pub(super) fn write(self, name: &str, arguments: &Value) -> String {
        let FormatSyntax { open, bare, close, list, call, .. } = self.syntax();
        let open = open.filter(|_| !bare).unwrap_or_default();
        let call = match call {
            CallSyntax::Object(key) => {
                let object = format!("{{\"name\": {}, \"{key}\": {arguments}}}", Value::from(name));
                if list { format!("[{object}]") } else { object }
            }
            CallSyntax::Named => format!("{name}{ARGS}{arguments}"),
            CallSyntax::Tags => {
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

    /// Returns the special tokens that are shown as text in answers that may call tools.
    pub fn marks(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let FormatSyntax { open, close, call, .. } = self.syntax();
        let inner = if call == CallSyntax::Named { &[ARGS, CALL_ID][..] } else { &[] };
        let marks = open.iter().chain([&close]).chain(inner).filter_map(|mark| tokenizer.token_id(mark));
        marks.filter(|&id| tokenizer.is_special(id)).collect()
    }

    /// Returns a random id for a call. Mistral's templates accept only nine letters and digits.
    pub fn call_id(self) -> String {
        match self {
            ToolFormat::Mistral | ToolFormat::MistralV11 => format!("{:09x}", rand::random::<u64>() >> 28),
            _ => format!("call_{:024x}", rand::random::<u128>() >> 32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support;

    #[test]
    fn the_format_is_detected_from_the_template() {
        let tokenizer = test_support::tokenizer();
        let of = |template| ToolFormat::of(template, &tokenizer);
        assert_eq!(of(Some("{{ '<tool_call>\\n' }}{{ tool_call | tojson }}")), ToolFormat::Hermes);
        assert_eq!(of(Some("{{ '<tool_call>\\n<function=' ~ name }}")), ToolFormat::Qwen3Coder);
        assert_eq!(of(Some("{{ '[TOOL_CALLS]' ~ calls }}")), ToolFormat::Mistral);
        assert_eq!(of(Some("{{ '[TOOL_CALLS]' ~ name ~ '[ARGS]' ~ arguments }}")), ToolFormat::MistralV11);
        assert_eq!(of(Some("{{ '<|python_tag|>' }}")), ToolFormat::Llama3Json);
        let words = r#"respond with {"name": function, "parameters": dictionary}"#;
        assert_eq!(of(Some("{{ '\"name\": \"' ~ n ~ '\", \"parameters\": ' }}")), ToolFormat::Llama3Json);
        assert_eq!(of(Some(words)), ToolFormat::Llama3Json);
        assert_eq!(of(Some("{{ messages }}")), ToolFormat::Json);
        assert_eq!(of(None), ToolFormat::Json);
    }

    #[test]
    fn format_names_are_parsed() {
        for format in FORMATS {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let unknown = "pythonic".parse::<ToolFormat>().unwrap_err().to_string();
        assert!(
            unknown.ends_with("formats are hermes, qwen3_coder, llama3_json, mistral, mistral_v11, json"),
            "{unknown}"
        );
    }

    #[test]
    fn call_ids_have_the_form_that_templates_accept() {
        let id = ToolFormat::Mistral.call_id();
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!(ToolFormat::Hermes.call_id().len(), 29);
    }
}
