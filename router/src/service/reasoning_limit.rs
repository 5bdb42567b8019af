//! Limits of the reasoning: the tokens that end it, for conversations and for prompts that a client
//! has written itself.

use std::sync::Arc;

use millrace_answers::reasoning::{ReasoningFormat, ReasoningLimit, ReasoningPlace};
use millrace_text::SpecialTokens;

use super::error::ServiceError;
use super::params::{Params, Prompt};
use super::setup::Service;

/// The field with which a request for a raw prompt limits its reasoning.
const FIELD: &str = "thinking_token_budget";

impl Service {
    /// Returns the limit of reasoning in this format to `tokens` tokens. `shown` are the special
    /// tokens that are shown as text. Returns `None` if the model cannot generate the mark that
    /// ends the reasoning.
    pub(crate) fn reasoning_limit(
        &self,
        tokens: u32,
        format: ReasoningFormat,
        place: ReasoningPlace,
        shown: Arc<[u32]>,
    ) -> Option<ReasoningLimit> {
        let template = self.described().chat_template.as_deref().unwrap_or_default();
        let configured = self.limits().thinking_budget_message.as_deref();
        let message = configured.unwrap_or_else(|| format.budget_message(template));
        // A model that has not thought has nothing to bring to an end.
        let message = if tokens > 0 { message } else { "" };
        let calls = matches!(place, ReasoningPlace::Channels { calls: true, .. });
        let closing = format!("{message}{}", format.forced_close(calls));
        let closing = self.tokenizer().encode_now(&closing, SpecialTokens::Omit).ok()?.ids;
        let vocab_size = self.ready().ok()?.vocab_size;
        let can_be_generated = !closing.is_empty() && closing.iter().all(|&id| id < vocab_size);
        can_be_generated.then(|| ReasoningLimit { tokens, closing: closing.into(), shown, place })
    }

    /// Limits the reasoning after a raw prompt, if `params` ask for it.
    ///
    /// # Errors
    /// [`ServiceError::Validation`] if the model has no reasoning, or the prompt is not a text.
    pub(super) fn limit_raw_reasoning(
        &self,
        prompt: &Prompt,
        params: &mut Params,
    ) -> Result<(), ServiceError> {
        let Some(tokens) = params.thinking_budget else { return Ok(()) };
        let Prompt::Text(text, _) = prompt else {
            return Err(ServiceError::invalid(FIELD, format!("`{FIELD}` needs a prompt that is a text")));
        };
        let format = self.reasoning_format().filter(|format| format.channels().is_none());
        let limit = format.and_then(|format| {
            let marks = format.marks();
            let shown = marks.special_tokens(self.tokenizer()).into();
            let place = ReasoningPlace::Marks(marks, format.start(text));
            self.reasoning_limit(tokens, format, place, shown)
        });
        if limit.is_none() {
            let detail = format!("`{FIELD}` is not supported for this model: its reasoning has no marks");
            return Err(ServiceError::invalid(FIELD, detail));
        }
        params.reasoning_limit = limit;
        Ok(())
    }
}
