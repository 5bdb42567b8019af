//! `/detokenize`, as vLLM has it.

use std::convert::Infallible;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{BufMut, BytesMut};
use futures::stream;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::error::TgiError;
use super::tokenize::{PIECE, quoted};
use crate::http::{App, openai};
use crate::service::{Reservation, Service, ServiceError};
use crate::text::Detokenizer;

/// Bytes that a token takes in an answer that waits.
const TOKEN: usize = size_of::<u32>();

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct DetokenizeRequest {
    model: Option<String>,
    tokens: Vec<u32>,
}

/// What the answer is like; [`Text`] writes it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct DetokenizeResponse {
    prompt: String,
}

/// The text of tokens, with special tokens as they are written. There may be as many tokens as the model's context holds.
#[utoipa::path(post, path = "/detokenize", tag = "TGI", request_body = DetokenizeRequest, responses((status = 200, description = "The text", body = DetokenizeResponse)))]
pub(super) async fn detokenize(
    State(app): State<App>,
    Json(request): Json<DetokenizeRequest>,
) -> Result<Response, TgiError> {
    let DetokenizeRequest { model, tokens } = request;
    openai::check_model(&app, model).map_err(|error| TgiError(error.into_service_error()))?;
    let wrong = |detail: String| TgiError(Service::reject(ServiceError::invalid("tokens", detail)));
    let (service, ready) = (&app.service, app.service.ready()?);
    let most = service.limits().tokens(&ready).max_total;
    if tokens.len() > most {
        return Err(wrong(format!("`tokens` must have at most {most} tokens. Given: {}", tokens.len())));
    }
    let tokenizer = service.tokenizer();
    if let Some(id) = tokens.iter().find(|&&id| id >= tokenizer.size()) {
        return Err(wrong(format!("token id {id} is outside of the vocabulary of {}", tokenizer.size())));
    }
    let text = Text {
        _reservation: service.reserve_text(tokens.len() * TOKEN).map_err(Service::reject)?,
        detokenizer: tokenizer.detokenizer(false, false),
        tokens: tokens.into_iter(),
        part: Part::Beginning,
    };
    let pieces = stream::unfold(text, |mut text| async {
        text.piece().map(|piece| (Ok::<_, Infallible>(piece), text))
    });
    let json = HeaderValue::from_static("application/json");
    Ok(([(header::CONTENT_TYPE, json)], Body::from_stream(pieces)).into_response())
}

/// A text that is written in pieces as its reader takes it, so that only its tokens wait in memory.
struct Text {
    tokens: std::vec::IntoIter<u32>,
    detokenizer: Detokenizer,
    part: Part,
    /// Given back when the answer has been sent or its reader has left.
    _reservation: Reservation,
}

enum Part {
    Beginning,
    Middle,
    End,
}

impl Text {
    fn piece(&mut self) -> Option<Bytes> {
        let mut to = BytesMut::with_capacity(PIECE + 1024);
        match self.part {
            Part::Beginning => to.put_slice(b"{\"prompt\":\""),
            Part::Middle => {}
            Part::End => return None,
        }
        self.part = Part::Middle;
        while to.len() < PIECE {
            let Some(id) = self.tokens.next() else {
                let rest = self.detokenizer.finish();
                quoted(&rest, 0..rest.len(), &mut to);
                to.put_slice(b"\"}");
                self.part = Part::End;
                break;
            };
            let text = self.detokenizer.push(id);
            quoted(&text, 0..text.len(), &mut to);
        }
        Some(to.freeze())
    }
}
