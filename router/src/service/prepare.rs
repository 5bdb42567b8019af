//! Validates a request and tokenizes its prompt.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use millrace_answers::grammar::{CompiledGrammar, GrammarError, RequestedGrammar};
use millrace_proto::Ready;
use millrace_proto::rules::check_sampling;
use millrace_text::SpecialTokens;

use super::context::RequestContext;
use super::encode::TextToEncode;
use super::error::ServiceError;
use super::limits::TokenLimits;
use super::params::{Params, Prompt, TruncationSide};
use super::prepared::Prepared;
use super::setup::Service;
use crate::engine::Request;
use crate::metrics;

/// The state of a request between the checks of its parameters and its prompt.
struct Validation {
    received: Instant,
    limits: TokenLimits,
    ready: Arc<Ready>,
    context: Option<Arc<RequestContext>>,
}

/// A prompt, and the salt of the texts with which it shares token ids.
struct PromptToEncode {
    prompt: Prompt,
    salt: Option<Arc<str>>,
}

impl Service {
    /// Charges the account of the current caller for work whose result was refused. A server that
    /// is full charges nothing.
    pub(super) fn charge_refused(error: &ServiceError, tokens: usize) {
        let is_invalid = matches!(
            error,
            ServiceError::Validation { .. } | ServiceError::ContextLength(_) | ServiceError::Template(_)
        );
        let context = RequestContext::current().filter(|_| is_invalid);
        if let Some(account) = context.as_deref().and_then(RequestContext::account) {
            account.charge_refused(tokens);
        }
    }

    /// Validates a request and tokenizes its prompt.
    ///
    /// # Errors
    /// [`ServiceError`] if the request is invalid or the model is not loaded.
    pub async fn prepare(&self, prompt: Prompt, params: Params) -> Result<Prepared, ServiceError> {
        let received = Instant::now();
        metrics::request_received();
        self.validate(prompt, params, received)
            .await
            .inspect_err(|error| metrics::request_failed(error.kind()))
    }

    /// Logs the prompt if the operator has enabled it.
    fn log_prompt(&self, context: Option<&RequestContext>, prompt: &[u32]) {
        if self.0.limits.log_requests {
            let request_id = context.map(RequestContext::id);
            let mut detokenizer = self.0.tokenizer.detokenizer(false, false);
            let text: String = prompt.iter().map(|&id| detokenizer.push(id)).collect();
            tracing::info!(request_id, prompt = text + &detokenizer.finish(), "prompt");
        }
    }

    async fn validate(
        &self,
        prompt: Prompt,
        params: Params,
        received: Instant,
    ) -> Result<Prepared, ServiceError> {
        let ready = self.ready()?;
        let _place = self.enter()?;
        let context = RequestContext::current();
        let caller = context.as_deref().and_then(RequestContext::caller);
        if let Some(caller) = caller {
            caller.check_priority(params.priority)?;
        }
        if ready.headless && params.pooling.is_none() {
            let detail =
                "the model has no head: it computes vectors of texts (/v1/embeddings), and no tokens";
            return Err(ServiceError::invalid("model", detail));
        }
        let limits = self.0.limits.tokens(&ready).at_most(params.max_input);
        let mut params = params.with_defaults(self.0.sampling);
        params.check(&self.0.limits, &ready)?;
        if let Some(best_of) = params.best_of.filter(|&best_of| best_of > 1) {
            self.has_room_for(best_of)?;
        }
        limits.check_truncate(params.truncate)?;
        self.limit_raw_reasoning(&prompt, &mut params)?;
        let work = prompt.estimated_tokens();
        self.tokenized(prompt, params, Validation { received, limits, ready, context })
            .await
            .inspect_err(|error| Self::charge_refused(error, work))
    }

    /// Tokenizes the prompt of a request whose parameters are valid, and compiles its grammar.
    async fn tokenized(
        &self,
        prompt: Prompt,
        mut params: Params,
        validation: Validation,
    ) -> Result<Prepared, ServiceError> {
        let Validation { received, limits, ready, context } = validation;
        let caller = context.as_deref().and_then(RequestContext::caller);
        let cache_salt =
            caller.map_or_else(|| params.cache_salt.clone(), |c| c.salt(params.cache_salt.as_ref()));
        let prompt = PromptToEncode { prompt, salt: cache_salt.clone() };
        let ids = self.prompt_tokens(prompt, &params, limits, &ready).await?;
        if params.pooling.is_some() && params.pooling_start >= ids.len() {
            let detail = "the model's prompt is not pooled, and it leaves no token of the text";
            return Err(ServiceError::invalid("inputs", detail));
        }
        let max_new_tokens = limits.new_tokens(ids.len(), params.max_new_tokens, params.clamp_new_tokens)?;
        if let Some(limit) = &mut params.reasoning_limit {
            limit.fit(max_new_tokens, &self.0.tokenizer);
        }
        let grammar = match &params.grammar {
            Some(wanted) => self.compile(wanted, ready.vocab_size).await?,
            None => None,
        };
        let (grammar, excessive_tools) = grammar.unzip();
        let validation = received.elapsed();
        metrics::request_validated(validation, ids.len(), max_new_tokens);
        let seed = params.samples().then(|| params.seed.unwrap_or_else(rand::random));
        let (stop_tokens, stops) = self.stops(&params);
        let (seed_or_any, watermark) = (seed.unwrap_or_default(), self.0.limits.watermark);
        let sampling = params.sampling(seed_or_any, &stop_tokens, watermark, ready.vocab_size);
        check_sampling(&sampling, ready.vocab_size as usize)
            .map_err(|wrong| ServiceError::invalid("parameters", wrong.to_string()))?;
        let (ids, block_hashes) = self.hash_blocks(ids, params.adapter, cache_salt.clone(), &ready).await?;
        let request = Request {
            prompt: ids,
            max_new_tokens,
            stop_tokens,
            sampling,
            priority: params.priority,
            tenant: context.as_deref().map(RequestContext::tenant).unwrap_or_default(),
            adapter: params.adapter,
            cache_salt,
            block_hashes,
            // Known when the request starts.
            mask: None,
            prompt_logprobs: params.prompt_logprobs,
            pooling: params.pooling,
            pooling_start: params.pooling_start as u32,
            second_type_start: params.second_type_start.map(|start| start as u32),
        };
        self.log_prompt(context.as_deref(), &request.prompt);
        Ok(Prepared {
            request,
            grammar,
            excessive_tools: excessive_tools.unwrap_or_default(),
            stops,
            params,
            seed,
            received,
            validation,
            counted: true,
            context,
        })
    }

    /// Tokenizes a prompt, checks its tokens and truncates it.
    async fn prompt_tokens(
        &self,
        PromptToEncode { prompt, salt }: PromptToEncode,
        params: &Params,
        limits: TokenLimits,
        ready: &Ready,
    ) -> Result<Vec<u32>, ServiceError> {
        let specials = match &prompt {
            Prompt::Text(_, specials) => *specials,
            _ => SpecialTokens::Omit,
        };
        let mut ids = match prompt {
            Prompt::Text(text, specials) => {
                self.encode(TextToEncode { text: text.into(), specials, salt }, params, limits).await?
            }
            // The template has written the special tokens at the beginning of the prompt.
            Prompt::Chat(text) => {
                let specials = SpecialTokens::Omit;
                self.encode(TextToEncode { text, specials, salt }, params, limits).await?
            }
            Prompt::Ids(ids) => ids,
        };
        // A tokenizer may have more tokens than the model has embeddings.
        if let Some(id) = ids.iter().find(|&&id| id >= ready.vocab_size) {
            let detail = format!("token id {id} is outside of the vocabulary of {}", ready.vocab_size);
            return Err(ServiceError::invalid("inputs", detail));
        }
        if ids.is_empty() {
            return Err(ServiceError::invalid("inputs", "`inputs` cannot be empty"));
        }
        let tokenizer = &self.0.tokenizer;
        let end = tokenizer.vector_end().filter(|_| specials == SpecialTokens::Add);
        if params.pooling.is_some() {
            ids.extend(end);
        } else if specials == SpecialTokens::Add
            && ids.len() > 1
            && tokenizer.text_end().is_some_and(|end| ids.last() == Some(&end))
        {
            // A model that has read the end of its text does not continue it.
            ids.pop();
        }
        let Some(keep) = params.truncate else { return Ok(ids) };
        // A vector may be the state of a token around the text.
        let around = params.pooling.and_then(|_| tokenizer.affixes(specials));
        let (before, after) = around.map(|(before, after)| (before.ids, after.ids)).unwrap_or_default();
        Ok(match params.truncation_side {
            TruncationSide::Left => without_beginning(ids, keep, &before),
            TruncationSide::Right => {
                let after: Vec<u32> = after.into_iter().chain(end).collect();
                without_end(ids, keep, &after)
            }
        })
    }

    /// Compiles the grammar of a request. Returns it with the places of tools whose schemas exceed
    /// a limit, or `None` if the grammar is optional and not supported.
    async fn compile(
        &self,
        wanted: &RequestedGrammar,
        vocab_size: u32,
    ) -> Result<Option<(Arc<CompiledGrammar>, BTreeSet<usize>)>, ServiceError> {
        let compiled = match self.0.limits.grammar_support {
            true => self.0.grammars.compile_tools(&wanted.grammar, vocab_size).await,
            false => Err(GrammarError::Unsupported("")),
        };
        match compiled {
            Ok(compiled) => Ok(Some(compiled)),
            Err(GrammarError::Unsupported(_)) if wanted.optional => Ok(None),
            Err(GrammarError::Busy) => Err(self.0.engine.overloaded().into()),
            Err(error) => Err(ServiceError::invalid(wanted.field, error.to_string())),
        }
    }

    /// The stop tokens and stop strings of a request. A stop string that is the text of a special
    /// token stands for that token, which is not part of the answer's text.
    fn stops(&self, params: &Params) -> (Arc<[u32]>, Vec<String>) {
        let special =
            |stop: &String| self.0.tokenizer.token_id(stop).filter(|&id| self.0.tokenizer.is_special(id));
        let tokens: Vec<u32> = params.stop.iter().filter_map(special).collect();
        let eos = if params.ignore_eos { Arc::default() } else { self.0.eos.clone() };
        if tokens.is_empty() {
            return (eos, params.stop.clone());
        }
        (eos.iter().copied().chain(tokens).collect(), params.stop.clone())
    }
}

/// Returns the first `keep` tokens of a text. If some are lost, the tokens that follow a text,
/// which are `after`, take the places of the last ones.
fn without_end(mut ids: Vec<u32>, keep: usize, after: &[u32]) -> Vec<u32> {
    if ids.len() > keep {
        ids.truncate(keep.saturating_sub(after.len()));
        ids.extend(&after[after.len().saturating_sub(keep)..]);
    }
    ids
}

/// Returns the last `keep` tokens of a text. If some are lost, the tokens that the tokenizer puts
/// `before` a text take the places of the first ones.
fn without_beginning(mut ids: Vec<u32>, keep: usize, before: &[u32]) -> Vec<u32> {
    let is_whole = ids.len() <= keep && ids.starts_with(before);
    if !is_whole {
        let kept = keep.saturating_sub(before.len());
        ids.drain(..ids.len().saturating_sub(kept));
        ids.splice(..0, before[..before.len().min(keep)].iter().copied());
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::{without_beginning, without_end};

    #[test]
    fn truncation_from_the_left_keeps_what_is_before_the_text() {
        let ids = || vec![101, 1, 2, 3, 102];
        assert_eq!(without_beginning(ids(), 5, &[101]), ids());
        assert_eq!(without_beginning(ids(), 4, &[101]), [101, 2, 3, 102]);
        assert_eq!(without_beginning(ids(), 4, &[]), [1, 2, 3, 102]);
        // Only the end of a long text was tokenized.
        assert_eq!(without_beginning(vec![2, 3, 102], 3, &[101]), [101, 3, 102]);
        assert_eq!(without_beginning(ids(), 1, &[101, 9]), [101]);
    }

    #[test]
    fn truncation_from_the_right_keeps_what_is_after_the_text() {
        let ids = || vec![101, 1, 2, 3, 102];
        assert_eq!(without_end(ids(), 5, &[102]), ids());
        assert_eq!(without_end(ids(), 4, &[102]), [101, 1, 2, 102]);
        assert_eq!(without_end(ids(), 4, &[]), [101, 1, 2, 3]);
        // Only the beginning of a long text was tokenized.
        assert_eq!(without_end(vec![101, 1, 2, 3], 3, &[102]), [101, 1, 102]);
        assert_eq!(without_end(ids(), 1, &[9, 102]), [102]);
    }
}
