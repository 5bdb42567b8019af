//! Outputs of a model with a classifier, for texts and for pairs of texts.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use millrace_proto::Ready;
use millrace_text::SpecialTokens;

use super::app::App;
use super::openai::concurrent_prompts;
use crate::engine::AdapterId;
use crate::service::{PairCut, Params, Pooling, Prepared, Prompt, ServiceError, TruncationSide};

/// The scores of some texts, in their order.
#[derive(Debug)]
pub(super) struct Scores {
    /// The outputs of the classifier.
    pub(super) outputs: Vec<f32>,
    /// Number of tokens of all pairs together.
    pub(super) prompt_tokens: usize,
}

/// An input of a classifier.
#[derive(Debug)]
pub(super) enum ClassifierInput {
    /// One text.
    Text(String),
    /// The tokens of a query, and a text.
    Pair(Arc<[u32]>, String),
}

/// Computes the score of each text. All pairs are validated before the first is computed. Texts
/// that are too long are cut from the side `truncate`, or refused if there is none.
///
/// # Errors
/// If a text is invalid, or the model does not score pairs.
pub(super) async fn compute(
    app: &App,
    adapter: Option<AdapterId>,
    query: String,
    texts: Vec<String>,
    truncate: Option<TruncationSide>,
) -> Result<Scores, ServiceError> {
    let service = &app.service;
    let ready = service.ready()?;
    if ready.classes != 1 {
        let detail = "the model does not score texts: it needs a classifier with one output";
        return Err(ServiceError::invalid("model", detail));
    }
    service.pair_form(&ready)?;
    let query: Arc<[u32]> = first_of_pair(app, query, truncate).await?.into();
    let inputs = texts.into_iter().map(|text| ClassifierInput::Pair(query.clone(), text)).collect();
    let (outputs, prompt_tokens) = classify(app, adapter, inputs, truncate).await?;
    Ok(Scores { outputs: outputs.into_iter().flatten().collect(), prompt_tokens })
}

/// Returns the outputs of the classifier for each input, and the number of tokens of all inputs.
/// All of them are validated before the first is computed.
///
/// # Errors
/// If an input is invalid or too long, or the model has no classifier or no form for pairs.
pub(super) async fn classify(
    app: &App,
    adapter: Option<AdapterId>,
    inputs: Vec<ClassifierInput>,
    truncate: Option<TruncationSide>,
) -> Result<(Vec<Vec<f32>>, usize), ServiceError> {
    let service = &app.service;
    let ready = service.ready()?;
    let classes = ready.classes as usize;
    if classes == 0 {
        return Err(ServiceError::invalid(
            "model",
            "the model does not classify texts: it has no classifier",
        ));
    }
    let cut = pair_cut(app, &ready, truncate);
    let are_many = inputs.len() > 1;
    let at = |index: usize| move |error: ServiceError| if are_many { error.at_index(index) } else { error };
    let params = Params {
        adapter,
        max_new_tokens: Some(0),
        echoes: true,
        pooling: Some(Pooling::Classes),
        truncate: cut.map(|cut| cut.longest),
        truncation_side: truncate.unwrap_or(TruncationSide::Right),
        ..Params::default()
    };
    let width = concurrent_prompts(app, 1);
    let at = &at;
    let job = &ClassifierJob { ready: &ready, params, cut };
    let prepare = |(index, input)| async move {
        let (prompt, params) = job.prompt(app, input).await.map_err(at(index))?;
        service.prepare(prompt, params).await.map_err(at(index))
    };
    let prepared = stream::iter(inputs.into_iter().enumerate()).map(prepare).buffered(width);
    let prepared: Vec<Prepared> = prepared.try_collect().await?;
    let prompt_tokens = prepared.iter().map(|input| input.prompt().len()).sum();
    let outputs = |input| async move {
        let mut outputs = service.start(input)?.collect().await?.vector;
        outputs.truncate(classes);
        // A shard that answers with too few numbers must not be mistaken for another model.
        match outputs.len() == classes && outputs.iter().all(|output| output.is_finite()) {
            true => Ok(outputs),
            false => Err(ServiceError::Generation("the model's scores are not finite".into())),
        }
    };
    let outputs = stream::iter(prepared).map(outputs).buffered(width).try_collect().await?;
    Ok((outputs, prompt_tokens))
}

/// Returns the tokens of the first text of pairs that are cut from the side `truncate`, if any.
///
/// # Errors
/// If the text is empty, or too long and not cut.
pub(super) async fn first_of_pair(
    app: &App,
    text: String,
    truncate: Option<TruncationSide>,
) -> Result<Vec<u32>, ServiceError> {
    let ready = app.service.ready()?;
    app.service.tokenize_of_pair(text, pair_cut(app, &ready, truncate)).await
}

/// Returns the limit on pairs that are cut from the side `truncate`, if they are cut.
fn pair_cut(app: &App, ready: &Ready, truncate: Option<TruncationSide>) -> Option<PairCut> {
    let longest = app.service.limits().tokens(ready).max_input;
    truncate.map(|side| PairCut { longest, side })
}

/// The properties that the inputs of a request have in common.
struct ClassifierJob<'a> {
    ready: &'a Ready,
    params: Params,
    /// The limit on pairs that are cut.
    cut: Option<PairCut>,
}

impl ClassifierJob<'_> {
    /// Returns the prompt of an input and its parameters.
    async fn prompt(&self, app: &App, input: ClassifierInput) -> Result<(Prompt, Params), ServiceError> {
        let params = self.params.clone();
        match input {
            ClassifierInput::Text(text) if text.is_empty() => {
                Err(ServiceError::invalid("inputs", "`inputs` cannot be empty"))
            }
            ClassifierInput::Text(text) => Ok((Prompt::Text(text, SpecialTokens::Add), params)),
            ClassifierInput::Pair(first, second) => {
                let service = &app.service;
                let second = service.tokenize_of_pair(second, self.cut).await?;
                let pair = service.pair_form(self.ready)?.join(&first, &second, self.cut);
                // The texts of the pair have been cut, and the tokens around them stay.
                let (truncate, second_type_start) = (None, pair.second_type_start);
                Ok((Prompt::Ids(pair.ids), Params { truncate, second_type_start, ..params }))
            }
        }
    }
}

/// Returns the places of the texts, those with the highest outputs first. Equal outputs keep their
/// order.
pub(super) fn best_first(outputs: &[f32]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..outputs.len()).collect();
    places.sort_by(|&a, &b| outputs[b].total_cmp(&outputs[a]));
    places
}

/// Returns a number between 0 and 1 for the output of a classifier.
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Returns the share of each class, which add up to 1.
pub(super) fn softmax(outputs: &[f32]) -> Vec<f32> {
    // The largest exponent is 0, so that no share is infinite.
    let largest = outputs.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shares = outputs.iter().map(|output| (output - largest).exp());
    let sum: f32 = shares.clone().sum();
    shares.map(|share| share / sum).collect()
}
