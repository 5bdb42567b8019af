//! A small HTTP client.

use std::io::{BufRead, BufReader};

use serde_json::Value;
use ureq::{Agent, Body, http::Response};

use crate::wait_limit;

fn agent() -> Agent {
    Agent::config_builder().http_status_as_error(false).timeout_global(Some(wait_limit())).build().into()
}

pub(crate) fn get(url: &str) -> (u16, String) {
    match agent().get(url).call() {
        Ok(mut response) => (response.status().as_u16(), response.body_mut().read_to_string().unwrap()),
        Err(_) => (0, String::new()),
    }
}

/// A complete response.
#[derive(Debug)]
pub struct JsonResponse {
    /// The HTTP status.
    pub status: u16,
    /// The body. A body that is not JSON becomes a JSON string.
    pub body: Value,
    headers: ureq::http::HeaderMap,
}

impl JsonResponse {
    /// Returns the value of a header, if present.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// Posts JSON and returns the status of the response, or 0 if there is none.
pub(crate) fn status_of_post(url: &str, body: &Value) -> u16 {
    let mut response = match agent().post(url).send_json(body) {
        Ok(response) => response,
        Err(_) => return 0,
    };
    match response.body_mut().read_to_string() {
        Ok(_) => response.status().as_u16(),
        Err(_) => 0,
    }
}

/// Posts JSON and reads the whole response.
pub fn post(url: &str, body: &Value) -> JsonResponse {
    post_with(url, &[], body)
}

/// Posts JSON with additional headers and reads the whole response.
pub fn post_with(url: &str, headers: &[(&str, &str)], body: &Value) -> JsonResponse {
    let mut request = agent().post(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut response = request.send_json(body).unwrap();
    let text = response.body_mut().read_to_string().unwrap();
    JsonResponse {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        body: serde_json::from_str(&text).unwrap_or(Value::String(text)),
    }
}

/// A stream of server-sent events. Dropping it closes the connection.
pub struct EventStream {
    /// The HTTP status.
    pub status: u16,
    lines: std::io::Lines<BufReader<ureq::BodyReader<'static>>>,
}

/// Posts JSON and reads the response as server-sent events.
pub fn stream(url: &str, body: &Value) -> EventStream {
    let response: Response<Body> = agent().post(url).send_json(body).unwrap();
    let status = response.status().as_u16();
    EventStream { status, lines: BufReader::new(response.into_body().into_reader()).lines() }
}

impl Iterator for EventStream {
    type Item = Value;

    /// Returns the JSON of the next event. The stream ends at `[DONE]` or with the connection.
    fn next(&mut self) -> Option<Value> {
        loop {
            let line = self.lines.next()?.unwrap();
            match line.strip_prefix("data: ") {
                Some("[DONE]") => return None,
                Some(json) => return Some(serde_json::from_str(json).unwrap()),
                None => {
                    let known = line.is_empty() || line.starts_with(':') || line.starts_with("event: ");
                    assert!(known, "not an event: {line}");
                }
            }
        }
    }
}
