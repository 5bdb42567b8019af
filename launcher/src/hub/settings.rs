//! The settings of the hub, from the variables that Python's `huggingface_hub` reads too.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_formats::regular_file;
use reqwest::Url;

/// The hub if `HF_ENDPOINT` names no other.
const ENDPOINT: &str = "https://huggingface.co";

/// The default of `HF_HUB_ETAG_TIMEOUT`: the longest time until a response begins.
const RESPONSE_TIMEOUT: f64 = 30.0;

/// The default of `HF_HUB_DOWNLOAD_TIMEOUT`: the longest time without a byte of a file.
const STALL_TIMEOUT: f64 = 30.0;

/// The default of the pause before the first retry, in seconds. Each further pause is twice as
/// long.
const RETRY_PAUSE: f64 = 1.0;

/// The largest file that is read as a token.
const MAX_TOKEN_FILE: u64 = 4096;

/// The settings of the hub.
#[derive(Debug, Clone)]
pub(crate) struct HubSettings {
    /// The address of the hub.
    pub(super) endpoint: Url,
    /// The access token, if there is one.
    pub(super) token: Option<Token>,
    /// Whether the network must not be used.
    pub(super) offline: bool,
    /// The folder of the cache.
    pub(super) cache: PathBuf,
    /// The longest time until a response begins.
    pub(super) response_timeout: Duration,
    /// The longest time without a byte of a body.
    pub(super) stall_timeout: Duration,
    /// The pause before the first retry.
    pub(super) retry_pause: Duration,
}

/// An access token. It is never printed.
#[derive(Clone)]
pub(super) struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Returns the value of the header `Authorization`, marked so that no library logs it.
    pub(super) fn header(&self) -> Option<reqwest::header::HeaderValue> {
        let mut value = reqwest::header::HeaderValue::try_from(format!("Bearer {}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl HubSettings {
    /// Reads the variables. `cache` is the folder that a flag gives.
    ///
    /// # Errors
    /// If a variable has no usable value, or there is no folder for the cache.
    pub(crate) fn from_environment(cache: Option<&PathBuf>) -> Result<HubSettings> {
        let endpoint = variable("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into());
        let cache = cache.cloned().or_else(cache_folder);
        let cache =
            cache.context("there is no folder for downloads; set HF_HOME or --huggingface-hub-cache")?;
        let (endpoint, token) = (parse_endpoint(&endpoint).context("HF_ENDPOINT")?, token()?);
        if token.is_some() && endpoint.scheme() == "http" && !is_loopback(&endpoint) {
            tracing::warn!("HF_ENDPOINT is not encrypted; others on the network can read the token");
        }
        Ok(HubSettings {
            endpoint,
            token,
            offline: is_offline(),
            cache: std::path::absolute(cache).context("the folder for downloads")?,
            response_timeout: seconds("HF_HUB_ETAG_TIMEOUT", RESPONSE_TIMEOUT)?,
            stall_timeout: seconds("HF_HUB_DOWNLOAD_TIMEOUT", STALL_TIMEOUT)?,
            // Only tests set this variable.
            retry_pause: seconds("MILLRACE_HUB_RETRY_PAUSE", RETRY_PAUSE)?,
        })
    }
}

/// Returns whether a variable forbids the network: `HF_HUB_OFFLINE`, or its older name in
/// transformers.
fn is_offline() -> bool {
    is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE")
}

/// Returns the folder of the Hugging Face cache if no flag gives it.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let path = |name: &str| variable(name).map(PathBuf::from);
    path("HUGGINGFACE_HUB_CACHE").or_else(|| path("HF_HUB_CACHE")).or_else(|| Some(home()?.join("hub")))
}

/// Returns the folder of everything that Hugging Face's programs keep.
fn home() -> Option<PathBuf> {
    let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
    path("HF_HOME").or_else(|| Some(cache?.join("huggingface")))
}

/// Returns the value of a variable, or `None` if it is absent or empty.
fn variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok()?.trim().to_owned();
    (!value.is_empty()).then_some(value)
}

fn is_set(name: &str) -> bool {
    variable(name).is_some_and(|value| ["1", "on", "yes", "true"].contains(&value.to_lowercase().as_str()))
}

fn seconds(name: &str, default: f64) -> Result<Duration> {
    let Some(text) = variable(name) else { return Ok(Duration::from_secs_f64(default)) };
    let seconds = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0 && *seconds <= 86_400.0);
    seconds
        .map(Duration::from_secs_f64)
        .with_context(|| format!("{name} {text}: give a number of seconds from 0 to 86400"))
}

fn parse_endpoint(text: &str) -> Result<Url> {
    let mut url = Url::parse(text).context("this is not an address such as https://huggingface.co")?;
    ensure!(matches!(url.scheme(), "http" | "https") && url.has_host(), "give an http or https address");
    ensure!(
        url.username().is_empty() && url.password().is_none(),
        "the address must not contain a password; HF_TOKEN is the place for a token"
    );
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

/// Returns whether an address is on this machine.
fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Returns the token of the first place that has one.
fn token() -> Result<Option<Token>> {
    if is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
        return Ok(None);
    }
    let named = variable("HF_TOKEN")
        .or_else(|| variable("HUGGING_FACE_HUB_TOKEN"))
        .or_else(|| variable("HF_API_TOKEN"));
    let text = match (named, variable("HF_TOKEN_PATH")) {
        (Some(text), _) => Some(text),
        (None, Some(path)) => {
            token_file(Path::new(&path)).with_context(|| format!("HF_TOKEN_PATH {path}"))?
        }
        // Whoever cannot read this file may still read public models.
        (None, None) => home().and_then(|home| token_file(&home.join("token")).ok().flatten()),
    };
    let Some(text) = text else { return Ok(None) };
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(is_plain, "the Hugging Face token has spaces or characters that no token has");
    Ok(Some(Token(text)))
}

/// Reads a token from a file. Returns `None` if the file does not exist or is empty.
fn token_file(path: &Path) -> Result<Option<String>> {
    let text = match regular_file::read_text(path, MAX_TOKEN_FILE) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context("this is not a file with a token"),
    };
    Ok((!text.is_empty()).then_some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_an_address_without_a_password() {
        for bad in ["huggingface.co", "ftp://x", "https://user:secret@mirror", "file:///x"] {
            assert!(parse_endpoint(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_endpoint("https://mirror/hub").unwrap().as_str(), "https://mirror/hub");
    }

    #[test]
    fn this_machine_needs_no_encryption() {
        let is_here = |text: &str| is_loopback(&parse_endpoint(text).unwrap());
        assert!(["http://127.0.0.1:80", "http://localhost", "http://[::1]:80"].into_iter().all(is_here));
        assert!(!["http://mirror", "http://10.0.0.1", "http://[fe80::1]"].into_iter().any(is_here));
    }

    #[test]
    fn a_token_is_not_printed() {
        let token = Token("hf_secret".into());
        assert!(!format!("{token:?} {:?}", token.header()).contains("secret"));
    }
}
