//! The marks that models write around their reasoning, and the detection of a model's marks.

use std::fmt;
use std::str::FromStr;

use super::marks::{ReasoningMarks, ReasoningStart};
use crate::tools::{Channels, HARMONY, KIMI_K3, MUSE};

/// A format of reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>…</think>`, the format of DeepSeek, Qwen, GLM, MiniMax, Nemotron and others.
    Think,
    /// `[THINK]…[/THINK]`, the format of Mistral.
    Mistral,
    /// `<|START_THINKING|>…<|END_THINKING|>`, the format of Cohere.
    Cohere,
    /// `<seed:think>…</seed:think>`, the format of Seed-OSS.
    SeedOss,
    /// `<|channel>thought…<channel|>`, the format of Gemma 4.
    Gemma4,
    /// `<|inner_prefix|>…<|inner_suffix|>`, the format of Apertus.
    Apertus,
    /// `<think:opensource>…</think:opensource>`, the format of Hunyuan 3.
    Hy3,
    /// The channel `analysis` of gpt-oss.
    Harmony,
    /// The element `think` of Kimi K3.
    KimiK3,
    /// The messages of Muse Glimmer to itself.
    Muse,
}

/// The server's setting for reasoning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReasoningParser {
    /// The format is detected from the model's chat template.
    #[default]
    Auto,
    /// Reasoning is not separated from the answer.
    Off,
    /// The model has this format.
    Format(ReasoningFormat),
}

/// All formats with the names that users give them, and with the names that vLLM has for the same.
const NAMES: [(ReasoningFormat, &[&str]); 10] = [
    (
        ReasoningFormat::Think,
        &["think", "deepseek_r1", "deepseek_v3", "qwen3", "glm45", "minimax_m2", "kimi_k2", "step3"],
    ),
    (ReasoningFormat::Mistral, &["mistral"]),
    (ReasoningFormat::Cohere, &["cohere"]),
    (ReasoningFormat::SeedOss, &["seed_oss"]),
    (ReasoningFormat::Gemma4, &["gemma4"]),
    (ReasoningFormat::Apertus, &["apertus"]),
    (ReasoningFormat::Hy3, &["hy3"]),
    (ReasoningFormat::Harmony, &["harmony", "openai_gptoss", "gpt_oss"]),
    (ReasoningFormat::KimiK3, &["kimi_k3"]),
    (ReasoningFormat::Muse, &["muse"]),
];

/// The error for an unknown name of a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown reasoning parser {name}; the supported ones are auto, none, {}", NAMES.map(|(_, names)| names[0]).join(", "))]
pub struct UnknownReasoningParser {
    name: String,
}

impl FromStr for ReasoningParser {
    type Err = UnknownReasoningParser;

    fn from_str(name: &str) -> Result<Self, UnknownReasoningParser> {
        let found = NAMES.into_iter().find(|(_, names)| names.contains(&name));
        match (name, found) {
            ("auto", _) => Ok(ReasoningParser::Auto),
            ("none", _) => Ok(ReasoningParser::Off),
            (_, Some((format, _))) => Ok(ReasoningParser::Format(format)),
            (_, None) => Err(UnknownReasoningParser { name: name.to_owned() }),
        }
    }
}

impl fmt::Display for ReasoningParser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReasoningParser::Auto => "auto",
            ReasoningParser::Off => "none",
            ReasoningParser::Format(format) => format.name(),
        })
    }
}

impl ReasoningFormat {
    /// Returns the name that users give the format.
    pub fn name(self) -> &'static str {
        NAMES.into_iter().find(|(format, _)| *format == self).map_or("", |(_, names)| names[0])
    }

    /// Detects the format of a model by the marks in its chat template. Returns `None` if the
    /// template has none, as the templates of models that do not reason.
    pub fn of(template: Option<&str>) -> Option<ReasoningFormat> {
        let template = template?;
        let marks = [
            (ReasoningFormat::Harmony, "<|channel|>analysis"),
            (ReasoningFormat::Cohere, "<|START_THINKING|>"),
            (ReasoningFormat::Mistral, "[THINK]"),
            (ReasoningFormat::SeedOss, "<seed:think>"),
            (ReasoningFormat::Gemma4, "<|channel>thought"),
            (ReasoningFormat::Apertus, "<|inner_prefix|>"),
            (ReasoningFormat::Hy3, "<think:opensource>"),
            (ReasoningFormat::Think, "</think>"),
            (ReasoningFormat::Think, "<think>"),
        ];
        let contains = |marks: &[&str]| marks.iter().all(|mark| template.contains(mark));
        if contains(&["<|open|>", "<|sep|>", "'think'"]) {
            return Some(ReasoningFormat::KimiK3);
        }
        if contains(&["to=self<|message|>"]) {
            return Some(ReasoningFormat::Muse);
        }
        // The template of Hunyuan 3 puts its tags together.
        let is_hy3 = template.contains("<think{}>") && template.contains(":opensource");
        let found = marks.into_iter().find(|(_, mark)| template.contains(mark)).map(|(format, _)| format);
        found.or(is_hy3.then_some(ReasoningFormat::Hy3))
    }

    /// Returns the format of the messages in which a model of this format writes its answers.
    pub fn channels(self) -> Option<Channels> {
        match self {
            ReasoningFormat::Harmony => Some(HARMONY),
            ReasoningFormat::KimiK3 => Some(KIMI_K3),
            ReasoningFormat::Muse => Some(MUSE),
            _ => None,
        }
    }

    /// Returns the marks around the reasoning.
    pub fn marks(self) -> ReasoningMarks {
        let marks = |open, close, tokens| ReasoningMarks { open, close, tokens };
        match self {
            ReasoningFormat::Think => marks("<think>", "</think>", &["<think>", "</think>"]),
            ReasoningFormat::Mistral => marks("[THINK]", "[/THINK]", &["[THINK]", "[/THINK]"]),
            ReasoningFormat::Cohere => {
                marks("<|START_THINKING|>", "<|END_THINKING|>", &["<|START_THINKING|>", "<|END_THINKING|>"])
            }
            ReasoningFormat::SeedOss => {
                marks("<seed:think>", "</seed:think>", &["<seed:think>", "</seed:think>"])
            }
            ReasoningFormat::Hy3 => marks(
                "<think:opensource>",
                "</think:opensource>",
                &["<think:opensource>", "</think:opensource>"],
            ),
            ReasoningFormat::Gemma4 => {
                marks("<|channel>thought", "<channel|>", &["<|channel>", "<channel|>"])
            }
            ReasoningFormat::Apertus => {
                marks("<|inner_prefix|>", "<|inner_suffix|>", &["<|inner_prefix|>", "<|inner_suffix|>"])
            }
            ReasoningFormat::Harmony | ReasoningFormat::KimiK3 | ReasoningFormat::Muse => {
                self.channels().map_or(marks("", "", &[]), Channels::marks)
            }
        }
    }

    /// Returns the text that ends the reasoning where the server ends it. If tools may be called
    /// in channels, the model chooses the channel of its next message.
    pub fn forced_close(self, calls_in_channels: bool) -> String {
        let close = self.marks().close;
        match (self, self.channels()) {
            (_, Some(channels)) => channels.forced_close(calls_in_channels).to_owned(),
            (ReasoningFormat::Think | ReasoningFormat::SeedOss, None) => format!("\n{close}"),
            (_, None) => close.to_owned(),
        }
    }

    /// Returns the text that models of this format were trained to write when their reasoning has
    /// used its budget, if the chat template shows that they were.
    pub fn budget_message(self, template: &str) -> &'static str {
        // The words are part of the model's format, as the marks are.
        const SEED_OSS: &str = "<seed:cot_budget_reflect>I have exhausted my token budget, and now I will start \
                                answering the question.</seed:cot_budget_reflect>";
        if self == ReasoningFormat::SeedOss && template.contains("<seed:cot_budget_reflect>") {
            SEED_OSS
        } else {
            ""
        }
    }

    /// Returns the pairs of special tokens between which a model may write an answer.
    pub fn answer_marks(self) -> &'static [(&'static str, &'static str)] {
        match self {
            ReasoningFormat::Cohere => {
                &[("<|START_RESPONSE|>", "<|END_RESPONSE|>"), ("<|START_TEXT|>", "<|END_TEXT|>")]
            }
            _ => &[],
        }
    }

    /// Returns the state of the reasoning after this prompt.
    pub fn start(self, prompt: &str) -> ReasoningStart {
        let may_open = !matches!(self, ReasoningFormat::Harmony | ReasoningFormat::Muse);
        if may_open { self.marks().start(prompt) } else { ReasoningStart::Possible }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_detected_from_the_template() {
        for (template, format) in [
            ("{% if '</think>' in content %}", Some(ReasoningFormat::Think)),
            ("{{ '<|im_start|>assistant\\n<think>\\n' }}", Some(ReasoningFormat::Think)),
            ("{{ '[THINK]' ~ block.thinking ~ '[/THINK]' }}", Some(ReasoningFormat::Mistral)),
            ("<|START_THINKING|>", Some(ReasoningFormat::Cohere)),
            ("<|start|>assistant<|channel|>analysis<|message|>", Some(ReasoningFormat::Harmony)),
            ("{{ '<seed:think>' }}", Some(ReasoningFormat::SeedOss)),
            ("{% set h = ':opensource' %}{{ '<think{}>'.format(h) }}", Some(ReasoningFormat::Hy3)),
            ("{{ '<|open|>' + tag + '<|sep|>' }}{{ open_tag('think') }}", Some(ReasoningFormat::KimiK3)),
            ("{{ '<|start|>assistant to=self<|message|>' }}", Some(ReasoningFormat::Muse)),
            ("{{ messages }}", None),
        ] {
            assert_eq!(ReasoningFormat::of(Some(template)), format, "{template}");
        }
        assert_eq!(ReasoningFormat::of(None), None);
    }

    #[test]
    fn names_are_parsed_with_those_of_vllm() {
        for name in [
            "auto", "none", "think", "mistral", "cohere", "seed_oss", "gemma4", "apertus", "hy3", "harmony",
            "kimi_k3", "muse",
        ] {
            assert_eq!(name.parse::<ReasoningParser>().unwrap().to_string(), name);
        }
        for name in ["deepseek_r1", "qwen3", "glm45"] {
            assert_eq!(name.parse(), Ok(ReasoningParser::Format(ReasoningFormat::Think)));
        }
        let unknown = "granite".parse::<ReasoningParser>().unwrap_err().to_string();
        assert!(
            unknown
                .ends_with("are auto, none, think, mistral, cohere, seed_oss, gemma4, apertus, hy3, harmony, kimi_k3, muse"),
            "{unknown}"
        );
    }

    #[test]
    fn the_prompt_may_open_the_reasoning() {
        let think = ReasoningFormat::Think;
        assert_eq!(think.start("<|im_start|>assistant\n<think>\n"), ReasoningStart::Inside);
        for prompt in ["<|im_start|>assistant\n", "<think>\n\n</think>\n\n", ""] {
            assert_eq!(think.start(prompt), ReasoningStart::Possible, "{prompt}");
        }
    }
}
