//! The names of request fields in the APIs below `/v1`.

use crate::service::ServiceError;

/// The names that an API has for the fields that errors of the service are about. The service knows
/// these fields by TGI's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FieldNames {
    /// The text or conversation to continue: TGI's `inputs`.
    pub(super) prompt: &'static str,
    /// The most tokens of the answer: TGI's `max_new_tokens`.
    pub(super) new_tokens: &'static str,
    /// The alternatives reported for each token: TGI's `top_n_tokens`.
    pub(super) alternatives: &'static str,
    /// The texts that end the answer: TGI's `stop`.
    pub(super) stop: &'static str,
}

impl FieldNames {
    /// `/v1/completions`.
    pub(super) const COMPLETION: Self =
        FieldNames { prompt: "prompt", new_tokens: "max_tokens", alternatives: "logprobs", stop: "stop" };
    /// `/v1/chat/completions`.
    pub(super) const CHAT: Self =
        FieldNames { prompt: "messages", alternatives: "top_logprobs", ..Self::COMPLETION };
    /// Anthropic's `/v1/messages`.
    pub(super) const ANTHROPIC: Self = FieldNames { stop: "stop_sequences", ..Self::CHAT };
    /// `/v1/responses`.
    pub(super) const RESPONSES: Self =
        FieldNames { prompt: "input", new_tokens: "max_output_tokens", ..Self::CHAT };
    /// `/v1/embeddings`.
    pub(super) const EMBEDDINGS: Self = FieldNames { prompt: "input", ..Self::CHAT };
    /// `/v1/rerank`, where a query and a document are one prompt.
    pub(super) const RERANK: Self = FieldNames { prompt: "documents", ..Self::CHAT };

    /// Returns this API's name of a field that the service knows by TGI's name.
    pub(super) fn name(&self, param: &'static str) -> &'static str {
        match param {
            "inputs" => self.prompt,
            "max_new_tokens" => self.new_tokens,
            "top_n_tokens" => self.alternatives,
            "stop" => self.stop,
            other => other,
        }
    }

    /// Replaces TGI's names in an error of the service with this API's.
    pub(super) fn rename(&self, text: &str) -> String {
        text.replace("`inputs`", &format!("`{}`", self.prompt))
            .replace("`max_new_tokens`", &format!("`{}`", self.new_tokens))
            .replace("`top_n_tokens`", &format!("`{}`", self.alternatives))
            .replace("`stop`", &format!("`{}`", self.stop))
    }

    /// Replaces the name that the chat core has for the conversation with this API's.
    pub(super) fn rename_conversation(&self, text: &str) -> String {
        text.replace("`messages`", &format!("`{}`", self.prompt))
    }

    /// Returns an error of the service with this API's names in its text.
    pub(super) fn renamed(&self, error: ServiceError) -> ServiceError {
        match error {
            ServiceError::Validation { param, detail } => {
                ServiceError::Validation { param, detail: self.rename(&detail) }
            }
            ServiceError::Template(text) => ServiceError::Template(self.rename_conversation(&text)),
            other => other,
        }
    }
}
