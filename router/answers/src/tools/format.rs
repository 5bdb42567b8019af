//! The formats in which models write calls, and the detection of a model's format.

use std::fmt;
use std::str::FromStr;

use millrace_text::Tokenizer;

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
    /// `<function=NAME>{…}</function>`, the format of Llama 3.1 for tools in the system prompt.
    LlamaFunction,
    /// `[NAME(KEY=VALUE, …), …]` as the whole answer, the format of Llama 3.2 and Llama 4.
    Pythonic,
    /// `[TOOL_CALLS][{"name", "arguments"}]`, the format of Mistral.
    Mistral,
    /// `[TOOL_CALLS]NAME[ARGS]{…}`, once for each call, the format of Mistral from tokenizer
    /// version 11 on.
    MistralV11,
    /// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME` and JSON in a code block, the format of
    /// DeepSeek R1 and V3.
    DeepSeekV3,
    /// `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}`, the format of DeepSeek V3.1.
    DeepSeekV31,
    /// `<｜DSML｜function_calls>` with tags for each call and argument, the format of DeepSeek V3.2.
    DeepSeekV32,
    /// `<｜DSML｜tool_calls>` with tags for each call and argument, the format of DeepSeek V4.
    DeepSeekV4,
    /// `NAME`, a line break and `{…}` as the whole answer, the format of GLM-4-9b.
    Glm4,
    /// `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`, the format
    /// of GLM from version 4.5 on.
    Glm45,
    /// `<|channel|>commentary to=functions.NAME<|message|>{…}<|call|>`, the format of gpt-oss.
    Harmony,
    /// `<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>{…}`, the format of
    /// Kimi K2.
    KimiK2,
    /// `<minimax:tool_call>` with tags for each call and argument, the format of MiniMax M2.
    MiniMaxM2,
    /// `<|tool_call|>[{"name", "arguments"}]<|/tool_call|>`, the format of Phi-4-mini and
    /// Granite 3.
    Phi4Mini,
    /// `<|START_ACTION|>[{"tool_name", "parameters"}]<|END_ACTION|>`, the format of Cohere's
    /// models.
    Cohere,
    /// `<TOOLCALL>[{"name", "arguments"}]</TOOLCALL>`, the format of Nemotron.
    Nemotron,
    /// `<|function_call|>{"name", "arguments"}`, the format of GigaChat.
    GigaChat,
    /// `<|tool_call_start|>[NAME(KEY=VALUE, …), …]<|tool_call_end|>`, the format of LFM2.
    Lfm2,
    /// `<seed:tool_call>` with `<function=NAME>` and `<parameter=KEY>VALUE</parameter>`, the format
    /// of Seed-OSS.
    SeedOss,
    /// `<|tools_prefix|>[{NAME: {…}}, …]<|tools_suffix|>`, the format of Apertus.
    Apertus,
    /// `<tool_calls:opensource>` with a tag for each call, key and value, the format of Hunyuan 3.
    Hy3,
    /// `<function name="NAME"><param name="KEY">VALUE</param></function>`, the format of MiniCPM 5.
    MiniCpm5,
    /// `<|tool_call>call:NAME{KEY:VALUE,…}<tool_call|>`, the format of Gemma 4.
    Gemma4,
    /// `<|open|>tools<|sep|>` with an element for each call and argument, the format of Kimi K3.
    KimiK3,
    /// ` to=NAME<|message|><atem:function_calls>` with tags for each call and argument, the format
    /// of Muse Glimmer.
    Muse,
    /// `>>>NAME`, a line break and `{…}`, the format of Functionary from version 3.2 on.
    Functionary,
    /// `{"name", "arguments"}` as the whole answer, for models that were trained on no other
    /// format.
    Json,
}

/// All formats with the names that users give them.
const NAMES: [(ToolFormat, &str); 30] = [
    (ToolFormat::Hermes, "hermes"),
    (ToolFormat::Qwen3Coder, "qwen3_coder"),
    (ToolFormat::Llama3Json, "llama3_json"),
    (ToolFormat::LlamaFunction, "llama_function"),
    (ToolFormat::Pythonic, "pythonic"),
    (ToolFormat::Mistral, "mistral"),
    (ToolFormat::MistralV11, "mistral_v11"),
    (ToolFormat::DeepSeekV3, "deepseek_v3"),
    (ToolFormat::DeepSeekV31, "deepseek_v31"),
    (ToolFormat::DeepSeekV32, "deepseek_v32"),
    (ToolFormat::DeepSeekV4, "deepseek_v4"),
    (ToolFormat::Glm4, "glm4"),
    (ToolFormat::Glm45, "glm45"),
    (ToolFormat::Harmony, "harmony"),
    (ToolFormat::KimiK2, "kimi_k2"),
    (ToolFormat::MiniMaxM2, "minimax_m2"),
    (ToolFormat::Phi4Mini, "phi4_mini"),
    (ToolFormat::Cohere, "cohere"),
    (ToolFormat::Nemotron, "nemotron"),
    (ToolFormat::GigaChat, "gigachat"),
    (ToolFormat::Lfm2, "lfm2"),
    (ToolFormat::SeedOss, "seed_oss"),
    (ToolFormat::Apertus, "apertus"),
    (ToolFormat::Hy3, "hy3"),
    (ToolFormat::MiniCpm5, "minicpm5"),
    (ToolFormat::Gemma4, "gemma4"),
    (ToolFormat::KimiK3, "kimi_k3"),
    (ToolFormat::Muse, "muse"),
    (ToolFormat::Functionary, "functionary"),
    (ToolFormat::Json, "json"),
];

/// The texts by which a chat template shows its format, the most specific first. A template has
/// the format of the first row whose texts it contains all. A tag counts only as a whole: `<a>` is
/// no part of `<<a>>`.
const TEMPLATE_MARKS: [(ToolFormat, &[&str]); 32] = [
    (ToolFormat::Harmony, &["<|channel|>", "<|message|>"]),
    (ToolFormat::DeepSeekV32, &["DSML｜", "function_calls>"]),
    (ToolFormat::DeepSeekV4, &["DSML｜", "tool_calls>"]),
    (ToolFormat::DeepSeekV3, &["<｜tool▁calls▁begin｜>", "```json"]),
    (ToolFormat::DeepSeekV31, &["<｜tool▁calls▁begin｜>"]),
    (ToolFormat::KimiK2, &["<|tool_calls_section_begin|>"]),
    (ToolFormat::MiniMaxM2, &["minimax:tool_call"]),
    (ToolFormat::SeedOss, &["seed:tool_call"]),
    (ToolFormat::Cohere, &["<|START_ACTION|>"]),
    (ToolFormat::Apertus, &["<|tools_prefix|>"]),
    (ToolFormat::Hy3, &["<tool_calls:opensource>"]),
    (ToolFormat::Hy3, &["<tool_calls{}>", ":opensource"]),
    (ToolFormat::MiniCpm5, &["<function name=\"", "<param name=\""]),
    (ToolFormat::Gemma4, &["<|tool_call>", "<tool_call|>"]),
    (ToolFormat::Muse, &["<atem:function_calls>", "to=self"]),
    (ToolFormat::KimiK3, &["<|open|>", "<|close|>", "<|sep|>"]),
    (ToolFormat::Functionary, &[">>>all", ">>>${recipient}"]),
    (ToolFormat::Nemotron, &["<TOOLCALL>"]),
    (ToolFormat::GigaChat, &["<|function_call|>"]),
    (ToolFormat::Lfm2, &["<|tool_call_start|>"]),
    (ToolFormat::Glm45, &["<arg_key>"]),
    (ToolFormat::Qwen3Coder, &["<function=", "<parameter="]),
    (ToolFormat::Qwen3Coder, &["<tool_call>", "<function="]),
    (ToolFormat::Hermes, &["<tool_call>"]),
    (ToolFormat::Phi4Mini, &["<|tool_call|>"]),
    (ToolFormat::MistralV11, &["[ARGS]"]),
    (ToolFormat::Mistral, &["[TOOL_CALLS]"]),
    (ToolFormat::LlamaFunction, &["<function="]),
    (ToolFormat::Pythonic, &["[func_name1(params_name1=params_value1"]),
    (ToolFormat::Llama3Json, &["<|python_tag|>"]),
    (ToolFormat::Llama3Json, &["\"parameters\":", "\"name\":"]),
    (ToolFormat::Glm4, &["[gMASK]", "metadata"]),
];

/// The tokens by which a vocabulary shows the format of a model whose template does not.
const VOCABULARY_MARKS: [(ToolFormat, &str); 15] = [
    (ToolFormat::Apertus, "<|tools_prefix|>"),
    (ToolFormat::Hy3, "<tool_calls:opensource>"),
    (ToolFormat::Gemma4, "<|tool_call>"),
    (ToolFormat::Harmony, "<|channel|>"),
    (ToolFormat::KimiK2, "<|tool_calls_section_begin|>"),
    (ToolFormat::MiniMaxM2, "<minimax:tool_call>"),
    (ToolFormat::SeedOss, "<seed:tool_call>"),
    (ToolFormat::Cohere, "<|START_ACTION|>"),
    (ToolFormat::Lfm2, "<|tool_call_start|>"),
    (ToolFormat::Glm45, "<arg_key>"),
    (ToolFormat::Hermes, "<tool_call>"),
    (ToolFormat::Phi4Mini, "<|tool_call|>"),
    (ToolFormat::MistralV11, "[ARGS]"),
    (ToolFormat::Mistral, "[TOOL_CALLS]"),
    (ToolFormat::Llama3Json, "<|python_tag|>"),
];

/// The error for an unknown format name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown tool call format {name}; the supported formats are {}", NAMES.map(|(_, name)| name).join(", "))]
pub struct UnknownToolFormat {
    name: String,
}

impl FromStr for ToolFormat {
    type Err = UnknownToolFormat;

    fn from_str(name: &str) -> Result<Self, UnknownToolFormat> {
        let found = NAMES.into_iter().find(|(_, known)| *known == name);
        found.map(|(format, _)| format).ok_or_else(|| UnknownToolFormat { name: name.to_owned() })
    }
}

impl fmt::Display for ToolFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.into_iter().find(|(format, _)| format == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl ToolFormat {
    /// Returns all formats.
    #[cfg(any(test, feature = "test-support"))]
    pub fn all() -> impl Iterator<Item = ToolFormat> {
        NAMES.into_iter().map(|(format, _)| format)
    }

    /// Detects the format of a model: by the markers that its chat template writes around earlier
    /// calls, else by the markers in its vocabulary.
    pub fn of(template: Option<&str>, tokenizer: &Tokenizer) -> ToolFormat {
        let Some(template) = template else { return ToolFormat::Json };
        let written = |marks: &[&str]| marks.iter().all(|mark| contains_mark(template, mark));
        if let Some((format, _)) = TEMPLATE_MARKS.into_iter().find(|(_, marks)| written(marks)) {
            return format;
        }
        let known = |mark: &str| tokenizer.token_id(mark).is_some();
        let found = VOCABULARY_MARKS.into_iter().find(|(_, mark)| known(mark));
        found.map_or(ToolFormat::Json, |(format, _)| format)
    }

    /// Whether a template writes calls of tools in a format that is not known, so that the calls of
    /// its model are read as plain JSON.
    pub fn is_unknown_to(self, template: Option<&str>) -> bool {
        self == ToolFormat::Json && template.is_some_and(|template| template.contains("tool_calls"))
    }

    /// Returns a random id for a call. Mistral's templates accept only nine letters and digits.
    pub fn call_id(self) -> String {
        match self {
            ToolFormat::Mistral | ToolFormat::MistralV11 => format!("{:09x}", rand::random::<u64>() >> 28),
            _ => format!("call_{:024x}", rand::random::<u128>() >> 32),
        }
    }
}

/// Whether a template contains a mark. A tag is a mark of its own only if no bracket precedes or
/// follows it.
fn contains_mark(template: &str, mark: &str) -> bool {
    let is_within = |at: usize| {
        let before = template[..at].chars().next_back();
        let after = template[at + mark.len()..].chars().next();
        mark.starts_with('<') && before == Some('<') || mark.ends_with('>') && after == Some('>')
    };
    template.match_indices(mark).any(|(at, _)| !is_within(at))
}

#[cfg(test)]
mod tests {
    use millrace_text::test_support;

    use super::*;

    #[test]
    fn the_format_is_detected_from_the_template() {
        let tokenizer = test_support::tokenizer();
        let of = |template| ToolFormat::of(Some(template), &tokenizer);
        for (template, format) in [
            ("{{ '<tool_call>\\n' }}{{ tool_call | tojson }}", ToolFormat::Hermes),
            ("{{ '<tool_call>\\n<function=' ~ name }}", ToolFormat::Qwen3Coder),
            ("{{ '<tool_call>' ~ name ~ '<arg_key>' }}", ToolFormat::Glm45),
            ("{{ '<seed:tool_call>\\n<function=' ~ name ~ '<parameter=' }}", ToolFormat::SeedOss),
            ("[gMASK]{{ message.metadata }}", ToolFormat::Glm4),
            ("{{ '[TOOL_CALLS]' ~ calls }}", ToolFormat::Mistral),
            ("{{ '[TOOL_CALLS]' ~ name ~ '[ARGS]' ~ arguments }}", ToolFormat::MistralV11),
            ("{{ '<|python_tag|>' }}", ToolFormat::Llama3Json),
            ("{{ '\"name\": \"' ~ n ~ '\", \"parameters\": ' }}", ToolFormat::Llama3Json),
            (r#"respond with {"name": function, "parameters": dictionary}"#, ToolFormat::Llama3Json),
            ("like <function=example>{{ example }}</function>", ToolFormat::LlamaFunction),
            (
                "in the format of [func_name1(params_name1=params_value1, …), func_name2(params)]",
                ToolFormat::Pythonic,
            ),
            ("{{ '<｜tool▁calls▁begin｜>' ~ name ~ '```json' }}", ToolFormat::DeepSeekV3),
            ("{{ '<｜tool▁calls▁begin｜>' ~ name }}", ToolFormat::DeepSeekV31),
            ("<|start|>assistant<|channel|>final<|message|>", ToolFormat::Harmony),
            ("{{ '<|tool_call|>' ~ calls }}", ToolFormat::Phi4Mini),
            ("{{ '<|tools_prefix|>' ~ calls }}", ToolFormat::Apertus),
            ("{{ '<|tool_call>call:' ~ name ~ '<tool_call|>' }}", ToolFormat::Gemma4),
            ("{{ '<function name=\"' ~ name ~ '\"><param name=\"' }}", ToolFormat::MiniCpm5),
            ("{% set h = ':opensource' %}{{ '<tool_calls{}>'.format(h) }}", ToolFormat::Hy3),
            (
                "{{ ' to=self<|message|>' }}<atem:function_calls>{\"name\": n, \"parameters\": p}",
                ToolFormat::Muse,
            ),
            ("{{ '<|open|>' + tag + '<|sep|>' }}{{ '<|close|>' + tag + '<|sep|>' }}", ToolFormat::KimiK3),
            (">>>${recipient}\n${content}{{ '>>>all\n' + m.content }}", ToolFormat::Functionary),
            // The tags alone do not tell the recipients.
            ("{{ '<atem:function_calls>' }}", ToolFormat::Json),
            // Marks of other formats contain the tag of Hermes.
            ("{{ '<<tool_call>>' ~ call ~ '<</tool_call>>' }}", ToolFormat::Json),
            ("{{ '<|tool_call>' ~ call ~ '<<tool_call>|>' }}", ToolFormat::Json),
            ("{{ messages }}", ToolFormat::Json),
        ] {
            assert_eq!(of(template), format, "{template}");
        }
        assert_eq!(ToolFormat::of(None, &tokenizer), ToolFormat::Json);
    }

    #[test]
    fn format_names_are_parsed() {
        for format in ToolFormat::all() {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let unknown = "xml".parse::<ToolFormat>().unwrap_err().to_string();
        assert!(
            unknown.contains("formats are hermes, qwen3_coder, llama3_json, llama_function"),
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
