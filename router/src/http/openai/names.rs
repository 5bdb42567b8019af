//! What an API calls the fields that errors of the service are about.

use crate::service::ContextOverflow;

/// The names of fields in one API. The service knows the fields by TGI's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct FieldNames {
    /// What is to be continued: TGI's `inputs`.
    pub(in crate::http) prompt: &'static str,
    /// The longest answer: TGI's `max_new_tokens`.
    pub(in crate::http) new_tokens: &'static str,
    /// Alternatives per token: TGI's `top_n_tokens`.
    pub(in crate::http) alternatives: &'static str,
}

impl Default for FieldNames {
    fn default() -> Self {
        Self::COMPLETION
    }
}

impl FieldNames {
    /// `/v1/completions`.
    pub(in crate::http) const COMPLETION: Self =
        FieldNames { prompt: "prompt", new_tokens: "max_tokens", alternatives: "logprobs" };
    /// `/v1/chat/completions` and Anthropic's `/v1/messages`.
    pub(in crate::http) const CHAT: Self =
        FieldNames { prompt: "messages", new_tokens: "max_tokens", alternatives: "top_logprobs" };
    /// `/v1/responses`.
    pub(in crate::http) const RESPONSES: Self =
        FieldNames { prompt: "input", new_tokens: "max_output_tokens", alternatives: "top_logprobs" };
    /// `/v1/embeddings`.
    pub(in crate::http) const EMBEDDINGS: Self =
        FieldNames { prompt: "input", new_tokens: "max_tokens", alternatives: "top_logprobs" };

    /// The name of a field that the service knows by TGI's.
    pub(super) fn of(&self, param: &'static str) -> &'static str {
        match param {
            "inputs" => self.prompt,
            "max_new_tokens" => self.new_tokens,
            "top_n_tokens" => self.alternatives,
            other => other,
        }
    }

    /// A text of the service with this API's names.
    pub(super) fn rename(&self, text: &str) -> String {
        text.replace("`inputs`", &format!("`{}`", self.prompt))
            .replace("`max_new_tokens`", &format!("`{}`", self.new_tokens))
            .replace("`top_n_tokens`", &format!("`{}`", self.alternatives))
    }

    /// The error of a request that does not fit. Clients know it by how its first sentence begins.
    pub(super) fn overflow(&self, sizes: &ContextOverflow) -> String {
        let ContextOverflow { max_input, max_total, prompt, new, is_estimate } = *sizes;
        let FieldNames { prompt: field, new_tokens, .. } = self;
        let limit = format!("This model's maximum context length is {max_total} tokens");
        let about = if is_estimate { "at least " } else { "" };
        match new.filter(|_| !sizes.is_prompt_alone()) {
            Some(new) => format!(
                "{limit}. However, you requested {} tokens ({prompt} in the {field}, {new} in the completion). \
                 Please reduce `{field}` or `{new_tokens}`.",
                prompt.saturating_add(new)
            ),
            None => format!(
                "{limit}, of which at most {max_input} may be the prompt's. However, the {field} resulted in \
                 {about}{prompt} tokens. Please reduce `{field}`."
            ),
        }
    }
}
