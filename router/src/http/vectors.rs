//! Vectors of texts, which several APIs return.

use futures::{StreamExt, TryStreamExt, stream};
use millrace_proto::Ready;
use millrace_text::SpecialTokens;

use super::app::App;
use super::openai::concurrent_prompts;
use crate::embedding::normalized;
use crate::engine::{AdapterId, Pooling};
use crate::service::{Params, Prepared, Prompt, ServiceError, TruncationSide, VectorPlan};

/// Bytes of a number in JSON, on average.
const NUMBER_BYTES: usize = 12;

/// How vectors are made.
#[derive(Debug, Clone)]
pub(super) struct VectorOptions {
    /// The adapter that the vectors are computed with.
    pub(super) adapter: Option<AdapterId>,
    /// Number of features to keep. `None` keeps all.
    pub(super) dimensions: Option<usize>,
    /// Whether vectors are scaled to the length 1, whatever the model's modules do.
    pub(super) normalize: bool,
    /// The side from which tokens are cut if a text is too long. `None` refuses such a text.
    pub(super) truncate: Option<TruncationSide>,
    /// The name of the model's prompt to put in front of each text.
    pub(super) prompt_name: Option<String>,
}

/// The vectors of some texts, in their order.
#[derive(Debug)]
pub(super) struct Vectors {
    pub(super) vectors: Vec<Vec<f32>>,
    /// Number of tokens of all texts together.
    pub(super) prompt_tokens: usize,
}

/// Computes a vector for each of `inputs`. All of them are validated before the first is computed.
///
/// # Errors
/// If an input or an option is invalid, or the model cannot compute vectors. If there are several
/// inputs, an error about one of them has its index.
pub(super) async fn compute(
    app: &App,
    inputs: Vec<Prompt>,
    options: VectorOptions,
) -> Result<Vectors, ServiceError> {
    let ready = app.service.ready()?;
    let plan = vector_plan(app, &ready)?;
    let kept = options.dimensions.unwrap_or(plan.features);
    if kept == 0 || kept > plan.features {
        let message = format!("`dimensions` must be > 0 and <= {}. Given: {kept}", plan.features);
        return Err(ServiceError::invalid("dimensions", message));
    }
    let job = VectorJob::new(app, plan, &options).await?;
    let are_many = inputs.len() > 1;
    let at = |index: usize| move |error: ServiceError| if are_many { error.at_index(index) } else { error };

    let width = concurrent_prompts(app, 1);
    let (job, at) = (&job, &at);
    let prepare = |(index, input)| async move { job.prepare(app, input).await.map_err(at(index)) };
    let prepared = stream::iter(inputs.into_iter().enumerate()).map(prepare).buffered(width);
    let prepared: Vec<Vec<Prepared>> = prepared.try_collect().await?;
    let lengths = prepared.iter().filter_map(|poolings| poolings.first());
    let prompt_tokens = lengths.map(|input| input.prompt().len()).sum();
    let embed = |(index, poolings)| async move {
        let vector = job.vector(app, poolings).await.map_err(at(index))?;
        Ok::<_, ServiceError>(job.shortened(vector, kept, options.normalize))
    };
    let vectors = stream::iter(prepared.into_iter().enumerate()).map(embed).buffered(width);
    Ok(Vectors { vectors: vectors.try_collect().await?, prompt_tokens })
}

/// Returns the bytes of these vectors in a response.
pub(super) fn bytes(vectors: &[Vec<f32>]) -> usize {
    vectors.iter().map(|vector| vector.len() * NUMBER_BYTES).sum()
}

/// Returns how the model makes vectors.
fn vector_plan(app: &App, ready: &Ready) -> Result<VectorPlan, ServiceError> {
    app.service.vectors(ready).map_err(|error| ServiceError::invalid("model", error.to_string()))
}

/// The properties that the vectors of a request have in common.
struct VectorJob {
    plan: VectorPlan,
    /// The text in front of each text.
    prompt: Option<String>,
    /// The poolings of the shard that the modes of the model are computed from, each once.
    poolings: Vec<Pooling>,
    params: Params,
}

impl VectorJob {
    async fn new(app: &App, plan: VectorPlan, options: &VectorOptions) -> Result<Self, ServiceError> {
        let prompt = plan.model.prompt(options.prompt_name.as_deref());
        let prompt = prompt
            .map_err(|reason| ServiceError::invalid("prompt_name", format!("`prompt_name`: {reason}")))?;
        let prompt = prompt.filter(|prompt| !prompt.is_empty()).map(str::to_owned);
        let mut poolings: Vec<Pooling> = Vec::new();
        for pooling in plan.pooling.modes.iter().map(|mode| mode.computed_as()) {
            if !poolings.contains(&pooling) {
                poolings.push(pooling);
            }
        }
        let excluded = prompt.as_ref().filter(|_| plan.model.excludes_prompt());
        let pooling_start = match excluded {
            Some(_) if options.truncate == Some(TruncationSide::Left) => {
                let detail =
                    "texts cannot lose their beginning: the model does not pool its prompt, which is there";
                return Err(ServiceError::invalid("truncation_direction", detail));
            }
            Some(prompt) => prompt_length(app, plan.model.text(None, prompt)).await?,
            None => 0,
        };
        let params = Params {
            adapter: options.adapter,
            max_new_tokens: Some(0),
            echoes: true,
            pooling_start,
            max_input: Some(plan.max_input),
            truncate: options.truncate.map(|_| plan.max_input),
            truncation_side: options.truncate.unwrap_or(TruncationSide::Right),
            ..Params::default()
        };
        Ok(VectorJob { plan, prompt, poolings, params })
    }

    /// Validates an input. The result has one request for each pooling.
    async fn prepare(&self, app: &App, input: Prompt) -> Result<Vec<Prepared>, ServiceError> {
        let input = match input {
            Prompt::Text(text, _) if text.is_empty() => {
                return Err(ServiceError::invalid("inputs", "`inputs` cannot be empty"));
            }
            Prompt::Text(text, specials) => {
                let whole = self.plan.model.text(self.prompt.as_deref(), &text);
                Prompt::Text(whole, specials)
            }
            other => other,
        };
        // A prompt in front of token ids would have to be tokenized without them.
        let pooling_start = match input {
            Prompt::Text(..) => self.params.pooling_start,
            _ => 0,
        };
        let mut prepared = Vec::with_capacity(self.poolings.len());
        for &pooling in &self.poolings {
            let params = Params { pooling: Some(pooling), pooling_start, ..self.params.clone() };
            prepared.push(app.service.prepare(input.clone(), params).await?);
        }
        Ok(prepared)
    }

    /// Computes the vector of an input that has been prepared.
    async fn vector(&self, app: &App, prepared: Vec<Prepared>) -> Result<Vec<f32>, ServiceError> {
        let mut states = Vec::with_capacity(prepared.len());
        let mut pooled_states = 0;
        for input in prepared {
            pooled_states = input.prompt().len() - input.pooling_start();
            let vector = app.service.start(input)?.collect().await?.vector;
            // A shard that answers with too few numbers must not be mistaken for another vector.
            if vector.is_empty() || vector.iter().any(|value| !value.is_finite()) {
                return Err(ServiceError::Generation("the model's hidden states are not finite".into()));
            }
            states.push(vector);
        }
        let mut pooled = Vec::with_capacity(self.plan.features);
        for mode in &self.plan.pooling.modes {
            let place = self.poolings.iter().position(|pooling| *pooling == mode.computed_as());
            let mut vector = place.map(|place| states[place].clone()).unwrap_or_default();
            mode.finish(&mut vector, pooled_states);
            pooled.extend(vector);
        }
        let model = self.plan.model.clone();
        let vector = if model.has_matrix() {
            // The product of a large matrix must not delay other requests.
            app.service.in_turn_for(usize::MAX, || model.apply(pooled)).await
        } else {
            model.apply(pooled)
        };
        match vector.iter().all(|value| value.is_finite()) {
            true => Ok(vector),
            false => {
                Err(ServiceError::Generation("the vector is not finite after the model's modules".into()))
            }
        }
    }

    /// Keeps the first features of a vector. A vector that had the length 1 gets it again.
    fn shortened(&self, mut vector: Vec<f32>, kept: usize, normalize: bool) -> Vec<f32> {
        let is_cut = kept < vector.len();
        vector.truncate(kept);
        let normalize = normalize || is_cut && self.plan.model.normalizes();
        if normalize { normalized(vector) } else { vector }
    }
}

/// Returns the number of tokens of a prompt at the beginning of a text, as sentence-transformers
/// counts them: with the special tokens in front of it, and without one after it.
async fn prompt_length(app: &App, prompt: String) -> Result<usize, ServiceError> {
    let tokenizer = app.service.tokenizer();
    let ids = app.service.token_ids(prompt.into(), SpecialTokens::Add).await?;
    let ends = ids.last().is_some_and(|&id| tokenizer.is_special(id));
    Ok(ids.len() - usize::from(ends))
}
