//! `/tokenize`.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::error::TgiError;
use super::types::GenerateRequest;
use crate::http::App;
use crate::text::Specials;

/// A token and the bytes of the text that it covers.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct SimpleToken {
    id: u32,
    text: String,
    start: usize,
    stop: usize,
}

#[utoipa::path(post, path = "/tokenize", tag = "TGI", request_body = GenerateRequest, responses((status = 200, description = "The tokens", body = Vec<SimpleToken>)))]
pub(super) async fn tokenize(
    State(app): State<App>,
    Json(request): Json<GenerateRequest>,
) -> Result<Json<Vec<SimpleToken>>, TgiError> {
    Ok(Json(tokens(&app, &request.inputs, Specials::Add).await?))
}

/// The tokens of a text.
pub(super) async fn tokens(
    app: &App,
    inputs: &str,
    specials: Specials,
) -> Result<Vec<SimpleToken>, TgiError> {
    let encoded = app.service.tokenize(inputs.to_owned(), specials).await?;
    let token = |(&id, &(start, stop)): (&u32, &(usize, usize))| {
        // A token of half a character covers no text of its own.
        let text = inputs.get(start..stop).unwrap_or_default().to_owned();
        SimpleToken { id, text, start, stop }
    };
    Ok(encoded.ids.iter().zip(&encoded.offsets).map(token).collect())
}
