//! Scores of pairs of a query and a text, by a model with a classifier of one output.

use futures::{StreamExt, TryStreamExt, stream};
use millrace_text::{PairAffixes, SpecialTokens};

use super::app::App;
use super::openai::concurrent_prompts;
use crate::service::{Params, Pooling, Prepared, Prompt, ServiceError, TruncationSide};

/// The scores of some texts, in their order.
#[derive(Debug)]
pub(super) struct Scores {
    /// The outputs of the classifier.
    pub(super) outputs: Vec<f32>,
    /// Number of tokens of all pairs together.
    pub(super) prompt_tokens: usize,
}

/// Computes the score of each text. All pairs are validated before the first is computed. Texts
/// that are too long are cut from the side `truncate`, or refused if there is none.
///
/// # Errors
/// If a text is invalid, or the model does not score pairs.
pub(super) async fn compute(
    app: &App,
    query: String,
    texts: Vec<String>,
    truncate: Option<TruncationSide>,
) -> Result<Scores, ServiceError> {
    let service = &app.service;
    let ready = service.ready()?;
    let pair = service.tokenizer().pair_affixes().cloned();
    let (1, Some(pair)) = (ready.classes, pair) else {
        let detail = "the model does not score texts: it needs a classifier with one output, and a tokenizer \
                      with a form for pairs of texts";
        return Err(ServiceError::invalid("model", detail));
    };
    let query = service.tokenize(query.into(), SpecialTokens::Omit).await?.ids;
    let cut = truncate.map(|side| (service.limits().tokens(&ready).max_input, side));
    let are_many = texts.len() > 1;
    let at = |index: usize| move |error: ServiceError| if are_many { error.at_index(index) } else { error };
    let params = Params {
        max_new_tokens: Some(0),
        echoes: true,
        pooling: Some(Pooling::Classes),
        ..Params::default()
    };
    let width = concurrent_prompts(app, 1);
    let (pair, query, params, at) = (&pair, &query, &params, &at);
    let prepare = |(index, text): (usize, String)| async move {
        let text = service.tokenize(text.into(), SpecialTokens::Omit).await.map_err(at(index))?.ids;
        let joined = Prompt::Ids(join(pair, query, text, cut));
        service.prepare(joined, params.clone()).await.map_err(at(index))
    };
    let prepared = stream::iter(texts.into_iter().enumerate()).map(prepare).buffered(width);
    let prepared: Vec<Prepared> = prepared.try_collect().await?;
    let prompt_tokens = prepared.iter().map(|pair| pair.prompt().len()).sum();
    let score = |pair| async move {
        let outputs = service.start(pair)?.collect().await?.vector;
        let not_finite = || ServiceError::Generation("the model's scores are not finite".into());
        outputs.first().copied().filter(|score| score.is_finite()).ok_or_else(not_finite)
    };
    let outputs = stream::iter(prepared).map(score).buffered(width).try_collect().await?;
    Ok(Scores { outputs, prompt_tokens })
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
