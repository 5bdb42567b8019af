//! The elements of each format: its markers, and the form of a single call.

use super::format::ToolFormat;
use super::tagged_call::{TagSyntax, ValueTypes};

/// The markers of Mistral's tokenizers from version 11 on: before the arguments of a call, and
/// before the optional id of a call.
pub(super) const ARGS: &str = "[ARGS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";
/// The marker of DeepSeek between the type or the name of a call and what follows.
pub(super) const DEEPSEEK_SEPARATOR: &str = "<｜tool▁sep｜>";
pub(super) const DEEPSEEK_CALL: &str = "<｜tool▁call▁begin｜>";
/// The markers of Kimi K2 before a call and before its arguments.
pub(super) const KIMI_CALL: &str = "<|tool_call_begin|>";
pub(super) const KIMI_ARGUMENTS: &str = "<|tool_call_argument_begin|>";

/// The mark of Gemma around a string.
pub(super) const GEMMA_QUOTE: &str = "<|\"|>";

/// The elements of a format.
#[derive(Debug, Clone, Copy)]
pub(super) struct FormatSyntax {
    /// The marker before a call, a list of calls or a section of calls. If a format has no marker
    /// or need not use it, an answer with calls consists of calls only.
    pub(super) open: Option<&'static str>,
    /// The beginnings of calls without the marker.
    pub(super) bare: BareCalls,
    /// Whether the calls are a list in brackets.
    pub(super) list: bool,
    /// The texts after a call or after a list, in their order. They are skipped.
    pub(super) closing: &'static [&'static str],
    /// The text before a further call that is not part of a list, other than `open`.
    pub(super) again: Option<&'static str>,
    /// The syntax of a single call.
    pub(super) call: CallSyntax,
    /// The texts of the format that may be special tokens.
    pub(super) marks: &'static [&'static str],
}

/// The beginnings of answers that call tools without a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BareCalls {
    /// No call is without a marker.
    None,
    /// One of these characters.
    Characters(&'static str),
    /// The name of a tool and a line break.
    Name,
}

impl BareCalls {
    /// Whether every call has a marker.
    pub(super) fn is_empty(self) -> bool {
        self == BareCalls::None
    }

    /// Whether an answer that begins with this character may be a call.
    pub(super) fn may_begin(self, c: char) -> bool {
        match self {
            BareCalls::None => false,
            BareCalls::Characters(characters) => characters.contains(c),
            BareCalls::Name => true,
        }
    }
}

/// The syntax of a single call.
#[derive(Debug, Clone, Copy)]
pub(super) enum CallSyntax {
    /// An object with the name and the arguments under these keys.
    Object { name: &'static str, arguments: &'static str },
    /// An object whose only key is the name, with the arguments as its value.
    Keyed,
    /// The name between two texts, and the arguments as an object.
    Named {
        before: &'static str,
        after: &'static str,
        /// Finds the name in the text between the marker and the arguments.
        find: fn(&str) -> &str,
    },
    /// Tags around the name and around each argument.
    Tags(TagSyntax),
    /// A function call of Python with named arguments.
    Python,
    /// The name and the arguments in Gemma's notation, which is similar to JSON.
    Gemma,
}

const NAME_AND_ARGUMENTS: CallSyntax = CallSyntax::Object { name: "name", arguments: "arguments" };

const JSON: FormatSyntax = FormatSyntax {
    open: None,
    bare: BareCalls::Characters("{["),
    list: false,
    closing: &[],
    again: None,
    call: NAME_AND_ARGUMENTS,
    marks: &[],
};

/// A format whose calls always have a marker.
pub(super) const MARKED: FormatSyntax = FormatSyntax { bare: BareCalls::None, ..JSON };

/// Tags with the names of the function and of its parameters in them.
const NAMED_TAGS: TagSyntax = TagSyntax {
    function: ("<function=", ">"),
    parameter: ("<parameter=", ">"),
    key_end: "",
    types: ValueTypes::Schema,
    end_of_value: "</parameter>",
    end: "</function>",
    is_padded: true,
    verbatim: None,
    object: None,
};

/// Tags around everything, which may be special tokens.
const HY3_TAGS: TagSyntax = TagSyntax {
    function: ("<tool_call:opensource>", "<tool_sep:opensource>"),
    parameter: ("<arg_key:opensource>", "<arg_value:opensource>"),
    key_end: "</arg_key:opensource>",
    types: ValueTypes::Schema,
    end_of_value: "</arg_value:opensource>",
    end: "</tool_call:opensource>",
    is_padded: false,
    verbatim: None,
    object: None,
};

const DSML_TAGS: TagSyntax = TagSyntax {
    function: ("<｜DSML｜invoke name=\"", "\">"),
    parameter: ("<｜DSML｜parameter name=\"", "\">"),
    key_end: "",
    types: ValueTypes::IsString,
    end_of_value: "</｜DSML｜parameter>",
    end: "</｜DSML｜invoke>",
    is_padded: false,
    verbatim: None,
    object: None,
};

impl ToolFormat {
    /// Returns the elements of the format.
    pub(super) fn syntax(self) -> FormatSyntax {
        if let Some(channels) = self.channels() {
            return channels.syntax();
        }
        match self {
            ToolFormat::Json => JSON,
            ToolFormat::Hermes => FormatSyntax {
                open: Some("<tool_call>"),
                closing: &["</tool_call>"],
                marks: &["<tool_call>", "</tool_call>"],
                ..MARKED
            },
            ToolFormat::Llama3Json => FormatSyntax {
                open: Some("<|python_tag|>"),
                bare: BareCalls::Characters("{"),
                again: Some(";"),
                call: CallSyntax::Object { name: "name", arguments: "parameters" },
                marks: &["<|python_tag|>"],
                ..JSON
            },
            ToolFormat::Pythonic => FormatSyntax {
                open: Some("<|python_start|>"),
                bare: BareCalls::Characters("["),
                list: true,
                closing: &["<|python_end|>"],
                call: CallSyntax::Python,
                marks: &["<|python_start|>", "<|python_end|>"],
                ..JSON
            },
            ToolFormat::Lfm2 => FormatSyntax {
                open: Some("<|tool_call_start|>"),
                list: true,
                closing: &["<|tool_call_end|>"],
                call: CallSyntax::Python,
                marks: &["<|tool_call_start|>", "<|tool_call_end|>"],
                ..MARKED
            },
            ToolFormat::Mistral => {
                FormatSyntax { open: Some("[TOOL_CALLS]"), list: true, marks: &["[TOOL_CALLS]"], ..MARKED }
            }
            ToolFormat::Phi4Mini => FormatSyntax {
                open: Some("<|tool_call|>"),
                list: true,
                closing: &["<|/tool_call|>"],
                marks: &["<|tool_call|>", "<|/tool_call|>"],
                ..MARKED
            },
            ToolFormat::Nemotron => FormatSyntax {
                open: Some("<TOOLCALL>"),
                list: true,
                closing: &["</TOOLCALL>"],
                marks: &["<TOOLCALL>", "</TOOLCALL>"],
                ..MARKED
            },
            ToolFormat::Cohere => FormatSyntax {
                open: Some("<|START_ACTION|>"),
                list: true,
                closing: &["<|END_ACTION|>"],
                call: CallSyntax::Object { name: "tool_name", arguments: "parameters" },
                marks: &["<|START_ACTION|>", "<|END_ACTION|>"],
                ..MARKED
            },
            ToolFormat::GigaChat => {
                FormatSyntax { open: Some("<|function_call|>"), marks: &["<|function_call|>"], ..MARKED }
            }
            ToolFormat::Apertus | ToolFormat::Gemma4 | ToolFormat::Hy3 | ToolFormat::MiniCpm5 => {
                self.syntax_of_one_model()
            }
            _ => self.syntax_with_names(),
        }
    }

    /// Returns the elements of a format that the models of one family have, each its own.
    fn syntax_of_one_model(self) -> FormatSyntax {
        match self {
            ToolFormat::Apertus => FormatSyntax {
                open: Some("<|tools_prefix|>"),
                list: true,
                closing: &["<|tools_suffix|>"],
                call: CallSyntax::Keyed,
                marks: &["<|tools_prefix|>", "<|tools_suffix|>"],
                ..MARKED
            },
            ToolFormat::Gemma4 => FormatSyntax {
                open: Some("<|tool_call>"),
                closing: &["<tool_call|>"],
                call: CallSyntax::Gemma,
                marks: &["<|tool_call>", "<tool_call|>", GEMMA_QUOTE],
                ..MARKED
            },
            ToolFormat::Hy3 => FormatSyntax {
                open: Some("<tool_calls:opensource>"),
                closing: &["</tool_calls:opensource>"],
                call: CallSyntax::Tags(HY3_TAGS),
                marks: &[
                    "<tool_calls:opensource>",
                    "</tool_calls:opensource>",
                    HY3_TAGS.function.0,
                    HY3_TAGS.function.1,
                    HY3_TAGS.parameter.0,
                    HY3_TAGS.key_end,
                    HY3_TAGS.parameter.1,
                    HY3_TAGS.end_of_value,
                    HY3_TAGS.end,
                ],
                ..MARKED
            },
            _ => FormatSyntax {
                open: Some("<function name=\""),
                call: CallSyntax::Tags(TagSyntax {
                    function: ("", "\">"),
                    parameter: ("<param name=\"", "\">"),
                    key_end: "",
                    types: ValueTypes::Schema,
                    end_of_value: "</param>",
                    end: "</function>",
                    is_padded: false,
                    verbatim: Some(("<![CDATA[", "]]>")),
                    object: None,
                }),
                ..MARKED
            },
        }
    }

    /// Returns the elements of a format whose calls are no JSON objects as a whole.
    fn syntax_with_names(self) -> FormatSyntax {
        match self {
            ToolFormat::MistralV11 => FormatSyntax {
                open: Some("[TOOL_CALLS]"),
                call: CallSyntax::Named { before: "", after: ARGS, find: mistral_name },
                marks: &["[TOOL_CALLS]", ARGS, CALL_ID],
                ..MARKED
            },
            ToolFormat::LlamaFunction => FormatSyntax {
                open: Some("<function="),
                closing: &["</function>"],
                call: CallSyntax::Named {
                    before: "",
                    after: ">",
                    find: |head| head.strip_suffix('>').unwrap_or_default(),
                },
                ..MARKED
            },
            ToolFormat::Glm4 => FormatSyntax {
                bare: BareCalls::Name,
                again: Some("<|assistant|>"),
                call: CallSyntax::Named {
                    before: "",
                    after: "\n",
                    find: |head| head.strip_suffix('\n').unwrap_or_default(),
                },
                ..JSON
            },
            ToolFormat::DeepSeekV3 => FormatSyntax {
                call: CallSyntax::Named {
                    before: "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                    after: "\n```json\n",
                    find: deepseek_name,
                },
                closing: &["\n```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
                ..ToolFormat::DeepSeekV31.syntax()
            },
            ToolFormat::DeepSeekV31 => FormatSyntax {
                open: Some("<｜tool▁calls▁begin｜>"),
                closing: &["<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
                again: Some(DEEPSEEK_CALL),
                call: CallSyntax::Named {
                    before: DEEPSEEK_CALL,
                    after: DEEPSEEK_SEPARATOR,
                    find: deepseek_name,
                },
                marks: &[
                    "<｜tool▁calls▁begin｜>",
                    DEEPSEEK_CALL,
                    DEEPSEEK_SEPARATOR,
                    "<｜tool▁call▁end｜>",
                    "<｜tool▁calls▁end｜>",
                ],
                ..MARKED
            },
            ToolFormat::KimiK2 => FormatSyntax {
                open: Some("<|tool_calls_section_begin|>"),
                closing: &["<|tool_call_end|>", "<|tool_calls_section_end|>"],
                again: Some(KIMI_CALL),
                call: CallSyntax::Named {
                    before: "<|tool_call_begin|>functions.",
                    after: ":0<|tool_call_argument_begin|>",
                    find: kimi_name,
                },
                marks: &[
                    "<|tool_calls_section_begin|>",
                    KIMI_CALL,
                    KIMI_ARGUMENTS,
                    "<|tool_call_end|>",
                    "<|tool_calls_section_end|>",
                ],
                ..MARKED
            },
            _ => self.syntax_with_tags(),
        }
    }

    /// Returns the elements of a format with tags around the arguments.
    fn syntax_with_tags(self) -> FormatSyntax {
        match self {
            ToolFormat::Qwen3Coder => FormatSyntax {
                open: Some("<tool_call>"),
                closing: &["</tool_call>"],
                call: CallSyntax::Tags(NAMED_TAGS),
                marks: &["<tool_call>", "</tool_call>"],
                ..MARKED
            },
            ToolFormat::SeedOss => FormatSyntax {
                open: Some("<seed:tool_call>"),
                closing: &["</seed:tool_call>"],
                call: CallSyntax::Tags(TagSyntax { is_padded: false, ..NAMED_TAGS }),
                marks: &["<seed:tool_call>", "</seed:tool_call>"],
                ..MARKED
            },
            ToolFormat::Glm45 => FormatSyntax {
                open: Some("<tool_call>"),
                call: CallSyntax::Tags(TagSyntax {
                    function: ("", "\n"),
                    parameter: ("<arg_key>", "<arg_value>"),
                    key_end: "</arg_key>",
                    types: ValueTypes::Schema,
                    end_of_value: "</arg_value>",
                    end: "</tool_call>",
                    is_padded: false,
                    verbatim: None,
                    object: None,
                }),
                marks: &[
                    "<tool_call>",
                    "</tool_call>",
                    "<arg_key>",
                    "</arg_key>",
                    "<arg_value>",
                    "</arg_value>",
                ],
                ..MARKED
            },
            ToolFormat::MiniMaxM2 => FormatSyntax {
                open: Some("<minimax:tool_call>"),
                closing: &["</minimax:tool_call>"],
                call: CallSyntax::Tags(TagSyntax {
                    function: ("<invoke name=\"", "\">"),
                    parameter: ("<parameter name=\"", "\">"),
                    key_end: "",
                    types: ValueTypes::Schema,
                    end_of_value: "</parameter>",
                    end: "</invoke>",
                    is_padded: false,
                    verbatim: None,
                    object: None,
                }),
                marks: &["<minimax:tool_call>", "</minimax:tool_call>"],
                ..MARKED
            },
            ToolFormat::DeepSeekV4 => FormatSyntax {
                open: Some("<｜DSML｜tool_calls>"),
                closing: &["</｜DSML｜tool_calls>"],
                ..ToolFormat::DeepSeekV32.syntax()
            },
            _ => FormatSyntax {
                open: Some("<｜DSML｜function_calls>"),
                closing: &["</｜DSML｜function_calls>"],
                call: CallSyntax::Tags(DSML_TAGS),
                marks: &["｜DSML｜"],
                ..MARKED
            },
        }
    }
}

/// Finds the name in `NAME[CALL_ID]…[ARGS]`, whose markers are optional.
fn mistral_name(head: &str) -> &str {
    let head = head.trim_end().strip_suffix(ARGS).unwrap_or(head);
    head.split(CALL_ID).next().unwrap_or_default()
}

/// Finds the name in `function<｜tool▁sep｜>NAME`, a line break and the beginning of a code block,
/// or in `NAME<｜tool▁sep｜>`.
fn deepseek_name(head: &str) -> &str {
    let head = head.trim_start();
    let head = head.strip_prefix(DEEPSEEK_CALL).unwrap_or(head);
    match head.split_once(DEEPSEEK_SEPARATOR) {
        Some((name, rest)) if rest.trim().is_empty() => name,
        Some((_, rest)) => rest.trim_start().lines().next().unwrap_or_default(),
        None => "",
    }
}

/// Finds the name in `functions.NAME:INDEX<|tool_call_argument_begin|>`.
fn kimi_name(head: &str) -> &str {
    let head = head.trim();
    let head = head.strip_prefix(KIMI_CALL).unwrap_or(head);
    let Some(id) = head.strip_suffix(KIMI_ARGUMENTS) else { return "" };
    let id = id.trim();
    let id = id.strip_prefix("functions.").unwrap_or(id);
    let is_index = |index: &str| index.bytes().all(|byte| byte.is_ascii_digit());
    id.rsplit_once(':').filter(|(_, index)| is_index(index)).map_or(id, |(name, _)| name)
}
