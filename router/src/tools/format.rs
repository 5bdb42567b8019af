//! How models write calls, and which of these a model does.

use std::fmt;
use std::str::FromStr;

use crate::text::Tokenizer;

/// A way to write calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `<tool_call>{"name", "arguments"}</tool_call>`, as Hermes and Qwen write it.
    Hermes,
    /// `{"name", "parameters"}` as the whole answer, as Llama 3 writes it; a mark may come before it.
    Llama3Json,
    /// `[TOOL_CALLS][{"name", "arguments"}]`, as Mistral writes it.
    Mistral,
    /// `{"name", "arguments"}` as the whole answer: for models that were never shown another way.
    Json,
}

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
    /// What the arguments are called.
    pub(super) arguments: &'static str,
}

/// The name of a format that there is not.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no format of tool calls named {0}; known are hermes, llama3_json, mistral and json")]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Self, UnknownFormat> {
        let formats = [Format::Hermes, Format::Llama3Json, Format::Mistral, Format::Json];
        formats
            .into_iter()
            .find(|format| format.to_string() == name)
            .ok_or_else(|| UnknownFormat(name.to_owned()))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Hermes => "hermes",
            Format::Llama3Json => "llama3_json",
            Format::Mistral => "mistral",
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
            (Format::Hermes, "<tool_call>"),
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
        let json =
            Shape { open: None, bare: true, close: "", list: false, between: None, arguments: "arguments" };
        match self {
            Format::Hermes => Shape { open: Some("<tool_call>"), bare: false, close: "</tool_call>", ..json },
            Format::Llama3Json => {
                let open = Some("<|python_tag|>");
                Shape { open, between: Some(";"), arguments: "parameters", ..json }
            }
            Format::Mistral => Shape { open: Some("[TOOL_CALLS]"), bare: false, list: true, ..json },
            Format::Json => json,
        }
    }

    /// Special tokens that belong to the text of an answer that may call tools.
    pub fn marks(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let Shape { open, close, .. } = self.shape();
        let marks = open.into_iter().chain([close]).filter_map(|mark| tokenizer.token_id(mark));
        marks.filter(|&id| tokenizer.is_special(id)).collect()
    }

    /// An id for a call. Mistral's templates take nothing but nine letters and digits.
    pub fn call_id(self) -> String {
        match self {
            Format::Mistral => format!("{:09x}", rand::random::<u64>() >> 28),
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
        assert_eq!(of(Some("{{ '[TOOL_CALLS]' ~ calls }}")), Format::Mistral);
        assert_eq!(of(Some("{{ '<|python_tag|>' }}")), Format::Llama3Json);
        let words = r#"respond with {"name": function, "parameters": dictionary}"#;
        assert_eq!(of(Some("{{ '\"name\": \"' ~ n ~ '\", \"parameters\": ' }}")), Format::Llama3Json);
        assert_eq!(of(Some(words)), Format::Llama3Json);
        assert_eq!(of(Some("{{ messages }}")), Format::Json);
        assert_eq!(of(None), Format::Json);
    }

    #[test]
    fn names_are_read_back() {
        for format in [Format::Hermes, Format::Llama3Json, Format::Mistral, Format::Json] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("pythonic".parse::<Format>().is_err());
    }

    #[test]
    fn ids_are_as_templates_want_them() {
        let id = Format::Mistral.call_id();
        assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
        assert_eq!(Format::Hermes.call_id().len(), 29);
    }
}
