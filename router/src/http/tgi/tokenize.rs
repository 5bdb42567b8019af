//! `/tokenize`.

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::error::TgiError;
use super::types::GenerateRequest;
use crate::http::App;
use crate::text::Specials;

/// A token and the bytes of the text that it covers.
#[derive(Debug, Serialize)]
pub(super) struct SimpleToken {
    id: u32,
    text: String,
    start: usize,
    stop: usize,
}

pub(super) async fn tokenize(
    State(app): State<App>,
    Json(request): Json<GenerateRequest>,
) -> Result<Json<Vec<SimpleToken>>, TgiError> {
    let encoded = app.service.tokenize(request.inputs.clone(), Specials::Add).await?;
    let token = |(&id, &(start, stop)): (&u32, &(usize, usize))| {
        // A token of half a character covers no text of its own.
        let text = request.inputs.get(start..stop).unwrap_or_default().to_owned();
        SimpleToken { id, text, start, stop }
    };
    Ok(Json(encoded.ids.iter().zip(&encoded.offsets).map(token).collect()))
}
