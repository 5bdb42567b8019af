//! The fields that OpenAI's two generating routes share.

use millrace_answers::grammar::RequestedGrammar;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::OpenAiError;
use super::types::ReportOptions;
use crate::chat::IgnoredFields;
use crate::http::app::App;
use crate::http::field_names::FieldNames;
use crate::http::fields::PriorityField;
use crate::http::ignored::{UnservedField, check_fields, hint, refused};
use crate::http::model_name::{ServedModel, UnknownModel, served_model};
use crate::http::{grammar, sampling};
use crate::service::{Params, Service};

/// Fields of `/v1/completions` and `/v1/chat/completions`. `top_k`, `min_p`, `typical_p`,
/// `repetition_penalty`, `ignore_eos`, `min_tokens`, `return_token_ids` and `cache_salt` are
/// extensions that other servers have, too; `priority` is an extension of this server.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = Common)]
pub(super) struct GenerationFields {
    model: Option<String>,
    stream: Option<bool>,
    #[serde(default, deserialize_with = "crate::http::fields::optional_object")]
    stream_options: Option<StreamOptions>,
    pub(super) n: Option<usize>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    seed: Option<Seed>,
    stop: Option<StopField>,
    logit_bias: Option<LogitBiasField>,
    /// `high`, `normal` or `low`; 0 is normal.
    #[schema(value_type = Option<String>)]
    priority: Option<PriorityField>,
    cache_salt: Option<String>,
    response_format: Option<Value>,
    ignore_eos: Option<bool>,
    min_tokens: Option<u32>,
    pub(super) return_token_ids: Option<bool>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize, ToSchema)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
    /// vLLM's field: with `include_usage`, each chunk has the usage so far.
    continuous_usage_stats: Option<bool>,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`seed` must be an integer of 64 bits")]
enum Seed {
    Unsigned(u64),
    Signed(i64),
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`stop` must be a text or a list of texts")]
#[schema(as = OneOrMany)]
enum StopField {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "`logit_bias` must map token ids to numbers")]
#[schema(as = LogitBias)]
enum LogitBiasField {
    /// OpenAI's form: token id → bias.
    Object(Map<String, Value>),
    /// TGI's form, of which only the empty list has a meaning.
    List(Vec<Value>),
}

/// Known fields that a route does not serve, unless its request has them.
const UNSERVED: &[UnservedField] = &[
    // In a chat, the template writes special tokens. Routes for plain texts have this field.
    refused("add_special_tokens", &["false"]),
    refused("allowed_token_ids", &[]),
    refused("audio", &[]),
    refused("bad_words", &["[]"]),
    refused("best_of", &["1"]),
    refused("chat_template", &[]),
    refused("chat_template_kwargs", &["{}"]),
    refused("documents", &["[]"]),
    refused("dry_multiplier", &["0", "0.0"]),
    refused("dynatemp_range", &["0", "0.0"]),
    refused("echo", &["false"]),
    refused("function_call", &["\"none\""]),
    refused("functions", &["[]"]),
    hint("guided_decoding_backend", &[]),
    refused("guided_whitespace_pattern", &[]),
    refused("include_stop_str_in_output", &["false"]),
    refused("json_schema", &[]),
    refused("length_penalty", &["1", "1.0"]),
    refused("logits_processors", &["[]"]),
    hint("metadata", &["{}"]),
    refused("mirostat", &["0"]),
    refused("mm_processor_kwargs", &["{}"]),
    refused("modalities", &["[\"text\"]"]),
    refused("moderation", &[]),
    refused("n_predict", &["-1"]),
    refused("n_probs", &["0"]),
    refused("prediction", &[]),
    hint("prompt_cache_key", &[]),
    refused("prompt_embeds", &[]),
    refused("prompt_logprobs", &["0", "false"]),
    refused("repeat_penalty", &["1", "1.0"]),
    refused("return_tokens_as_token_ids", &["false"]),
    hint("safety_identifier", &[]),
    refused("samplers", &[]),
    hint("service_tier", &["\"auto\"", "\"default\""]),
    refused("skip_special_tokens", &["true"]),
    refused("stop_token_ids", &["[]"]),
    hint("store", &["false"]),
    refused("suffix", &["\"\""]),
    // The vector would be that of another task.
    refused("task", &[]),
    refused("tool_choice", &["\"none\"", "\"auto\""]),
    refused("tools", &["[]"]),
    refused("truncate_prompt_tokens", &[]),
    hint("truncation", &["\"disabled\""]),
    refused("use_beam_search", &["false"]),
    hint("user", &[]),
    hint("verbosity", &["\"medium\""]),
    refused("web_search_options", &[]),
    refused("xtc_probability", &["0", "0.0"]),
];

/// Refuses the fields that would change the answer and are not served, and notes the others.
///
/// # Errors
/// The error names the field.
pub(super) fn check_rest(rest: &Map<String, Value>, ignored: &mut IgnoredFields) -> Result<(), OpenAiError> {
    check_fields(UNSERVED, rest, ignored).map_err(OpenAiError::unsupported)
}

/// Returns the number of prompts with `answers` answers each that are computed at the same time: at
/// most a quarter of all requests, so that other clients are served beside a few of the longest
/// lists of prompts.
pub(in crate::http) fn concurrent_prompts(app: &App, answers: usize) -> usize {
    (app.service.limits().max_concurrent_requests / 4 / answers.max(1)).max(1)
}

/// Checks that the server may generate `count` answers to each of `prompts` prompts, all at the
/// same time, and that it has capacity for all of them now. `field` is the field of the request
/// that asks for them.
///
/// # Errors
/// The error names the field and the limit, or says that the server is overloaded.
pub(super) fn check_answers(
    app: &App,
    field: &'static str,
    count: usize,
    prompts: usize,
) -> Result<(), OpenAiError> {
    let limits = app.service.limits();
    let (each, all) = (limits.answers(), limits.max_concurrent_requests);
    if count == 0 || count > each {
        let message = format!("`{field}` must be > 0 and <= {each} (--max-best-of). Given: {count}");
        return Err(OpenAiError::invalid(field, message));
    }
    let answers = count.saturating_mul(prompts);
    if answers > all {
        let message = format!(
            "at most {all} answers can be generated at the same time (--max-concurrent-requests). Given: `{field}` {count} \
             for {prompts} prompts"
        );
        return Err(OpenAiError::invalid(field, message));
    }
    // The engine refuses a single answer itself.
    if answers > 1 {
        app.service.has_room_for(answers).map_err(Service::reject)?;
    }
    Ok(())
}

impl GenerationFields {
    /// The model or the adapter that the request names.
    ///
    /// # Errors
    /// [`UnknownModel`] if the request asks for another model.
    pub(super) fn served_model(&self, app: &App) -> Result<ServedModel, UnknownModel> {
        served_model(app, self.model.as_deref())
    }

    /// The number of answers to each of `prompts` prompts.
    ///
    /// # Errors
    /// [`OpenAiError`] if so many answers are not allowed.
    pub(super) fn choices(&self, app: &App, prompts: usize) -> Result<usize, OpenAiError> {
        let n = self.n.unwrap_or(1);
        check_answers(app, "n", n, prompts)?;
        Ok(n)
    }

    /// The field names of a chat, with the name that the client has used for the longest answer.
    pub(super) fn chat_names(&self) -> FieldNames {
        let new_tokens =
            if self.max_completion_tokens.is_some() { "max_completion_tokens" } else { "max_tokens" };
        FieldNames { new_tokens, ..FieldNames::CHAT }
    }

    pub(super) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// The parts of the response that these fields ask for.
    pub(super) fn report_options(&self) -> ReportOptions {
        let options = self.stream_options.unwrap_or_default();
        let usage = options.include_usage.unwrap_or(false);
        ReportOptions {
            usage,
            continuous_usage: usage && options.continuous_usage_stats.unwrap_or(false),
            every_token: false,
        }
    }

    /// The parameters of the generation, which reports `top_n` alternatives for each token.
    pub(super) fn params(&self, top_n: u32) -> Result<Params, OpenAiError> {
        let greedy = self.temperature == Some(0.0);
        // A greedy answer ignores these, but not a value out of its range.
        let is_kept = |in_range: bool| !(greedy && in_range);
        Ok(Params {
            max_new_tokens: self.max_completion_tokens.or(self.max_tokens),
            min_p: self.min_p.filter(|p| is_kept((0.0..1.0).contains(p))),
            typical_p: self.typical_p.filter(|&p| p != 1.0 && is_kept(p > 0.0 && p < 1.0)),
            repetition_penalty: self.repetition_penalty,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            logit_bias: self.logit_bias()?,
            seed: self.seed.map(|seed| match seed {
                Seed::Unsigned(seed) => seed,
                Seed::Signed(seed) => seed.cast_unsigned(),
            }),
            stop: match &self.stop {
                None => Vec::new(),
                Some(StopField::One(stop)) => vec![stop.clone()],
                Some(StopField::Many(stops)) => stops.clone(),
            },
            top_n,
            priority: PriorityField::of(self.priority.as_ref()).map_err(Service::reject)?,
            cache_salt: self.cache_salt.as_deref().map(Into::into),
            grammar: self.response_format()?,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            min_new_tokens: self.min_tokens.unwrap_or(0),
            ..sampling::sampling(self.temperature, self.top_p, self.top_k)?
        })
    }

    /// The grammar of `response_format`, if it asks for one.
    fn response_format(&self) -> Result<Option<RequestedGrammar>, OpenAiError> {
        const FIELD: &str = "response_format";
        let Some(format) = &self.response_format else { return Ok(None) };
        let grammar =
            grammar::from_response_format(format).map_err(|reason| OpenAiError::invalid(FIELD, reason))?;
        Ok(grammar.map(|grammar| RequestedGrammar { grammar, field: FIELD, optional: false }))
    }

    fn logit_bias(&self) -> Result<Vec<(u32, f32)>, OpenAiError> {
        let wrong = || OpenAiError::invalid("logit_bias", "`logit_bias` must map token ids to numbers");
        match &self.logit_bias {
            None => Ok(Vec::new()),
            Some(LogitBiasField::List(list)) if list.is_empty() => Ok(Vec::new()),
            Some(LogitBiasField::List(_)) => Err(wrong()),
            Some(LogitBiasField::Object(biases)) => biases
                .iter()
                .map(|(id, bias)| {
                    let bias = bias.as_f64().ok_or_else(wrong)?;
                    Ok((id.parse().map_err(|_| wrong())?, bias as f32))
                })
                .collect(),
        }
    }
}
