//! Conversations to prompts, and texts to tokens, as part of a request or as all that it asks for.

use super::budget::Reservation;
use super::{Params, Service, ServiceError, TokenLimits};
use crate::text::{Conversation, Encoded, Guard, Rendered, Specials, TemplateError};

impl Service {
    /// Hides the special tokens that a request has in its messages, unless clients may write them.
    pub fn guard(&self) -> Guard {
        let guarded = !self.0.limits.parse_special_in_user_text;
        Guard::new(guarded.then(|| self.0.tokenizer.control_tokens().clone()))
    }

    /// The prompt for a conversation, all of which comes from a client.
    ///
    /// # Errors
    /// [`ServiceError::Template`] if the model has no template or the template refuses the messages.
    pub async fn render(&self, mut conversation: Conversation) -> Result<Rendered, ServiceError> {
        let mut guard = self.guard();
        guard.hide_conversation(&mut conversation);
        self.render_guarded(conversation, guard).await
    }

    /// The prompt for a conversation in which `guard` has hidden what comes from the client.
    ///
    /// # Errors
    /// As [`Service::render`].
    pub async fn render_guarded(
        &self,
        conversation: Conversation,
        guard: Guard,
    ) -> Result<Rendered, ServiceError> {
        let _place = self.enter().map_err(Self::reject)?;
        let template = self.0.template.as_ref().ok_or(TemplateError::Missing);
        match template {
            Ok(template) => template.render(conversation, guard).await,
            Err(missing) => Err(missing),
        }
        .map_err(|error| Self::reject(ServiceError::Template(error.to_string())))
    }

    /// Whether the model's chat template has this word in quotes, as it has the names of roles that it knows.
    pub fn template_quotes(&self, word: &str) -> bool {
        self.0.template.as_ref().is_some_and(|template| template.quotes(word))
    }

    /// The tokens of a text that does not become a prompt, for a client that asks for nothing else. The text is admitted
    /// like a prompt: it waits for nothing where the server is full, and has a bounded size.
    ///
    /// # Errors
    /// [`ServiceError::Validation`] if the text is empty or too long, [`ServiceError::Overloaded`] if the server is full.
    pub async fn tokenize(&self, text: Rendered, specials: Specials) -> Result<Encoded, ServiceError> {
        let _place = self.enter().map_err(Self::reject)?;
        self.check_tokenizable(text.text.len()).map_err(Self::reject)?;
        self.tokens(text, specials, usize::MAX).await.map_err(Self::reject)
    }

    /// Memory for the tokens of a text of so many bytes, held until the answer has been sent.
    ///
    /// # Errors
    /// [`ServiceError::Validation`] if the text is too long, [`ServiceError::Overloaded`] if the answers that are being sent
    /// take up all of the memory.
    pub(crate) fn reserve_tokens(&self, bytes: usize) -> Result<Reservation, ServiceError> {
        self.check_tokenizable(bytes).map_err(Self::reject)?;
        self.0.answers.reserve(bytes).ok_or_else(|| Self::reject(self.0.engine.overloaded().into()))
    }

    /// Memory for an answer of so many bytes of text, held until it has been written.
    ///
    /// # Errors
    /// [`ServiceError::Overloaded`] if the answers that are being written take up all of the memory.
    pub(crate) fn reserve_text(&self, bytes: usize) -> Result<Reservation, ServiceError> {
        let mut reservation = self.0.answers.reserve(bytes).ok_or_else(|| self.0.engine.overloaded())?;
        reservation.shrink(0);
        Ok(reservation)
    }

    fn check_tokenizable(&self, bytes: usize) -> Result<(), ServiceError> {
        let longest = match (self.0.limits.max_tokenize_bytes, self.ready()) {
            (Some(configured), _) => configured,
            (None, Ok(ready)) => self.prompt_bytes(self.0.limits.tokens(&ready)),
            // The model's limits are not known yet; the size of the body is bounded.
            (None, Err(_)) => return Ok(()),
        };
        if bytes <= longest {
            return Ok(());
        }
        let detail = format!(
            "a text to be tokenized must have at most {longest} bytes. Given: {bytes}. The server's flag \
             --max-tokenize-bytes raises this limit"
        );
        Err(ServiceError::invalid("inputs", detail))
    }

    /// More bytes than this are more tokens than a prompt may have, whatever they are.
    fn prompt_bytes(&self, limits: TokenLimits) -> usize {
        limits.max_input.saturating_mul(self.0.tokenizer.longest_token().max(1))
    }

    /// The tokens of a prompt, of which only the end is worked out if only that is kept.
    pub(super) async fn encode(
        &self,
        prompt: Rendered,
        specials: Specials,
        params: &Params,
        limits: TokenLimits,
    ) -> Result<Vec<u32>, ServiceError> {
        // A text of more bytes than so many of the longest token has more tokens: it is not even tried.
        if params.truncate.is_none() && prompt.text.len() > self.prompt_bytes(limits) {
            let tokens = prompt.text.len() / self.0.tokenizer.longest_token().max(1);
            return Err(limits.input_too_long(tokens));
        }
        Ok(self.tokens(prompt, specials, params.truncate.unwrap_or(usize::MAX)).await?.ids)
    }

    /// At least the last `keep` tokens of a text.
    async fn tokens(&self, text: Rendered, specials: Specials, keep: usize) -> Result<Encoded, ServiceError> {
        if text.text.is_empty() {
            return Err(ServiceError::invalid("inputs", "`inputs` cannot be empty"));
        }
        let encoded = self.0.tokenizer.encode_last(text, specials, keep).await;
        encoded.map_err(|error| ServiceError::invalid("inputs", error.to_string()))
    }
}
