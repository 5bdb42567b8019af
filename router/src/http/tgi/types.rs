//! Bodies of TGI's requests and responses.

use millrace_answers::grammar::RequestedGrammar;
use millrace_text::StopText;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::http::app::App;
use crate::http::fields::PriorityField;
use crate::http::grammar;
use crate::http::model_name::adapter_by_id;
use crate::http::thinking::raw_budget;
use crate::service::{FinishReason, Params, ServiceError, TextToken};

/// The body of `/generate`, `/generate_stream` and `/tokenize`.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct GenerateRequest {
    pub(in crate::http) inputs: String,
    #[serde(default = "default_parameters", deserialize_with = "crate::http::fields::object")]
    pub(in crate::http) parameters: GenerateParameters,
}

/// The body of `/`.
#[derive(Debug, Deserialize, ToSchema)]
pub(in crate::http) struct CompatRequest {
    pub(super) inputs: String,
    #[serde(default = "default_parameters", deserialize_with = "crate::http::fields::object")]
    pub(in crate::http) parameters: GenerateParameters,
    #[serde(default)]
    pub(super) stream: bool,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub(in crate::http) struct GenerateParameters {
    best_of: Option<usize>,
    temperature: Option<f32>,
    repetition_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    top_k: Option<i32>,
    top_p: Option<f32>,
    typical_p: Option<f32>,
    do_sample: bool,
    max_new_tokens: Option<u32>,
    pub(super) return_full_text: Option<bool>,
    stop: Vec<String>,
    truncate: Option<usize>,
    watermark: bool,
    pub(super) details: bool,
    /// Reports the tokens of the prompt; implies `details`.
    pub(super) decoder_input_details: bool,
    seed: Option<u64>,
    top_n_tokens: Option<u32>,
    grammar: Option<Value>,
    /// The name of an adapter of the model.
    adapter_id: Option<String>,
    /// `high`, `normal` or `low`; 0 is normal. An extension of this server.
    priority: Option<PriorityField>,
    /// Separates the cached prefixes of clients. An extension of this server.
    cache_salt: Option<String>,
    /// The tokens that the model may think before it must answer; -1 is no limit. An extension of
    /// this server.
    thinking_token_budget: Option<i64>,
}

/// The parameters of a request without `parameters`, for which TGI samples. A request that has
/// parameters samples only if they ask for it.
pub(in crate::http) fn default_parameters() -> GenerateParameters {
    GenerateParameters { do_sample: true, ..GenerateParameters::default() }
}

impl GenerateParameters {
    /// The number of answers among which the most likely is sent.
    pub(in crate::http) fn best_of(&self) -> usize {
        self.best_of.unwrap_or(1).max(1)
    }

    /// Refuses the options that a stream cannot have.
    ///
    /// # Errors
    /// [`ServiceError::Validation`] names the option.
    pub(super) fn check_stream(&self) -> Result<(), ServiceError> {
        if self.best_of() > 1 {
            let detail = "`best_of` != 1 is not supported when streaming tokens";
            return Err(ServiceError::invalid("best_of", detail));
        }
        if self.decoder_input_details {
            let detail = "`decoder_input_details` == true is not supported when streaming tokens";
            return Err(ServiceError::invalid("decoder_input_details", detail));
        }
        Ok(())
    }

    /// The grammar of the answer, if the request has one.
    fn grammar(&self) -> Result<Option<RequestedGrammar>, ServiceError> {
        let Some(grammar) = self.grammar.as_ref().filter(|grammar| !grammar.is_null()) else {
            return Ok(None);
        };
        let grammar =
            grammar::from_tgi(grammar).map_err(|reason| ServiceError::invalid("grammar", reason))?;
        Ok(Some(RequestedGrammar { grammar, field: "grammar", optional: false }))
    }

    /// The parameters of the generation.
    ///
    /// # Errors
    /// [`ServiceError::Validation`] names the field that is wrong.
    pub(in crate::http) fn params(&self, app: &App) -> Result<Params, ServiceError> {
        let adapter = self.adapter_id.as_deref().map(|id| adapter_by_id(app.service.model(), id));
        Ok(Params {
            adapter: adapter.transpose()?,
            max_new_tokens: self.max_new_tokens,
            truncate: self.truncate,
            do_sample: self.do_sample,
            temperature: self.temperature,
            // vLLM's clients send -1 to turn it off.
            top_k: self.top_k.filter(|&k| k != -1).map(i64::from),
            top_p: self.top_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            stop: self.stop.clone(),
            stop_text: StopText::Keep,
            top_n: self.top_n_tokens.unwrap_or(0),
            warped_logprobs: true,
            best_of: self.best_of,
            priority: PriorityField::of(self.priority.as_ref())?,
            cache_salt: self.cache_salt.as_deref().map(Into::into),
            grammar: self.grammar()?,
            watermark: self.watermark,
            thinking_budget: raw_budget(self.thinking_token_budget)
                .map_err(|wrong| ServiceError::invalid(wrong.field, wrong.message))?,
            ..Params::default()
        })
    }
}

/// A generated token.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Token)]
pub(super) struct TgiToken {
    id: u32,
    text: String,
    logprob: f32,
    special: bool,
}

impl From<&TextToken> for TgiToken {
    fn from(token: &TextToken) -> Self {
        TgiToken { id: token.id, text: token.text.clone(), logprob: token.logprob, special: token.special }
    }
}

/// A token of the prompt. The first one follows no other token and has no log-probability.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PrefillToken {
    pub(super) id: u32,
    pub(super) text: String,
    pub(super) logprob: Option<f32>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct GenerateResponse {
    pub(super) generated_text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) details: Option<Details>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Details {
    pub(super) finish_reason: &'static str,
    pub(super) generated_tokens: u32,
    pub(super) seed: Option<u64>,
    pub(super) prefill: Vec<PrefillToken>,
    pub(super) tokens: Vec<TgiToken>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(no_recursion)]
    pub(super) best_of_sequences: Vec<BestOfSequence>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) top_tokens: Vec<Vec<TgiToken>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BestOfSequence {
    pub(super) generated_text: String,
    #[serde(flatten)]
    pub(super) details: Details,
}

/// An event of `/generate_stream`.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StreamResponse {
    pub(super) index: u32,
    pub(super) token: TgiToken,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) top_tokens: Vec<TgiToken>,
    pub(super) generated_text: Option<String>,
    pub(super) details: Option<StreamDetails>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct StreamDetails {
    pub(super) finish_reason: &'static str,
    pub(super) generated_tokens: u32,
    pub(super) seed: Option<u64>,
    pub(super) input_length: usize,
}

/// TGI's word for the reason why an answer ended.
pub(super) fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::EosToken => "eos_token",
        FinishReason::StopSequence => "stop_sequence",
    }
}
