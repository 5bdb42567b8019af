//! The one path of a request: text, validation, template, token ids, engine, text again.
//!
//! Everything that serves people goes through [`Service`]: the HTTP routes and the commands at the terminal alike.

mod budget;
mod caller;
mod context;
mod error;
mod late_system;
mod limits;
mod params;
mod stream;
mod text;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_proto::Ready;
use millrace_proto::rules::check_sampling;
use tokio::sync::{Semaphore, SemaphorePermit};

pub use crate::engine::{Pooling, PromptToken};
pub(crate) use budget::Reservation;
pub(crate) use caller::Caller;
pub(crate) use context::RequestContext;
pub use error::ServiceError;
pub use limits::{Limits, TokenLimits};
pub use millrace_proto::Watermark;
pub(crate) use params::priority;
pub use params::{Params, Prompt};
pub use stream::{FinishReason, Finished, TextEvent, TextStream, TextToken, Timings};

use self::budget::AnswerBudget;
use crate::assets::{AssetError, Assets, SamplingDefaults};
use crate::engine::{Engine, Request, State};
use crate::grammar::{Compiled, Compiler, GrammarError, Walk, Wanted};
use crate::metrics;
use crate::pooling::{self, UnknownPooling};
use crate::text::{ChatTemplate, Specials, TemplateError, TextError, Tokenizer, end_tokens};
use crate::tools::Format;

/// What is served, as clients are told.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// The name that clients ask for.
    pub id: String,
    /// The revision of its files, where known.
    pub sha: Option<String>,
    /// Its task on the hub, where known.
    pub pipeline_tag: Option<String>,
}

/// Why a service could not be made of a model folder.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A file is missing or broken.
    #[error(transparent)]
    Assets(#[from] AssetError),
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TextError),
    /// The chat template cannot be used.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

/// Text in, text out. Clones are the same service.
#[derive(Debug, Clone)]
pub struct Service(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// Whether the template writes system messages behind others.
    late_system: bool,
    tool_format: Format,
    pooling: Result<Pooling, UnknownPooling>,
    limits: Limits,
    engine: Engine,
    model: ModelInfo,
    eos: Arc<[u32]>,
    /// What the model's authors recommend where a request does not say it.
    sampling: SamplingDefaults,
    grammars: Compiler,
    /// Requests on their way to the engine: no more wait for a tokenizer than may wait for the model.
    entrance: Semaphore,
    /// Bytes of answers that are made of a text and have not been sent yet.
    answers: AnswerBudget,
}

/// A request that passed validation.
#[derive(Debug, Clone)]
pub struct Prepared {
    request: Request,
    /// What the answer must be.
    grammar: Option<Arc<Compiled>>,
    stops: Vec<String>,
    params: Params,
    seed: Option<u64>,
    received: Instant,
    validation: Duration,
    /// Counts as a request of its own; other answers to the same prompt do not.
    counted: bool,
    /// The request that this is for.
    context: Option<Arc<RequestContext>>,
}

/// A complete answer with all its tokens.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The key of its random draws; `None` if there were none.
    pub seed: Option<u64>,
    /// What the model makes of the prompt's tokens from the second one on, if that was asked for.
    pub prompt: Vec<PromptToken>,
    /// Its tokens.
    pub tokens: Vec<TextEvent>,
    /// The prompt's vector, `[hidden]`, if that was asked for.
    pub vector: Vec<f32>,
    /// Its text, and how it ended.
    pub finished: Finished,
}

impl Answer {
    /// What answers to the same prompt are compared by.
    pub fn mean_logprob(&self) -> f32 {
        let sum: f32 = self.tokens.iter().map(|event| event.token.logprob).sum();
        sum / self.tokens.len().max(1) as f32
    }
}

impl Prepared {
    /// The prompt's tokens.
    pub fn prompt(&self) -> &[u32] {
        &self.request.prompt
    }

    /// Keywords of the request's schemas that do not bind the answer, such as `tools.pattern`.
    pub fn unenforced(&self) -> Vec<String> {
        let wanted = self.grammar.as_ref().zip(self.params.grammar.as_ref());
        wanted.map(|(grammar, wanted)| grammar.unenforced().fields(wanted.field)).unwrap_or_default()
    }

    /// The key of the random draws; `None` if there are none.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// The same request with other random draws: the next of several answers to one prompt.
    #[must_use]
    pub fn variant(&self, index: u64) -> Self {
        let mut variant = self.clone();
        variant.seed = self.seed.map(|seed| variant_seed(seed, index));
        variant.request.sampling.seed = variant.seed.unwrap_or_default();
        variant.counted &= index == 0;
        variant
    }
}

/// The seed of the answer with this index. Neighbouring seeds have nothing in common: the second answer to a prompt with a seed
/// is not the first one with the next seed. The mixing function is SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) fn variant_seed(seed: u64, index: u64) -> u64 {
    if index == 0 {
        return seed;
    }
    let mut mixed = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Service {
    /// A service for a model whose engine may still be loading.
    ///
    /// # Errors
    /// [`SetupError`] names the file and what is wrong with it.
    pub fn new(
        assets: &Assets,
        engine: Engine,
        limits: Limits,
        model: ModelInfo,
    ) -> Result<Self, SetupError> {
        let tokenizer = Tokenizer::new(assets, limits.validation_workers)?;
        let written = |id: Option<u32>| id.and_then(|id| tokenizer.vocabulary_text(id));
        let bos = assets.bos_token.clone().or_else(|| written(assets.bos_id));
        let eos = assets.eos_token.clone().or_else(|| written(assets.eos_ids.first().copied()));
        let template = match &assets.chat_template {
            Some(source) => {
                let tools = assets.tool_template.as_deref();
                Some(ChatTemplate::new(source, tools, bos, eos, limits.validation_workers)?)
            }
            None => None,
        };
        let late_system = template.as_ref().is_some_and(late_system::is_written);
        let shown = assets.tool_template.as_deref().or(assets.chat_template.as_deref());
        let tool_format = limits.tool_format.unwrap_or_else(|| Format::of(shown, &tokenizer));
        let pooling = limits.pooling.map_or_else(|| pooling::configured(&assets.pooling), Ok);
        let eos: Arc<[u32]> = end_tokens(assets, &tokenizer, template.as_ref()).into();
        let sampling = if limits.model_sampling { assets.sampling } else { SamplingDefaults::default() };
        let entrance = Semaphore::new(limits.max_concurrent_requests);
        let grammars = Compiler::with_workers(tokenizer.clone(), eos.clone(), limits.grammar_worker.clone());
        Ok(Service(Arc::new(Inner {
            tokenizer,
            template,
            late_system,
            tool_format,
            pooling,
            limits,
            engine,
            model,
            eos,
            sampling,
            grammars,
            entrance,
            answers: AnswerBudget::default(),
        })))
    }

    /// What is served.
    pub fn model(&self) -> &ModelInfo {
        &self.0.model
    }

    /// What clients may ask for.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// The engine behind it.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    /// How the model writes calls of tools.
    pub fn tool_format(&self) -> Format {
        self.0.tool_format
    }

    /// The tokens that end an answer.
    pub fn end_tokens(&self) -> &[u32] {
        &self.0.eos
    }

    /// The sampling parameters that apply where a request of OpenAI's or Anthropic's API does not give them.
    pub fn sampling_defaults(&self) -> SamplingDefaults {
        self.0.sampling
    }

    /// How a prompt becomes a vector.
    ///
    /// # Errors
    /// If the model asks for something else than we can do.
    pub fn pooling(&self) -> Result<Pooling, UnknownPooling> {
        self.0.pooling.clone()
    }

    /// Whether the model can be talked to, and not only be given texts to continue.
    pub fn has_template(&self) -> bool {
        self.0.template.is_some()
    }

    /// Whether the model's chat template looks at this variable.
    pub fn template_mentions(&self, variable: &str) -> bool {
        self.0.template.as_ref().is_some_and(|template| template.mentions(variable))
    }

    /// Whether the model's chat template could look at this variable.
    pub fn template_may_read(&self, variable: &str) -> bool {
        self.0.template.as_ref().is_some_and(|template| template.may_read(variable))
    }

    /// Whether the model's chat template writes the calls of earlier messages.
    pub fn template_writes_calls(&self) -> bool {
        self.0.template.as_ref().is_some_and(ChatTemplate::writes_calls)
    }

    /// Whether the model's chat template writes a system message that comes behind others.
    pub fn template_takes_late_system(&self) -> bool {
        self.0.late_system
    }

    /// The loaded model; the same while its shards are started again.
    ///
    /// # Errors
    /// [`ServiceError::Unavailable`] while it loads and after it is gone.
    pub fn ready(&self) -> Result<Arc<Ready>, ServiceError> {
        let why = match &*self.0.engine.state().borrow() {
            State::Ready(ready) | State::Recovering(ready) => return Ok(ready.clone()),
            State::Loading { .. } => "Model is loading".to_owned(),
            State::Draining => "Server is shutting down".to_owned(),
            State::Failed(why) => format!("Engine failed: {why}"),
        };
        Err(ServiceError::Unavailable(why))
    }

    /// Validates a request and turns it into tokens.
    ///
    /// # Errors
    /// [`ServiceError`] says what is wrong with the request or that the model is not there.
    pub async fn prepare(&self, prompt: Prompt, params: Params) -> Result<Prepared, ServiceError> {
        let received = Instant::now();
        metrics::request_received();
        self.validate(prompt, params, received)
            .await
            .inspect_err(|error| metrics::request_failed(error.kind()))
    }

    /// The prompt, in the log, if the operator has asked for that.
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
        let limits = self.0.limits.tokens(&ready);
        let params = params.with_defaults(self.0.sampling);
        params.check(&self.0.limits, &ready)?;
        if let Some(best_of) = params.best_of.filter(|&best_of| best_of > 1) {
            self.has_room_for(best_of)?;
        }
        limits.check_truncate(params.truncate)?;
        let mut ids = match prompt {
            Prompt::Text(text, specials) => self.encode(text.into(), specials, &params, limits).await?,
            // The template has written what begins a prompt.
            Prompt::Chat(prompt) => self.encode(prompt, Specials::Omit, &params, limits).await?,
            Prompt::Ids(ids) => ids,
        };
        // A tokenizer may know more tokens than the model: there is no embedding for those.
        if let Some(id) = ids.iter().find(|&&id| id >= ready.vocab_size) {
            let detail = format!("token id {id} is outside of the vocabulary of {}", ready.vocab_size);
            return Err(ServiceError::invalid("inputs", detail));
        }
        if ids.is_empty() {
            return Err(ServiceError::invalid("inputs", "`inputs` cannot be empty"));
        }
        if let Some(keep) = params.truncate {
            ids.drain(..ids.len().saturating_sub(keep));
        }
        let max_new_tokens = limits.new_tokens(ids.len(), params.max_new_tokens, params.clamp_new_tokens)?;
        let grammar = match &params.grammar {
            Some(wanted) => self.compile(wanted, ready.vocab_size).await?,
            None => None,
        };
        let validation = received.elapsed();
        metrics::request_validated(validation, ids.len(), max_new_tokens);
        let seed = params.samples().then(|| params.seed.unwrap_or_else(rand::random));
        let (stop_tokens, stops) = self.stops(&params);
        let (seed_or_any, watermark) = (seed.unwrap_or_default(), self.0.limits.watermark);
        let sampling = params.sampling(seed_or_any, &stop_tokens, watermark, ready.vocab_size);
        check_sampling(&sampling, ready.vocab_size as usize)
            .map_err(|wrong| ServiceError::invalid("parameters", wrong.to_string()))?;
        let request = Request {
            prompt: ids,
            max_new_tokens,
            stop_tokens,
            sampling,
            priority: params.priority,
            cache_salt: caller
                .map_or_else(|| params.cache_salt.clone(), |c| c.salt(params.cache_salt.as_ref())),
            mask: grammar.as_ref().map(|grammar| grammar.first()),
            prompt_logprobs: params.prompt_logprobs,
            pooling: params.pooling,
        };
        self.log_prompt(context.as_deref(), &request.prompt);
        Ok(Prepared { request, grammar, stops, params, seed, received, validation, counted: true, context })
    }

    async fn compile(&self, wanted: &Wanted, vocab_size: u32) -> Result<Option<Arc<Compiled>>, ServiceError> {
        let compiled = match self.0.limits.grammar_support {
            true => self.0.grammars.compile(&wanted.grammar, vocab_size).await,
            false => Err(GrammarError::Unsupported("")),
        };
        match compiled {
            Ok(compiled) => Ok(Some(compiled)),
            Err(GrammarError::Unsupported(_)) if wanted.optional => Ok(None),
            Err(GrammarError::Busy) => Err(self.0.engine.overloaded().into()),
            Err(error) => Err(ServiceError::invalid(wanted.field, error.to_string())),
        }
    }

    /// Refuses a request for this many answers before any work is done for it, if there is no room for all of them now.
    ///
    /// # Errors
    /// [`ServiceError::Overloaded`], or [`ServiceError::Unavailable`] if the model is not there.
    pub fn has_room_for(&self, answers: usize) -> Result<(), ServiceError> {
        self.ready()?;
        Ok(self.0.engine.has_room_for(answers)?)
    }

    /// A full server refuses before it works for a request.
    fn enter(&self) -> Result<SemaphorePermit<'_>, ServiceError> {
        self.0.engine.has_room()?;
        self.0.entrance.try_acquire().map_err(|_| self.0.engine.overloaded().into())
    }

    /// A stop string that is written like a special token means that token, which is not part of the text.
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

    /// Hands a request to the engine and reads its answer as text. Dropping the stream cancels the request.
    ///
    /// # Errors
    /// [`ServiceError::Overloaded`] or [`ServiceError::Unavailable`] if the engine does not take it.
    pub fn start(&self, prepared: Prepared) -> Result<TextStream, ServiceError> {
        let request = prepared.request.clone();
        let submitted = match &prepared.grammar {
            Some(grammar) => self.0.engine.submit_constrained(request, Box::new(Walk::new(grammar.clone()))),
            None => self.0.engine.submit(request),
        };
        match submitted {
            Ok(generation) => {
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
    /// As [`Service::prepare`] and [`Service::start`].
    pub async fn generate(&self, prompt: Prompt, params: Params) -> Result<TextStream, ServiceError> {
        let prepared = self.prepare(prompt, params).await?;
        self.start(prepared)
    }

    /// Starts `count` answers to one prompt, which differ in their random draws.
    ///
    /// # Errors
    /// As [`Service::start`]; none is left running then.
    pub fn start_several(&self, prepared: &Prepared, count: usize) -> Result<Vec<TextStream>, ServiceError> {
        (0..count as u64).map(|index| self.start(prepared.variant(index))).collect()
    }

    /// Waits for all of these answers.
    ///
    /// # Errors
    /// The first error of any of them; the others are cancelled then.
    pub async fn collect(streams: Vec<TextStream>) -> Result<Vec<Answer>, ServiceError> {
        futures::future::try_join_all(streams.into_iter().map(TextStream::collect)).await
    }

    /// Counts a request that was refused before it got to [`Service::prepare`].
    pub(crate) fn reject(error: ServiceError) -> ServiceError {
        metrics::request_rejected(error.kind());
        error
    }
}
