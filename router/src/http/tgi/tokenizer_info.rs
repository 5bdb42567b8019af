//! vLLM's `/tokenizer_info`, for clients that write prompts themselves.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::app::App;

/// The model's tokenizer, with the field names of `tokenizer_config.json`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TokenizerInfo {
    tokenizer_class: String,
    chat_template: Option<String>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    pad_token: Option<String>,
    unk_token: Option<String>,
    add_bos_token: Option<bool>,
    /// Tokens of prompt and answer together; absent while the model is loading.
    #[serde(skip_serializing_if = "Option::is_none")]
    model_max_length: Option<usize>,
}

#[utoipa::path(get, path = "/tokenizer_info", tag = "TGI", responses((status = 200, description = "The tokenizer", body = TokenizerInfo)))]
pub(super) async fn tokenizer_info(State(app): State<App>) -> Json<TokenizerInfo> {
    let ready = app.service.ready().ok();
    let described = app.service.described();
    Json(TokenizerInfo {
        tokenizer_class: described.class.clone(),
        chat_template: described.chat_template.clone(),
        bos_token: described.bos_token.clone(),
        eos_token: described.eos_token.clone(),
        pad_token: described.pad_token.clone(),
        unk_token: described.unk_token.clone(),
        add_bos_token: described.add_bos_token,
        model_max_length: ready.map(|ready| app.service.limits().tokens(&ready).max_total),
    })
}
