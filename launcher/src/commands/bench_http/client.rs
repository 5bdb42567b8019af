//! Sends one request and measures it as a user would see it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::cli::{BenchHttpArgs, BenchRoute};

/// Limit of the bytes of an error text that are kept.
const LONGEST_ERROR: usize = 300;

/// Limit of the bytes of one event.
const LONGEST_EVENT: usize = 16 << 20;

/// Measurements of one request.
#[derive(Debug, Clone, Default)]
pub(super) struct Sample {
    /// Time to the first token.
    pub(super) first: Option<Duration>,
    /// Times between consecutive events with tokens.
    pub(super) gaps: Vec<Duration>,
    /// Time to the end of the answer, or to the end of the measurement if that cut it.
    pub(super) total: Duration,
    /// Whether the end of the measurement cut the answer.
    pub(super) is_cut: bool,
    /// Prompt tokens, as the server counts.
    pub(super) prompt_tokens: u64,
    /// Tokens of the answer, as the server counts; events with text if the server does not say.
    pub(super) tokens: u64,
    /// Reason of the failure, if the request failed.
    pub(super) error: Option<String>,
}

/// Client of one server and route.
pub(super) struct Client {
    http: reqwest::Client,
    url: String,
    route: BenchRoute,
    model: String,
    fields: Map<String, Value>,
}

impl Client {
    /// Creates the client. Asks the server for the name of the model if none is given.
    ///
    /// # Errors
    /// If the server does not list its models.
    pub(super) async fn new(args: &BenchHttpArgs) -> Result<Self> {
        let mut headers = reqwest::header::HeaderMap::new();
        if let Some(key) = &args.api_key {
            let value = format!("Bearer {key}").parse().context("--api-key: not fit for a header")?;
            headers.insert(reqwest::header::AUTHORIZATION, value);
        }
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .timeout(Duration::from_secs_f64(args.timeout))
            .pool_max_idle_per_host(usize::MAX)
            .tcp_nodelay(true)
            .build()?;
        let base = args.url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        let model = match &args.model {
            Some(model) => model.clone(),
            None => {
                let about =
                    || format!("cannot ask {base}/v1/models for the model's name; give --url or --model");
                let answer = http.get(format!("{base}/v1/models")).send().await.with_context(about)?;
                if let Some(why) = unauthorized(answer.status()) {
                    anyhow::bail!("{base}/v1/models: {why}");
                }
                let list: Value =
                    answer.error_for_status().with_context(about)?.json().await.with_context(about)?;
                list["data"][0]["id"].as_str().with_context(about)?.to_owned()
            }
        };
        let mut fields = Map::new();
        fields.insert("model".into(), model.as_str().into());
        fields.insert("max_tokens".into(), args.max_tokens.into());
        fields.insert("temperature".into(), json!(args.temperature));
        fields.insert("stream".into(), true.into());
        fields.insert("stream_options".into(), json!({"include_usage": true}));
        fields.extend(args.extra.clone().unwrap_or_default());
        let path = match args.route {
            BenchRoute::Completions => "/v1/completions",
            BenchRoute::Chat => "/v1/chat/completions",
        };
        Ok(Client { http, url: format!("{base}{path}"), route: args.route, model, fields })
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Sends a request and waits for the end of the answer, but not beyond `until`. A failure is
    /// recorded in the result.
    pub(super) async fn ask(&self, prompt: String, until: Option<Instant>) -> Sample {
        let mut sample = Sample::default();
        let since = Instant::now();
        let answer = self.stream(prompt, since, &mut sample);
        let ended = match until {
            None => Ok(answer.await),
            Some(until) => tokio::time::timeout_at(until.into(), answer).await,
        };
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                sample.error = Some(format!("{error:#}").chars().take(LONGEST_ERROR).collect());
            }
            Err(_) => sample.is_cut = true,
        }
        sample.total = since.elapsed();
        sample
    }

    async fn stream(&self, prompt: String, since: Instant, sample: &mut Sample) -> Result<()> {
        let mut body = self.fields.clone();
        match self.route {
            BenchRoute::Completions => body.insert("prompt".into(), prompt.into()),
            BenchRoute::Chat => body.insert("messages".into(), json!([{"role": "user", "content": prompt}])),
        };
        let mut response = self.http.post(&self.url).json(&body).send().await?;
        let status = response.status();
        if !status.is_success() {
            if let Some(why) = unauthorized(status) {
                anyhow::bail!("{why}");
            }
            let text = response.text().await.unwrap_or_default();
            anyhow::bail!("status {}: {}", status.as_u16(), text.trim());
        }
        let (mut buffer, mut last, mut said) = (Vec::new(), since, None);
        let mut done = false;
        while let Some(bytes) = response.chunk().await? {
            buffer.extend_from_slice(&bytes);
            anyhow::ensure!(buffer.len() <= LONGEST_EVENT, "an event is longer than {LONGEST_EVENT} bytes");
            let now = Instant::now();
            let mut has_text = false;
            while let Some(end) = buffer.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                match read(&line)? {
                    Line::Text => {
                        has_text = true;
                        sample.tokens += 1;
                    }
                    Line::Usage { prompt, generated } => said = Some((prompt, generated)),
                    Line::Done => done = true,
                    Line::Nothing => {}
                }
            }
            if has_text {
                match sample.first {
                    None => sample.first = Some(now - since),
                    Some(_) => sample.gaps.push(now - last),
                }
                last = now;
            }
        }
        if let Some((prompt, generated)) = said {
            (sample.prompt_tokens, sample.tokens) = (prompt, generated);
        }
        anyhow::ensure!(done, "the stream broke off");
        anyhow::ensure!(sample.first.is_some(), "the answer has no text");
        Ok(())
    }
}

/// Returns advice for a status that means a missing or wrong API key.
fn unauthorized(status: reqwest::StatusCode) -> Option<String> {
    matches!(status.as_u16(), 401 | 403).then(|| {
        format!(
            "status {}: the server wants an API key; give it with --api-key or OPENAI_API_KEY",
            status.as_u16()
        )
    })
}

/// The meaning of a line of a stream.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Text,
    Usage { prompt: u64, generated: u64 },
    Done,
    Nothing,
}

/// # Errors
/// If the line holds an error or is not JSON.
fn read(line: &[u8]) -> Result<Line> {
    let Some(data) = line.trim_ascii().strip_prefix(b"data:") else { return Ok(Line::Nothing) };
    let data = data.trim_ascii();
    if data == b"[DONE]" {
        return Ok(Line::Done);
    }
    let event: Value = serde_json::from_slice(data).context("an event is not JSON")?;
    if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
        anyhow::bail!("an error in the stream: {error}");
    }
    let choice = &event["choices"][0];
    let texts = [&choice["text"], &choice["delta"]["content"], &choice["delta"]["reasoning_content"]];
    if texts.into_iter().any(|text| text.as_str().is_some_and(|text| !text.is_empty())) {
        return Ok(Line::Text);
    }
    match (event["usage"]["prompt_tokens"].as_u64(), event["usage"]["completion_tokens"].as_u64()) {
        (Some(prompt), Some(generated)) => Ok(Line::Usage { prompt, generated }),
        _ => Ok(Line::Nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_stream() {
        let usage = Line::Usage { prompt: 3, generated: 4 };
        for (line, expected) in [
            ("", Line::Nothing),
            (": comment", Line::Nothing),
            ("event: x", Line::Nothing),
            ("data: [DONE]\r", Line::Done),
            (r#"data: {"choices":[{"text":"a"}]}"#, Line::Text),
            (r#"data:{"choices":[{"delta":{"content":"a"}}],"usage":null}"#, Line::Text),
            (r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#, Line::Nothing),
            (r#"data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#, usage),
        ] {
            assert_eq!(read(line.as_bytes()).unwrap(), expected, "{line}");
        }
        for wrong in ["data: {", r#"data: {"error":{"message":"no"}}"#] {
            assert!(read(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
