//! Conversations for routes that are not OpenAI's but take its messages.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::chat::chat_completions;
use super::completions::completions;
use super::error::{OpenAiError, OpenAiJson};
use super::messages::{self, Turn};
use super::params::{Common, refuse_unsupported};
use crate::http::App;
use crate::service::{Params, Prepared, Prompt};
use crate::text::{Specials, StopText};

/// A conversation as the model's template writes it.
pub(in crate::http) async fn render(
    app: &App,
    messages: Vec<Value>,
    continues: Option<bool>,
) -> Result<String, OpenAiError> {
    let turn = Turn { continue_final_message: continues, ..Turn::default() };
    let (conversation, begun) = messages::conversation(messages, turn)?;
    let prompt = app.service.render(conversation).await?;
    match begun {
        Some(begun) => messages::cut_after(prompt, &begun),
        None => Ok(prompt),
    }
}

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
        ..Params::default()
    }
}

/// A conversation that is ready to be answered.
pub(in crate::http) async fn prepare(
    app: &App,
    messages: Vec<Value>,
    continues: Option<bool>,
    params: Params,
) -> Result<Prepared, OpenAiError> {
    let prompt = render(app, messages, continues).await?;
    // The template has written what begins a prompt.
    Ok(app.service.prepare(Prompt::Text(prompt, Specials::Omit), params).await?)
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
    refuse_unsupported(&rest)?;
    let prepared = prepare(app, messages, None, common.params(0)?).await?;
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
