//! Prompts in the forms that `/v1/completions` and `/v1/embeddings` take.

use millrace_text::{SpecialTokens, Tokenizer};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::service::Prompt;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "a prompt must be a text, a list of texts, a list of token ids, or a list of such lists"
)]
#[schema(as = Prompts)]
pub(in crate::http) enum PromptList {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    ManyIds(Vec<Vec<u32>>),
}

impl PromptList {
    /// Returns each prompt by itself. The tokenizer's own tokens go around texts unless
    /// `add_special_tokens` is false.
    pub(in crate::http) fn into_prompts(self, add_special_tokens: Option<bool>) -> Vec<Prompt> {
        let specials =
            if add_special_tokens == Some(false) { SpecialTokens::Omit } else { SpecialTokens::Add };
        let text = |text| Prompt::Text(text, specials);
        match self {
            PromptList::Text(prompt) => vec![text(prompt)],
            PromptList::Texts(prompts) => prompts.into_iter().map(text).collect(),
            PromptList::Ids(ids) => vec![Prompt::Ids(ids)],
            PromptList::ManyIds(prompts) => prompts.into_iter().map(Prompt::Ids).collect(),
        }
    }
}

/// Returns the text of a prompt, which is decoded if the prompt was given as tokens.
pub(super) fn prompt_text(tokenizer: &Tokenizer, prompt: &Prompt) -> String {
    match prompt {
        Prompt::Text(text, _) => text.clone(),
        Prompt::Chat(prompt) => prompt.text.clone(),
        Prompt::Ids(ids) => {
            let mut detokenizer = tokenizer.detokenizer(true, false);
            ids.iter().map(|&id| detokenizer.push(id)).collect::<String>() + &detokenizer.finish()
        }
    }
}
