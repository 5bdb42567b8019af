//! `/predict`.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::embed::TruncationDirection;
use crate::http::app::App;
use crate::http::offload::{self, TurnJson};
use crate::http::scores::{self, ClassifierInput};
use crate::http::tgi::TgiError;
use crate::service::ServiceError;

/// The most inputs of a request.
const MAX_INPUTS: usize = 2048;

/// The most predictions of a response: classes of all inputs together.
const MAX_PREDICTIONS: usize = MAX_INPUTS * 32;

/// Bytes of a prediction without its label in JSON.
const PREDICTION_BYTES: usize = 40;

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct PredictRequest {
    inputs: PredictInput,
    /// Whether texts that are too long are cut, and not refused. The longer text of a pair is cut
    /// first.
    truncate: Option<bool>,
    /// The side from which long texts are cut: `Right`, the default, keeps the first tokens.
    #[serde(default)]
    truncation_direction: TruncationDirection,
    /// Whether scores are the outputs of the classifier, and not between 0 and 1.
    #[serde(default)]
    raw_scores: bool,
}

/// A text, a pair of texts, or a list in which each input is a list of one or two texts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "`inputs` must be a text, a pair of texts, or a list of lists of one or two texts"
)]
pub(super) enum PredictInput {
    Text(String),
    Pair([String; 2]),
    Many(Vec<OneOrTwo>),
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "each of `inputs` must be a list of one or two texts")]
pub(super) enum OneOrTwo {
    One([String; 1]),
    Two([String; 2]),
}

/// A class, and how well an input fits it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Prediction {
    score: f32,
    /// The name of the class in `id2label` of the model's `config.json`.
    label: String,
}

/// The classes of the only input, or those of each input of a list. The best class comes first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum PredictResponse {
    One(Vec<Prediction>),
    Many(Vec<Vec<Prediction>>),
}

/// Returns the classes of texts or pairs of texts, by a model with a classifier. A model with one
/// output returns its sigmoid, and one with several outputs their softmax.
#[utoipa::path(post, path = "/predict", tag = "Text embeddings inference", request_body = PredictRequest, responses((status = 200, description = "The classes of each input, the best one first", body = PredictResponse)))]
pub(super) async fn predict(
    State(app): State<App>,
    TurnJson(request): TurnJson<PredictRequest>,
) -> Result<Response, TgiError> {
    let PredictRequest { inputs, truncate, truncation_direction, raw_scores } = request;
    let (inputs, is_list) = match inputs {
        PredictInput::Text(text) => (vec![(text, None)], false),
        PredictInput::Pair([first, second]) => (vec![(first, Some(second))], false),
        PredictInput::Many(inputs) => (inputs.into_iter().map(OneOrTwo::split).collect(), true),
    };
    let classes = app.service.ready()?.classes as usize;
    let most = (MAX_PREDICTIONS / classes.max(1)).min(MAX_INPUTS);
    if inputs.is_empty() || inputs.len() > most {
        let message = format!("`inputs` must have 1 to {most} texts. Given: {}", inputs.len());
        return Err(ServiceError::invalid("inputs", message).into());
    }
    let side = truncation_direction.side(truncate == Some(true));
    let mut texts = Vec::with_capacity(inputs.len());
    for (first, second) in inputs {
        texts.push(match second {
            None => ClassifierInput::Text(first),
            Some(second) => {
                let first = scores::first_of_pair(&app, first, side).await?;
                ClassifierInput::Pair(first.into(), second)
            }
        });
    }
    let (outputs, _) = scores::classify(&app, None, texts, side).await?;
    let mut answers: Vec<_> = outputs.iter().map(|outputs| predictions(&app, outputs, raw_scores)).collect();
    let of_answer = |answer: &Vec<Prediction>| -> usize {
        answer.iter().map(|prediction| PREDICTION_BYTES + prediction.label.len()).sum()
    };
    let bytes = answers.iter().map(of_answer).sum();
    let response = match answers.pop() {
        Some(answer) if !is_list => PredictResponse::One(answer),
        last => {
            answers.extend(last);
            PredictResponse::Many(answers)
        }
    };
    Ok(offload::json(&app, bytes, response).await)
}

impl OneOrTwo {
    fn split(self) -> (String, Option<String>) {
        match self {
            OneOrTwo::One([text]) => (text, None),
            OneOrTwo::Two([first, second]) => (first, Some(second)),
        }
    }
}

/// Returns the classes of an input, the best one first.
fn predictions(app: &App, outputs: &[f32], raw_scores: bool) -> Vec<Prediction> {
    let shares = match outputs {
        _ if raw_scores => outputs.to_vec(),
        [output] => vec![scores::sigmoid(*output)],
        _ => scores::softmax(outputs),
    };
    let prediction = |class: usize| Prediction { score: shares[class], label: app.service.class_name(class) };
    scores::best_first(outputs).into_iter().map(prediction).collect()
}
