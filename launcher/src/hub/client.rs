//! Requests to the hub: redirects, the token, time limits, and errors of the hub.

use std::time::Duration;

use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, RANGE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Method, Response, StatusCode, Url};

use super::error::HubError;
use super::repository::Repository;
use super::settings::HubSettings;

/// The most redirects of a request.
const MAX_REDIRECTS: usize = 10;

/// The longest time until a connection is made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest text of the hub that is repeated in an error.
const MAX_HUB_TEXT: usize = 300;

/// A client of one repository on the hub.
#[derive(Debug)]
pub(super) struct HubClient {
    http: Client,
    pub(super) settings: HubSettings,
    pub(super) repository: Repository,
}

/// The part of a repository that a request asks for, for its errors.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target<'a> {
    /// The list of files.
    Listing,
    /// A file.
    File(&'a str),
}

impl HubClient {
    /// Creates the client. It uses the proxy of `HTTPS_PROXY` and `HTTP_PROXY`, except for the
    /// hosts of `NO_PROXY`, and trusts the certificates of the system.
    pub(super) fn new(settings: HubSettings, repository: Repository) -> Result<HubClient, HubError> {
        let http = Client::builder()
            .user_agent(concat!("millrace/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(settings.response_timeout.min(CONNECT_TIMEOUT))
            // Redirects are followed here, because the token must not follow them.
            .redirect(Policy::none())
            .build();
        let http = http.map_err(|error| HubError::Protocol(format!("no HTTP client: {}", chain(&error))))?;
        Ok(HubClient { http, settings, repository })
    }

    /// Returns an address of the hub, `path` below its endpoint.
    pub(super) fn url(&self, path: &[&str]) -> Url {
        let mut url = self.settings.endpoint.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        url
    }

    /// Returns the address of a file at a commit.
    pub(super) fn file_url(&self, commit: &str, name: &str) -> Url {
        let parts = self.repository.id.split('/').chain(["resolve", commit]).chain(name.split('/'));
        self.url(&parts.collect::<Vec<_>>())
    }

    /// Requests a file or the list of files, from byte `start` on. The response is a success.
    pub(super) async fn get(&self, url: Url, start: u64, target: Target<'_>) -> Result<Response, HubError> {
        self.request(Method::GET, url, start, target).await
    }

    /// Requests the headers of a file. The response may be a redirect to another host, because the
    /// hub's own response has the headers that describe the file.
    pub(super) async fn head(&self, url: Url, target: Target<'_>) -> Result<Response, HubError> {
        self.request(Method::HEAD, url, 0, target).await
    }

    async fn request(
        &self,
        method: Method,
        mut url: Url,
        start: u64,
        target: Target<'_>,
    ) -> Result<Response, HubError> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.send(&method, &url, start).await?;
            if !response.status().is_redirection() {
                return self.checked(response, target).await;
            }
            let next = redirected(&url, response.headers())?;
            if method == Method::HEAD && !self.is_hub(&next) {
                return Ok(response);
            }
            url = next;
        }
        Err(HubError::Protocol(format!("{} redirects more than {MAX_REDIRECTS} times", shown(&url))))
    }

    /// Sends one request, and waits for the begin of its response.
    async fn send(&self, method: &Method, url: &Url, start: u64) -> Result<Response, HubError> {
        let mut request = self.http.request(method.clone(), url.clone());
        // Compressed bytes would have another length and could not be continued.
        request = request.header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if start > 0 {
            request = request.header(RANGE, format!("bytes={start}-"));
        }
        // The token is for the hub alone: other hosts get addresses that are already signed.
        if let Some(token) = self.settings.token.as_ref().and_then(|token| token.header())
            && self.is_hub(url)
        {
            request = request.header(AUTHORIZATION, token);
        }
        let limit = self.settings.response_timeout;
        let unreachable = |why: String| HubError::Connection { url: shown(url), why };
        match tokio::time::timeout(limit, request.send()).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(unreachable(chain(&error.without_url()))),
            Err(_) => Err(unreachable(format!("no response within {} s", limit.as_secs_f64()))),
        }
    }

    /// Returns whether an address belongs to the hub itself: scheme, host and port are the same.
    fn is_hub(&self, url: &Url) -> bool {
        url.origin() == self.settings.endpoint.origin()
    }

    /// Returns the response, or the error that its status stands for.
    async fn checked(&self, mut response: Response, target: Target<'_>) -> Result<Response, HubError> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let url = shown(response.url());
        let retry_after = retry_after(response.headers());
        let header = |name: &str| {
            response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        let (code, mut why) = (header("x-error-code"), header("x-error-message"));
        if why.is_empty() && is_short_text(response.headers()) {
            let body = tokio::time::timeout(self.settings.response_timeout, response.chunk()).await;
            why = body.ok().and_then(Result::ok).flatten().map(|text| readable(&text)).unwrap_or_default();
        }
        let why: String = why.chars().filter(|c| !c.is_control()).take(MAX_HUB_TEXT).collect();
        let is_hub = self.is_hub(response.url());
        Err(match status {
            StatusCode::TOO_MANY_REQUESTS => HubError::RateLimited { retry_after },
            StatusCode::REQUEST_TIMEOUT => HubError::Server { url, status: status.as_u16(), retry_after },
            _ if status.is_server_error() => HubError::Server { url, status: status.as_u16(), retry_after },
            // The signature of an address of another host may have expired. The hub makes a new
            // one.
            StatusCode::FORBIDDEN if code.is_empty() && !is_hub => {
                HubError::Server { url, status: status.as_u16(), retry_after }
            }
            _ => self.refusal(status, &code, why, url, target),
        })
    }

    /// Returns the error of a request that the hub refuses.
    fn refusal(
        &self,
        status: StatusCode,
        code: &str,
        why: String,
        url: String,
        target: Target<'_>,
    ) -> HubError {
        let Repository { id, revision } = self.repository.clone();
        let has_token = self.settings.token.is_some();
        let is_listing = matches!(target, Target::Listing);
        match (status, code) {
            (_, "GatedRepo") | (StatusCode::FORBIDDEN, "") => {
                let page = shown(&self.url(&id.split('/').collect::<Vec<_>>()));
                HubError::Gated { id, page, has_token, why }
            }
            (_, "RepoNotFound") => HubError::NoRepository { id, has_token },
            (_, "RevisionNotFound") => HubError::NoRevision { id, revision },
            // Without a token, the hub does not say whether a repository is private or absent.
            (StatusCode::UNAUTHORIZED, _) if has_token => HubError::Token { why },
            (StatusCode::UNAUTHORIZED, _) => HubError::NoRepository { id, has_token },
            (StatusCode::NOT_FOUND, _) if is_listing => HubError::NoRepository { id, has_token },
            (StatusCode::NOT_FOUND, _) => match target {
                Target::File(name) => HubError::NoFile { name: name.to_owned() },
                Target::Listing => HubError::NoRepository { id, has_token },
            },
            _ => HubError::Refused { url, status: status.as_u16(), why },
        }
    }
}

/// Returns the target of a redirect.
fn redirected(from: &Url, headers: &HeaderMap) -> Result<Url, HubError> {
    let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| from.join(location).ok());
    let next = next.filter(|next| matches!(next.scheme(), "http" | "https"));
    let next = next.ok_or_else(|| HubError::Protocol(format!("{} redirects to no address", shown(from))))?;
    if from.scheme() == "https" && next.scheme() == "http" {
        let (from, next) = (shown(from), shown(&next));
        return Err(HubError::Protocol(format!("{from} redirects to {next}, which is not encrypted")));
    }
    Ok(next)
}

/// Returns the pause that a response asks for, if it gives it in seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Returns whether the body of an error is worth reading.
fn is_short_text(headers: &HeaderMap) -> bool {
    let kind = headers.get(reqwest::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json") || kind.starts_with("text/plain"))
}

/// Returns the text of the hub in the body of an error, `{"error": "…"}` or plain text.
fn readable(body: &[u8]) -> String {
    let json: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let error = json.as_ref().and_then(|json| json.get("error")?.as_str());
    error.map_or_else(|| String::from_utf8_lossy(body).into_owned(), str::to_owned)
}

/// Returns an address for a message: without its query, which may contain a signature.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // These calls fail only for addresses without a host, which have no password either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.into()
}

/// Returns an error and its causes as text. The outer errors of the library say little.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
        next = cause.source();
    }
    texts.join(": ")
}
