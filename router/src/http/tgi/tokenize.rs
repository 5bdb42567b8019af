//! `/tokenize`, and tokens as answers of it and of `/chat_tokenize`.

use std::convert::Infallible;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::Json;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, BytesMut};
use http_body::Frame;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::TgiError;
use super::types::{GenerateParameters, absent};
use crate::http::App;
use crate::http::openai::{self, Asked, Chat};
use crate::service::{Reservation, Service, ServiceError};
use crate::text::{Encoded, Rendered, Specials, Tokenizer};

/// Bytes of an answer that are written at once.
pub(super) const PIECE: usize = 16 << 10;

/// A token and the bytes of the text that it covers.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SimpleToken {
    id: u32,
    text: String,
    start: u32,
    stop: u32,
}

/// TGI's request, which has `inputs`, or one of vLLM's two, which have `prompt` or `messages`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct TokenizeRequest {
    inputs: Option<String>,
    /// Checked, and nothing else: no parameter changes the tokens.
    #[serde(default = "absent", rename = "parameters")]
    _parameters: GenerateParameters,
    model: Option<String>,
    prompt: Option<String>,
    /// Whether the tokenizer's own tokens go around the text; by default so for `prompt` and not for `messages`.
    add_special_tokens: Option<bool>,
    /// Whether the texts of the tokens are answered, too.
    return_token_strs: Option<bool>,
    messages: Option<Vec<Value>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    tools: Option<Vec<Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// What vLLM's requests are answered; [`Tokens`] writes it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TokenIds {
    count: usize,
    max_model_len: Option<usize>,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

/// What is answered.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes answers, which `Tokens` writes piece by piece")]
pub(super) enum TokenizeResponse {
    /// For `inputs`.
    Tokens(Vec<SimpleToken>),
    /// For `prompt` and `messages`.
    Ids(TokenIds),
}

/// The tokens of a text. A text that is longer than any prompt of the model is refused.
#[utoipa::path(post, path = "/tokenize", tag = "TGI", request_body = TokenizeRequest, responses((status = 200, description = "The tokens: a list for `inputs`, an object for `prompt` and `messages`", body = TokenizeResponse)))]
pub(super) async fn tokenize(
    State(app): State<App>,
    Json(request): Json<TokenizeRequest>,
) -> Result<Response, TgiError> {
    let about_chat = |error: openai::OpenAiError| TgiError(error.into_service_error());
    if request.inputs.is_none() {
        openai::check_model(&app, request.model).map_err(about_chat)?;
    }
    let (text, specials) = match (request.inputs, request.prompt, request.messages) {
        // TGI ignores fields that it does not know.
        (Some(inputs), _, _) => {
            return Ok(tokens(&app, inputs.into(), Specials::Add).await?.response());
        }
        (None, Some(prompt), None) => (prompt.into(), request.add_special_tokens.unwrap_or(true)),
        (None, None, Some(messages)) => {
            let chat = Chat {
                messages,
                asked: Asked { tools: request.tools, choice: None, parallel: None },
                variables: request.chat_template_kwargs,
                continue_final_message: request.continue_final_message,
                add_generation_prompt: request.add_generation_prompt,
                ..Chat::default()
            };
            (chat.render(&app).await.map_err(about_chat)?, request.add_special_tokens.unwrap_or(false))
        }
        _ => {
            let detail = "one of the fields `inputs`, `prompt` and `messages` is needed";
            return Err(TgiError(Service::reject(ServiceError::invalid("inputs", detail))));
        }
    };
    let specials = if specials { Specials::Add } else { Specials::Omit };
    let limits = app.service.ready().ok().map(|ready| app.service.limits().tokens(&ready));
    let ids = IdsForm {
        max_model_len: limits.map(|limits| limits.max_total),
        tokenizer: request.return_token_strs.unwrap_or(false).then(|| app.service.tokenizer().clone()),
        in_strings: false,
    };
    Ok(tokens(&app, text, specials).await?.into_ids(ids).response())
}

/// The tokens of a text as an answer.
pub(super) async fn tokens(app: &App, text: Rendered, specials: Specials) -> Result<Tokens, TgiError> {
    let mut reservation = app.service.reserve_tokens(text.text.len())?;
    let kept = text.text.clone();
    let encoded = app.service.tokenize(text, specials).await?;
    reservation.shrink(encoded.ids.len());
    Ok(Tokens::new(kept, encoded, reservation))
}

/// Tokens as a JSON list, or as an object with the list and the text. It is written piece by piece as its reader takes it:
/// what waits in memory is the text and twelve bytes for each token, and not the JSON, which has five times as much.
pub(super) struct Tokens {
    text: String,
    encoded: Encoded,
    /// Tokens that have been written.
    written: usize,
    /// With the text, of which so many bytes have been written.
    templated: Option<usize>,
    /// As vLLM writes tokens, instead of as TGI does.
    ids: Option<IdsForm>,
    begun: bool,
    ended: bool,
    /// Given back when the answer has been sent or its reader has left.
    _reservation: Reservation,
}

/// How vLLM answers: an object with the ids, and perhaps with a text for each.
struct IdsForm {
    max_model_len: Option<usize>,
    /// Set if the texts were asked for.
    tokenizer: Option<Tokenizer>,
    /// The ids have been written, and their texts are being written.
    in_strings: bool,
}

impl Tokens {
    fn new(text: String, encoded: Encoded, reservation: Reservation) -> Self {
        let (written, templated) = (0, None);
        let (ids, begun, ended) = (None, false, false);
        Tokens { text, encoded, written, templated, ids, begun, ended, _reservation: reservation }
    }

    /// The same as an object that has the text, too.
    pub(super) fn with_text(mut self) -> Self {
        self.templated = Some(0);
        self
    }

    /// The same as vLLM writes it.
    fn into_ids(mut self, form: IdsForm) -> Self {
        self.ids = Some(form);
        self
    }

    pub(super) fn response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, json)], Body::new(self)).into_response()
    }

    /// Writes until there is a piece or everything has been written.
    fn write(&mut self, to: &mut BytesMut) {
        if let Some(ids) = &mut self.ids {
            let begun = std::mem::replace(&mut self.begun, true);
            self.ended = ids.write(begun, &self.encoded.ids, &mut self.written, to);
            return;
        }
        if !std::mem::replace(&mut self.begun, true) {
            to.put_slice(if self.templated.is_some() { b"{\"tokenize_response\":[" } else { b"[" });
        }
        while to.len() < PIECE && self.written < self.encoded.ids.len() {
            if self.written > 0 {
                to.put_u8(b',');
            }
            self.token(self.written, to);
            self.written += 1;
        }
        if to.len() >= PIECE {
            return;
        }
        let Some(from) = self.templated else {
            to.put_slice(b"]");
            self.ended = true;
            return;
        };
        if from == 0 {
            to.put_slice(b"],\"templated_text\":\"");
        }
        let mut end = self.text.len().min(from + PIECE);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        quoted(&self.text, from..end, to);
        self.templated = Some(end);
        if end == self.text.len() {
            to.put_slice(b"\"}");
            self.ended = true;
        }
    }

    fn token(&self, index: usize, to: &mut BytesMut) {
        let (start, stop) = self.encoded.offsets[index];
        // A token of half a character covers no text of its own.
        let text = self.text.get(start as usize..stop as usize).unwrap_or_default().to_owned();
        let token = SimpleToken { id: self.encoded.ids[index], text, start, stop };
        json(&token, to);
    }
}

impl IdsForm {
    /// Writes a piece, and whether it is the last one. `written` entries of the list that is being written are there.
    fn write(&mut self, begun: bool, ids: &[u32], written: &mut usize, to: &mut BytesMut) -> bool {
        if !begun {
            to.put_slice(format!("{{\"count\":{},\"max_model_len\":", ids.len()).as_bytes());
            json(&self.max_model_len, to);
            to.put_slice(b",\"tokens\":[");
        }
        loop {
            while to.len() < PIECE
                && let Some(&id) = ids.get(*written)
            {
                if *written > 0 {
                    to.put_u8(b',');
                }
                match &self.tokenizer {
                    Some(tokenizer) if self.in_strings => {
                        json(&tokenizer.vocabulary_text(id).unwrap_or_else(|| tokenizer.token_text(id)), to);
                    }
                    _ => json(&id, to),
                }
                *written += 1;
            }
            if *written < ids.len() {
                return false;
            }
            if self.in_strings {
                to.put_slice(b"]}");
                return true;
            }
            if self.tokenizer.is_none() {
                to.put_slice(b"],\"token_strs\":null}");
                return true;
            }
            to.put_slice(b"],\"token_strs\":[");
            (self.in_strings, *written) = (true, 0);
        }
    }
}

/// A part of a text as it stands in a JSON string.
pub(super) fn quoted(text: &str, part: Range<usize>, to: &mut BytesMut) {
    let mut string = BytesMut::new();
    json(&text[part], &mut string);
    to.put_slice(&string[1..string.len() - 1]);
}

fn json(value: &(impl Serialize + ?Sized), to: &mut BytesMut) {
    // Numbers and texts, written to memory: neither can fail.
    if let Err(error) = serde_json::to_writer(to.writer(), value) {
        tracing::error!(%error, "a token could not be written");
    }
}

impl HttpBody for Tokens {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut piece = BytesMut::with_capacity(PIECE + 1024);
        self.write(&mut piece);
        Poll::Ready(Some(Ok(Frame::data(piece.freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
