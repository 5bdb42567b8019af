//! `/tokenize`, and the response body that it shares with `/chat_tokenize`.

use std::convert::Infallible;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, BytesMut};
use http_body::Frame;
use millrace_text::{EncodedText, RenderedPrompt, SpecialTokens, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::TgiError;
use super::types::{GenerateParameters, default_parameters};
use crate::chat::{ContinuationOptions, ConversationRequest, ToolOptions};
use crate::http::app::App;
use crate::http::model_name::served_model;
use crate::http::offload::TurnJson;
use crate::service::{Reservation, Service, ServiceError};

/// Bytes of a response that are written at once.
pub(super) const PIECE_BYTES: usize = 16 << 10;

/// A token, and the range of bytes that it covers in the text.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SimpleToken {
    id: u32,
    text: String,
    start: u32,
    stop: u32,
}

/// TGI's request, which has `inputs`, or one of vLLM's requests, which have `prompt` or `messages`.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct TokenizeRequest {
    inputs: Option<String>,
    /// Validated only: no parameter changes the tokens.
    #[serde(
        default = "default_parameters",
        rename = "parameters",
        deserialize_with = "crate::http::fields::object"
    )]
    _parameters: GenerateParameters,
    model: Option<String>,
    prompt: Option<String>,
    /// Whether the tokenizer's own tokens go around the text: by default true for `prompt` and
    /// false for `messages`.
    add_special_tokens: Option<bool>,
    /// Whether the response has the texts of the tokens, too.
    return_token_strs: Option<bool>,
    messages: Option<Vec<Value>>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    tools: Option<Vec<Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// The response to vLLM's requests, which [`TokensBody`] writes.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TokenIds)]
pub(super) struct TokenIdsResponse {
    count: usize,
    max_model_len: Option<usize>,
    tokens: Vec<u32>,
    token_strs: Option<Vec<String>>,
}

/// The response.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes responses, which `TokensBody` writes piece by piece")]
pub(super) enum TokenizeResponse {
    /// The response to `inputs`.
    Tokens(Vec<SimpleToken>),
    /// The response to `prompt` and `messages`.
    Ids(TokenIdsResponse),
}

/// Returns the tokens of a text. A text that is longer than any prompt of the model is refused.
#[utoipa::path(post, path = "/tokenize", tag = "TGI", request_body = TokenizeRequest, responses((status = 200, description = "The tokens: a list for `inputs`, an object for `prompt` and `messages`", body = TokenizeResponse)))]
pub(super) async fn tokenize(
    State(app): State<App>,
    TurnJson(request): TurnJson<TokenizeRequest>,
) -> Result<Response, TgiError> {
    if request.inputs.is_none() {
        served_model(&app, request.model.as_deref())?;
    }
    let (text, specials) = match (request.inputs, request.prompt, request.messages) {
        // TGI ignores fields that it does not know.
        (Some(inputs), _, _) => {
            return Ok(tokens(&app, inputs.into(), SpecialTokens::Add).await?.response());
        }
        (None, Some(prompt), None) => (prompt.into(), request.add_special_tokens.unwrap_or(true)),
        (None, None, Some(messages)) => {
            let chat = ConversationRequest {
                messages,
                tools: ToolOptions { tools: request.tools.unwrap_or_default(), ..ToolOptions::default() },
                variables: request.chat_template_kwargs,
                continuation: ContinuationOptions {
                    continue_final_message: request.continue_final_message,
                    add_generation_prompt: request.add_generation_prompt,
                },
                ..ConversationRequest::default()
            };
            (chat.render(&app.service).await?, request.add_special_tokens.unwrap_or(false))
        }
        _ => {
            let detail = "one of the fields `inputs`, `prompt` and `messages` is needed";
            return Err(TgiError(Service::reject(ServiceError::invalid("inputs", detail))));
        }
    };
    let specials = if specials { SpecialTokens::Add } else { SpecialTokens::Omit };
    let limits = app.service.ready().ok().map(|ready| app.service.limits().tokens(&ready));
    let ids = IdsFormat {
        max_model_len: limits.map(|limits| limits.max_total),
        tokenizer: request.return_token_strs.unwrap_or(false).then(|| app.service.tokenizer().clone()),
        writes_texts: false,
    };
    Ok(token_ids(&app, text, specials).await?.into_ids(ids).response())
}

/// Tokenizes a text and returns the response body with the ids of its tokens.
///
/// # Errors
/// Those of [`tokens`].
async fn token_ids(app: &App, text: RenderedPrompt, specials: SpecialTokens) -> Result<TokensBody, TgiError> {
    let mut reservation = app.service.reserve_tokens(text.text.len())?;
    let ids = app.service.token_ids(text, specials).await?;
    reservation.shrink(ids.len());
    Ok(TokensBody::new(String::new(), EncodedText { ids, ..EncodedText::default() }, reservation))
}

/// Tokenizes a text and returns the response body with its tokens.
///
/// # Errors
/// [`TgiError`] if the text is too long, or if the server has no memory for the response.
pub(super) async fn tokens(
    app: &App,
    text: RenderedPrompt,
    specials: SpecialTokens,
) -> Result<TokensBody, TgiError> {
    let mut reservation = app.service.reserve_tokens(text.text.len())?;
    let copy = text.text.clone();
    let encoded = app.service.tokenize(text, specials).await?;
    reservation.shrink(encoded.ids.len());
    Ok(TokensBody::new(copy, encoded, reservation))
}

/// A response body with tokens: a JSON list, or an object with the list.
///
/// It is written piece by piece as the client reads it. Only the text and twelve bytes for each
/// token are in memory, and not the JSON, which is five times as long.
pub(super) struct TokensBody {
    text: String,
    encoded: EncodedText,
    /// The number of tokens that have been written.
    written: usize,
    /// Set if the response has the text: the number of its bytes that have been written.
    templated: Option<usize>,
    /// Set for vLLM's format; otherwise TGI's format is written.
    ids: Option<IdsFormat>,
    begun: bool,
    ended: bool,
    /// Memory that is released when the response has been sent or the client has left.
    _reservation: Reservation,
}

/// vLLM's format: an object with the ids, and optionally with the text of each token.
struct IdsFormat {
    max_model_len: Option<usize>,
    /// Set if the texts of the tokens were asked for.
    tokenizer: Option<Tokenizer>,
    /// Whether the ids have been written, so that the texts are written next.
    writes_texts: bool,
}

impl TokensBody {
    fn new(text: String, encoded: EncodedText, reservation: Reservation) -> Self {
        let (written, templated) = (0, None);
        let (ids, begun, ended) = (None, false, false);
        TokensBody { text, encoded, written, templated, ids, begun, ended, _reservation: reservation }
    }

    /// Adds the text to the response, which becomes an object.
    pub(super) fn with_text(mut self) -> Self {
        self.templated = Some(0);
        self
    }

    /// Writes the response in vLLM's format.
    fn into_ids(mut self, format: IdsFormat) -> Self {
        self.ids = Some(format);
        self
    }

    pub(super) fn response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, json)], Body::new(self)).into_response()
    }

    /// Writes until the piece is full or everything has been written.
    fn write(&mut self, to: &mut BytesMut) {
        if let Some(ids) = &mut self.ids {
            let begun = std::mem::replace(&mut self.begun, true);
            self.ended = ids.write(begun, &self.encoded.ids, &mut self.written, to);
            return;
        }
        if !std::mem::replace(&mut self.begun, true) {
            to.put_slice(if self.templated.is_some() { b"{\"tokenize_response\":[" } else { b"[" });
        }
        while to.len() < PIECE_BYTES && self.written < self.encoded.ids.len() {
            if self.written > 0 {
                to.put_u8(b',');
            }
            self.token(self.written, to);
            self.written += 1;
        }
        if to.len() >= PIECE_BYTES {
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
        let mut end = self.text.len().min(from + PIECE_BYTES);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        write_json_string(&self.text, from..end, to);
        self.templated = Some(end);
        if end == self.text.len() {
            to.put_slice(b"\"}");
            self.ended = true;
        }
    }

    fn token(&self, index: usize, to: &mut BytesMut) {
        let (start, stop) = self.encoded.offsets[index];
        // A token that is a part of a character covers no text.
        let text = self.text.get(start as usize..stop as usize).unwrap_or_default().to_owned();
        let token = SimpleToken { id: self.encoded.ids[index], text, start, stop };
        json(&token, to);
    }
}

impl IdsFormat {
    /// Writes a piece and returns whether it is the last one. `written` entries of the current list
    /// have been written before.
    fn write(&mut self, begun: bool, ids: &[u32], written: &mut usize, to: &mut BytesMut) -> bool {
        if !begun {
            to.put_slice(format!("{{\"count\":{},\"max_model_len\":", ids.len()).as_bytes());
            json(&self.max_model_len, to);
            to.put_slice(b",\"tokens\":[");
        }
        loop {
            while to.len() < PIECE_BYTES
                && let Some(&id) = ids.get(*written)
            {
                if *written > 0 {
                    to.put_u8(b',');
                }
                match &self.tokenizer {
                    Some(tokenizer) if self.writes_texts => {
                        json(&tokenizer.vocabulary_text(id).unwrap_or_else(|| tokenizer.token_text(id)), to);
                    }
                    _ => json(&id, to),
                }
                *written += 1;
            }
            if *written < ids.len() {
                return false;
            }
            if self.writes_texts {
                to.put_slice(b"]}");
                return true;
            }
            if self.tokenizer.is_none() {
                to.put_slice(b"],\"token_strs\":null}");
                return true;
            }
            to.put_slice(b"],\"token_strs\":[");
            (self.writes_texts, *written) = (true, 0);
        }
    }
}

/// Writes a part of a text as it stands in a JSON string, without the quotes.
pub(super) fn write_json_string(text: &str, part: Range<usize>, to: &mut BytesMut) {
    let mut string = BytesMut::new();
    json(&text[part], &mut string);
    to.put_slice(&string[1..string.len() - 1]);
}

fn json(value: &(impl Serialize + ?Sized), to: &mut BytesMut) {
    // Writing numbers and texts to memory cannot fail.
    if let Err(error) = serde_json::to_writer(to.writer(), value) {
        tracing::error!(%error, "a token could not be written");
    }
}

impl HttpBody for TokensBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut piece = BytesMut::with_capacity(PIECE_BYTES + 1024);
        self.write(&mut piece);
        Poll::Ready(Some(Ok(Frame::data(piece.freeze()))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}
