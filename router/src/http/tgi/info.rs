//! `/info` and `/version`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use millrace_answers::reasoning::{ReasoningFormat, ReasoningPlace, ReasoningStart};
use serde::Serialize;
use utoipa::ToSchema;

use super::error::{ErrorBody, TgiError};
use crate::assets::SamplingDefaults;
use crate::chat::THINKING_VARIABLES;
use crate::embedding::PoolingMode;
use crate::http::app::App;
use crate::service::{Service, VectorPlan};

/// The version of TGI that these routes are compatible with.
const TGI_VERSION: &str = "3.3.7";

/// The version of this server, as vLLM's clients ask for it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ServerVersion {
    version: &'static str,
}

/// Returns the version of this server, which differs from the version of TGI's API.
#[utoipa::path(get, path = "/version", tag = "Server", responses((status = 200, description = "The version of this server", body = ServerVersion)))]
pub(super) async fn version() -> Json<ServerVersion> {
    Json(ServerVersion { version: env!("CARGO_PKG_VERSION") })
}

/// The model and the limits of requests.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Info {
    model_id: String,
    model_sha: Option<String>,
    model_dtype: String,
    quantize: Option<String>,
    model_device_type: String,
    model_pipeline_tag: Option<String>,
    max_concurrent_requests: usize,
    max_best_of: usize,
    max_stop_sequences: usize,
    max_input_tokens: usize,
    max_total_tokens: usize,
    validation_workers: usize,
    max_client_batch_size: usize,
    router: &'static str,
    /// The version of TGI that the API is compatible with, which TGI's clients compare.
    version: &'static str,
    /// The version of this server.
    millrace_version: &'static str,
    sha: Option<&'static str>,
    docker_label: Option<&'static str>,
    /// The tokens that end an answer. An extension of this server.
    end_tokens: Vec<String>,
    /// The sampling parameters of OpenAI's and Anthropic's routes for requests that do not give
    /// them. An extension of this server.
    sampling_defaults: SamplingDefaults,
    /// How requests control the reasoning; null if the model has none. An extension of this server.
    thinking: Option<ThinkingInfo>,
    /// How vectors of texts are made; null if the model makes none. An extension of this server.
    embeddings: Option<EmbeddingInfo>,
    /// The use of the model, as text-embeddings-inference names it; null if it generates text.
    model_type: Option<TeiModelType>,
    /// The same as `max_input_tokens`, or less if a file of the model limits texts for vectors. The
    /// name is that of text-embeddings-inference, and so are those below.
    max_input_length: usize,
    /// The most tokens of a step.
    max_batch_tokens: u32,
    /// The most sequences of a step.
    max_batch_requests: u32,
    /// Whether texts that are too long are cut although the request does not ask for it.
    auto_truncate: bool,
    /// The same as `validation_workers`.
    tokenization_workers: usize,
}

/// The use of a model that generates no text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum TeiModelType {
    /// A classifier of several classes.
    Classifier(ClassNames),
    /// A classifier with one output, which scores pairs of texts.
    Reranker(ClassNames),
    /// A model of vectors.
    Embedding(TeiPooling),
}

/// The names of the classes by their numbers, and the other way round.
#[derive(Debug, Serialize, ToSchema)]
struct ClassNames {
    id2label: BTreeMap<String, String>,
    label2id: BTreeMap<String, usize>,
}

/// The pooling of a model of vectors.
#[derive(Debug, Serialize, ToSchema)]
struct TeiPooling {
    /// `cls`, `mean` or `last_token`, or a name of this server for poolings that
    /// text-embeddings-inference does not have.
    pooling: String,
}

impl TeiModelType {
    /// Returns the use of the model, which has announced `classes` and whether it is `headless`.
    fn of(service: &Service, classes: u32, headless: bool, plan: Option<&VectorPlan>) -> Option<Self> {
        if classes > 0 {
            let names: Vec<String> = (0..classes as usize).map(|class| service.class_name(class)).collect();
            let numbered = || names.iter().enumerate();
            let names = ClassNames {
                id2label: numbered().map(|(class, name)| (class.to_string(), name.clone())).collect(),
                label2id: numbered().map(|(class, name)| (name.clone(), class)).collect(),
            };
            return Some(if classes == 1 {
                TeiModelType::Reranker(names)
            } else {
                TeiModelType::Classifier(names)
            });
        }
        let name = |mode: &PoolingMode| match mode {
            PoolingMode::First => "cls".to_owned(),
            PoolingMode::Last => "last_token".to_owned(),
            other => other.to_string(),
        };
        let modes: Vec<String> = plan.filter(|_| headless)?.pooling.modes.iter().map(name).collect();
        Some(TeiModelType::Embedding(TeiPooling { pooling: modes.join("+") }))
    }
}

/// How requests control the reasoning of the model.
#[derive(Debug, Serialize, ToSchema)]
struct ThinkingInfo {
    /// The format of the reasoning, as `--reasoning-parser` names it; null if the reasoning is not
    /// separated from the answer.
    format: Option<&'static str>,
    /// Whether the chat template reads `enable_thinking` or `thinking`.
    switch: bool,
    /// Whether `thinking_token_budget` limits the tokens of the reasoning. A budget of 0 turns the
    /// reasoning off.
    budget: bool,
    /// The budget of requests that do not give one; null is no limit.
    default_budget: Option<u32>,
}

impl ThinkingInfo {
    /// Returns how requests control the reasoning of the model, which must be ready. Returns `None`
    /// if the model has no chat template, or one without reasoning.
    fn of(service: &Service) -> Option<Self> {
        let format = service.reasoning_format().filter(|_| service.has_template());
        let switch = THINKING_VARIABLES.into_iter().any(|name| service.template_may_read(name));
        let budget = format.is_some_and(|format| {
            // The tokens of the closing mark are the same for every place and budget above 0.
            let place = ReasoningPlace::Marks(format.marks(), ReasoningStart::Possible);
            service.reasoning_limit(1, format, place, Arc::new([])).is_some()
        });
        (format.is_some() || switch).then(|| ThinkingInfo {
            format: format.map(ReasoningFormat::name),
            switch,
            budget,
            default_budget: service.limits().default_thinking_budget.filter(|_| budget),
        })
    }
}

/// How the model makes vectors of texts, and which file says so.
#[derive(Debug, Serialize, ToSchema)]
struct EmbeddingInfo {
    /// The poolings of states, whose vectors follow each other.
    pooling: Vec<String>,
    /// The file or the flag that has chosen the pooling, or `default`.
    pooling_source: String,
    /// The modules after the pooling.
    modules: Vec<String>,
    /// The number of features of a vector.
    features: usize,
    max_input_tokens: usize,
    /// The file that limits the tokens of a text, or `max_input_tokens`, the limit of all prompts.
    max_input_tokens_source: String,
    /// The names of the prompts that a request can put in front of its texts.
    prompts: Vec<String>,
    default_prompt: Option<String>,
}

impl From<VectorPlan> for EmbeddingInfo {
    fn from(plan: VectorPlan) -> Self {
        let VectorPlan { model, pooling, features, max_input, max_input_source } = plan;
        EmbeddingInfo {
            pooling: pooling.modes.iter().map(ToString::to_string).collect(),
            pooling_source: pooling.source,
            modules: model.modules(),
            features,
            max_input_tokens: max_input,
            max_input_tokens_source: max_input_source,
            prompts: model.prompt_names().map(str::to_owned).collect(),
            default_prompt: model.default_prompt().map(str::to_owned),
        }
    }
}

/// Returns the model and the limits, or 503 until the limits are known. Clients recognize a server
/// that is compatible with TGI by the field `router`.
#[utoipa::path(get, path = "/info", tag = "TGI", responses((status = 200, description = "The model and its limits", body = Info), (status = 503, description = "The model is loading", body = ErrorBody)))]
pub(super) async fn info(State(app): State<App>) -> Result<Json<Info>, TgiError> {
    let ready = app.service.ready()?;
    let (model, limits) = (app.service.model(), app.service.limits());
    let (tokens, tokenizer) = (limits.tokens(&ready), app.service.tokenizer());
    let ends = app.service.end_tokens().iter();
    let vectors = app.service.vectors(&ready).ok();
    let shortest = vectors.as_ref().filter(|_| ready.headless).map(|plan| plan.max_input);
    Ok(Json(Info {
        model_id: model.id.clone(),
        model_sha: model.sha.clone(),
        model_dtype: ready.dtype.clone(),
        quantize: Some(ready.quantize.clone()).filter(|name| !name.is_empty()),
        model_device_type: ready.device.clone(),
        model_pipeline_tag: model.pipeline_tag.clone(),
        max_concurrent_requests: limits.max_concurrent_requests,
        max_best_of: limits.best_of(),
        max_stop_sequences: limits.max_stop_sequences,
        max_input_tokens: tokens.max_input,
        max_total_tokens: tokens.max_total,
        validation_workers: limits.validation_workers,
        max_client_batch_size: limits.max_client_batch_size,
        router: "text-generation-router",
        version: TGI_VERSION,
        millrace_version: env!("CARGO_PKG_VERSION"),
        sha: None,
        docker_label: None,
        end_tokens: ends.filter_map(|&id| tokenizer.vocabulary_text(id)).collect(),
        sampling_defaults: app.service.sampling_defaults(),
        thinking: ThinkingInfo::of(&app.service),
        model_type: TeiModelType::of(&app.service, ready.classes, ready.headless, vectors.as_ref()),
        max_input_length: shortest.unwrap_or(tokens.max_input),
        max_batch_tokens: ready.max_step_tokens,
        max_batch_requests: ready.max_sequences,
        auto_truncate: false,
        tokenization_workers: limits.validation_workers,
        embeddings: vectors.map(EmbeddingInfo::from),
    }))
}
