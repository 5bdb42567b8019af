//! Renders conversations into prompts and tokenizes texts, as a part of a request or as its only
//! purpose.

use millrace_text::{
    ControlTokenGuard, Conversation, EncodedText, RenderedPrompt, SpecialTokens, TemplateError, TextError,
};

use super::budget::Reservation;
use super::context::RequestContext;
use super::encode::{NeededTokens, TextToEncode};
use super::error::ServiceError;
use super::limits::TokenLimits;
use super::pairs::PairCut;
use super::params::{Params, TruncationSide};
use super::setup::Service;

impl Service {
    /// A guard that hides special tokens in clients' messages, unless clients may write them.
    pub fn guard(&self) -> ControlTokenGuard {
        let guarded = !self.0.limits.parse_special_in_user_text;
        ControlTokenGuard::new(guarded.then(|| self.0.tokenizer.control_tokens().clone()))
    }

    /// Renders a conversation that comes from a client completely.
    ///
    /// # Errors
    /// [`ServiceError::Template`] if the model has no template or the template refuses the
    /// messages.
    pub async fn render(&self, mut conversation: Conversation) -> Result<RenderedPrompt, ServiceError> {
        let mut guard = self.guard();
        self.in_turn(|| guard.hide_conversation(&mut conversation)).await;
        self.render_guarded(conversation, guard).await
    }

    /// Renders a conversation in which `guard` has hidden the texts of the client.
    ///
    /// # Errors
    /// Those of [`Service::render`].
    pub async fn render_guarded(
        &self,
        conversation: Conversation,
        guard: ControlTokenGuard,
    ) -> Result<RenderedPrompt, ServiceError> {
        let _place = self.enter().map_err(Self::reject)?;
        let template = self.0.template.as_ref().ok_or(TemplateError::Missing);
        let messages = conversation.messages.len();
        let _turn = self.0.turns.take(RequestContext::current_tenant()).await;
        match template {
            Ok(template) => template.render(conversation, guard).await,
            Err(missing) => Err(missing),
        }
        .map_err(|error| {
            let error = ServiceError::Template(error.to_string());
            Self::charge_refused(&error, messages);
            Self::reject(error)
        })
    }

    /// Whether the model's chat template contains this word in quotes, like the names of the roles
    /// that it supports.
    pub fn template_quotes(&self, word: &str) -> bool {
        self.0.template.as_ref().is_some_and(|template| template.quotes(word))
    }

    /// Tokenizes a text that does not become a prompt. A full server refuses it like a prompt, and
    /// its size is bounded.
    ///
    /// # Errors
    /// [`ServiceError::Validation`] if the text is empty or too long,
    /// [`ServiceError::Overloaded`] if the server is full.
    pub async fn tokenize(
        &self,
        text: RenderedPrompt,
        specials: SpecialTokens,
    ) -> Result<EncodedText, ServiceError> {
        let _place = self.enter().map_err(Self::reject)?;
        self.check_tokenizable(text.text.len()).map_err(Self::reject)?;
        Self::check_not_empty(&text).map_err(Self::reject)?;
        let tenant = RequestContext::current_tenant();
        let encoded = self.0.encoder.encode_first(text, specials, usize::MAX, &tenant).await;
        encoded.map_err(|error| Self::reject(encode_refusal(&error)))
    }

    /// Tokenizes a text like [`Service::tokenize`], and takes the ids of pieces that earlier texts
    /// had from the cache.
    ///
    /// # Errors
    /// Those of [`Service::tokenize`].
    pub(crate) async fn token_ids(
        &self,
        text: RenderedPrompt,
        specials: SpecialTokens,
    ) -> Result<Vec<u32>, ServiceError> {
        self.check_tokenizable(text.text.len()).map_err(Self::reject)?;
        self.ids_of(TextToEncode { text, specials, salt: None }, NeededTokens::First(usize::MAX)).await
    }

    async fn ids_of(&self, text: TextToEncode, needed: NeededTokens) -> Result<Vec<u32>, ServiceError> {
        let _place = self.enter().map_err(Self::reject)?;
        Self::check_not_empty(&text.text).map_err(Self::reject)?;
        let ids = self.0.encoder.ids(text, needed, &RequestContext::current_tenant()).await;
        ids.map_err(|error| Self::reject(encode_refusal(&error)))
    }

    /// Tokenizes a text of a pair, without special tokens. If the pair is cut, only the part of a
    /// very long text that can be kept is tokenized, so the text may have any size.
    ///
    /// # Errors
    /// Those of [`Service::tokenize`].
    pub(crate) async fn tokenize_of_pair(
        &self,
        text: String,
        cut: Option<PairCut>,
    ) -> Result<Vec<u32>, ServiceError> {
        let specials = SpecialTokens::Omit;
        let Some(PairCut { longest, side }) = cut else {
            return self.token_ids(text.into(), specials).await;
        };
        let needed = match side {
            TruncationSide::Left => NeededTokens::Last(longest),
            TruncationSide::Right => NeededTokens::First(longest),
        };
        self.ids_of(TextToEncode { text: text.into(), specials, salt: None }, needed).await
    }

    /// Reserves memory for the tokens of a text of `bytes` bytes until the answer has been sent.
    ///
    /// # Errors
    /// [`ServiceError::Validation`] if the text is too long, [`ServiceError::Overloaded`]
    /// if other answers that are being sent use all of the memory.
    pub(crate) fn reserve_tokens(&self, bytes: usize) -> Result<Reservation, ServiceError> {
        self.check_tokenizable(bytes).map_err(Self::reject)?;
        self.0.answers.reserve(bytes).ok_or_else(|| Self::reject(self.0.engine.overloaded().into()))
    }

    /// Reserves memory for an answer of `bytes` bytes of text until it has been written.
    ///
    /// # Errors
    /// [`ServiceError::Overloaded`] if other answers that are being written use all of the memory.
    pub(crate) fn reserve_text(&self, bytes: usize) -> Result<Reservation, ServiceError> {
        let mut reservation = self.0.answers.reserve(bytes).ok_or_else(|| self.0.engine.overloaded())?;
        reservation.shrink(0);
        Ok(reservation)
    }

    fn check_tokenizable(&self, bytes: usize) -> Result<(), ServiceError> {
        let longest = match (self.0.limits.max_tokenize_bytes, self.ready()) {
            (Some(configured), _) => configured,
            (None, Ok(ready)) => self.prompt_bytes(self.0.limits.tokens(&ready)),
            // The model's limits are not known yet, but the size of the body is bounded.
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

    /// Maximum number of bytes of a prompt: a longer text has more tokens than a prompt may have.
    fn prompt_bytes(&self, limits: TokenLimits) -> usize {
        limits.max_input.saturating_mul(self.0.tokenizer.longest_token().max(1))
    }

    /// Tokenizes a prompt. If the prompt is truncated, only the part that is kept is tokenized.
    pub(super) async fn encode(
        &self,
        prompt: TextToEncode,
        params: &Params,
        limits: TokenLimits,
    ) -> Result<Vec<u32>, ServiceError> {
        // A longer text has too many tokens even if all of them are the longest token.
        let bytes = prompt.text.text.len();
        if params.truncate.is_none() && bytes > self.prompt_bytes(limits) {
            return Err(limits.input_too_long(bytes / self.0.tokenizer.longest_token().max(1)));
        }
        Self::check_not_empty(&prompt.text)?;
        let needed = match (params.truncate, params.truncation_side) {
            (None, _) => NeededTokens::First(usize::MAX),
            (Some(keep), TruncationSide::Left) => NeededTokens::Last(keep),
            (Some(keep), TruncationSide::Right) => NeededTokens::First(keep),
        };
        let ids = self.0.encoder.ids(prompt, needed, &RequestContext::current_tenant()).await;
        ids.map_err(|error| encode_refusal(&error))
    }

    fn check_not_empty(text: &RenderedPrompt) -> Result<(), ServiceError> {
        match text.text.is_empty() {
            true => Err(ServiceError::invalid("inputs", "`inputs` cannot be empty")),
            false => Ok(()),
        }
    }
}

fn encode_refusal(error: &TextError) -> ServiceError {
    ServiceError::invalid("inputs", error.to_string())
}
