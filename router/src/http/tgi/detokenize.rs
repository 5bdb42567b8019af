//! vLLM's `/detokenize`.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, BytesMut};
use futures::stream;
use millrace_text::Detokenizer;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::TgiError;
use super::tokenize::{PIECE_BYTES, write_json_string};
use crate::http::app::App;
use crate::http::model_name::served_model;
use crate::http::offload::TurnJson;
use crate::service::{Reservation, Service, ServiceError};

/// Bytes of a token while its response is being sent.
const TOKEN_BYTES: usize = size_of::<u32>();

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// The response, which [`DetokenizedText`] writes.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DetokenizeResponse {
    prompt: String,
}

/// Returns the text of tokens, in which special tokens are written as text. There may be as many
/// tokens as the model's context holds.
#[utoipa::path(post, path = "/detokenize", tag = "TGI", request_body = DetokenizeRequest, responses((status = 200, description = "The text", body = DetokenizeResponse)))]
pub(super) async fn detokenize(
    State(app): State<App>,
    TurnJson(request): TurnJson<DetokenizeRequest>,
) -> Result<Response, TgiError> {
    let DetokenizeRequest { model, tokens } = request;
    served_model(&app, model.as_deref())?;
    let wrong = |detail: String| TgiError(Service::reject(ServiceError::invalid("tokens", detail)));
    let (service, ready) = (&app.service, app.service.ready()?);
    let max_tokens = service.limits().tokens(&ready).max_total;
    if tokens.len() > max_tokens {
        return Err(wrong(format!(
            "`tokens` must have at most {max_tokens} tokens. Given: {}",
            tokens.len()
        )));
    }
    let tokenizer = service.tokenizer();
    if let Some(id) = tokens.iter().find(|&&id| id >= tokenizer.size()) {
        return Err(wrong(format!("token id {id} is outside of the vocabulary of {}", tokenizer.size())));
    }
    let text = DetokenizedText {
        _reservation: service.reserve_text(tokens.len() * TOKEN_BYTES).map_err(Service::reject)?,
        detokenizer: tokenizer.detokenizer(false, false),
        tokens: tokens.into_iter(),
        state: JsonState::Begin,
    };
    let pieces = stream::unfold(text, |mut text| async {
        text.piece().map(|piece| (Ok::<_, Infallible>(piece), text))
    });
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], Body::from_stream(pieces)).into_response())
}

/// A text that is written in pieces as the client reads it, so that only its tokens are in memory.
struct DetokenizedText {
    tokens: std::vec::IntoIter<u32>,
    detokenizer: Detokenizer,
    state: JsonState,
    /// Memory that is released when the response has been sent or the client has left.
    _reservation: Reservation,
}

/// How much of the JSON around the text has been written.
enum JsonState {
    Begin,
    InText,
    End,
}

impl DetokenizedText {
    /// Returns the next piece of the response, or `None` at its end.
    fn piece(&mut self) -> Option<Bytes> {
        let mut to = BytesMut::with_capacity(PIECE_BYTES + 1024);
        match self.state {
            JsonState::Begin => to.put_slice(b"{\"prompt\":\""),
            JsonState::InText => {}
            JsonState::End => return None,
        }
        self.state = JsonState::InText;
        while to.len() < PIECE_BYTES {
            let Some(id) = self.tokens.next() else {
                let rest = self.detokenizer.finish();
                write_json_string(&rest, 0..rest.len(), &mut to);
                to.put_slice(b"\"}");
                self.state = JsonState::End;
                break;
            };
            let text = self.detokenizer.push(id);
            write_json_string(&text, 0..text.len(), &mut to);
        }
        Some(to.freeze())
    }
}
