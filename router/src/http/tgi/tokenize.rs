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
use serde::Serialize;
use utoipa::ToSchema;

use super::error::TgiError;
use super::types::GenerateRequest;
use crate::http::App;
use crate::service::Reservation;
use crate::text::{Encoded, Rendered, Specials};

/// Bytes of an answer that are written at once.
const PIECE: usize = 16 << 10;

/// A token and the bytes of the text that it covers.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SimpleToken {
    id: u32,
    text: String,
    start: u32,
    stop: u32,
}

/// The tokens of a text. A text that is longer than any prompt of the model is refused.
#[utoipa::path(post, path = "/tokenize", tag = "TGI", request_body = GenerateRequest, responses((status = 200, description = "The tokens", body = Vec<SimpleToken>)))]
pub(super) async fn tokenize(
    State(app): State<App>,
    Json(request): Json<GenerateRequest>,
) -> Result<Response, TgiError> {
    Ok(tokens(&app, request.inputs.into(), Specials::Add).await?.response())
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
    begun: bool,
    ended: bool,
    /// Given back when the answer has been sent or its reader has left.
    _reservation: Reservation,
}

impl Tokens {
    fn new(text: String, encoded: Encoded, reservation: Reservation) -> Self {
        let (written, templated) = (0, None);
        Tokens { text, encoded, written, templated, begun: false, ended: false, _reservation: reservation }
    }

    /// The same as an object that has the text, too.
    pub(super) fn with_text(mut self) -> Self {
        self.templated = Some(0);
        self
    }

    pub(super) fn response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        ([(header::CONTENT_TYPE, json)], Body::new(self)).into_response()
    }

    /// Writes until there is a piece or everything has been written.
    fn write(&mut self, to: &mut BytesMut) {
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

/// A part of a text as it stands in a JSON string.
fn quoted(text: &str, part: Range<usize>, to: &mut BytesMut) {
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
