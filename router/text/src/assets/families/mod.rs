//! Prompt formats of models that are published without a chat template.

use super::facts::ModelFacts;
use super::vocabulary::TokenizerSource;

#[cfg(test)]
mod tests;

/// A prompt format, and the models that use it.
struct FamilyTemplate {
    source: &'static str,
    /// Whether a model uses the format.
    applies: fn(&ModelFacts, &Tokens) -> bool,
    /// The variables of the template that depend on the model: their names, and the keys of
    /// `generation_config.json` with the ids of the tokens that are their values.
    tokens: &'static [(&'static str, &'static str)],
    /// The tokens that end an answer, beside those that the configuration names.
    ends: &'static [&'static str],
}

/// The prompt format of a model.
pub(super) struct PromptFormat {
    /// The chat template.
    pub(super) template: String,
    /// The ids of tokens that end an answer.
    pub(super) ends: Vec<u32>,
}

/// The tokens of a model, as far as prompt formats are chosen by them.
struct Tokens<'a>(&'a TokenizerSource);

/// The prompt formats. The first one that applies is used. Formats of models that are also
/// published without training for conversations apply only if the files show that training.
const FAMILIES: &[FamilyTemplate] = &[
    FamilyTemplate {
        source: include_str!("chatglm.jinja"),
        applies: |facts, _| facts.is_chatglm1(),
        tokens: &[],
        ends: &[],
    },
    FamilyTemplate {
        source: include_str!("glm4.jinja"),
        applies: |facts, tokens| is_glm(facts) && tokens.have("<sop>") && tokens.have("<|user|>"),
        tokens: &[],
        ends: &["<|user|>", "<|observation|>"],
    },
    FamilyTemplate {
        source: include_str!("chatglm3.jinja"),
        applies: |facts, tokens| is_glm(facts) && tokens.have("sop") && tokens.have("<|user|>"),
        tokens: &[],
        ends: &["<|user|>", "<|observation|>"],
    },
    FamilyTemplate {
        source: include_str!("chatglm2.jinja"),
        applies: |facts, tokens| is_glm(facts) && tokens.have("sop"),
        tokens: &[],
        ends: &[],
    },
    FamilyTemplate {
        source: include_str!("baichuan.jinja"),
        applies: |facts, _| {
            facts.model_type == "baichuan"
                && BAICHUAN.iter().all(|(_, key)| facts.generation_id(key).is_some())
        },
        tokens: BAICHUAN,
        ends: &[],
    },
    FamilyTemplate {
        source: include_str!("qwen.jinja"),
        applies: |facts, _| {
            let format = facts.generation.get("chat_format").and_then(serde_json::Value::as_str);
            facts.model_type == "qwen" && format == Some("chatml")
        },
        tokens: &[],
        ends: &[],
    },
    FamilyTemplate {
        source: include_str!("internlm2.jinja"),
        applies: |facts, tokens| facts.model_type == "internlm2" && tokens.have("<|im_start|>"),
        tokens: &[],
        ends: &[],
    },
    FamilyTemplate {
        source: include_str!("internlm.jinja"),
        applies: |facts, tokens| facts.model_type == "internlm" && tokens.have("<eoh>"),
        tokens: &[],
        ends: &[],
    },
    FamilyTemplate {
        source: include_str!("vicuna.jinja"),
        applies: |facts, _| facts.model_type == "llama" && facts.name.contains("vicuna"),
        tokens: &[],
        ends: &[],
    },
    FamilyTemplate {
        source: include_str!("llama2.jinja"),
        applies: |facts, _| {
            let is_llama2 = facts.name.contains("llama-2") || facts.name.contains("llama2");
            facts.model_type == "llama" && is_llama2 && facts.name.contains("chat")
        },
        tokens: &[],
        ends: &[],
    },
];

/// The variables of Baichuan's format.
const BAICHUAN: &[(&str, &str)] =
    &[("user_token", "user_token_id"), ("assistant_token", "assistant_token_id")];

fn is_glm(facts: &ModelFacts) -> bool {
    facts.model_type == "chatglm"
}

impl Tokens<'_> {
    /// Whether the model has this special token.
    fn have(&self, text: &str) -> bool {
        match self.0 {
            TokenizerSource::Vocabulary(vocabulary) => vocabulary.has_marker(text),
            TokenizerSource::Json(json) => {
                let quoted = serde_json::Value::from(text).to_string();
                json.windows(quoted.len()).any(|part| part == quoted.as_bytes())
            }
        }
    }

    /// Returns the id of a token that follows the vocabulary.
    fn id(&self, text: &str) -> Option<u32> {
        match self.0 {
            TokenizerSource::Vocabulary(vocabulary) => {
                vocabulary.added.iter().find(|token| token.text == text).map(|token| token.id)
            }
            TokenizerSource::Json(_) => None,
        }
    }

    fn text(&self, id: u32) -> Option<&str> {
        match self.0 {
            TokenizerSource::Vocabulary(vocabulary) => vocabulary.text(id),
            TokenizerSource::Json(_) => None,
        }
    }
}

/// Returns the prompt format of a model that has no chat template in its files; `None` if it is not
/// known.
pub(super) fn prompt_format(facts: &ModelFacts, tokenizer: &TokenizerSource) -> Option<PromptFormat> {
    let tokens = Tokens(tokenizer);
    let family = FAMILIES.iter().find(|family| (family.applies)(facts, &tokens))?;
    let mut source = String::new();
    for (variable, key) in family.tokens {
        let text = tokens.text(facts.generation_id(key)?)?;
        source.push_str(&format!("{{%- set {variable} = {} -%}}\n", serde_json::Value::from(text)));
    }
    let ends = family.ends.iter().filter_map(|text| tokens.id(text)).collect();
    Some(PromptFormat { template: source + family.source, ends })
}
