//! `/v1/completions`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::error::{OpenAiError, OpenAiJson};
use super::logprobs::{CompletionLogprobs, PromptLogprobs, prompt_logprobs};
use super::params::{Common, check_answers, check_rest};
use super::types::{FINGERPRINT, Header, Usage, finish_reason};
use crate::http::ignored::Ignored;
use crate::http::{App, headers, sse};
use crate::service::{
    Answer, Params, Prepared, Prompt, PromptToken, Service, ServiceError, TextEvent, TextStream,
};
use crate::text::{Specials, Tokenizer};

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct CompletionRequest {
    prompt: Prompts,
    logprobs: Option<u32>,
    echo: Option<bool>,
    best_of: Option<usize>,
    /// As vLLM has it: what the model makes of the prompt's tokens, with so many alternatives.
    prompt_logprobs: Option<u32>,
    #[serde(flatten)]
    common: Common,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Ids(Vec<u32>),
    ManyIds(Vec<Vec<u32>>),
}

impl Prompts {
    /// Each by itself.
    pub(super) fn list(self) -> Vec<Prompt> {
        let text = |text| Prompt::Text(text, Specials::Add);
        match self {
            Prompts::Text(prompt) => vec![text(prompt)],
            Prompts::Texts(prompts) => prompts.into_iter().map(text).collect(),
            Prompts::Ids(ids) => vec![Prompt::Ids(ids)],
            Prompts::ManyIds(prompts) => prompts.into_iter().map(Prompt::Ids).collect(),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
struct Completion<'a> {
    object: &'static str,
    id: &'a str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<Choice>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = CompletionChoice)]
struct Choice {
    index: usize,
    text: String,
    logprobs: Option<CompletionLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Option<Object>>>)]
    prompt_logprobs: Option<PromptLogprobs>,
}

/// One of the request's prompts.
struct Item {
    prepared: Prepared,
    /// What every answer to it begins with: the prompt itself if `echo` asks for it.
    prefix: String,
    /// Of the prompt, if it was a text.
    characters: usize,
}

/// Continues one or several prompts, at once or as a stream.
#[utoipa::path(post, path = "/v1/completions", tag = "OpenAI", request_body = CompletionRequest, responses((status = 200, description = "The answers, or chunks of them as a stream if `stream` is true", body = Completion<'_>)))]
pub(super) async fn completions(
    State(app): State<App>,
    OpenAiJson(request): OpenAiJson<CompletionRequest>,
) -> Result<Response, OpenAiError> {
    let CompletionRequest { prompt, logprobs, echo, best_of, prompt_logprobs, common, rest } = request;
    let header = Header::new("cmpl", common.check_model(&app)?);
    if rest.get("suffix").is_some_and(|suffix| !suffix.is_null() && suffix != "") {
        let message = "Suffix is not supported and can be achieved by preprocessing the prompt.";
        return Err(OpenAiError::invalid("suffix", message));
    }
    let mut ignored = Ignored::default();
    check_rest(&rest, &mut ignored)?;
    let echo = echo.unwrap_or(false);
    let prompts = prompts(prompt, app.service.limits().max_client_batch_size)?;
    let n = common.choices(&app, prompts.len())?;
    let best_of = best_of.unwrap_or(n);
    check_best_of(&app, best_of, n, prompts.len(), common.streams())?;
    let echoed_logprobs = logprobs.filter(|_| echo);
    let mut params = common.params(logprobs.unwrap_or(0))?;
    params.prompt_logprobs = prompt_logprobs.max(echoed_logprobs);
    params.echoes = echo || prompt_logprobs.is_some();
    check_stream(&common, &params, prompt_logprobs)?;
    let items = try_join_all(prompts.into_iter().map(|prompt| async {
        let characters = if let Prompt::Text(text, _) = &prompt { text.chars().count() } else { 0 };
        let prefix = if echo { text(app.service.tokenizer(), &prompt) } else { String::new() };
        let prepared = app.service.prepare(prompt, params.clone()).await?;
        Ok::<_, OpenAiError>(Item { prepared, prefix, characters })
    }))
    .await?;
    items.iter().for_each(|item| ignored.note_unenforced(&item.prepared));
    let prompt_tokens = items.iter().map(|item| item.prepared.prompt().len()).sum();
    let tokenizer = logprobs.is_some().then(|| app.service.tokenizer().clone());
    let include_usage = common.includes_usage();
    let wants_ids = common.return_token_ids.unwrap_or(false);
    let writer = Writer {
        header,
        tokenizer,
        echoed_logprobs,
        prompt_tokens,
        include_usage,
        wants_ids,
        ignored,
        choices: Vec::new(),
    };
    let mut streams = Vec::new();
    for item in &items {
        let started = app.service.start_several(&item.prepared, best_of.max(n))?;
        streams.push((item.prefix.clone(), started));
    }
    let characters = items.iter().map(|item| item.characters).sum();
    if common.streams() {
        let headers = headers::before(&app, characters, &writer.ignored);
        return Ok((headers, writer.stream(streams).await?).into_response());
    }
    writer.whole(&app, characters, streams, n, prompt_logprobs).await
}

/// What cannot be had as a stream.
fn check_stream(common: &Common, params: &Params, prompt_logprobs: Option<u32>) -> Result<(), OpenAiError> {
    if !common.streams() {
        return Ok(());
    }
    if prompt_logprobs.is_some() {
        let message = "`prompt_logprobs` is not supported when streaming tokens";
        return Err(OpenAiError::invalid("prompt_logprobs", message));
    }
    if params.max_new_tokens == Some(0) {
        let message = "`max_tokens` must be > 0 when streaming tokens";
        return Err(OpenAiError::invalid("max_tokens", message));
    }
    Ok(())
}

fn check_best_of(
    app: &App,
    best_of: usize,
    n: usize,
    prompts: usize,
    streams: bool,
) -> Result<(), OpenAiError> {
    if best_of < n {
        return Err(OpenAiError::invalid(
            "best_of",
            format!("`best_of` must be >= `n` ({n}). Given: {best_of}"),
        ));
    }
    if best_of > n {
        check_answers(app, "best_of", best_of, prompts)?;
    }
    if streams && best_of != n {
        let message = "`best_of` != `n` is not supported when streaming tokens";
        return Err(OpenAiError::invalid("best_of", message));
    }
    Ok(())
}

fn prompts(prompts: Prompts, most: usize) -> Result<Vec<Prompt>, OpenAiError> {
    let prompts = prompts.list();
    if prompts.len() > most {
        let message = format!("Number of prompts exceeds the maximum allowed batch size of {most}");
        return Err(OpenAiError::invalid("prompt", message));
    }
    if prompts.is_empty() {
        return Err(OpenAiError::invalid("prompt", "`prompt` cannot be empty"));
    }
    Ok(prompts)
}

fn text(tokenizer: &Tokenizer, prompt: &Prompt) -> String {
    match prompt {
        Prompt::Text(text, _) => text.clone(),
        Prompt::Chat(prompt) => prompt.text.clone(),
        Prompt::Ids(ids) => {
            let mut detokenizer = tokenizer.detokenizer(true, false);
            ids.iter().map(|&id| detokenizer.push(id)).collect::<String>() + &detokenizer.finish()
        }
    }
}

struct Writer {
    header: Header,
    /// Set if log-probabilities were asked for.
    tokenizer: Option<Tokenizer>,
    /// Set if they begin with those of the prompt: how many alternatives.
    echoed_logprobs: Option<u32>,
    prompt_tokens: usize,
    include_usage: bool,
    wants_ids: bool,
    ignored: Ignored,
    /// What has been streamed of each answer.
    choices: Vec<Progress>,
}

impl Writer {
    fn body(&self, choices: Vec<Choice>, usage: Option<Usage>) -> Completion<'_> {
        Completion {
            object: "text_completion",
            id: &self.header.id,
            created: self.header.created,
            model: &self.header.model,
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
        }
    }

    /// The `n` best of the answers to each prompt, in the order of the prompts.
    async fn whole(
        self,
        app: &App,
        characters: usize,
        streams: Vec<(String, Vec<TextStream>)>,
        n: usize,
        prompt_top_n: Option<u32>,
    ) -> Result<Response, OpenAiError> {
        let answers = try_join_all(streams.into_iter().map(|(prefix, streams)| async move {
            let prompt = streams.first().map(|stream| stream.request().prompt().to_vec()).unwrap_or_default();
            Ok::<_, OpenAiError>((prefix, prompt, Service::collect(streams).await?))
        }))
        .await?;
        let all = answers.iter().flat_map(|(_, _, answers)| answers);
        let mut headers = headers::after(app, characters, &self.ignored, self.prompt_tokens, all);
        let mut usage = Usage::new(self.prompt_tokens, 0, 0);
        let mut choices = Vec::new();
        for (prefix, prompt, mut answers) in answers {
            usage.add(Usage::of(0, &answers));
            if answers.len() > n {
                answers.sort_by(|a, b| b.mean_logprob().total_cmp(&a.mean_logprob()));
                answers.truncate(n);
            }
            for answer in answers {
                let prompt_logprobs = prompt_top_n
                    .map(|top_n| prompt_logprobs(app.service.tokenizer(), &prompt, &answer.prompt, top_n));
                let choice = self.choice(choices.len(), &prefix, &prompt, answer);
                choices.push(Choice { prompt_logprobs, ..choice });
            }
        }
        headers.insert(sse::CACHED_TOKENS, usage.cached_tokens().into());
        Ok((headers, Json(self.body(choices, Some(usage)))).into_response())
    }

    fn choice(&self, index: usize, prefix: &str, prompt: &[u32], answer: Answer) -> Choice {
        let offset = prefix.chars().count();
        Choice {
            index,
            logprobs: self.logprobs(Some((prompt, &answer.prompt)), &answer.tokens, offset),
            finish_reason: Some(finish_reason(answer.finished.reason)),
            prompt_token_ids: self.wants_ids.then(|| prompt.to_vec()),
            token_ids: self.wants_ids.then(|| answer.tokens.iter().map(|event| event.token.id).collect()),
            prompt_logprobs: None,
            text: format!("{prefix}{}", answer.finished.text),
        }
    }

    /// Of these tokens, if they were asked for; with them those of the prompt if it goes before them.
    fn logprobs(
        &self,
        prompt: Option<(&[u32], &[PromptToken])>,
        events: &[TextEvent],
        offset: usize,
    ) -> Option<CompletionLogprobs> {
        let tokenizer = self.tokenizer.as_ref()?;
        let mut logprobs = match (prompt, self.echoed_logprobs) {
            (Some((ids, tokens)), Some(top_n)) => {
                CompletionLogprobs::of_prompt(tokenizer, ids, tokens, top_n)
            }
            _ => CompletionLogprobs::default(),
        };
        logprobs.add(tokenizer, events, offset);
        Some(logprobs)
    }

    async fn stream(mut self, prompts: Vec<(String, Vec<TextStream>)>) -> Result<Response, OpenAiError> {
        let mut streams = Vec::new();
        for (number, (prefix, answers)) in prompts.into_iter().enumerate() {
            for stream in answers {
                let ids = stream.request().prompt();
                self.choices.push(Progress {
                    prefix: prefix.clone(),
                    offset: prefix.chars().count(),
                    number,
                    prompt: ids.len(),
                    prompt_ids: (self.wants_ids || self.echoed_logprobs.is_some()).then(|| ids.to_vec()),
                    ..Progress::default()
                });
                streams.push(stream);
            }
        }
        sse::begin(&mut streams).await?;
        let places = self.choices.iter().zip(&streams).collect::<Vec<_>>();
        let firsts = places.chunk_by(|(a, _), (b, _)| a.number == b.number);
        let cached_tokens = firsts.map(|answers| answers[0].1.cached_tokens()).sum();
        Ok(sse::response(streams, cached_tokens, self))
    }
}

impl sse::Write for Writer {
    /// Without `include_usage` the last chunk of an answer has its usage, as TGI's has.
    fn event(&mut self, index: usize, event: TextEvent, to: &mut sse::Events) {
        let choice = &mut self.choices[index];
        choice.generated += 1;
        let prefix = std::mem::take(&mut choice.prefix);
        let says_nothing = prefix.is_empty() && event.text.is_empty() && event.finished.is_none();
        if says_nothing && self.tokenizer.is_none() && !self.wants_ids {
            return;
        }
        let prompt_ids = choice.prompt_ids.take();
        let offset = choice.offset;
        choice.offset += event.text.chars().count();
        let prompt = prompt_ids.as_deref().map(|ids| (ids, event.prompt.as_slice()));
        let logprobs = self.logprobs(prompt, std::slice::from_ref(&event), offset);
        let choice = &mut self.choices[index];
        let token_ids = self.wants_ids.then(|| vec![event.token.id]);
        let prompt_token_ids = prompt_ids.filter(|_| self.wants_ids);
        if let Some(finished) = &event.finished {
            choice.cached = finished.cached_tokens;
        }
        let last = event.finished.is_some() && !self.include_usage;
        let usage = last.then(|| Usage::new(choice.prompt, choice.cached, choice.generated));
        let finish_reason = event.finished.as_ref().map(|finished| finish_reason(finished.reason));
        let text = if prefix.is_empty() { event.text } else { prefix + &event.text };
        let prompt_logprobs = None;
        let choice =
            Choice { index, text, logprobs, finish_reason, prompt_token_ids, token_ids, prompt_logprobs };
        to.json(&self.body(vec![choice], usage));
    }

    fn error(&mut self, error: ServiceError, to: &mut sse::Events) {
        OpenAiError::from(error).write(to);
        to.line("[DONE]");
    }

    fn end(&mut self, to: &mut sse::Events) {
        if self.include_usage {
            let generated = self.choices.iter().map(|choice| choice.generated).sum();
            // A prompt counts once, as it was computed for its first answer.
            let firsts =
                self.choices.chunk_by(|a, b| a.number == b.number).filter_map(|answers| answers.first());
            let cached = firsts.map(|first| first.cached).sum();
            let usage = Usage::new(self.prompt_tokens, cached, generated);
            to.json(&self.body(Vec::new(), Some(usage)));
        }
        to.line("[DONE]");
    }
}

/// What has been sent of an answer.
#[derive(Debug, Default)]
struct Progress {
    /// Goes before its first text.
    prefix: String,
    /// Characters so far.
    offset: usize,
    /// Which of the prompts it answers.
    number: usize,
    /// Tokens of that prompt, and how many of them did not have to be computed.
    prompt: usize,
    cached: usize,
    /// The tokens of that prompt, if they or their log-probabilities are to be told with its first text.
    prompt_ids: Option<Vec<u32>>,
    /// Tokens so far.
    generated: usize,
}
