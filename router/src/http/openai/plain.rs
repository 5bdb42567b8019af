//! What routes that are not OpenAI's have of them.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::chat::chat_completions;
use super::completions::completions;
use super::error::{OpenAiError, OpenAiJson};
use super::params::{Common, check_rest};
use super::prompt::Chat;
use crate::http::App;
use crate::http::ignored::Ignored;
use crate::service::Params;
use crate::text::StopText;

/// How the model is called in responses.
pub(in crate::http) fn check_model(app: &App, model: Option<String>) -> Result<String, OpenAiError> {
    Common::of_model(model).check_model(app)
}

/// How tokens are drawn where clients say it in OpenAI's terms: with temperature 1 unless told otherwise, and 0 is greedy.
pub(in crate::http) fn sampling(temperature: Option<f32>, top_p: Option<f32>, top_k: Option<i64>) -> Params {
    let greedy = temperature == Some(0.0);
    Params {
        do_sample: !greedy,
        temperature: temperature.filter(|_| !greedy),
        top_k: top_k.filter(|_| !greedy),
        // 0 leaves the most likely token.
        top_p: top_p.filter(|_| !greedy).map(|p| if p == 0.0 { f32::MIN_POSITIVE } else { p }),
        stop_text: StopText::Remove,
        model_defaults: true,
        ..Params::default()
    }
}

#[derive(Debug, Deserialize)]
struct PlainChat {
    messages: Vec<Value>,
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The text of the one answer to a body of `/v1/chat/completions`.
pub(in crate::http) async fn answer(app: &App, body: Value) -> Result<String, OpenAiError> {
    let PlainChat { messages, common, rest } = typed(body)?;
    common.check_model(app)?;
    let mut ignored = Ignored::default();
    check_rest(&rest, &mut ignored)?;
    let chat = Chat { messages, ..Chat::default() };
    let prepared = chat.prepare(app, common.params(0)?).await?.prepared;
    Ok(app.service.start(prepared)?.collect().await?.finished.text)
}

/// As `/v1/chat/completions`.
pub(in crate::http) async fn chat(state: State<App>, body: Value) -> Response {
    match typed(body) {
        Ok(request) => chat_completions(state, OpenAiJson(request)).await.into_response(),
        Err(error) => error.into_response(),
    }
}

/// As `/v1/completions`.
pub(in crate::http) async fn complete(state: State<App>, body: Value) -> Response {
    match typed(body) {
        Ok(request) => completions(state, OpenAiJson(request)).await.into_response(),
        Err(error) => error.into_response(),
    }
}

/// A body of this type, which has been read already.
pub(in crate::http) fn typed<T: DeserializeOwned>(body: Value) -> Result<T, OpenAiError> {
    serde_json::from_value(body).map_err(|error| {
        let text = format!("Failed to deserialize the JSON body into the target type: {error}");
        OpenAiError::plain(StatusCode::BAD_REQUEST, text)
    })
}
