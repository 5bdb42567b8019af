//! Outputs of a model with a classifier, for texts and for pairs of texts.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};
use millrace_text::{PairAffixes, SpecialTokens};

use super::app::App;
use super::openai::concurrent_prompts;
use crate::engine::AdapterId;
use crate::service::{Params, Pooling, Prepared, Prompt, ServiceError, TruncationSide};

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
    if service.ready()?.classes != 1 {
        let detail = "the model does not score texts: it needs a classifier with one output";
        return Err(ServiceError::invalid("model", detail));
    }
    service.pair_affixes()?;
    let query: Arc<[u32]> = service.tokenize(query.into(), SpecialTokens::Omit).await?.ids.into();
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
    let longest = service.limits().tokens(&ready).max_input;
    let are_many = inputs.len() > 1;
    let at = |index: usize| move |error: ServiceError| if are_many { error.at_index(index) } else { error };
    let params = Params {
        adapter,
        max_new_tokens: Some(0),
        echoes: true,
        pooling: Some(Pooling::Classes),
        truncate: truncate.map(|_| longest),
        truncation_side: truncate.unwrap_or(TruncationSide::Right),
        ..Params::default()
    };
    let width = concurrent_prompts(app, 1);
    let (params, at) = (&params, &at);
    let cut = truncate.map(|side| (longest, side));
    let prepare = |(index, input)| async move {
        let prompt = prompt_of(app, input, cut).await.map_err(at(index))?;
        service.prepare(prompt, params.clone()).await.map_err(at(index))
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

/// Returns the prompt of an input. `cut` has the most tokens of a pair and the side from which its
/// text is cut.
async fn prompt_of(
    app: &App,
    input: ClassifierInput,
    cut: Option<(usize, TruncationSide)>,
) -> Result<Prompt, ServiceError> {
    match input {
        ClassifierInput::Text(text) if text.is_empty() => {
            Err(ServiceError::invalid("inputs", "`inputs` cannot be empty"))
        }
        ClassifierInput::Text(text) => Ok(Prompt::Text(text, SpecialTokens::Add)),
        ClassifierInput::Pair(first, second) => {
            let service = &app.service;
            let second = service.tokenize(second.into(), SpecialTokens::Omit).await?.ids;
            Ok(Prompt::Ids(join(service.pair_affixes()?, &first, second, cut)))
        }
    }
}

/// Joins the tokens of a query and a text. If there is a limit, the text loses the tokens that do
/// not fit on one side; a query that leaves no room is kept, and is refused later.
fn join(
    pair: &PairAffixes,
    query: &[u32],
    mut text: Vec<u32>,
    cut: Option<(usize, TruncationSide)>,
) -> Vec<u32> {
    if let Some((longest, side)) = cut {
        let kept = longest.saturating_sub(query.len() + pair.len()).max(1);
        match side {
            TruncationSide::Right => text.truncate(kept),
            TruncationSide::Left => drop(text.drain(..text.len().saturating_sub(kept))),
        }
    }
    pair.join(query, &text)
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
