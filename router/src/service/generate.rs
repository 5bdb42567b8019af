//! Runs prepared requests.

use millrace_answers::Constraint;
use millrace_answers::grammar::GrammarMatcher;

use super::answer::Answer;
use super::error::ServiceError;
use super::params::{Params, Prompt};
use super::prepared::Prepared;
use super::setup::Service;
use super::stream::TextStream;
use crate::metrics;

impl Service {
    /// Submits a request to the engine and returns its answer as a stream of text. Dropping the
    /// stream cancels the request.
    ///
    /// # Errors
    /// [`ServiceError::Overloaded`], [`ServiceError::LimitExceeded`] or
    /// [`ServiceError::Unavailable`] if the engine does not accept the request.
    pub fn start(&self, prepared: Prepared) -> Result<TextStream, ServiceError> {
        let mut request = prepared.request.clone();
        let account = prepared.account().cloned();
        let engine = self.0.engine.on_behalf_of(request.tenant.clone(), account.clone());
        let grammar = prepared.grammar.as_ref().map(|grammar| {
            let matcher: Box<dyn Constraint> = Box::new(GrammarMatcher::new(grammar.clone()));
            (matcher, grammar.first())
        });
        let constraint = match &prepared.params.reasoning_limit {
            Some(limit) => Some(limit.start(grammar, &self.0.tokenizer)),
            None => grammar,
        };
        let submitted = match constraint {
            Some((constraint, first)) => {
                request.mask = Some(first);
                engine.submit_constrained(request, constraint)
            }
            None => engine.submit(request),
        };
        match submitted {
            Ok(generation) => {
                // Several answers to a prompt compute it once.
                if let Some(account) = account.filter(|_| prepared.counted) {
                    account.charge_prompt(prepared.prompt().len());
                }
                let mut stream =
                    TextStream::new(self.0.tokenizer.clone(), self.0.eos.clone(), prepared, generation);
                stream.logs_text(self.0.limits.log_requests);
                Ok(stream)
            }
            Err(refused) => {
                let error = ServiceError::from(refused);
                if prepared.counted {
                    metrics::request_failed(error.kind());
                }
                Err(error)
            }
        }
    }

    /// Validates a request and starts it.
    ///
    /// # Errors
    /// Those of [`Service::prepare`] and [`Service::start`].
    pub async fn generate(&self, prompt: Prompt, params: Params) -> Result<TextStream, ServiceError> {
        let prepared = self.prepare(prompt, params).await?;
        self.start(prepared)
    }

    /// Starts `count` answers to one prompt, which differ in their sampling seeds.
    ///
    /// # Errors
    /// Those of [`Service::start`]. No answer is left running then.
    pub fn start_several(&self, prepared: &Prepared, count: usize) -> Result<Vec<TextStream>, ServiceError> {
        (0..count as u64).map(|index| self.start(prepared.variant(index))).collect()
    }

    /// Waits for all of these answers.
    ///
    /// # Errors
    /// The first error of any answer. The other answers are cancelled then.
    pub async fn collect(streams: Vec<TextStream>) -> Result<Vec<Answer>, ServiceError> {
        futures::future::try_join_all(streams.into_iter().map(TextStream::collect)).await
    }
}
