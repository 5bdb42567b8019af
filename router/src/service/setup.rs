//! The service, and how it is built from a model folder.

use std::sync::Arc;

use millrace_answers::grammar::GrammarCompiler;
use millrace_answers::reasoning::{ReasoningFormat, ReasoningParser};
use millrace_answers::tools::ToolFormat;
use millrace_proto::Ready;
use millrace_text::assets::AssetError;
use millrace_text::{ChatTemplate, TemplateError, TextError, Tokenizer, end_tokens};

use super::budget::AnswerBudget;
use super::context::RequestContext;
use super::contradictions;
use super::encode::TextEncoder;
use super::error::ServiceError;
use super::late_system;
use super::limits::RequestLimits;
use super::model::{ModelInfo, TokenizerDescription};
use super::pairs::PairForm;
use crate::assets::{Assets, SamplingDefaults};
use crate::embedding::{EmbeddingError, EmbeddingFiles, EmbeddingModel, PoolingMode};
use crate::engine::{Engine, EngineState, Place, Places};
use crate::metrics;
use crate::turns::TenantTurns;

/// Why a service could not be created from a model folder.
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
    /// The files about vectors cannot be used, and the model is for nothing else.
    #[error(transparent)]
    Embedding(#[from] EmbeddingError),
}

/// Generates text from text. Clones share one service.
#[derive(Debug, Clone)]
pub struct Service(pub(super) Arc<Inner>);

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) tokenizer: Tokenizer,
    pub(super) encoder: TextEncoder,
    pub(super) template: Option<ChatTemplate>,
    /// The roles of instructions that the template renders behind other messages.
    pub(super) late_roles: Vec<&'static str>,
    pub(super) tool_format: ToolFormat,
    /// The format of the model's reasoning; `None` if it is not separated from the answer.
    pub(super) reasoning: Option<ReasoningFormat>,
    pub(super) embedding: Result<Arc<EmbeddingModel>, EmbeddingError>,
    /// The names of the classes of the model's classifier, as far as its files have them.
    pub(super) class_names: Vec<String>,
    /// Whether all tokens have the first type, whatever the tokenizer says.
    pub(super) omits_token_types: bool,
    pub(super) limits: RequestLimits,
    pub(super) engine: Engine,
    pub(super) model: ModelInfo,
    pub(super) described: TokenizerDescription,
    pub(super) eos: Arc<[u32]>,
    /// Sampling parameters recommended by the model's authors, for requests that do not give them.
    pub(super) sampling: SamplingDefaults,
    pub(super) grammars: GrammarCompiler,
    /// Bounds the requests on their way to the engine: no more may wait for the tokenizer than may
    /// wait for the model.
    pub(super) entrance: Arc<Places>,
    /// Tenants take turns at reading long requests, rendering conversations and writing long
    /// answers.
    pub(super) turns: TenantTurns,
    /// Bounds the memory of answers that are not generated and have not been sent yet.
    pub(super) answers: AnswerBudget,
}

impl Service {
    /// Creates the service for a model whose engine may still be loading.
    ///
    /// # Errors
    /// [`SetupError`] names the file and its error.
    pub fn new(
        assets: &Assets,
        engine: Engine,
        limits: RequestLimits,
        model: ModelInfo,
    ) -> Result<Self, SetupError> {
        let text = &assets.text;
        let tokenizer = Tokenizer::new(text)?;
        for warning in contradictions::warnings(text, &tokenizer) {
            tracing::warn!("{warning}");
        }
        let written = |id: Option<u32>| id.and_then(|id| tokenizer.vocabulary_text(id));
        let bos = text.bos_token.clone().or_else(|| written(text.bos_id));
        let eos = text.eos_token.clone().or_else(|| written(text.eos_ids.first().copied()));
        let described = TokenizerDescription {
            // The class in transformers for a tokenizer that only has a tokenizer.json.
            class: text.tokenizer_class.clone().unwrap_or_else(|| "PreTrainedTokenizerFast".into()),
            chat_template: text.chat_template.clone(),
            bos_token: bos.clone(),
            eos_token: eos.clone(),
            pad_token: text.pad_token.clone(),
            unk_token: text.unk_token.clone(),
            add_bos_token: text.add_bos_token,
        };
        let template = match &text.chat_template {
            Some(source) => {
                let tools = text.tool_template.as_deref();
                Some(ChatTemplate::new(source, tools, bos, eos, limits.validation_workers)?)
            }
            None => None,
        };
        let late_roles = template.as_ref().map(late_system::rendered_roles).unwrap_or_default();
        let shown = text.tool_template.as_deref().or(text.chat_template.as_deref());
        let tool_format = limits.tool_format.unwrap_or_else(|| ToolFormat::of(shown, &tokenizer));
        if limits.tool_format.is_none() && tool_format.is_unknown_to(shown) {
            tracing::warn!(
                "the chat template writes tool calls in a format that is not known: calls are read as plain JSON, \
                 and the model may have learned another form; --tool-call-parser names a format"
            );
        }
        let reasoning = match limits.reasoning {
            ReasoningParser::Auto => ReasoningFormat::of(shown),
            ReasoningParser::Off => None,
            ReasoningParser::Format(format) => Some(format),
        };
        let embedding = checked_files(assets, limits.pooling);
        if let (Err(error), false) = (&embedding, assets.has_head) {
            return Err(error.clone().into());
        }
        let eos: Arc<[u32]> = end_tokens(text, &tokenizer, template.as_ref()).into();
        let sampling = if limits.model_sampling { assets.sampling } else { SamplingDefaults::default() };
        let turns = TenantTurns::new(limits.validation_workers);
        let encoder = TextEncoder::new(tokenizer.clone(), limits.validation_workers, limits.tokenizer_cache);
        let grammars =
            GrammarCompiler::with_workers(tokenizer.clone(), eos.clone(), limits.grammar_worker.clone());
        Ok(Service(Arc::new(Inner {
            tokenizer,
            encoder,
            template,
            late_roles,
            tool_format,
            reasoning,
            embedding,
            class_names: assets.class_names.clone(),
            omits_token_types: assets.omits_token_types,
            limits,
            engine,
            model,
            described,
            eos,
            sampling,
            grammars,
            entrance: Arc::default(),
            turns,
            answers: AnswerBudget::default(),
        })))
    }

    /// Returns the name of a class of the model's classifier. A class without a name has the one
    /// that transformers gives it.
    pub fn class_name(&self, class: usize) -> String {
        self.0.class_names.get(class).cloned().unwrap_or_else(|| format!("LABEL_{class}"))
    }

    /// Returns the form in which the loaded model, which has announced `ready`, reads pairs of
    /// texts.
    ///
    /// # Errors
    /// If the tokenizer has no form for pairs, or gives their tokens types in an order that a
    /// request cannot describe.
    pub fn pair_form(&self, ready: &Ready) -> Result<PairForm<'_>, ServiceError> {
        let refusal = |reason: &str| Err(ServiceError::invalid("model", reason));
        let has_types = ready.second_token_type && !self.0.omits_token_types;
        match self.0.tokenizer.pair_affixes() {
            Some(affixes) if has_types && !affixes.has_usual_types() => refusal(
                "the model cannot read pairs of texts: its tokenizer gives them token types in an order other than \
                 0 for the first text and 1 for the second",
            ),
            Some(affixes) => Ok(PairForm { affixes, has_types }),
            None => refusal("the model cannot read pairs of texts: its tokenizer has no form for them"),
        }
    }

    /// The model.
    pub fn model(&self) -> &ModelInfo {
        &self.0.model
    }

    /// The tokenizer, as clients see it.
    pub(crate) fn described(&self) -> &TokenizerDescription {
        &self.0.described
    }

    /// The limits of requests.
    pub fn limits(&self) -> &RequestLimits {
        &self.0.limits
    }

    /// The maximum number of bytes of a request's body for the model that is loaded.
    pub(crate) fn payload_limit(&self) -> usize {
        let max_total = self.ready().ok().map(|ready| self.limits().tokens(&ready).max_total);
        self.limits().payload_limit.bytes(max_total)
    }

    /// The engine that runs the requests.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    /// The format in which the model writes tool calls.
    pub fn tool_format(&self) -> ToolFormat {
        self.0.tool_format
    }

    /// The format of the model's reasoning; `None` if it is not separated from the answer.
    pub fn reasoning_format(&self) -> Option<ReasoningFormat> {
        self.0.reasoning
    }

    /// The tokens that end an answer.
    pub fn end_tokens(&self) -> &[u32] {
        &self.0.eos
    }

    /// The sampling parameters that apply where a request of OpenAI's or Anthropic's API does not
    /// give them.
    pub fn sampling_defaults(&self) -> SamplingDefaults {
        self.0.sampling
    }

    /// Whether the model has a chat template. Without one it can only continue texts.
    pub fn has_template(&self) -> bool {
        self.0.template.is_some()
    }

    /// Whether the model's chat template mentions this variable.
    pub fn template_mentions(&self, variable: &str) -> bool {
        self.0.template.as_ref().is_some_and(|template| template.mentions(variable))
    }

    /// Whether the model's chat template may read this variable.
    pub fn template_may_read(&self, variable: &str) -> bool {
        self.0.template.as_ref().is_some_and(|template| template.may_read(variable))
    }

    /// Whether the model's chat template may show the reasoning of earlier messages.
    pub(crate) fn template_reads_reasoning(&self) -> bool {
        ["reasoning_content", "reasoning", "thinking"].into_iter().any(|name| self.template_may_read(name))
    }

    /// Whether the model's chat template renders the tool calls of earlier messages.
    pub fn template_writes_calls(&self) -> bool {
        self.0.template.as_ref().is_some_and(ChatTemplate::writes_calls)
    }

    /// Whether the model's chat template renders a message of this role, `system` or `developer`,
    /// that follows other messages.
    pub fn template_writes_late(&self, role: &str) -> bool {
        self.0.late_roles.contains(&role)
    }

    /// The announcement of the loaded model. It stays the same while the shards are restarted.
    ///
    /// # Errors
    /// [`ServiceError::Unavailable`] while the model loads, and after the engine has ended.
    pub fn ready(&self) -> Result<Arc<Ready>, ServiceError> {
        let reason = match &*self.0.engine.state().borrow() {
            EngineState::Ready(ready) | EngineState::Recovering(ready) => return Ok(ready.clone()),
            EngineState::Loading { .. } => "Model is loading".to_owned(),
            EngineState::Draining => "Server is shutting down".to_owned(),
            EngineState::Failed(reason) => format!("Engine failed: {reason}"),
        };
        Err(ServiceError::Unavailable(reason))
    }

    /// Checks that there is room for this many answers now. A request for several answers is
    /// refused early if not.
    ///
    /// # Errors
    /// [`ServiceError::Overloaded`] or [`ServiceError::LimitExceeded`], or
    /// [`ServiceError::Unavailable`] if the model is not loaded.
    pub fn has_room_for(&self, answers: usize) -> Result<(), ServiceError> {
        self.ready()?;
        Ok(self.engine_for_caller().has_room_for(answers)?)
    }

    /// The engine for the requests of the current caller.
    fn engine_for_caller(&self) -> Engine {
        match RequestContext::current() {
            Some(context) => self.0.engine.on_behalf_of(context.tenant(), context.account().cloned()),
            None => self.0.engine.clone(),
        }
    }

    /// Reserves a place for a request on its way to the engine. A full server refuses the request
    /// before it does any work for it.
    pub(super) fn enter(&self) -> Result<Place, ServiceError> {
        self.engine_for_caller().has_room()?;
        let tenant = RequestContext::current().map(|context| context.tenant()).unwrap_or_default();
        let place = self.0.entrance.enter(&tenant, self.0.limits.max_concurrent_requests);
        place.ok_or_else(|| self.0.engine.overloaded().into())
    }

    /// Counts a request that was refused before [`Service::prepare`].
    pub(crate) fn reject(error: ServiceError) -> ServiceError {
        metrics::request_rejected(error.kind());
        error
    }
}

/// Returns what the files of a folder say about vectors, with the pooling that the operator has
/// `asked` for.
///
/// # Errors
/// If the files cannot be used, or contradict each other.
fn checked_files(assets: &Assets, asked: Option<PoolingMode>) -> Result<Arc<EmbeddingModel>, EmbeddingError> {
    let model = match &assets.embedding {
        EmbeddingFiles::Usable(model) => model.clone(),
        EmbeddingFiles::Unusable(error) => return Err(error.clone()),
    };
    if model.is_configured() {
        // Which of the usual poolings is taken does not matter for the number of features.
        let pooling = model.pooling(asked, || PoolingMode::Last)?;
        if let Some(hidden) = assets.hidden_size {
            model.output_features(hidden, pooling.modes.len())?;
        }
    }
    Ok(model)
}
