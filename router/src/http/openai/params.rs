//! The parameters that both of OpenAI's generating routes have.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::OpenAiError;
use crate::grammar::Wanted;
use crate::http::ignored::{Ignored, Unserved, hint, refused};
use crate::http::{App, grammar};
use crate::service::{Params, Service, priority};
use crate::text::StopText;

/// Fields of `/v1/completions` and `/v1/chat/completions`; `top_k`, `min_p`, `typical_p`,
/// `repetition_penalty`, `ignore_eos`, `min_tokens`, `return_token_ids` and `cache_salt` are extensions that other servers
/// have too, `priority` is one of ours.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct Common {
    pub(super) model: Option<String>,
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
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
    stop: Option<OneOrMany>,
    logit_bias: Option<LogitBias>,
    priority: Option<String>,
    cache_salt: Option<String>,
    response_format: Option<Value>,
    ignore_eos: Option<bool>,
    min_tokens: Option<u32>,
    pub(super) return_token_ids: Option<bool>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize, ToSchema)]
#[serde(default)]
pub(super) struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(untagged)]
enum Seed {
    Unsigned(u64),
    Signed(i64),
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
enum LogitBias {
    /// OpenAI: token id → bias.
    Object(Map<String, Value>),
    /// TGI's type for it, of which only the empty list means something.
    List(Vec<Value>),
}

/// Fields that are not served where they are not taken.
const UNSERVED: &[Unserved] = &[
    refused("add_special_tokens", &[]),
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
    refused("grammar", &[]),
    refused("guided_choice", &[]),
    refused("guided_grammar", &[]),
    refused("guided_json", &[]),
    refused("guided_regex", &[]),
    refused("include_stop_str_in_output", &["false"]),
    refused("json_schema", &[]),
    refused("length_penalty", &["1", "1.0"]),
    refused("logits_processors", &["[]"]),
    refused("mirostat", &["0"]),
    refused("mm_processor_kwargs", &["{}"]),
    refused("modalities", &["[\"text\"]"]),
    refused("moderation", &[]),
    refused("n_predict", &[]),
    refused("prediction", &[]),
    refused("prompt_embeds", &[]),
    refused("prompt_logprobs", &["0", "false"]),
    refused("reasoning_effort", &["\"none\""]),
    refused("repeat_penalty", &["1", "1.0"]),
    refused("samplers", &[]),
    refused("skip_special_tokens", &["true"]),
    refused("stop_token_ids", &["[]"]),
    refused("structured_outputs", &[]),
    refused("suffix", &["\"\""]),
    refused("tool_choice", &["\"none\"", "\"auto\""]),
    refused("tools", &["[]"]),
    refused("truncate_prompt_tokens", &[]),
    refused("use_beam_search", &["false"]),
    hint("verbosity", &["\"medium\""]),
    refused("web_search_options", &[]),
    refused("xtc_probability", &["0", "0.0"]),
];

/// Refuses by name what would change the answer and is not served; other fields are ignored.
pub(super) fn check_rest(rest: &Map<String, Value>, ignored: &mut Ignored) -> Result<(), OpenAiError> {
    ignored.check(UNSERVED, rest).map_err(OpenAiError::unsupported)
}

/// Checks that `count` answers to each of `prompts` prompts may be generated, and that there is room for all of them now:
/// they are in flight at the same time. `field` is the field of the request that asks for them.
///
/// # Errors
/// Names the field and the limit, or says that the server is overloaded.
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
    // A single answer is refused where it is submitted.
    if answers > 1 {
        app.service.has_room_for(answers).map_err(Service::reject)?;
    }
    Ok(())
}

impl Common {
    /// A request that names a model, and nothing else.
    pub(super) fn of_model(model: Option<String>) -> Self {
        Common { model, ..Common::default() }
    }

    /// How the model is called in responses.
    pub(super) fn check_model(&self, app: &App) -> Result<String, OpenAiError> {
        let served = &app.service.model().id;
        match self.model.as_deref() {
            // The last is what huggingface_hub's client calls whatever is at the address it was given.
            None | Some("" | "tgi" | "dummy") => Ok(served.clone()),
            Some(model) if model == served => Ok(served.clone()),
            Some(other) => Err(OpenAiError::model_not_found(other)),
        }
    }

    /// Answers per prompt.
    ///
    /// # Errors
    /// As [`check_answers`].
    pub(super) fn choices(&self, app: &App, prompts: usize) -> Result<usize, OpenAiError> {
        let n = self.n.unwrap_or(1);
        check_answers(app, "n", n, prompts)?;
        Ok(n)
    }

    pub(super) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub(super) fn includes_usage(&self) -> bool {
        self.stream_options.and_then(|options| options.include_usage).unwrap_or(false)
    }

    /// OpenAI samples with temperature 1 unless told otherwise; 0 is greedy.
    pub(super) fn params(&self, top_n: u32) -> Result<Params, OpenAiError> {
        let greedy = self.temperature == Some(0.0);
        Ok(Params {
            max_new_tokens: self.max_completion_tokens.or(self.max_tokens),
            do_sample: !greedy,
            temperature: self.temperature.filter(|_| !greedy),
            // Off is written as 0 or -1.
            top_k: self.top_k.filter(|_| !greedy).map(|k| if matches!(k, 0 | -1) { Params::ALL } else { k }),
            // OpenAI allows 0, which leaves the most likely token.
            top_p: self.top_p.filter(|_| !greedy).map(|p| if p == 0.0 { f32::MIN_POSITIVE } else { p }),
            min_p: self.min_p.filter(|_| !greedy),
            typical_p: self.typical_p.filter(|&p| !greedy && p != 1.0),
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
                Some(OneOrMany::One(stop)) => vec![stop.clone()],
                Some(OneOrMany::Many(stops)) => stops.clone(),
            },
            stop_text: StopText::Remove,
            top_n,
            warped_logprobs: false,
            priority: priority(self.priority.as_deref()).map_err(Service::reject)?,
            cache_salt: self.cache_salt.as_deref().map(Into::into),
            grammar: self.response_format()?,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            min_new_tokens: self.min_tokens.unwrap_or(0),
            model_defaults: true,
            ..Params::default()
        })
    }

    /// What the answer must be.
    pub(super) fn response_format(&self) -> Result<Option<Wanted>, OpenAiError> {
        const FIELD: &str = "response_format";
        let Some(format) = &self.response_format else { return Ok(None) };
        let grammar = grammar::response_format(format).map_err(|why| OpenAiError::invalid(FIELD, why))?;
        Ok(grammar.map(|grammar| Wanted { grammar, field: FIELD, optional: false }))
    }

    fn logit_bias(&self) -> Result<Vec<(u32, f32)>, OpenAiError> {
        let wrong = || OpenAiError::invalid("logit_bias", "`logit_bias` must map token ids to numbers");
        match &self.logit_bias {
            None => Ok(Vec::new()),
            Some(LogitBias::List(list)) if list.is_empty() => Ok(Vec::new()),
            Some(LogitBias::List(_)) => Err(wrong()),
            Some(LogitBias::Object(biases)) => biases
                .iter()
                .map(|(id, bias)| {
                    let bias = bias.as_f64().ok_or_else(wrong)?;
                    Ok((id.parse().map_err(|_| wrong())?, bias as f32))
                })
                .collect(),
        }
    }
}
